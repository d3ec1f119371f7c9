"""Large answers: a few at a time are read and encoded, whoever reads them, on each wire."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from eventer_bridge import limits
from eventer_bridge.eventer.messages import MsgQueryReq, MsgQueryRes
from eventer_bridge.model import QueryTimeseriesParams
from mariner.gateway.gateway import Gateway
from tests.eventer_bridge.eventer import peers
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req
from tests.torture.attacks import eventer, wire

N_EVENTS: Final = 80
LARGE: Final = [["large"]]
CORE: Final = {
    "server_id": 1,
    "eventer_server": {"host": "127.0.0.1", "port": 0, "token": "insider"},
}

AskCb: TypeAlias = Callable[[], Awaitable[int]]
"""Asks for the large answer; gives the number of its events."""


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LARGE_ANSWERS", 1)


@contextlib.asynccontextmanager
async def gateway_with_events(path: Path) -> AsyncIterator[Gateway]:
    core = {**CORE, "backend": {"type": "rocksdb", "path": str(path)}}
    async with running_gateway(event_core=core) as gateway, asyncio.timeout(60):
        async with await RawPeer.init(gateway.mariner.port) as peer:
            for number in range(N_EVENTS):
                request = register_req(number, event("large", value="x" * 100_000))
                assert (await peer.request(request))["success"]
        yield gateway


@contextlib.asynccontextmanager
async def mariner_client(gateway: Gateway) -> AsyncIterator[AskCb]:
    async with await RawPeer.init(gateway.mariner.port) as peer:

        async def ask() -> int:
            answer: Any = await peer.request(wire.timeseries_req(1, LARGE))
            return len(answer["events"])

        yield ask


@contextlib.asynccontextmanager
async def eventer_client(gateway: Gateway) -> AsyncIterator[AskCb]:
    assert gateway.eventer_server is not None
    async with peers.initialised(gateway.eventer_server, token="insider") as peer:

        async def ask() -> int:
            params = QueryTimeseriesParams([("large",)])
            answer = await peer.request(MsgQueryReq(params), MsgQueryRes)
            return len(answer.result.events)

        yield ask


def deaf_mariner_client(gateway: Gateway) -> socket.socket:
    peer = wire.Peer(gateway.mariner.port, "app", token="secret")
    peer.send(wire.timeseries_req(1, LARGE))
    return peer.socket


def deaf_eventer_client(gateway: Gateway) -> socket.socket:
    assert gateway.eventer_server is not None
    component = eventer.Component(gateway.eventer_server.address.port)
    component.socket.sendall(eventer.timeseries_req(2, LARGE, newest=True, max_results=N_EVENTS))
    return component.socket


@pytest.mark.parametrize("client", [mariner_client, eventer_client])
async def test_all_are_answered(
    tmp_path: Path,
    client: Callable[[Gateway], contextlib.AbstractAsyncContextManager[AskCb]],
) -> None:
    async with gateway_with_events(tmp_path) as gateway, contextlib.AsyncExitStack() as stack:
        asks = [await stack.enter_async_context(client(gateway)) for _ in range(4)]
        for _ in range(2):
            assert await asyncio.gather(*(ask() for ask in asks)) == [N_EVENTS] * len(asks)


@pytest.mark.parametrize("deaf", [deaf_mariner_client, deaf_eventer_client])
async def test_who_does_not_read_holds_up_nobody(
    tmp_path: Path, deaf: Callable[[Gateway], socket.socket]
) -> None:
    async with gateway_with_events(tmp_path) as gateway:
        sockets = [await asyncio.to_thread(deaf, gateway) for _ in range(4)]
        async with mariner_client(gateway) as ask, eventer_client(gateway) as ask_eventer:
            for _ in range(2):
                assert await ask() == N_EVENTS
                assert await ask_eventer() == N_EVENTS
        for connection in sockets:
            connection.close()
