"""What connections hold for their peers is bounded over all of them, on each wire."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from eventer_bridge import limits as core_limits
from eventer_bridge.net import limits
from mariner.gateway.gateway import Gateway
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req
from tests.torture.attacks import eventer, rsb, wire
from tests.torture.attacks.attack import Target

MAX_BYTES: Final = 1 << 20
HALF_BYTES: Final = 400_000
CORE: Final = {
    "server_id": 1,
    "backend": {"type": "memory"},
    "eventer_server": {"host": "127.0.0.1", "port": 0, "token": "insider"},
    "rsb": {"host": "127.0.0.1", "port": 0, "mode": "server"},
}


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_limits, "MAX_MEMORY_BYTES", MAX_BYTES)


def target(gateway: Gateway) -> Target:
    assert gateway.eventer_server is not None
    assert gateway.rsb is not None
    eventer_port = gateway.eventer_server.address.port
    return Target(gateway.mariner.port, eventer_port, gateway.rsb.port or 0, 0, 1)


def mariner_half(to: Target) -> socket.socket:
    peer = wire.Peer(to.mariner, "app", token="secret")
    peer.socket.sendall(wire.frame(b" " * HALF_BYTES)[:-1])
    return peer.socket


def eventer_half(to: Target) -> socket.socket:
    component = eventer.Component(to.eventer)
    component.socket.sendall(wire.frame(b" " * HALF_BYTES)[:-1])
    return component.socket


def rsb_half(to: Target) -> socket.socket:
    connection = rsb.connect(to)
    connection.sendall(rsb.frame(b" " * HALF_BYTES)[:-1])
    return connection


def closed(gateway: Gateway) -> Counter[str]:
    assert gateway.eventer_server is not None
    assert gateway.rsb is not None
    parts = gateway.mariner, gateway.eventer_server, gateway.rsb
    return sum((part.stats.closed for part in parts), Counter())


@pytest.mark.parametrize("half", [mariner_half, eventer_half, rsb_half])
async def test_half_frames(half: Callable[[Target], socket.socket]) -> None:
    async with running_gateway(event_core=CORE) as gateway, asyncio.timeout(60):
        sockets = [await asyncio.to_thread(half, target(gateway)) for _ in range(3)]
        while closed(gateway)["too much is buffered"] < 1:
            await asyncio.sleep(0.005)
        # everybody else goes on, also with what is large
        async with await RawPeer.init(gateway.mariner.port) as peer:
            large = event("large", value="x" * 50_000)
            assert (await peer.request(register_req(1, large)))["success"]
        assert closed(gateway)["too much is buffered"] == 1
        for connection in sockets:
            connection.close()


@pytest.mark.parametrize("wire_name", ["mariner", "eventer", "rsb"])
async def test_what_is_not_read_counts_below_the_high_water_mark(
    wire_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEND_HIGH_WATER_BYTES", 1 << 30)
    monkeypatch.setattr(limits, "SEND_HIGH_WATER_BYTES", 1 << 30)
    async with running_gateway(event_core=CORE) as gateway, asyncio.timeout(60):
        async with await RawPeer.init(gateway.mariner.port) as peer:
            for number in range(60):
                request = register_req(number, event("large", value="x" * 100_000))
                assert (await peer.request(request))["success"]
            deaf = await asyncio.to_thread(DEAF[wire_name], gateway)
            while closed(gateway)["too much is buffered"] < 1:
                await asyncio.sleep(0.005)
            ping: dict[str, Any] = {"msg_type": "ping_req", "ping_id": 1}
            assert (await peer.request(ping))["msg_type"] == "ping_res"
        for connection in deaf:
            connection.close()


async def test_answers_that_are_not_read() -> None:
    async with running_gateway(event_core=CORE) as gateway, asyncio.timeout(60):
        async with await RawPeer.init(gateway.mariner.port) as peer:
            for number in range(60):
                request = register_req(number, event("large", value="x" * 100_000))
                assert (await peer.request(request))["success"]
            deaf = [await asyncio.to_thread(_deaf, gateway) for _ in range(2)]
            while closed(gateway)["too much is buffered"] < 2:
                await asyncio.sleep(0.005)
            ping: dict[str, Any] = {"msg_type": "ping_req", "ping_id": 1}
            assert (await peer.request(ping))["msg_type"] == "ping_res"
        for connection in deaf:
            connection.close()


def _deaf(gateway: Gateway) -> socket.socket:
    peer = wire.Peer(gateway.mariner.port, "app", token="secret")
    peer.send(wire.timeseries_req(1, [["large"]]))
    return peer.socket


def _deaf_component(gateway: Gateway) -> socket.socket:
    component = eventer.Component(target(gateway).eventer)
    query = eventer.timeseries_req(2, [["large"]], newest=True, max_results=60)
    component.socket.sendall(query)
    return component.socket


def _deaf_participant(gateway: Gateway) -> tuple[socket.socket, socket.socket]:
    deaf, sender = rsb.connect(target(gateway)), rsb.connect(target(gateway))
    for number in range(60):
        sender.sendall(rsb.notification(number, "/large/", b"x" * 100_000))
    return deaf, sender


DEAF: Final[dict[str, Callable[[Gateway], Sequence[socket.socket]]]] = {
    "mariner": lambda gateway: [_deaf(gateway)],
    "eventer": lambda gateway: [_deaf_component(gateway)],
    "rsb": _deaf_participant,
}
