"""All events of a query: what comes between its pages leaves out nothing, or is told."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.core.paging import query_all, query_pages
from eventer_bridge.errors import RemoteProtocolError
from eventer_bridge.model import (
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from tests.eventer_bridge.backends.contract_retention import (
    TestClock,
    hurry,  # noqa: F401
    rule,
    settled,
)
from tests.eventer_bridge.backends.oracle import Writer, draft, numbered

ASCENDING = QueryTimeseriesParams(order=Order.ASCENDING, max_results=4)


def recorded(backend: Backend, asked: list[QueryParams]) -> Callable[..., Awaitable[QueryResult]]:
    async def query(params: QueryParams) -> QueryResult:
        asked.append(params)
        return await backend.query(params)

    return query


async def test_latest_goes_on_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LATEST_RESULTS", 3)
    asked: list[QueryParams] = []
    async with await rocksdb.create_temporary() as backend:
        events = await Writer(backend).session(*numbered(*"abcdefgh"))
        query = recorded(backend, asked)
        for limit, n_queries in (None, 3), (8, 3), (7, 3), (6, 2), (1, 1), (0, 0):
            asked.clear()
            found = [i async for i in query_all(query, QueryLatestParams(), limit)]
            assert found == events[:limit]
            assert len(asked) == n_queries


async def test_a_server_that_does_not_know_how_to_go_on_with_the_latest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_LATEST_RESULTS", 3)
    async with await rocksdb.create_temporary() as backend:
        writer = Writer(backend)
        events = await writer.session(*numbered(*"abcdefgh"))

        async def query_as_before(params: QueryParams) -> QueryResult:
            assert isinstance(params, QueryLatestParams)
            result: QueryResult = await backend.query(QueryLatestParams(params.event_types))
            return result

        pages = query_pages(query_as_before, QueryLatestParams())
        assert await anext(pages) == events[:3]
        await writer.session(draft("c"), draft("d"))
        with pytest.raises(RemoteProtocolError, match="server cannot continue it"):
            await anext(pages)


@pytest.mark.usefixtures("hurry")
async def test_latest_behind_a_deleted_event_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LATEST_RESULTS", 2)
    clock = TestClock()
    async with await rocksdb.create_temporary([rule("*", max_entries=4)], clock) as backend:
        writer = Writer(backend)
        await writer.session(*numbered(*"abcd"))
        pages = query_pages(backend.query, QueryLatestParams())
        assert len(await anext(pages)) == 2
        await writer.session(draft("b"))
        assert len(await settled(backend, clock)) == 4
        with pytest.raises(RemoteProtocolError, match="more events should follow event 1/1/2"):
            await anext(pages)


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("order", list(Order))
async def test_a_timeseries_goes_on_where_retention_deleted_its_last_event(order: Order) -> None:
    clock = TestClock()
    async with await rocksdb.create_temporary([rule("a", duration=100)], clock) as backend:
        writer = Writer(backend)
        # sessions larger than a page, so that many events have one timestamp
        for _ in range(4):
            await writer.session(*[draft("ab"[n % 2]) for n in range(10)])
        params = QueryTimeseriesParams(order=order, max_results=3)
        pages = query_pages(backend.query, params)
        found = [*(await anext(pages)), *(await anext(pages)), *(await anext(pages))]
        while found[-1].type != ("a",):
            found += await anext(pages)
        clock.at = Timestamp(1_000, 0)
        kept = await settled(backend, clock)
        assert found[-1] not in kept
        expected = [i for i in kept if i not in found]
        async for page in pages:
            found += page
        assert [i for i in found if i in expected] == (
            expected if order is Order.ASCENDING else expected[::-1]
        )
        assert len(set(found)) == len(found)


@pytest.mark.usefixtures("hurry")
async def test_that_a_timeseries_is_not_whole_is_told() -> None:
    clock = TestClock()
    async with await rocksdb.create_temporary([rule("a", duration=100)], clock) as backend:
        writer = Writer(backend)
        await writer.session(*[draft("a", n) for n in range(9)], draft("b", 100))
        params = msgspec.structs.replace(ASCENDING, order_by=OrderBy.SOURCE_TIMESTAMP)
        pages = query_pages(backend.query, params)
        await anext(pages)
        clock.at = Timestamp(1_000, 0)
        assert len(await settled(backend, clock)) == 2
        with pytest.raises(RemoteProtocolError, match="more events should follow event 1/1/4"):
            await anext(pages)


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize(
    ("params", "n_found"),
    [(QueryTimeseriesParams(max_results=4), 4), (QueryServerParams(1, max_results=4), 6)],
)
async def test_the_rest_may_be_gone_meanwhile(params: QueryParams, n_found: int) -> None:
    clock = TestClock()
    async with await rocksdb.create_temporary([rule("*", duration=100)], clock) as backend:
        writer = Writer(backend)
        for _ in range(9):
            await writer.session(draft("a"))
        await writer.session(draft("b"))
        pages = query_pages(backend.query, params)
        found = [*(await anext(pages))]
        clock.at = Timestamp(1_000, 0)
        assert await settled(backend, clock) == writer.events[-2:]
        async for page in pages:
            found += page
        assert len(found) == n_found


async def test_unique_types_are_those_of_the_first_page() -> None:
    async with await rocksdb.create_temporary() as backend:
        writer = Writer(backend)
        events = await writer.session(*numbered(*"abcdefghi"))
        params = QueryTimeseriesParams(unique_type=True, max_results=4)
        pages = query_pages(backend.query, params)
        found = [*(await anext(pages))]
        # behind which the next page would begin
        await writer.session(draft("/".join(found[-1].type)))
        async for page in pages:
            found += page
        assert found == events[::-1]


@pytest.mark.parametrize("n_pages", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "params",
    [
        QueryLatestParams(),
        QueryServerParams(1),
        QueryTimeseriesParams(),
        ASCENDING,
        msgspec.structs.replace(ASCENDING, order_by=OrderBy.SOURCE_TIMESTAMP),
    ],
)
@pytest.mark.parametrize("has_one_timestamp", [False, True])
async def test_a_server_that_sends_the_same_pages_again(
    params: QueryParams, n_pages: int, has_one_timestamp: bool
) -> None:
    n_asked = 0
    async with await rocksdb.create_temporary() as backend:
        writer = Writer(backend)
        if has_one_timestamp:
            await writer.session(*numbered(*"abcdefghijklmn"))
        else:
            for event_type in "abcdefghijklmn":
                await writer.session(draft(event_type))
        whole = [i async for i in query_all(backend.query, params)]
    pages = [whole[2 * i : 2 * i + 2] for i in range(n_pages)]

    async def query(params: QueryParams) -> QueryResult:
        nonlocal n_asked
        n_asked += 1
        assert n_asked <= 4 * n_pages + 1
        return QueryResult(pages[(n_asked - 1) % n_pages], True)

    found = query_pages(query, params)
    assert [await anext(found) for _ in range(n_pages)] == pages
    with pytest.raises(RemoteProtocolError, match=r"without progress|cannot continue it"):
        async for _ in found:
            pass


async def test_a_server_that_always_sends_the_newest_events() -> None:
    async with await rocksdb.create_temporary() as backend:
        writer = Writer(backend)
        await writer.session(*numbered(*"abc"))

        async def newest(params: QueryParams) -> QueryResult:
            await writer.session(draft("d"))
            result = await backend.query(QueryTimeseriesParams(max_results=2))
            return QueryResult(result.events, True)

        pages = query_pages(newest, QueryTimeseriesParams(max_results=2))
        await anext(pages)
        with pytest.raises(RemoteProtocolError, match=r"event 1/3/1 comes again, or after later"):
            await anext(pages)


async def test_a_server_that_ends_and_begins_again() -> None:
    async with await rocksdb.create_temporary() as backend:
        writer = Writer(backend)
        events = [*await writer.session(draft("a")), *await writer.session(draft("b"))]
        n_asked = 0

        async def query(params: QueryParams) -> QueryResult:
            nonlocal n_asked
            n_asked += 1
            assert n_asked < 10
            return QueryResult(events, True) if n_asked % 2 else QueryResult([], False)

        pages = query_pages(query, msgspec.structs.replace(ASCENDING, max_results=2))
        assert await anext(pages) == events
        with pytest.raises(RemoteProtocolError, match="without progress"):
            await anext(pages)
