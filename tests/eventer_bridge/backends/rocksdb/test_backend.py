"""The RocksDB backend: the contract, reopening, refusing, caching."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from eventer_bridge import limits, slices
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.base import Backend, HighWaterMark
from eventer_bridge.backends.rocksdb.group_commit import CommitObserver
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.paging import query_all
from eventer_bridge.errors import ClosedError, LimitError
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    Order,
    QueryLatestParams,
    QueryParams,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends.contract_keeping import KeepingContract
from tests.eventer_bridge.backends.oracle import Writer, answer, draft, numbered, seen
from tests.eventer_bridge.backends.putting import put, put_in_steps
from tests.eventer_bridge.backends.rocksdb.raw_rows import raw_rows

UPWARDS = QueryTimeseriesParams(order=Order.ASCENDING)


class TestRocksDb(KeepingContract):
    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[Backend]:
        backend = await rocksdb.create(tmp_path / "store")
        yield backend
        await backend.async_close()


@pytest.mark.parametrize("order", list(Order))
async def test_a_walk_that_finds_too_little_is_given_up_for_a_merge(
    tmp_path: Path, order: Order
) -> None:
    rare = [f"rare/{i}" for i in range(store_limits.FEW_MERGED_TYPES + 4)]
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        many = ["b", "c"] * 20
        for names in rare[:3], [rare[7], *many, rare[8]], rare[2:], [rare[9], *many], rare[:3]:
            await writer.session(*numbered(*names))
        params = QueryTimeseriesParams([("rare", "*")], order=order)
        found = (await backend.query(params)).events
        assert found == answer(writer.events, params)
        assert len(found) == 3 + 2 + len(rare[2:]) + 1 + 3
        for n, event in enumerate(found, 1):
            page = msgspec.structs.replace(params, max_results=2, last_event_id=event.id)
            result = await backend.query(page)
            assert result.events == found[n : n + 2]
            assert result.more_follows == (n + 2 < len(found))
        result = await backend.answer(seen(QueryServerParams(1), Subscription([("rare", "*")])))
        assert list(result.events) == sorted(found, key=lambda i: i.id)


@pytest.mark.parametrize(
    "params", [QueryTimeseriesParams(), QueryLatestParams(), QueryServerParams(1)]
)
async def test_large_answers_wait_for_each_other_and_small_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: QueryParams
) -> None:
    monkeypatch.setattr(limits, "MAX_LARGE_ANSWERS", 1)
    large = JsonPayload.of("x" * limits.LARGE_ANSWER_BYTES)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await writer.session(draft("small"), draft("large", payload=large), draft("tail"))
        with ExitStack() as holding:
            first = await backend.query(params, holding=holding)
            second = asyncio.ensure_future(backend.query(params))
            while backend.query_load.running < 2 and not second.done():
                await asyncio.sleep(0.001)
            for _ in range(20):
                small = await backend.query(QueryTimeseriesParams([("small",)]))
                assert len(small.events) == 1
            assert not second.done()
        assert await second == first
        assert sorted(i.id for i in first.events) == [i.id for i in writer.events]


async def test_nobody_waits_for_a_large_session_of_others(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await writer.session(*numbered("a"))
        await writer.session(*numbered("b"))
        steps = put_in_steps(backend, writer.make(*numbered(*["b"] * 3_000)))
        for _ in range(30):  # it has its place among the commits
            next(steps)
        behind = put(backend, writer.make(*numbered("a"), server=2))
        assert [i.id.server for i in (await backend.query(UPWARDS)).events] == [1, 1]
        assert not behind.done()
        large = slices.at_once(steps)
        await asyncio.gather(large, behind)
        assert len((await backend.query(UPWARDS)).events) == 3_003
        # who waits for what is under way waits for it, too
        at_end = slices.at_once(put_in_steps(backend, writer.make(*numbered(*["b"] * 3_000))))
        await backend.flush()
        assert at_end.done()


# reopening


async def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "store"
    async with await rocksdb.create(path) as backend:
        writer = Writer(backend)
        for n in range(50):
            put(backend, writer.make(*numbered("a", f"t{n}", "ž/?x"), server=n % 2))
        backend.reserve(0, 500)
    async with await rocksdb.create(path) as backend:
        writer.events.sort(key=lambda i: (i.timestamp, i.id))
        assert (await backend.query(UPWARDS)).events == writer.events
        assert len((await backend.query(QueryLatestParams())).events) == 52
        assert backend.high_water_mark(0) == HighWaterMark(500, Timestamp(25, 0))
        assert backend.high_water_mark(1) == HighWaterMark(25, Timestamp(25, 0))
        put(backend, writer.make(*numbered("t7", "new")))
        found = await backend.query(QueryTimeseriesParams([("t7",), ("new",)]))
        assert [i.id.session for i in found.events] == [26, 26, 4]
        assert backend.stats().event_types == 53
        assert backend.stats().size_bytes > 0


async def test_a_type_above_the_limit_fails_its_session_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_EVENT_TYPES", 2)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        with pytest.raises(LimitError):
            await writer.session(*numbered("a", "b", "c"))
        await writer.session(*numbered("a", "d"))
        assert (await backend.query(UPWARDS)).events == writer.events[3:]


async def test_quotas_hold_after_reopening(tmp_path: Path) -> None:
    quota = TypeQuota("client \u010d", 3)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await put(backend, writer.make(*numbered("a", "b")), quota, 2)
        await writer.session(*numbered("c"))
    async with await rocksdb.create(tmp_path) as backend:
        backend.check_types([("a",), ("c",), ("d",)], quota)
        with pytest.raises(LimitError, match="2 new event types, but 1 more"):
            backend.check_types([("d",), ("e",)], quota)
        events = writer.make(*numbered("d", "e"))
        with pytest.raises(LimitError):  # also unless it was checked before
            await put(backend, events, quota, 2)
        await put(backend, writer.make(*numbered("d")), quota, 1)
        with pytest.raises(LimitError):
            backend.check_types([("e",)], quota)


def observer(commits: list[float]) -> CommitObserver:
    """Notes the events of each commit."""
    return CommitObserver(commits.append, lambda seconds: None, lambda seconds: None)


async def test_commits_are_told(tmp_path: Path) -> None:
    commits: list[float] = []
    durations_s: list[float] = []
    syncs_s: list[float] = []
    both = CommitObserver(commits.append, durations_s.append, syncs_s.append)
    async with await rocksdb.create(tmp_path, both) as backend:
        writer = Writer(backend)
        for _ in range(100):
            put(backend, writer.make(*numbered("a", "b")))
        await backend.flush()
        # all of them were handed over before the loop went on: one group
        assert commits == [200]
        assert len(durations_s) == 1
        assert len(syncs_s) == 1
        assert durations_s[0] > syncs_s[0] > 0


async def test_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_GROUP_EVENTS", 10)
    commits: list[float] = []
    async with await rocksdb.create(tmp_path, observer(commits)) as backend:
        writer = Writer(backend)
        for size in 4, 4, 4, 15, 1, 9, 1:
            put(backend, writer.make(*numbered(*["a"] * size)))
        await backend.flush()
        assert commits == [8, 4, 15, 10, 1]
        assert (await backend.query(QueryServerParams(1))).events == writer.events


async def test_groups_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_GROUP_BYTES", 10_000)
    payload = JsonPayload.of("x" * 4_000)
    commits: list[float] = []
    async with await rocksdb.create(tmp_path, observer(commits)) as backend:
        writer = Writer(backend)
        for _ in range(7):
            put(backend, writer.make(draft("a", payload=payload)))
        await backend.flush()
        assert commits == [3, 3, 1]
        assert (await backend.query(QueryServerParams(1))).events == writer.events


@pytest.mark.parametrize("gathering_s", [3600.0, 0.0])
async def test_a_group_that_grows_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathering_s: float
) -> None:
    monkeypatch.setattr(limits, "MAX_GATHERING_S", gathering_s)
    monkeypatch.setattr(limits, "MAX_GROUP_EVENTS", 1 << 30)  # however long the first one takes
    commits: list[float] = []
    async with await rocksdb.create(tmp_path, observer(commits)) as backend:
        writer = Writer(backend)

        async def register() -> None:
            put(backend, writer.make(*numbered("a")))
            await asyncio.sleep(0)

        while not commits:
            await register()
        for _ in range(20):
            await register()
        await backend.flush()
        assert (len(commits) == 2) == (gathering_s > 0)
        assert sum(commits) == len(writer.events)
        assert [i async for i in query_all(backend.query, QueryServerParams(1))] == writer.events


@pytest.mark.parametrize(("n_at_once", "expected"), [(2, [6]), (1, [1, 4])])
async def test_the_first_group_is_waited_for_if_it_has_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_at_once: int, expected: list[int]
) -> None:
    """Who sends many takes several turns; who sends one waits for its answer."""
    monkeypatch.setattr(limits, "MAX_GATHERING_S", 3600.0)
    commits: list[float] = []
    async with await rocksdb.create(tmp_path, observer(commits)) as backend:
        writer = Writer(backend)
        for n_events in (n_at_once, 1, 1, 1, 1):
            for _ in range(n_events):
                put(backend, writer.make(*numbered("a")))
            await asyncio.sleep(0)
        await backend.flush()
        assert commits == expected


async def test_a_query_under_way_ends_when_the_backend_closes(tmp_path: Path) -> None:
    backend = await rocksdb.create(tmp_path)
    writer = Writer(backend)
    put(backend, writer.make(*numbered("a")))
    asked = asyncio.ensure_future(backend.query(UPWARDS))
    await asyncio.sleep(0)
    await backend.async_close()
    with pytest.raises(ClosedError):
        await asked
    with pytest.raises(ClosedError):
        backend.high_water_mark(1)
    with pytest.raises(ClosedError):
        backend.stats()


# latest events in memory


async def latest_of(backend: Backend, *names: str) -> list[EventId]:
    result = await backend.query(QueryLatestParams([(i,) for i in names]))
    return sorted(i.id for i in result.events)


async def test_latest_is_right_however_little_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LATEST_CACHE_TYPES", 2)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await writer.session(draft("a"), server=2, time=100)
        await writer.session(*numbered("b", "c", "d"), server=2, time=101)
        # a is forgotten by now; an older event of another server does not take its place
        await writer.session(draft("a"), server=1, time=50)
        assert await latest_of(backend, "a") == [EventId(2, 1, 1)]
        await writer.session(draft("a"), server=1, time=200)
        assert await latest_of(backend, "a", "b") == [EventId(1, 2, 1), EventId(2, 2, 1)]
    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(draft("b"), server=3, time=60)
        assert await latest_of(backend, "a", "b") == [EventId(1, 2, 1), EventId(2, 2, 1)]


@pytest.mark.parametrize("moments", [(2, 3), (3, 2)])
async def test_the_latest_of_a_commit_is_the_one_with_the_greatest_timestamp(
    tmp_path: Path, moments: tuple[int, int]
) -> None:
    def of(server: int, moment: int) -> list[Event]:
        return [Event(EventId(server, 1, 1), ("a",), Timestamp(moment, 0), None, None)]

    async with await rocksdb.create(tmp_path) as backend:
        await put(backend, of(1, 1))
        commits = {put(backend, of(i, j)) for i, j in enumerate(moments, 2)}
        assert len(commits) == 1
        await asyncio.wait(commits)
        [greatest] = (await backend.query(QueryLatestParams([("a",)]))).events
        assert greatest.timestamp == Timestamp(3, 0)


async def test_a_large_latest_event_is_left_to_the_store(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        large = JsonPayload.of("x" * limits.LATEST_CACHE_ROW_BYTES)
        await writer.session(draft("a"))
        for payload in large, JsonPayload.of("small"), large:
            await writer.session(draft("a", payload=payload))
            result = await backend.query(QueryLatestParams([("a",)]))
            assert result.events == writer.events[-1:]


async def test_counting_reads_no_payloads(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(*(draft(payload=JsonPayload.of(i)) for i in range(3)))
    with raw_rows(tmp_path) as rows:
        for key, _ in list(rows["event"].items()):
            rows["event"][key] = b""
    async with await rocksdb.create(tmp_path) as backend:
        counted = await backend.count_server(seen(QueryServerParams(1, True), None), "app")
        assert counted == (3, Timestamp(1, 0))
