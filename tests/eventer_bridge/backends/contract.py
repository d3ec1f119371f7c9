"""What ``backends/base.py`` promises of every backend, also of one that keeps nothing.

Every backend's test file subclasses this suite, or :class:`KeepingContract`
(``contract_keeping``), which has it and what those that keep events promise on top.
"""

import asyncio
import gc
from functools import partial
from typing import Final

import pytest

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend, HighWaterMark
from eventer_bridge.errors import ClosedError, InvalidSubscriptionError, LimitError
from eventer_bridge.model import (
    EventId,
    QueryLatestParams,
    QueryParams,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from eventer_bridge.slices import at_once
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends.oracle import Writer, draft, seen
from tests.eventer_bridge.backends.putting import put, put_in_steps

QUERIES: Final[tuple[QueryParams, ...]] = (
    QueryLatestParams(),
    QueryLatestParams([("a",), ("?", "*")]),
    QueryTimeseriesParams(),
    QueryTimeseriesParams([("a",)], max_results=5, last_event_id=EventId(1, 1, 1)),
    QueryServerParams(1),
    QueryServerParams(1, persisted=True, max_results=5, last_event_id=EventId(1, 1, 1)),
)


class BackendContract:
    """Subclasses give the fixture ``backend``, which is empty."""

    @pytest.fixture
    def writer(self, backend: Backend) -> Writer:
        return Writer(backend)

    # marks and reservations

    async def test_a_new_backend_has_no_marks(self, backend: Backend) -> None:
        assert backend.high_water_mark(1) == HighWaterMark(0, None)

    async def test_the_mark_is_what_was_stored_last(self, backend: Backend, writer: Writer) -> None:
        await writer.session(draft(), time=Timestamp(5, 7))
        await writer.session(draft(), draft(), time=Timestamp(5, 8))
        await writer.session(draft(), server=2, time=Timestamp(3, 0))
        assert backend.high_water_mark(1) == HighWaterMark(2, Timestamp(5, 8))
        assert backend.high_water_mark(2) == HighWaterMark(1, Timestamp(3, 0))
        assert backend.high_water_mark(3) == HighWaterMark(0, None)

    async def test_the_mark_is_at_least_what_is_reserved(
        self, backend: Backend, writer: Writer
    ) -> None:
        await backend.reserve(1, 100)
        assert backend.high_water_mark(1) == HighWaterMark(100, None)
        await writer.session(draft(), time=1)
        assert backend.high_water_mark(1) == HighWaterMark(100, Timestamp(1, 0))
        assert backend.high_water_mark(2).session == 0

    async def test_a_later_reservation_replaces_one(self, backend: Backend, writer: Writer) -> None:
        await writer.session(draft())
        await writer.session(draft())
        for session, expected in (100, 100), (50, 50), (1, 2), (60, 60):
            await backend.reserve(1, session)
            assert backend.high_water_mark(1).session == expected
        both = backend.reserve(1, 90), backend.reserve(1, 80)
        await asyncio.gather(*both)
        assert backend.high_water_mark(1).session == 80

    async def test_another_history_goes_on_far_above(
        self, backend: Backend, writer: Writer
    ) -> None:
        await writer.session(draft(), time=Timestamp(5, 7))
        await backend.note_whole()
        assert backend.is_whole
        before = backend.history_id
        await backend.begin_history(1)
        assert backend.history_id != before
        assert backend.is_whole is not backend.is_keeping
        assert backend.high_water_mark(1).session > 10**9
        assert backend.high_water_mark(1).timestamp == Timestamp(5, 7)
        assert backend.last_session(1) == HighWaterMark(1, Timestamp(5, 7))
        await backend.flush()

    # registering

    async def test_sessions_are_done_in_the_order_of_the_calls(
        self, backend: Backend, writer: Writer
    ) -> None:
        done: list[int] = []
        futures = []
        for n in range(200):
            future = put(backend, writer.make(draft(f"t{n % 7}")))
            future.add_done_callback(partial(lambda n, _: done.append(n), n))
            futures.append(future)
        await backend.flush()
        await asyncio.gather(*futures)
        assert done == list(range(200))

    async def test_a_large_session_has_its_place_in_the_order(
        self, backend: Backend, writer: Writer
    ) -> None:
        done: list[str] = []
        await writer.session(draft("t0"), draft("t2999"), server=2)
        steps = put_in_steps(backend, writer.make(*[draft(f"t{n}") for n in range(3_000)]))
        next(steps)
        other = put(backend, writer.make(draft("t0"), draft("t2999"), server=2))
        other.add_done_callback(lambda _: done.append("other"))
        large = at_once(steps)
        large.add_done_callback(lambda _: done.append("large"))
        await asyncio.gather(large, other)
        await backend.flush()
        assert sorted(done) == ["large", "other"]
        assert backend.high_water_mark(1).session == 1
        assert backend.high_water_mark(2).session == 2

    async def test_who_gives_up_waiting_does_not_disturb_others(
        self, backend: Backend, writer: Writer
    ) -> None:
        future = put(backend, writer.make(draft()))
        impatient = [
            asyncio.ensure_future(backend.flush()),
            asyncio.ensure_future(backend.query(QueryTimeseriesParams())),
        ]
        await asyncio.sleep(0)
        for task in impatient:
            task.cancel()
        await future
        assert backend.high_water_mark(1).session == 1

    async def test_flush_waits_for_everything(self, backend: Backend, writer: Writer) -> None:
        await backend.flush()
        futures = [put(backend, writer.make(draft(f"t{n}"))) for n in range(50)]
        futures.append(backend.reserve(1, 100))
        await backend.flush()
        assert all(i.done() and i.exception() is None for i in futures)
        await backend.flush()

    async def test_flush_waits_for_callbacks_too(self, backend: Backend, writer: Writer) -> None:
        for _ in range(20):
            told: list[asyncio.Future[None]] = []
            future = put(backend, writer.make(draft()))
            future.add_done_callback(told.append)
            while not future.done():
                await asyncio.sleep(0)
            await backend.flush()
            assert told == [future]

    async def test_types_that_are_few_pass(self, backend: Backend, writer: Writer) -> None:
        backend.check_types([])
        backend.check_types([("a",), (), ("a", "b")])
        await writer.session(draft("a"))
        backend.check_types([("a",), ("c",)])

    async def test_what_works_tells_no_failure(self, backend: Backend, writer: Writer) -> None:
        told: list[None] = []
        handle = backend.failure_cbs.register(lambda: told.append(None))
        await writer.session(draft())
        assert backend.failure is None
        assert told == []
        handle.cancel()

    # asking

    @pytest.mark.parametrize("query", QUERIES, ids=repr)
    @pytest.mark.parametrize("rights", [None, Subscription([("a", "*")]), Subscription([])])
    async def test_nothing_is_found_where_nothing_is(
        self, backend: Backend, query: QueryParams, rights: Subscription | None
    ) -> None:
        result = await backend.answer(seen(query, rights))
        assert (list(result.events), result.more_follows) == ([], False)
        stats = backend.stats()
        assert (stats.events, stats.event_types) == (0, 0)

    @pytest.mark.parametrize(
        "query", [QueryTimeseriesParams([("*", "a")]), QueryLatestParams([("b",), ("*", "a")])]
    )
    async def test_a_wrong_event_type_is_refused(
        self, backend: Backend, query: QueryParams
    ) -> None:
        with pytest.raises(InvalidSubscriptionError, match="'\\*' is allowed only as the last"):
            await backend.query(query)

    async def test_too_many_ids_are_refused(self, backend: Backend) -> None:
        too_many = [EventId(1, 1, i) for i in range(limits.MAX_QUERY_IDS + 1)]
        with pytest.raises(LimitError, match=r"^4097 ids in one query, at most 4096 are allowed$"):
            await backend.query(QueryTimeseriesParams(ids=too_many))

    # closing

    async def test_a_closed_backend_refuses(
        self, backend: Backend, writer: Writer, recwarn: pytest.WarningsRecorder
    ) -> None:
        await writer.session(draft())
        await backend.async_close()
        assert backend.is_closed
        with pytest.raises(ClosedError):
            await put(backend, writer.make(draft()))
        with pytest.raises(ClosedError):
            await backend.reserve(1, 5)
        for query in QUERIES:
            with pytest.raises(ClosedError):
                await backend.query(query)
        with pytest.raises(ClosedError):
            backend.high_water_mark(1)
        with pytest.raises(ClosedError):
            backend.stats()
        await backend.flush()
        await backend.async_close()

    async def test_nobody_has_to_wait_for_a_refusal(self, backend: Backend, writer: Writer) -> None:
        unheard: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unheard.append(context))
        await backend.async_close()
        put(backend, writer.make(draft()))
        backend.reserve(1, 1)
        gc.collect()
        assert unheard == []

    async def test_closing_commits_what_was_accepted(
        self, backend: Backend, writer: Writer
    ) -> None:
        futures = [put(backend, writer.make(draft("a"))) for _ in range(100)]
        futures.append(backend.reserve(1, 1000))
        await backend.async_close()
        assert all(i.done() and i.exception() is None for i in futures)
