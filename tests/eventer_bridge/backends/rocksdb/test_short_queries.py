"""Queries for few events of one type: answered on the event loop's thread if they are short."""

import asyncio
import threading
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.readers import Reading
from eventer_bridge.backends.rocksdb.query import StoreReader
from eventer_bridge.errors import StorageError
from eventer_bridge.model import (
    BinaryPayload,
    EventId,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryResult,
    QueryTimeseriesParams,
)
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends.oracle import Writer, answer, draft, seen

NEWEST: Final = QueryTimeseriesParams(event_types=[("a",)], max_results=100)

LOOP: Final = threading.main_thread().name


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads on which queries begin; none is handed on for its time."""
    monkeypatch.setattr(limits, "SHORT_QUERIES_S", 60.0)
    found: list[str] = []
    ext_timeseries = StoreReader.ext_timeseries

    def noting(*args: object) -> QueryResult:
        found.append(threading.current_thread().name)
        return ext_timeseries(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(StoreReader, "ext_timeseries", noting)
    return found


async def test_a_short_one_needs_no_other_thread(tmp_path: Path, threads: list[str]) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await writer.session(*(draft("ab"[i % 2]) for i in range(300)))
        result = await backend.query(NEWEST)
        assert list(result.events) == writer.events[-2::-2][:100]
        assert result.more_follows
        assert threads == [LOOP]


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("order_by", list(OrderBy))
async def test_each_kind_of_short_one_reads_what_it_needs(
    tmp_path: Path, threads: list[str], order: Order, order_by: OrderBy
) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for n in range(30):
            await writer.session(draft("a", n % 7), draft("b", n % 5))
        shared, other = writer.events[24], writer.events[25]
        plain = QueryTimeseriesParams(
            event_types=[("a",)], order=order, order_by=order_by, max_results=5
        )
        kinds: list[dict[str, Any]] = [
            {},
            {"t_from": shared.timestamp},
            {"t_to": shared.timestamp},
            {"source_t_from": shared.source_timestamp},
            {"source_t_to": shared.source_timestamp},
            {"last_event_id": shared.id},
            {"last_event_id": other.id},
            {"unique_type": True},
            {"max_results": 0},
        ]
        for some in kinds:
            params = msgspec.structs.replace(plain, **some)
            expected = answer(writer.events, params)
            assert (await backend.query(params)).events == expected
            hidden = await backend.answer(seen(params, Subscription([("b",)])))
            assert hidden == QueryResult([], False)
        assert set(threads) == {LOOP}


NOT_SHORT: Final = pytest.mark.parametrize(
    "params",
    [
        QueryTimeseriesParams(event_types=[("a",)]),
        QueryTimeseriesParams(event_types=[("a",)], max_results=limits.SHORT_QUERY_EVENTS + 1),
        QueryTimeseriesParams(event_types=[("a",), ("b",)], max_results=1),
        QueryTimeseriesParams(max_results=1),
        QueryTimeseriesParams(event_types=[("a",)], max_results=1, payload=BinaryPayload("t", b"")),
    ],
)


@NOT_SHORT
async def test_others_are_answered_by_a_reader(
    tmp_path: Path, threads: list[str], params: QueryTimeseriesParams
) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(draft("a"), draft("b"))
        await backend.query(params)
        assert threads == ["store-reader-1"]


async def test_a_short_one_is_answered_at_once(
    tmp_path: Path, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = QueryResult([], False)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(writer.session(*(draft("a") for _ in range(130))))
            await asyncio.sleep(0)
            # it is to find what is under way
            assert backend.answer_at_once(seen(NEWEST, None)) is None
        assert backend.answer_at_once(seen(NEWEST, None)) == await backend.query(NEWEST)
        latest = QueryLatestParams([("a",)])
        assert backend.answer_at_once(seen(latest, None)) == QueryResult(writer.events[-1:], False)
        other = msgspec.structs.replace(NEWEST, event_types=[("b",)])
        assert backend.answer_at_once(seen(other, None)) == nothing
        assert backend.answer_at_once(seen(NEWEST, Subscription([("b",)]))) == nothing
        assert set(threads) == {LOOP}
        monkeypatch.setattr(limits, "SHORT_QUERIES_S", 0.0)
        await asyncio.sleep(0)
        assert backend.answer_at_once(seen(NEWEST, None)) is None
        assert set(threads) == {LOOP}
    assert backend.answer_at_once(seen(NEWEST, None)) is None


@NOT_SHORT
async def test_others_are_not(
    tmp_path: Path, threads: list[str], params: QueryTimeseriesParams
) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await writer.session(draft("a"), draft("b"))
        assert backend.answer_at_once(seen(params, None)) is None
        by_id = msgspec.structs.replace(NEWEST, ids=[writer.events[0].id])
        assert backend.answer_at_once(seen(by_id, None)) is None
        by_wrong_id = QueryTimeseriesParams(event_types=[("c",)], ids=[EventId(1, 2**63, 1)])
        assert backend.answer_at_once(seen(by_wrong_id, None)) is None  # which is to be told
        assert threads == []


async def test_those_of_one_iteration_share_its_time(
    tmp_path: Path, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SHORT_QUERIES_S", 0.0)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await writer.session(*(draft("a") for _ in range(20)))
        results = await asyncio.gather(backend.query(NEWEST), backend.query(NEWEST))
        assert [list(i.events) for i in results] == [writer.events[::-1]] * 2
        assert len(threads) == 2
        assert LOOP not in threads
        threads.clear()
        monkeypatch.setattr(limits, "SHORT_QUERIES_S", 60.0)
        await asyncio.sleep(0)
        await backend.query(NEWEST)
        assert threads == [LOOP]


async def test_a_large_answer_waits_for_its_place_on_a_reader(
    tmp_path: Path, threads: list[str]
) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        large = BinaryPayload("t", bytes(limits.LARGE_ANSWER_BYTES))
        await writer.session(draft("a", payload=large))
        assert list((await backend.query(NEWEST)).events) == writer.events
        assert threads == [LOOP, "store-reader-1"]


async def test_its_time_is_counted(tmp_path: Path, threads: list[str]) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(draft("a"))
        with Reading() as reading:
            await backend.query(NEWEST, holding=reading)
        assert threads == [LOOP]
        assert 0 < reading.seconds < 60


async def test_what_fails_is_told_by_a_reader(
    tmp_path: Path, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(draft("a"))
        backend._types.names.clear()
        with pytest.raises(StorageError, match=r"is damaged: there is no type b'\\x00"):
            await backend.query(NEWEST)
        assert threads == [LOOP, "store-reader-1"]
