"""Queries as a relay answers them: from the answers of its remote server, as far as may be seen.

The Eventer protocol cannot express all conditions of a timeseries (000, 001), nor types of a
server's events: these conditions are applied to the answers of a wider query, page by page, which
costs as much. Hidden events count neither for ``max_results`` nor for ``more_follows``: else a
client could count what it may not see.
"""

import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from eventer_bridge import limits
from eventer_bridge.backends.common import NO_WAY_ON, result_limit
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core.paging import QueryCb, query_all
from eventer_bridge.errors import RemoteProtocolError
from eventer_bridge.excerpts import quoted_type
from eventer_bridge.model import (
    Event,
    EventType,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
)
from eventer_bridge.payloads import same_as
from eventer_bridge.subscription import Subscription

_FEW_EVENTS: Final = 64
"""Second page of a server's events: usually its first one says that more follow."""


async def answer(ask: QueryCb, query: VisibleQuery) -> QueryResult:
    """Answer a query.

    Args:
        ask: asks the remote server, for what it sends to anybody.
        query: the query.

    Raises:
        EventerBridgeError: as ``EventerClient.query``.
        RemoteProtocolError: the remote server sends events that it was not asked for, or the same
            ones again.
    """
    params, visible = query.params, query.types
    if visible.is_empty:
        is_behind = isinstance(params, QueryLatestParams) and params.last_event_id is not None
        return NO_WAY_ON if is_behind else QueryResult([], False)
    if isinstance(params, QueryServerParams):
        return await _answer_server(ask, params, visible)
    types = None if visible.is_everything else visible.query_types
    params = msgspec.structs.replace(params, event_types=types)

    async def ask_visible(page: QueryParams) -> QueryResult:
        result = await ask(page)
        if not visible.is_everything:  # the gateway enforces the rights, whatever the server sends
            for event in result.events:
                if not visible.matches(event.type):
                    text = f"answer with an event of type {quoted_type(event.type)}"
                    raise RemoteProtocolError(f"{text}, which was not asked for")
        return result

    if isinstance(params, QueryTimeseriesParams) and is_conditional(params):
        return await _take(matching(ask_visible, params), params.max_results)
    return await ask_visible(params)


async def _answer_server(
    ask: QueryCb, params: QueryServerParams, visible: Subscription
) -> QueryResult:
    if visible.is_everything:
        return await ask(params)
    # what is asked for, one that says that more follow; then pages as large as the server has them
    sizes = iter((result_limit(params.max_results) + 1, _FEW_EVENTS))

    async def ask_sized(page: QueryParams) -> QueryResult:
        return await ask(msgspec.structs.replace(page, max_results=next(sizes, None)))

    async def of_client() -> AsyncGenerator[Event, None]:
        async with contextlib.aclosing(query_all(ask_sized, params)) as events:
            async for event in events:
                if visible.matches(event.type):
                    yield event

    return await _take(of_client(), params.max_results)


def is_conditional(params: QueryTimeseriesParams) -> bool:
    """Whether a query has a condition that the Eventer protocol cannot express."""
    return params.ids is not None or params.payload is not None or params.unique_type


async def _take(found: AsyncGenerator[Event, None], max_results: int | None) -> QueryResult:
    """An answer of the first events, cut as ``common.take`` does."""
    limit = result_limit(max_results)
    taken: list[Event] = []
    n_bytes = 0
    async with contextlib.aclosing(found) as events:
        async for event in events:
            if event.payload is not None:
                n_bytes += len(event.payload.data)
            if len(taken) >= limit or (taken and n_bytes > limits.MAX_RESULT_BYTES):
                return QueryResult(taken, True)
            taken.append(event)
    return QueryResult(taken, False)


async def matching(ask: QueryCb, params: QueryTimeseriesParams) -> AsyncGenerator[Event, None]:
    """All events that satisfy a query with such a condition, after its ``last_event_id``.

    Ignores ``max_results``. Fetches each page of the wider query when it is needed.

    Raises:
        EventerBridgeError: as ``EventerClient.query``.
    """
    ids = None if params.ids is None else frozenset(params.ids)
    is_same = None if params.payload is None else same_as(params.payload)
    last_id = params.last_event_id
    seen_types: set[EventType] = set()
    wider = msgspec.structs.replace(
        params, ids=None, payload=None, unique_type=False, max_results=None, last_event_id=None
    )
    async with contextlib.aclosing(query_all(ask, wider)) as events:
        async for event in events:
            if ids is not None and event.id not in ids:
                continue
            if is_same is not None and not is_same(event.payload):
                continue
            if params.unique_type:
                if event.type in seen_types:
                    continue
                seen_types.add(event.type)
            if last_id is None:
                yield event
            elif event.id == last_id:
                last_id = None
