"""All events that satisfy a query, page by page; where a server cannot go on, that is an error.

Each page begins behind the last event of the one before. Retention may delete that event in
between, so that nothing is found behind it (001); a timeseries then goes on from its timestamp.

Belongs to the event loop's thread.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

import msgspec

from eventer_bridge.errors import RemoteProtocolError
from eventer_bridge.model import (
    Event,
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

QueryCb: TypeAlias = Callable[[QueryParams], Awaitable[QueryResult]]
"""Asks for one page."""


async def query_all(
    query: QueryCb, params: QueryParams, limit: int | None = None
) -> AsyncGenerator[Event, None]:
    """Query all events; as :func:`query_pages`, one by one."""
    async with aclosing(query_pages(query, params, limit)) as pages:
        async for page in pages:
            for event in page:
                yield event


async def query_pages(
    query: QueryCb, params: QueryParams, limit: int | None = None
) -> AsyncGenerator[Sequence[Event], None]:
    """Query all events; each page is asked for when it is needed.

    Args:
        query: asks for one page.
        params: which query; its ``max_results`` is the size of a page, None leaves that to
            the server.
        limit: at most so many events; None: all.

    Yields:
        Pages, none of which is empty.

    Raises:
        RemoteProtocolError: there are more events, but the server does not give them.
    """
    remaining = limit
    last: Event | None = None  # that was given
    resumed_after: Event | None = None  # up to it, events may come again
    types: set[EventType] = set()  # of the page before, of a query for the latest
    while remaining is None or remaining > 0:
        result = await query(_limited(params, remaining))
        if not result.events:
            resumed = _behind_nothing(params, last, more_follows=result.more_follows)
            if resumed is None:
                return
            params, resumed_after = resumed, last
            continue
        events = result.events
        if isinstance(params, QueryLatestParams):
            types_of_page = {i.type for i in events}
            if not types.isdisjoint(types_of_page):
                raise RemoteProtocolError(
                    "the answer to a query for the latest events is not all of them, and the"
                    " server does not know how to go on: ask for fewer types"
                )
            types = types_of_page
        elif isinstance(params, QueryTimeseriesParams):
            params = _as_of_now(params, events[0])
            if resumed_after is not None:
                events = _behind(resumed_after, events, params.order)
        if events:
            last = events[-1]
            yield events[:remaining]
        if remaining is not None:
            remaining -= len(events)
        if not result.more_follows:
            return
        params = msgspec.structs.replace(params, last_event_id=result.events[-1].id)


def _limited(params: QueryParams, limit: int | None) -> QueryParams:
    """The same query with at most ``limit`` results."""
    if limit is None or isinstance(params, QueryLatestParams):
        return params
    if params.max_results is not None and params.max_results <= limit:
        return params
    return msgspec.structs.replace(params, max_results=limit)


def _as_of_now(params: QueryTimeseriesParams, first: Event) -> QueryTimeseriesParams:
    """The same query without newer events, where these would take the place of earlier ones."""
    is_newest_first = (params.order, params.order_by) == (Order.DESCENDING, OrderBy.TIMESTAMP)
    if not (params.unique_type and is_newest_first and params.last_event_id is None):
        return params
    return msgspec.structs.replace(params, t_to=first.timestamp)


def _behind_nothing(
    params: QueryParams, last: Event | None, *, more_follows: bool
) -> QueryTimeseriesParams | None:
    """How to go on behind an answer without events; None: there are no more.

    Raises:
        RemoteProtocolError: there are more, but there is no way on.
    """
    if last is None:
        if more_follows:
            raise RemoteProtocolError("the answer to a query has more_follows, but no events")
        return None
    if not more_follows:
        if isinstance(params, QueryServerParams):
            return None
        if isinstance(params, QueryTimeseriesParams):
            if params.last_event_id is None:  # it was asked by time already
                return None
            if params.order_by is OrderBy.TIMESTAMP and not params.unique_type:
                return _from_time_of(last, params)
    raise RemoteProtocolError(
        f"more events were to follow event {'/'.join(map(str, msgspec.structs.astuple(last.id)))},"
        " but the server does not go on behind it (it may be deleted there): query again"
    )


def _from_time_of(last: Event, params: QueryTimeseriesParams) -> QueryTimeseriesParams:
    """The query that goes on from the timestamp of an event."""
    params = msgspec.structs.replace(params, last_event_id=None)
    if params.order is Order.DESCENDING:
        return msgspec.structs.replace(params, t_to=last.timestamp)
    return msgspec.structs.replace(params, t_from=last.timestamp)


def _behind(last: Event, events: Sequence[Event], order: Order) -> Sequence[Event]:
    """Those of events by timestamp that come behind an event."""
    key = natural_key(last)
    if order is Order.DESCENDING:
        return [i for i in events if natural_key(i) < key]
    return [i for i in events if natural_key(i) > key]
