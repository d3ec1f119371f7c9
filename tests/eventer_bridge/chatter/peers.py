"""Peers for tests: ours with a queue of what came, and a raw one that may misbehave."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Self

from eventer_bridge import chatter
from eventer_bridge.chatter.codec import Dialect, Msg, encode
from eventer_bridge.net.framing import encode_frame
from tests.eventer_bridge.chatter.samples import hat_decode
from tests.support.waiting import within

ANY: Final = chatter.parse_address("tcp+sbs://127.0.0.1:0")


class Recorder(chatter.Handler):
    """Keeps what comes; answers only if told."""

    def __init__(self, connection: chatter.Connection) -> None:
        self.connection = connection
        self.messages: asyncio.Queue[chatter.Message] = asyncio.Queue()
        self.timeouts: asyncio.Queue[chatter.Conversation] = asyncio.Queue()
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_message(self, message: chatter.Message) -> None:
        self.messages.put_nowait(message)

    def on_timeout(self, conversation: chatter.Conversation) -> None:
        self.timeouts.put_nowait(conversation)

    def on_closed(self, reason: str) -> None:
        self.closed.set_result(reason)

    async def ask(self, data: bytes = b"what") -> bytes:
        asked = self.connection.send("Test.MsgAsk", data, last=False)
        async with within("an answer to Test.MsgAsk"):
            message = await self.messages.get()
        assert message.conversation is asked
        return message.data


class Echo(Recorder):
    """Answers what wants an answer with what came."""

    def on_message(self, message: chatter.Message) -> None:
        super().on_message(message)
        if message.conversation.may_send:
            self.connection.send("Test.MsgEcho", message.data, conversation=message.conversation)


class Listening:
    """A listener and the handlers of its connections, in their order."""

    def __init__(self, handler_type: Callable[[chatter.Connection], Any]) -> None:
        self.handlers: asyncio.Queue[Any] = asyncio.Queue()
        self._handler_type = handler_type
        self.listener: chatter.Listener

    @property
    def address(self) -> chatter.Address:
        return self.listener.address

    def make(self, connection: chatter.Connection) -> chatter.Handler:
        handler: chatter.Handler = self._handler_type(connection)
        self.handlers.put_nowait(handler)
        return handler


@contextlib.asynccontextmanager
async def listening(
    handler_type: Callable[[chatter.Connection], Any] = Recorder,
    address: chatter.Address = ANY,
    **arguments: Any,
) -> AsyncIterator[Listening]:
    it = Listening(handler_type)
    async with await chatter.listen(address, it.make, **arguments) as it.listener:
        yield it


@contextlib.asynccontextmanager
async def connected(address: chatter.Address, **arguments: Any) -> AsyncIterator[Recorder]:
    connection, handler = await chatter.connect(address, Recorder, **arguments)
    async with connection:
        yield handler


class RawPeer:
    """Frames over a socket, nothing checked."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        dialect: Dialect = Dialect.CURRENT,
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.dialect = dialect

    @classmethod
    async def connect(
        cls, address: chatter.Address, *, receive_buffer_bytes: int | None = None
    ) -> Self:
        raw = socket.socket()
        if receive_buffer_bytes is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (address.host, address.port))
        return cls(*await asyncio.open_connection(sock=raw))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send(self, *msgs: Msg) -> None:
        self.writer.write(b"".join(encode_frame(encode(i, self.dialect)) for i in msgs))

    async def receive(self) -> Msg:
        async with within("the next message of chatter"):
            size = (await self.reader.readexactly(1))[0]
            length = int.from_bytes(await self.reader.readexactly(size), "big")
            return hat_decode(await self.reader.readexactly(length), self.dialect)

    async def is_closed_by_peer(self) -> bool:
        """Whether the connection ends without another byte; waits for it."""
        try:
            async with within("the end of a connection"):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True
