"""Those who ask for events that are stored, on each wire: by queries, and by replays."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from eventer_bridge import limits
from eventer_bridge.core import paging
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    natural_key,
)
from mariner.client import Client
from tests.eventer_bridge.backends.oracle import answer, payload_bytes
from tests.support import hat_events
from tests.wires.model import ALL, Expected, difference
from tests.wires.readers import mariner

MANY_EVENTS: Final = 5_000
"""More are asked for in few ways, which takes long enough."""

SHORT: Final = 100
"""Events that a query of one type may be answered with at once."""

QueryCb = Callable[[QueryParams], Awaitable[QueryResult]]


def queries(expected: Expected, before: EventId, page: int | None) -> list[QueryParams]:
    """Queries for what was registered.

    Args:
        expected: that.
        before: the last event of the server before it, or an earlier one.
        page: events of a page; None: as many as the server has for one.
    """
    types = [*dict.fromkeys(i.type for i in expected.events)]
    server = QueryServerParams(before.server, True, page, before)
    found: list[QueryParams] = [server, _timeseries(types, page)]
    if page is not None or len(expected.events) > MANY_EVENTS:
        return found
    found += [
        _timeseries(types, page, order=order, order_by=order_by)
        for order, order_by in (
            (Order.DESCENDING, OrderBy.TIMESTAMP),
            (Order.ASCENDING, OrderBy.SOURCE_TIMESTAMP),
            (Order.DESCENDING, OrderBy.SOURCE_TIMESTAMP),
        )
    ]
    return [*found, _timeseries(types[-1:], page), QueryLatestParams(types)]


def _timeseries(
    types: Sequence[EventType], page: int | None, order: Order = Order.ASCENDING, **keys: Any
) -> QueryTimeseriesParams:
    return QueryTimeseriesParams(types, order=order, max_results=page, **keys)


def first_pages(expected: Expected) -> list[QueryParams]:
    """Queries whose answer is one page: what is answered at once, and by identifiers."""
    if payload_bytes(expected.events) > limits.MAX_RESULT_BYTES:
        return []
    types = [*dict.fromkeys(i.type for i in expected.events)]
    ids = [i.id for i in expected.events]
    some_ids = [*ids[:50], *ids[len(ids) // 2 :][:50], *ids[-50:]]
    return [
        *(_timeseries(types[:1], SHORT, order=order) for order in Order),
        *(QueryLatestParams([i]) for i in types[:2]),
        QueryTimeseriesParams(order=Order.ASCENDING, ids=some_ids),
        _timeseries(types, None, unique_type=True),
    ]


async def check_queries(
    name: str, query: QueryCb, asked: Sequence[QueryParams], expected: Expected
) -> None:
    """See that the pages of each answer have what was registered, and nothing else of it."""
    for params in asked:
        found: list[Event] = []
        async with aclosing(paging.query_pages(query, params)) as pages:
            async for page in pages:
                found += page
        _compare(name, params, found, expected)


async def check_first_pages(
    name: str, query: QueryCb, asked: Sequence[QueryParams], expected: Expected
) -> None:
    """The same of answers that have one page."""
    for params in asked:
        _compare(name, params, [*(await query(params)).events], expected)


def _compare(name: str, params: QueryParams, found: list[Any], expected: Expected) -> None:
    known = {i.type for i in expected.events}
    found = [i for i in found if i.type in known]  # a server has others
    if isinstance(params, QueryLatestParams):  # in any order
        found = sorted(found, key=natural_key)
    wrong = difference(found, _wanted(params, known, expected))
    assert not wrong, f"{name}, {repr(params)[:300]}: {wrong}"


def _wanted(params: QueryParams, known: set[EventType], expected: Expected) -> Sequence[Event]:
    """The whole answer, which the oracle takes long to find where there are many events."""
    if isinstance(params, QueryServerParams):
        return expected.events
    if isinstance(params, QueryTimeseriesParams):
        is_whole = params.max_results != SHORT
        params = msgspec.structs.replace(params, max_results=None if is_whole else SHORT)
        wants_all = known == {*(params.event_types or ())} and is_whole and not params.unique_type
        if wants_all and params.order_by is OrderBy.TIMESTAMP:
            is_ascending = params.order is Order.ASCENDING
            return expected.events if is_ascending else expected.events[::-1]
    return answer(expected.events, params)


def query_of_hat(client: Any) -> QueryCb:
    """Ask by hat-event's own client."""

    async def query(params: QueryParams) -> QueryResult:
        result = await client.query(hat_events.query_params(params))
        return QueryResult([*map(hat_events.event_of, result.events)], result.more_follows)

    return query


async def check_replay(
    name: str, port: int, before: EventId, expected: Expected, **keys: Any
) -> None:
    """See that who saw events up to ``before`` gets what was registered since."""
    async with mariner(port, subscriptions=ALL, start=[before], **keys) as connected:
        found = [event async for event in _replayed(connected)]
    assert not (wrong := difference(found, expected.events)), f"{name}: {wrong}"


async def check_cursor(
    name: str, port: int, before: EventId, expected: Expected, **keys: Any
) -> None:
    """See that a cursor goes on in the middle of what was told, where that was acknowledged."""
    keys = {"subscriptions": ALL, "cursor": name, "start": [before], **keys}
    events = expected.events
    async with mariner(port, **keys) as connected:
        batch = await anext(aiter(connected.replay()))
        n_first = max(1, len(batch.events) // 2)
        await batch.first(n_first).ack()
        await connected.ping()  # it has the acknowledgement
    async with mariner(port, **keys) as connected:
        found = [*batch.events[:n_first], *[i async for i in _replayed(connected)]]
    assert not (wrong := difference(found, events)), f"cursor: {wrong}"


async def _replayed(connected: Client) -> AsyncIterator[Any]:
    async for batch in connected.replay(until_up_to_date=True):
        for event in batch.events:
            yield event
