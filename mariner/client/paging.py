"""All events that satisfy a query, page by page.

Belongs to the event loop's thread.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from eventer_bridge.model import Event, QueryLatestParams, QueryParams, QueryResult
from mariner.errors import RemoteProtocolError


async def query_all(
    query: Callable[[QueryParams], Awaitable[QueryResult]], params: QueryParams, limit: int | None
) -> AsyncGenerator[Event, None]:
    """Query all events; each page is asked for when it is needed.

    A query for the latest has no pages: its one answer is all there is.

    Args:
        query: asks for one page.
        params: which query; its ``max_results`` is the size of a page, None leaves that to
            the server.
        limit: at most so many events; None: all.

    Raises:
        RemoteProtocolError: the server announces more, but gives nothing.
    """
    remaining = limit
    while remaining is None or remaining > 0:
        result = await query(_limited(params, remaining))
        for event in result.events[:remaining]:
            yield event
        if remaining is not None:
            remaining -= len(result.events)
        if not result.more_follows or isinstance(params, QueryLatestParams):
            return
        if not result.events:
            raise RemoteProtocolError("the answer to a query has more_follows, but no events")
        params = msgspec.structs.replace(params, last_event_id=result.events[-1].id)


def _limited(params: QueryParams, limit: int | None) -> QueryParams:
    """The same query with at most ``limit`` results."""
    if limit is None or isinstance(params, QueryLatestParams):
        return params
    if params.max_results is not None and params.max_results <= limit:
        return params
    return msgspec.structs.replace(params, max_results=limit)
