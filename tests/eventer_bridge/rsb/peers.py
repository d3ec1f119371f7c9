"""Peers for tests: a raw one that may misbehave, as participant and as the bus' server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, Self

from eventer_bridge.rsb import codec
from eventer_bridge.rsb.event import RsbEvent
from tests.support.waiting import within

TIMEOUT_S: Final = 60.0


class RawPeer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.decoder = codec.NotificationDecoder()

    @classmethod
    async def connect(cls, port: int) -> Self:
        """Connect to 127.0.0.1 and take the handshake."""
        peer = cls(*await asyncio.open_connection("127.0.0.1", port))
        assert await peer.reader.readexactly(4) == b"\0\0\0\0"
        return peer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send(self, *events: RsbEvent) -> None:
        """Send events in one write."""
        self.writer.write(b"".join(codec.encode_frame(codec.encode(i)) for i in events))

    async def receive(self) -> RsbEvent:
        """The next event."""
        return codec.decode(await self.receive_notification())

    async def receive_notification(self) -> bytes:
        """The next notification; ``asyncio.IncompleteReadError`` if the other side ended."""
        async with within("the next event of RSB"):
            size = int.from_bytes(await self.reader.readexactly(4), "little")
            return await self.reader.readexactly(size)

    async def is_ended(self) -> bool:
        """Whether the other side ends without another byte; waits for it."""
        try:
            async with within("the end of a connection"):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True


class RawServer:
    """A bus' server that says nothing by itself; one connection at a time is of interest."""

    def __init__(self, port: int, peers: "asyncio.Queue[RawPeer]") -> None:
        self.port = port
        self._peers = peers

    async def accept(self, handshake: bytes = b"\0\0\0\0") -> RawPeer:
        """The next connection, with the handshake written."""
        async with within("a connection to the bus"):
            peer = await self._peers.get()
        peer.writer.write(handshake)
        return peer


@contextlib.asynccontextmanager
async def raw_server(port: int = 0) -> AsyncIterator[RawServer]:
    """Run a :class:`RawServer`."""
    peers: asyncio.Queue[RawPeer] = asyncio.Queue()
    writers = []

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        peers.put_nowait(RawPeer(reader, writer))

    server = await asyncio.start_server(on_connection, "127.0.0.1", port)
    try:
        yield RawServer(server.sockets[0].getsockname()[1], peers)
    finally:
        server.close()
        for writer in writers:
            writer.close()
