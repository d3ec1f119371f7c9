"""Who sends very much at once is dealt with in turns: others do not wait for all of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import tls
from eventer_bridge.net import limits as net_limits
from mariner.server.connection import ClientConnection
from mariner.wire.messages import PingReq
from tests.support.certificates import make_certificates
from tests.support.inprocess import running_gateway
from tests.support.peer import INIT, RawPeer

COUNT = 5 * net_limits.TURN_MESSAGES  # 30 kB: they come in one piece


def pings(count: int) -> list[dict[str, Any]]:
    return [{"msg_type": "ping_req", "ping_id": i} for i in range(count)]


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids of the pings that were answered, in this order."""
    ids: list[int] = []
    handlers: dict[Any, Any] = ClientConnection._handlers
    answer = handlers[PingReq]

    def note(connection: ClientConnection, message: PingReq) -> None:
        ids.append(message.ping_id)
        answer(connection, message)

    monkeypatch.setitem(handlers, PingReq, note)
    return ids


async def test_a_flood_lets_others_go_first(answered: list[int]) -> None:
    async with (
        running_gateway() as gateway,
        await RawPeer.init(gateway.mariner.port) as flooder,
        await RawPeer.init(gateway.mariner.port) as other,
    ):
        flooder.send_together(pings(COUNT))
        other.send({"msg_type": "ping_req", "ping_id": -1})
        assert (await other.receive())["ping_id"] == -1
        assert [(await flooder.receive())["ping_id"] for _ in range(COUNT)] == list(range(COUNT))
        assert answered.index(-1) < COUNT
        assert len(answered) == COUNT + 1


async def test_floods_take_turns(answered: list[int]) -> None:
    async with (
        running_gateway() as gateway,
        await RawPeer.init(gateway.mariner.port) as one,
        await RawPeer.init(gateway.mariner.port) as two,
    ):
        one.send_together(pings(COUNT))
        two.send_together(pings(COUNT))
        for peer in (one, two):
            assert [(await peer.receive())["ping_id"] for _ in range(COUNT)] == list(range(COUNT))
    assert answered.index(COUNT - 1) >= COUNT  # neither was done before the other began


async def test_a_full_read_lets_others_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "FULL_READ_BYTES", 1_000)
    is_read_on: list[bool] = []  # after a full read
    receive = ClientConnection.data_received

    def note(connection: ClientConnection, data: bytes) -> None:
        receive(connection, data)
        if len(data) >= 1_000:
            is_read_on.append(connection._transport.is_reading())

    monkeypatch.setattr(ClientConnection, "data_received", note)
    async with running_gateway() as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        for n in range(3):
            peer.send(b'{"msg_type":"ping_req","ping_id":%d%s}' % (n, b" " * 1_000))
            assert (await peer.receive())["ping_id"] == n  # goes on by itself
    assert is_read_on == [False] * 3


async def test_who_stops_sending_after_a_flood_is_answered() -> None:
    async with (
        running_gateway() as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        peer.send_together(pings(COUNT))
        peer.writer.write_eof()
        ids = [(await peer.receive_answer())["ping_id"] for _ in range(COUNT)]
        assert ids == list(range(COUNT))
        assert await peer.is_closed_by_server()


async def test_over_tls_what_came_before_the_end_is_heard(
    tmp_path: Path, answered: list[int]
) -> None:
    made = make_certificates(tmp_path)
    server_tls = {"cert": str(made.server_cert), "key": str(made.server_key)}
    listens = {"host": "127.0.0.1", "port": 0, "tls": server_tls}
    async with running_gateway(mariner=listens) as gateway:
        peer = await RawPeer.connect(gateway.mariner.port, tls.client_context(made.ca))
        assert (await peer.request(INIT))["success"]
        peer.send_together(pings(COUNT))
        peer.writer.close()
        while gateway.mariner.stats.connections:
            await asyncio.sleep(0.005)
    assert answered == list(range(COUNT))
