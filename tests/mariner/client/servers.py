"""Servers that the client connects to: ours, hat-mariner-server, and some that misbehave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from eventer_bridge.model import JsonPayload, RegisterEvent
from mariner import client
from tests.support.gateway import gateway
from tests.support.hat_peers import CLIENTS, hat_gateway
from tests.support.peer import RawPeer

READER: Final = {
    "name": "reader",
    "token": "reads",
    "subscriptions": [["*"]],
    "register_events": [],
}

INIT_RES: Final = {"msg_type": "init_res", "success": True, "status": "OPERATIONAL"}

MIB: Final = 1 << 20


class Server(NamedTuple):
    host: str
    port: int
    is_ours: bool

    async def connect(self, name: str = "app", **options: Any) -> client.Client:
        options = {"client_token": "secret", **options}
        return await client.connect(self.host, self.port, client_name=name, **options)


@contextlib.asynccontextmanager
async def running(kind: str, directory: Path) -> AsyncIterator[Server]:
    clients = [*CLIENTS, READER]
    if kind == "hat":
        async with hat_gateway(directory, clients=clients) as theirs:
            yield Server(theirs.host, theirs.mariner_port, False)
    else:
        async with gateway(directory, clients=clients) as ours:
            yield Server(ours.host, ours.port, True)


def register_event(*event_type: str, value: Any = None) -> RegisterEvent:
    return RegisterEvent(event_type, None, JsonPayload.of(value))


class ScriptedPeer(RawPeer):
    """The server's end of a connection, without manners."""

    async def accept(self) -> None:
        assert (await self.receive())["msg_type"] == "init_req"
        self.send(INIT_RES)


@contextlib.asynccontextmanager
async def scripted(script: Callable[[ScriptedPeer], Awaitable[None]]) -> AsyncIterator[Server]:
    """A server that does for each connection what it is told, then closes it."""

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await script(ScriptedPeer(reader, writer))
        finally:
            writer.close()

    listener = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    async with listener:
        yield Server("127.0.0.1", listener.sockets[0].getsockname()[1], False)


async def same_page(peer: ScriptedPeer) -> None:
    """Answer every query with the same page, and that more follows."""
    await peer.accept()
    ids = [{"server": 1, "session": i, "instance": 1} for i in (1, 2)]
    rest = {"type": ["a"], "source_timestamp": None, "payload": None}
    page = [{"id": i, "timestamp": {"s": i["session"], "us": 0}, **rest} for i in ids]
    while True:
        query = await peer.receive()
        if query["msg_type"] == "query_req":
            answer = {"query_id": query["query_id"], "events": page, "more_follows": True}
            peer.send({"msg_type": "query_res", **answer})


async def closed_by_client(peer: ScriptedPeer) -> None:
    await peer.reader.read()
