"""Queries of a client: what takes little is answered at once, and all keep their order."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits as core_limits
from eventer_bridge.backends.rocksdb.query import QueryRunner
from eventer_bridge.core.client_service import ClientService
from eventer_bridge.core.engine import Engine
from eventer_bridge.net import limits as net_limits
from tests.eventer_bridge.backends.faults import being_synced, held_sync
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req

ALL = {
    "msg_type": "query_req",
    "query_type": "timeseries",
    "order": "DESCENDING",
    "order_by": "TIMESTAMP",
}


def newest(query_id: int, n_events: int = 1) -> dict[str, Any]:
    return {**ALL, "query_id": query_id, "event_types": [["a"]], "max_results": n_events}


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what servers began a task for."""
    monkeypatch.setattr(core_limits, "SHORT_QUERIES_S", 60.0)
    found: list[str] = []
    spawn = ClientService.spawn

    def note(self: ClientService, work: Any) -> Any:
        found.append(work.__name__)
        return spawn(self, work)

    monkeypatch.setattr(ClientService, "spawn", note)
    return found


async def test_short_ones_need_no_task(tmp_path: Path, tasks: list[str]) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        for i in range(3):
            await peer.request(register_req(i, event("a", value=i)))
        peer.send_together(newest(i, 1 + i % 3) for i in range(20))
        for i in range(20):
            answer = await peer.receive()
            assert answer["query_id"] == i
            values = [j["payload"]["data"] for j in answer["events"]]
            assert values == [2, 1, 0][: 1 + i % 3]
            assert answer["more_follows"] is (i % 3 < 2)
        assert tasks == []


async def test_others_before_them_are_answered_before_them(
    tmp_path: Path, tasks: list[str]
) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        await peer.request(register_req(1, event("a")))
        long = [{**ALL, "query_id": i} for i in range(30)]
        peer.send_together(long[i] if i % 7 == 3 else newest(i) for i in range(30))
        assert [(await peer.receive())["query_id"] for _ in range(30)] == [*range(30)]
        assert set(tasks) == {"_answer_queries"}


async def test_they_find_what_the_client_registered_before(
    tmp_path: Path, tasks: list[str]
) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        backend = gateway.backend
        with held_sync() as may_sync:
            peer.send_together([register_req(1, event("a", value="x")), newest(1)])
            await being_synced(backend)
            may_sync.release(1_000)
            assert (await peer.receive())["success"]
            [found] = (await peer.receive())["events"]
        assert found["payload"]["data"] == "x"
        assert tasks == ["_answer_queries"]


async def test_they_find_a_large_registration_before_them(tmp_path: Path, tasks: list[str]) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        names = [f"t{i}" for i in range(core_limits.MANY_NEW_TYPES)]
        peer.send_together([register_req(1, *map(event, (*names, "a"))), newest(1)])
        answers = [await peer.receive_answer() for _ in range(2)]
        events = {i["msg_type"]: i["events"] for i in answers}
        assert events["query_res"] == events["register_res"][-1:]
        assert tasks == ["_answer_queries"]


async def test_they_find_it_behind_a_repeated_one(tmp_path: Path) -> None:
    """Which has ended, while the one before it has not."""
    repeated = {**register_req(1, event("b")), "request_key": "k"}
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        await peer.request(repeated)
        await peer.request(register_req(2, event("a", value="old")))
        names = [f"t{i}" for i in range(core_limits.MANY_NEW_TYPES + 1)]
        large = register_req(3, *map(event, names), event("a", value="new"))
        peer.send_together([large, repeated, newest(1)])
        answers = [await peer.receive_answer() for _ in range(3)]
        [found] = [i["events"] for i in answers if i["msg_type"] == "query_res"]
        assert [i["payload"]["data"] for i in found] == ["new"]
        assert [i.get("repeated", False) for i in answers if "success" in i] == [False, True]


async def test_one_that_takes_too_long_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    answer_short = QueryRunner._answer_short

    def note(self: QueryRunner, *args: Any) -> Any:
        tried.append(args)
        return answer_short(self, *args)

    monkeypatch.setattr(QueryRunner, "_answer_short", note)
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        await peer.request(register_req(1, event("a")))
        monkeypatch.setattr(core_limits, "SHORT_QUERIES_S", 0.0)
        for i in range(3):
            assert len((await peer.request(newest(i)))["events"]) == 1
            assert len(tried) == i + 1


async def test_answers_that_are_read_late_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    monkeypatch.setattr(net_limits, "SEND_HIGH_WATER_BYTES", 1_000)
    n_queries = 2 * core_limits.MAX_QUERIES_WAITING
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        for i in range(2):
            value = "x" * 60_000
            assert (await peer.request(register_req(i, event("a", value=value))))["success"]
        stats = gateway.mariner.stats
        n_before = stats.bytes_out
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.send_together(newest(i, 1 + i % 2) for i in range(n_queries))
        while stats.bytes_out - n_before < 400_000:
            await asyncio.sleep(0)
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answers = [await peer.receive_answer() for _ in range(n_queries)]
        assert [i["query_id"] for i in answers] == [*range(n_queries)]
        assert [len(i["events"]) for i in answers] == [1, 2] * (n_queries // 2)


async def test_one_that_raises_closes_its_client_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as other,
    ):
        async with await RawPeer.init(gateway.mariner.port) as peer:
            with monkeypatch.context() as patch:

                def fail(*_: object) -> None:
                    raise ValueError("a bug")

                patch.setattr(Engine, "answer_at_once", fail)
                peer.send(newest(1))
                assert await peer.is_closed_by_server()
        assert (await other.request(newest(2)))["query_id"] == 2
