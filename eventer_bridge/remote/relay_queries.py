"""Timeseries queries whose conditions the Eventer protocol cannot express (000, 001).

The conditions are applied to the answers of a wider query, page by page, which costs as much.
"""

import contextlib
from collections.abc import AsyncGenerator

import msgspec

from eventer_bridge import limits
from eventer_bridge.backends.common import result_limit
from eventer_bridge.core.paging import QueryCb, query_all
from eventer_bridge.model import Event, EventType, QueryResult, QueryTimeseriesParams
from eventer_bridge.payloads import same_as


def is_conditional(params: QueryTimeseriesParams) -> bool:
    """Whether a query has such a condition."""
    return params.ids is not None or params.payload is not None or params.unique_type


async def query_conditional(ask: QueryCb, params: QueryTimeseriesParams) -> QueryResult:
    """Answer such a query.

    Raises:
        EventerBridgeError: as ``EventerClient.query``.
    """
    max_results = result_limit(params.max_results)
    found: list[Event] = []
    n_bytes = 0
    async with contextlib.aclosing(matching(ask, params)) as events:
        async for event in events:
            if event.payload is not None:
                n_bytes += len(event.payload.data)
            if len(found) >= max_results or (found and n_bytes > limits.MAX_RESULT_BYTES):
                return QueryResult(found, True)
            found.append(event)
    return QueryResult(found, False)


async def matching(ask: QueryCb, params: QueryTimeseriesParams) -> AsyncGenerator[Event, None]:
    """All events that satisfy such a query, after its ``last_event_id``.

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
