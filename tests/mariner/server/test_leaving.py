"""Clients that ask and leave, and what their queries cost others."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.slow_reading import SlowReading
from tests.support.waiting import until

QUERY: dict[str, Any] = {
    "msg_type": "query_req",
    "query_id": 1,
    "query_type": "timeseries",
    "order": "DESCENDING",
    "order_by": "TIMESTAMP",
}
SLOW: dict[str, Any] = {**QUERY, "max_results": SlowReading.MARK}


@pytest.mark.parametrize("leave", ["close", "abort"])
async def test_queries_end_when_their_client_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: str
) -> None:
    slow = SlowReading(monkeypatch)
    async with running_gateway(path=tmp_path / "store") as gateway:
        peers = [await RawPeer.init(gateway.mariner.port) for _ in range(5)]
        for peer in peers:
            for _ in range(3):
                peer.send(SLOW)
        await until(lambda: slow.n_under_way == len(peers))
        for peer in peers:
            if leave == "close":
                peer.writer.close()
            else:
                peer.writer.transport.abort()
        await until(lambda: not slow.n_under_way)
        await until(lambda: not gateway.mariner.stats.connections)
        assert slow.n_ended == len(peers)  # none of those that waited was begun


async def test_who_only_stops_sending_gets_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowReading(monkeypatch)
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        peer.send(SLOW)
        await until(lambda: slow.n_under_way)
        peer.writer.write_eof()
        for _ in range(2):  # as long as it takes
            assert (await peer.receive())["msg_type"] == "ping_req"
        slow.release.set()
        assert (await peer.receive_answer())["msg_type"] == "query_res"
        assert await peer.is_closed_by_server()


async def test_who_leaves_after_it_stopped_sending_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowReading(monkeypatch)
    async with running_gateway(path=tmp_path / "store") as gateway:
        peer = await RawPeer.init(gateway.mariner.port)
        peer.send(SLOW)
        await until(lambda: slow.n_under_way)
        peer.writer.write_eof()
        assert (await peer.receive())["msg_type"] == "ping_req"
        peer.writer.close()
        await until(lambda: not slow.n_under_way)


async def test_costly_queries_hold_back_neither_cheap_ones_nor_registrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowReading(monkeypatch)
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
        contextlib.AsyncExitStack() as stack,
    ):
        greedy = [
            await stack.enter_async_context(await RawPeer.init(gateway.mariner.port))
            for _ in range(5)
        ]
        for each in greedy:
            each.send(SLOW)
        await until(lambda: slow.n_under_way == len(greedy))
        assert (await peer.request(register_req(1, event("a"))))["success"]
        result = await peer.request({**QUERY, "event_types": [["a"]]})
        assert [i["type"] for i in result["events"]] == [["a"]]
        assert slow.n_under_way == len(greedy)
        slow.release.set()
        for each in greedy:
            assert (await each.receive())["msg_type"] == "query_res"
