"""All events that match a query, page by page; a server that cannot continue is an error.

Each page begins after the last event of the previous one. If retention deletes that event in
between, nothing is found after it; a timeseries then continues from its timestamp. A server
that sends the same pages again is an error, too: nobody pages for ever.

Belongs to the event loop's thread.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

import msgspec

from eventer_bridge.errors import RemoteProtocolError
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

QueryCb: TypeAlias = Callable[[QueryParams], Awaitable[QueryResult]]
"""Queries one page."""


class PageProgress:
    """Notices pages that come again, at the latest when as many came as before them.

    A page follows from the event that it is requested after. So one event is remembered, a later
    one each time twice as many pages came (Brent's cycle detection), instead of all of them.
    """

    def __init__(self) -> None:
        self._begin(None)

    def _begin(self, resumed_from: EventId | None) -> None:
        self._known: EventId | None = None
        self._n_known_for = self._n_left = 1  # pages
        self._resumed_from = resumed_from

    def go_on(self, last: EventId) -> None:
        """The next page is requested after this event; ``RemoteProtocolError``: an earlier was."""
        if last == self._known:
            raise _no_progress(last)
        self._n_left -= 1
        if not self._n_left:
            self._known = last
            self._n_known_for *= 2
            self._n_left = self._n_known_for

    def resume(self, last: EventId) -> None:
        """The next page is requested from the time of this event, and may end with it once more.

        ``RemoteProtocolError``: so was the last one that was requested by time.
        """
        if last == self._resumed_from:
            raise _no_progress(last)
        self._begin(last)


def _no_progress(last: EventId) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"answers without progress: event {_text(last)} comes again, or after later ones"
    )


def _text(event_id: EventId) -> str:
    return "/".join(map(str, msgspec.structs.astuple(event_id)))


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
    """Query all events, in pages that are requested on demand; none is empty.

    The query's ``max_results`` is the size of a page; None leaves that to the server. There are at
    most ``limit`` events. ``RemoteProtocolError``: the server does not return the remaining events,
    or the same again.
    """
    remaining = limit
    progress = PageProgress()
    last: Event | None = None  # the last one yielded
    resumed_after: Event | None = None  # events up to it may be repeated
    types: set[EventType] = set()  # of the previous page, of a query for the latest
    while remaining is None or remaining > 0:
        result = await query(_limited(params, remaining))
        if not result.events:
            resumed = _behind_nothing(params, last, more_follows=result.more_follows)
            if resumed is None:
                return
            params, resumed_after = resumed, last
            assert last is not None  # else there is nothing to resume
            progress.resume(last.id)
            continue
        events = result.events
        _check_order(params, last, events[0])
        if isinstance(params, QueryLatestParams):
            types_of_page = {i.type for i in events}
            if not types.isdisjoint(types_of_page):
                raise RemoteProtocolError(
                    "the answer to a query for the latest events is not all of them, and the"
                    " server cannot continue it: query fewer types"
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
        progress.go_on(result.events[-1].id)
        params = msgspec.structs.replace(params, last_event_id=result.events[-1].id)


def _check_order(params: QueryParams, last: Event | None, first: Event) -> None:
    """Check that a page begins behind the one before it.

    Among events of one timestamp, servers differ in the order; events without source timestamp may
    be anywhere.
    """
    if isinstance(params, QueryServerParams):
        is_behind = params.last_event_id is None or first.id > params.last_event_id
    elif (
        last is None
        or isinstance(params, QueryLatestParams)
        or params.order_by is not OrderBy.TIMESTAMP
    ):
        return
    elif params.order is Order.DESCENDING:
        is_behind = first.timestamp <= last.timestamp
    else:
        is_behind = first.timestamp >= last.timestamp
    if not is_behind:
        raise _no_progress(first.id)


def _limited(params: QueryParams, limit: int | None) -> QueryParams:
    """The same query with at most ``limit`` results."""
    if limit is None or isinstance(params, QueryLatestParams):
        return params
    if params.max_results is not None and params.max_results <= limit:
        return params
    return msgspec.structs.replace(params, max_results=limit)


def _as_of_now(params: QueryTimeseriesParams, first: Event) -> QueryTimeseriesParams:
    """The same query without newer events, if these would replace earlier ones."""
    is_newest_first = (params.order, params.order_by) == (Order.DESCENDING, OrderBy.TIMESTAMP)
    if not (params.unique_type and is_newest_first and params.last_event_id is None):
        return params
    return msgspec.structs.replace(params, t_to=first.timestamp)


def _behind_nothing(
    params: QueryParams, last: Event | None, *, more_follows: bool
) -> QueryTimeseriesParams | None:
    """The query that continues after an answer without events; None: there are no more."""
    if last is None:
        if more_follows:
            raise RemoteProtocolError("the answer to a query has more_follows, but no events")
        return None
    if not more_follows:
        if isinstance(params, QueryServerParams):
            return None
        if isinstance(params, QueryTimeseriesParams):
            if params.last_event_id is None:  # already queried by time
                return None
            if params.order_by is OrderBy.TIMESTAMP and not params.unique_type:
                return _from_time_of(last, params)
    raise RemoteProtocolError(
        f"more events should follow event {_text(last.id)}, but the server cannot continue"
        " after it (it may have been deleted): query again"
    )


def _from_time_of(last: Event, params: QueryTimeseriesParams) -> QueryTimeseriesParams:
    """The query that continues from the timestamp of an event."""
    params = msgspec.structs.replace(params, last_event_id=None)
    if params.order is Order.DESCENDING:
        return msgspec.structs.replace(params, t_to=last.timestamp)
    return msgspec.structs.replace(params, t_from=last.timestamp)


def _behind(last: Event, events: Sequence[Event], order: Order) -> Sequence[Event]:
    """The events, ordered by timestamp, that follow an event."""
    key = natural_key(last)
    if order is Order.DESCENDING:
        return [i for i in events if natural_key(i) < key]
    return [i for i in events if natural_key(i) > key]
