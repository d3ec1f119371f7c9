"""A Mariner client that shares nothing with the product: frames, JSON, and what a test needs.

A frame is how many bytes its length has, the length, big-endian, and that many bytes of JSON
(specification 002).
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

HOST: Final = "127.0.0.1"
NAME: Final = "app"
TOKEN: Final = "secret"

SMALL_BUFFER_BYTES: Final = 8 << 10
"""Of a socket, and of what was received, of who reads slowly: the server soon has to wait."""

Message: TypeAlias = dict[str, Any]
EventId: TypeAlias = tuple[int, int, int]
"""Server, session and instance."""


class LostError(Exception):
    """The connection was refused, is lost, or did not answer in time; the text says which."""


class DeclinedError(Exception):
    """The server does not let the client in; the text is its reason."""


def id_of(value: Message) -> EventId:
    """An id, from its JSON."""
    return value["server"], value["session"], value["instance"]


def as_json(event_id: EventId) -> Message:
    """An id as JSON has it."""
    return dict(zip(("server", "session", "instance"), event_id, strict=True))


class Connection:
    """A connection. Made by :func:`connect`.

    Attributes:
        status: of the server, as told last.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status = ""
        self._reader = reader
        self._writer = writer

    async def send(self, message: Message, patience_s: float) -> None:
        """Send a message; waits for room.

        Raises:
            LostError: it is lost, or there is no room in time.
        """
        if self._writer.is_closing():
            raise LostError("lost")
        content = json.dumps(message).encode()
        length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
        self._writer.write(bytes([len(length)]) + length + content)
        await self._in_time(self._writer.drain(), patience_s)

    async def receive(self, patience_s: float) -> Message:
        """The next message.

        Raises:
            LostError: it is lost, or nothing comes in time.
        """
        message: Message = await self._in_time(self._read(), patience_s)
        if message["msg_type"] in {"status", "init_res"} and "status" in message:
            self.status = message["status"]
        return message

    async def _read(self) -> Message:
        (n_bytes,) = await self._reader.readexactly(1)
        n_bytes = int.from_bytes(await self._reader.readexactly(n_bytes), "big")
        message: Message = json.loads(await self._reader.readexactly(n_bytes))
        return message

    async def _in_time(self, waiting: Any, patience_s: float) -> Any:
        try:
            async with asyncio.timeout(patience_s):  # wait_for may lose a cancellation
                return await waiting
        except TimeoutError:
            raise LostError(f"nothing within {patience_s:.1f} s") from None
        except (OSError, asyncio.IncompleteReadError) as e:
            raise LostError(f"lost: {e!r}") from None

    def close(self) -> None:
        """End it; what was sent to it and not read is lost."""
        if not self._writer.is_closing():
            self._writer.transport.abort()

    async def wait_closed(self) -> None:
        """Wait until it has ended."""
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def connect(
    port: int, patience_s: float, *, is_slow: bool = False, **init: Any
) -> Connection:
    """Connect, and be let in.

    Args:
        port: where, on this machine.
        patience_s: for each step.
        is_slow: whether little is received before it is read.
        init: of ``init_req``, what differs from one that subscribes to nothing.

    Raises:
        LostError: there is no connection, or no answer in time.
        DeclinedError: the server says no.
    """
    end = socket.socket()
    end.setblocking(False)
    if is_slow:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    try:
        async with asyncio.timeout(patience_s):
            await asyncio.get_running_loop().sock_connect(end, (HOST, port))
        buffer_bytes = SMALL_BUFFER_BYTES if is_slow else 1 << 16
        streams = await asyncio.open_connection(sock=end, limit=buffer_bytes)
    except BaseException as e:
        end.close()
        if isinstance(e, OSError):  # as is TimeoutError
            raise LostError(f"not connected: {e!r}") from None
        raise
    connection = Connection(*streams)
    request = {
        "msg_type": "init_req",
        "client_name": NAME,
        "client_token": TOKEN,
        "subscriptions": [],
        "server_id": None,
        "persisted": True,
        **init,
    }
    try:
        await connection.send(request, patience_s)
        answer = await connection.receive(patience_s)
        if answer["msg_type"] != "init_res" or not answer["success"]:
            raise DeclinedError(answer.get("error", str(answer)))
    except BaseException:
        connection.close()
        raise
    return connection


async def read_server(
    port: int, server: int, patience_s: float, last: EventId | None
) -> AsyncIterator[list[Message]]:
    """The events of a server that are stored, by pages.

    Args:
        port: where.
        server: of which server.
        patience_s: as of :func:`connect`.
        last: behind which event; None: all.

    Raises:
        LostError, DeclinedError: they could not be read.
    """
    connection = await connect(port, patience_s)
    try:
        while True:
            query = {"msg_type": "query_req", "query_id": 1, "query_type": "server"}
            query |= {"server_id": server, "persisted": True, "max_results": 4_000}
            if last is not None:
                query["last_event_id"] = as_json(last)
            await connection.send(query, patience_s)
            while (answer := await connection.receive(patience_s))["msg_type"] != "query_res":
                pass
            yield answer["events"]
            if not answer["more_follows"]:
                return
            last = id_of(answer["events"][-1]["id"])
    finally:
        connection.close()
