"""What retention promises; both backends' tests subclass this suite."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from eventer_bridge import limits
from eventer_bridge.backends.base import NO_WAY_ON, Backend
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
    natural_key,
)
from eventer_bridge.subscription import EVERYTHING, Subscription
from tests.eventer_bridge.backends.oracle import (
    Writer,
    answer,
    draft,
    event_bytes,
    matches,
    numbered,
)
from tests.eventer_bridge.backends.putting import put

Opened = AbstractAsyncContextManager[Backend]


class Open(Protocol):
    """Opens a backend with rules."""

    def __call__(self, *rules: RetentionRule, clock: PassedTime) -> Opened: ...


class TestClock(PassedTime):
    """Time that passes by hand, and knows how often it was looked at.

    Attributes:
        at: what a clock says that never jumped.
        n_looks: see there.
    """

    __test__ = False

    def __init__(self, s: float = 0) -> None:
        super().__init__()
        self.at = Timestamp.from_float(s)
        self.n_looks = 0

    def before(self, seconds: float | None) -> Timestamp | None:
        self.n_looks += 1
        if seconds is None:
            return None
        return Timestamp.from_float(self.at.to_float() - seconds)


def rule(
    *query_types: str,
    min_entries: int = 0,
    max_entries: int | None = None,
    duration: float | None = None,
    size: int | None = None,
) -> RetentionRule:
    """A rule; its query types are given as ``a/?``."""
    subscriptions = tuple(tuple(i.split("/")) for i in query_types)
    return RetentionRule(subscriptions, min_entries, max_entries, duration, size)


def kept(events: Iterable[Event], rules: Sequence[RetentionRule], now: Timestamp) -> list[Event]:
    """What the rules leave, found the naive way: in natural order."""
    ordered = sorted(events, key=natural_key)
    latest = {event.type: event for event in ordered}
    gone: set[EventId] = set()
    owner = {t: next((i for i in rules if matches(i.subscriptions, t)), None) for t in latest}
    for each in rules:
        mine = [event for event in ordered if owner[event.type] is each]
        n_events, n_bytes = len(mine), sum(map(event_bytes, mine))
        for event in mine:
            if latest[event.type] is event:
                continue
            age = now.to_float() - event.timestamp.to_float()
            is_too_much = (
                (each.max_entries is not None and n_events > each.max_entries)
                or (each.size_bytes is not None and n_bytes > each.size_bytes)
                or (each.duration_s is not None and age > each.duration_s)
            )
            if n_events <= each.min_entries or not is_too_much:
                break
            gone.add(event.id)
            n_events -= 1
            n_bytes -= event_bytes(event)
    return [event for event in ordered if event.id not in gone]


async def everything(backend: Backend) -> list[Event]:
    """All events, upwards."""
    return list((await backend.query(QueryTimeseriesParams(order=Order.ASCENDING))).events)


async def settled(backend: Backend, clock: TestClock) -> list[Event]:
    """All events, once retention has looked often and found nothing more to delete."""
    before = None
    while before != (now := await everything(backend)):
        before, n_looks = now, clock.n_looks
        while clock.n_looks < n_looks + 20:
            await asyncio.sleep(0.001)
    return now


async def check_all_queries(backend: Backend, events: list[Event]) -> None:
    """Every kind of query answers as if there had never been other events."""
    types = sorted({event.type for event in events})
    queries: list[QueryParams] = [
        QueryTimeseriesParams(),
        QueryTimeseriesParams(order_by=OrderBy.SOURCE_TIMESTAMP),
        *(QueryTimeseriesParams([i]) for i in types),
        *(QueryTimeseriesParams([i], order_by=OrderBy.SOURCE_TIMESTAMP) for i in types),
        *(QueryServerParams(i) for i in {event.id.server for event in events}),
    ]
    for query in queries:
        result = await backend.query(query)
        assert list(result.events) == answer(events, query)
        assert not result.more_follows
    latest = QueryLatestParams()
    found = sorted((await backend.query(latest)).events, key=natural_key)
    assert found == answer(events, latest)
    assert backend.stats().event_types == len(types)


async def check_missing(backend: Backend, registered: Sequence[Event], left: list[Event]) -> None:
    """A server query tells what is missing behind an event, of the types that may be seen."""
    gone = {i.id: i.type for i in registered} | dict.fromkeys((i.id for i in left), ())
    types = sorted({event.type for event in registered})
    for rights in [EVERYTHING, *(Subscription([i]) for i in types)]:
        for last in [None, *(i.id for i in registered[:: max(1, len(registered) // 20)])]:
            server = registered[0].id.server if last is None else last.server
            missing = [
                i
                for i, event_type in gone.items()
                if i.server == server and rights.matches(event_type) and event_type
                if last is None or i > last
            ]
            params = QueryServerParams(server, True, 1, last)
            result = await backend.answer(VisibleQuery(params, rights))
            assert result.deleted == max(missing, default=None)
            known = VisibleQuery(params, rights, result.n_deletions)
            assert (await backend.answer(known)).deleted is None
            assert result.n_deletions == backend.n_deletions()


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look all the time, in small steps."""
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.001)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.001)
    monkeypatch.setattr(limits, "RETENTION_BATCH_EVENTS", 5)
    monkeypatch.setattr(limits, "RETENTION_RANGE_ROWS", 2)
    monkeypatch.setattr(limits, "RETENTION_CPU_SHARE", 1.0)
    monkeypatch.setattr(limits, "RETENTION_IDLE_SHARE", 1.0)


