"""A raw Mariner peer: frames over a socket, nothing checked, so that it can misbehave."""

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any, Self

import msgspec

from tests.support.waiting import TIMEOUT_S, within

INIT: dict[str, Any] = {
    "msg_type": "init_req",
    "client_name": "app",
    "client_token": "secret",
    "subscriptions": [],
    "server_id": None,
    "persisted": False,
}


class RawPeer:
    """One connection; messages are plain Python values."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, tls: ssl.SSLContext | None = None) -> Self:
        """Connect to 127.0.0.1 without saying anything yet."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))

    @classmethod
    async def init(cls, port: int, tls: ssl.SSLContext | None = None, **properties: Any) -> Self:
        """Connect and initialise successfully."""
        peer = await cls.connect(port, tls)
        try:
            peer.send({**INIT, **properties})
            response = await peer.receive()
            assert response["success"], response
        except BaseException:  # else it would be told of when a later test's loop is closed
            peer.writer.close()
            raise
        return peer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send(self, message: Any) -> None:
        """Send a message, or bytes as the body of one."""
        self.send_together([message])

    def send_together(self, messages: Iterable[Any]) -> None:
        """Send several messages, which come in one piece unless they are large."""
        bodies = (i if isinstance(i, bytes) else msgspec.json.encode(i) for i in messages)
        self.send_raw(b"".join(map(frame, bodies)))

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    async def receive(self) -> Any:
        """Next message; ``asyncio.IncompleteReadError`` if the server closed."""
        _, port, *_ = self.writer.get_extra_info("peername")
        async with within(f"the next message of port {port}", TIMEOUT_S):
            size = (await self.reader.readexactly(1))[0]
            length = int.from_bytes(await self.reader.readexactly(size), "big")
            return msgspec.json.decode(await self.reader.readexactly(length))

    async def receive_answer(self) -> Any:
        """Next message that is no ping: who sends no more is asked whether it is still there."""
        while (message := await self.receive())["msg_type"] == "ping_req":
            pass
        return message

    async def request(self, message: Any) -> Any:
        """Send a message and receive the next one."""
        self.send(message)
        return await self.receive()

    async def is_closed_by_server(self) -> bool:
        """Whether the server ends the connection without another message; waits for it."""
        try:
            async with within("the end of a connection", TIMEOUT_S):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True


def frame(body: bytes) -> bytes:
    """A body with its header (002, "Transport")."""
    size = max(1, (len(body).bit_length() + 7) // 8)
    return bytes([size]) + len(body).to_bytes(size, "big") + body


def event(*segments: str, value: Any = 1) -> dict[str, Any]:
    """A register event with a JSON payload."""
    payload = {"payload_type": "json", "data": value}
    return {"type": list(segments), "source_timestamp": None, "payload": payload}


def register_req(register_id: int, *events: dict[str, Any]) -> dict[str, Any]:
    """A registration."""
    return {
        "msg_type": "register_req",
        "register_id": register_id,
        "register_events": list(events),
    }