@pytest.mark.usefixtures("hurry")
class RetentionContract:
    """Subclasses give the fixture ``open_backend``."""

    @pytest.mark.parametrize(
        "rules",
        [
            [rule("*", max_entries=7)],
            [rule("*", max_entries=0)],
            [rule("*", duration=10)],
            [rule("*", duration=0)],
            [rule("*", size=1000)],
            [rule("*", size=0)],
            [rule("*", min_entries=3)],
            [rule("*", min_entries=30, duration=5)],
            [rule("*", min_entries=30, max_entries=10)],
            [rule("*", min_entries=30, size=0)],
            [rule("*", max_entries=35, duration=12)],
            [rule("*", min_entries=5, max_entries=40, duration=12.5, size=1500)],
            [rule("a", max_entries=1)],
            [rule("?", max_entries=4)],
            [rule("a", "b/?", max_entries=10)],
            [rule("a", max_entries=5), rule("*", max_entries=12)],
            [rule("*", max_entries=30), rule("a", max_entries=1)],
            [rule("b/*", duration=3), rule("b/x", "a", size=400), rule("c", min_entries=1)],
            [rule("none", max_entries=0)],
        ],
        ids=str,
    )
    async def test_limits(self, open_backend: Open, rules: list[RetentionRule]) -> None:
        clock = TestClock(25)
        async with open_backend(*rules, clock=clock) as backend:
            writer = Writer(backend)
            for n in range(20):  # none of them waits, so that all are there at the first look
                source = None if n % 3 else 100 - n
                payload = JsonPayload.of("x" * (n % 4))
                put(
                    backend,
                    writer.make(draft("a", source, payload), draft("b/x"), draft(f"b/{n % 3}", n)),
                )
                put(backend, writer.make(draft("c", payload=payload), server=2, time=n + 1))
            expected = kept(writer.events, rules, clock.at)
            assert await settled(backend, clock) == expected
            await check_all_queries(backend, expected)
            await check_missing(backend, writer.events, expected)

    async def test_what_was_deleted_since_is_told(self, open_backend: Open) -> None:
        clock = TestClock(10)
        rules = [rule("a", duration=5), rule("b", duration=9)]
        async with open_backend(*rules, clock=clock) as backend:
            writer = Writer(backend)
            for _ in range(10):
                await writer.session(draft("a"), draft("b"))
            first = writer.events[0].id

            async def missing(rights: Subscription, n_deletions: int = 0) -> QueryResult:
                params = QueryServerParams(1, True, 0, first)
                return await backend.answer(VisibleQuery(params, rights, n_deletions))

            only_b = Subscription([("b",)])
            await settled(backend, clock)
            before = await missing(EVERYTHING)
            assert before.deleted == writer.events[6].id  # an a
            clock.at = Timestamp(12, 0)
            await settled(backend, clock)
            assert (await missing(EVERYTHING, before.n_deletions)).deleted == writer.events[10].id
            # before what was told, but it was not deleted then
            assert (await missing(only_b, before.n_deletions)).deleted == writer.events[3].id
            # whole sessions
            assert backend.may_be_deleted(writer.events[3].id)
            assert not backend.may_be_deleted(writer.events[4].id)

    async def test_what_never_came_is_missing(self, open_backend: Open) -> None:
        async with open_backend(clock=TestClock()) as backend:
            writer = Writer(backend)
            missing = EventId(2, 5, 3)
            backend.note_missing(missing)
            [event] = await writer.session(draft("a"), server=2, time=1)
            for last, deleted in (None, missing), (EventId(2, 5, 2), missing), (missing, None):
                query = VisibleQuery(QueryServerParams(2, True, 9, last), Subscription([("b",)]))
                assert (await backend.answer(query)).deleted == deleted
            of_another = VisibleQuery(QueryServerParams(1, True), EVERYTHING)
            assert (await backend.answer(of_another)).deleted is None
            assert event.id.server == 2

    async def test_limits_hold_while_events_come(self, open_backend: Open) -> None:
        rules = [rule("a/?", max_entries=10), rule("*", min_entries=4, duration=20)]
        clock = TestClock()
        async with open_backend(*rules, clock=clock) as backend:
            writer = Writer(backend)
            for n in range(60):
                clock.at = Timestamp(n, 0)
                # types appear later, too
                await writer.session(draft(f"a/{n // 20}"), draft("b"), draft(f"c/{n // 30}"))
                if n % 20 == 19:
                    expected = kept(writer.events, rules, clock.at)
                    assert await settled(backend, clock) == expected
                    await check_all_queries(backend, expected)

    async def test_the_latest_of_every_type_stays(self, open_backend: Open) -> None:
        clock = TestClock(1000)
        async with open_backend(rule("*", max_entries=2), clock=clock) as backend:
            writer = Writer(backend)
            names = [f"t{n}" for n in range(9)]
            await writer.session(*numbered(*names))
            await writer.session(*numbered(*names))
            await writer.session(*numbered("t3"))
            expected = [*writer.events[9:12], *writer.events[13:]]
            assert await settled(backend, clock) == sorted(expected, key=natural_key)
            await check_all_queries(backend, sorted(expected, key=natural_key))

    async def test_marks_stay(self, open_backend: Open) -> None:
        clock = TestClock(1000)
        async with open_backend(rule("*", max_entries=0), clock=clock) as backend:
            writer = Writer(backend)
            for n in range(1, 8):
                await writer.session(draft("a"), draft("b"), server=2, time=n)
            await writer.session(draft("a"), draft("b"), server=1, time=50)
            assert {i.id.server for i in await settled(backend, clock)} == {1}
            assert not (await backend.query(QueryServerParams(2))).events
            assert backend.servers() == [1, 2]  # there were events of it
            mark = backend.high_water_mark(2)
            assert mark == (7, Timestamp(7, 0))
            await backend.reserve(2, 3)
            assert backend.high_water_mark(2) == mark
            await writer.session(draft("a"), server=2, time=60)
            assert backend.high_water_mark(2) == (8, Timestamp(60, 0))
            await backend.reserve(2, 8)

    async def test_a_page_after_a_deleted_event_is_empty(self, open_backend: Open) -> None:
        clock = TestClock()
        async with open_backend(rule("*", duration=5), clock=clock) as backend:
            writer = Writer(backend)
            for _ in range(10):
                await writer.session(draft("a"))
            last = writer.events[2].id
            upwards = QueryTimeseriesParams(order=Order.ASCENDING, last_event_id=last)
            assert (await backend.query(upwards)).events == writer.events[3:]
            clock.at = Timestamp(10, 0)
            assert await settled(backend, clock) == writer.events[4:]
            assert not (await backend.query(upwards)).events
            server = QueryServerParams(1, last_event_id=last)
            assert (await backend.query(server)).events == writer.events[4:]

    async def test_latest_cannot_go_on_behind_a_deleted_event(self, open_backend: Open) -> None:
        clock = TestClock(1000)
        async with open_backend(rule("*", max_entries=2), clock=clock) as backend:
            writer = Writer(backend)
            [a, b] = await writer.session(draft("a"), draft("b"))
            behind_a = QueryLatestParams(None, a.id)
            assert (await backend.query(behind_a)).events == [b]
            await writer.session(draft("a"))
            assert await settled(backend, clock) == writer.events[1:]
            assert await backend.query(behind_a) == NO_WAY_ON

    async def test_progress_is_logged(
        self,
        open_backend: Open,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(limits, "RETENTION_LOG_S", 0)
        clock = TestClock(100)
        with caplog.at_level("INFO", logger="eventer_bridge.backends"):
            async with open_backend(rule("*", max_entries=2), clock=clock) as backend:
                writer = Writer(backend)
                for _ in range(12):
                    put(backend, writer.make(draft("a")))
                await settled(backend, clock)
        lines = [i for i in caplog.records if i.name == "eventer_bridge.backends.retention"]
        texts = [line.message for line in lines]
        assert texts[0] == "retention begins to delete"
        assert set(texts[1:-1]) == {"retention is deleting"}
        assert texts[-1] == "retention has deleted"
        assert vars(lines[-1])["events"] == 10
        assert vars(lines[-1])["size_bytes"] == 10 * event_bytes(writer.events[0])
        assert vars(lines[-1])["seconds"] >= 0

    async def test_queries_go_on_meanwhile(self, open_backend: Open) -> None:
        clock = TestClock()
        async with open_backend(rule("*", duration=50), clock=clock) as backend:
            writer = Writer(backend)
            for n in range(400):
                put(backend, writer.make(draft("a", n), draft("b", -n)))
            await backend.flush()
            clock.at = Timestamp(450, 0)
            n_answers = 0
            while len(found := await everything(backend)) > 2:
                assert found == writer.events[-len(found) :]
                await asyncio.sleep(0)  # queries of the memory backend never wait
                for query in (
                    QueryTimeseriesParams([("a",)], order_by=OrderBy.SOURCE_TIMESTAMP),
                    QueryServerParams(1),
                    QueryLatestParams(),
                ):
                    events = list((await backend.query(query)).events)
                    n_answers += 1
                    if isinstance(query, QueryLatestParams):
                        assert len(events) == 2
                    else:
                        oldest = min(events, key=natural_key)
                        rest = [i for i in writer.events if natural_key(i) >= natural_key(oldest)]
                        assert events == answer(rest, query)
            assert n_answers > 0
