"""Queries for a payload, which a server finds by reading every other one: span by span.

For an answer with as many events as were asked for, a server still has to look whether more follow.
So a query for the last ten with a rare payload would read the whole store. Here each query is
limited to a span of time, which becomes longer or shorter so that the server searches it for about
``limits.SEARCH_S``; between them it is known how far the search is, and whether there are enough.

By source timestamp, events without one come last in either order, and are searched by timestamp.
With ``unique_type``, the first event that the spans have of a type is the one that is wanted.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Final, NamedTuple

from msgspec.structs import replace

from eventer_bridge.model import (
    Event,
    EventType,
    Order,
    OrderBy,
    QueryParams,
    QueryTimeseriesParams,
    Timestamp,
)
from mariner import limits
from mariner.cli.target import TargetClient

_SECOND_US: Final = 1_000_000
_OPPOSITE: Final = {Order.ASCENDING: Order.DESCENDING, Order.DESCENDING: Order.ASCENDING}


class _Part(NamedTuple):
    """A query by one of the timestamps, and those of the first and last event that it may find.

    ``latency_s`` is how long a query for one event takes.
    """

    params: QueryTimeseriesParams
    first_us: int
    last_us: int
    latency_s: float


def search(
    client: TargetClient,
    params: QueryParams,
    limit: int | None,
    on_progress: Callable[[int, int], None],
) -> AsyncIterator[Event]:
    """All events of a query, or up to a limit, as ``client.query_all``.

    If it is done by spans, ``on_progress`` is called with how much time they cover, and with all.
    """
    if (
        isinstance(params, QueryTimeseriesParams)
        and params.payload is not None
        and params.ids is None
        and limit != 0
    ):
        return _search(client, params, limit, on_progress)
    return client.query_all(params, limit=limit)


async def _search(
    client: TargetClient,
    params: QueryTimeseriesParams,
    n_left: int | None,
    on_progress: Callable[[int, int], None],
) -> AsyncGenerator[Event, None]:
    parts = await _parts(client, params)
    whole_us = sum(abs(i.last_us - i.first_us) for i in parts)
    done_us = 0

    def on_searched(us: int) -> None:
        nonlocal done_us
        done_us += us
        on_progress(done_us, whole_us)

    types: set[EventType] = set()  # of which the first event was found
    for part in parts:
        is_rest = part.params.order_by is not params.order_by
        is_all_wanted = not is_rest and not params.unique_type
        is_known = not is_rest  # that the server's answer has such events
        found = _by_spans(client, part, n_left if is_all_wanted else None, on_searched)
        async with aclosing(found):
            async for event in found:
                if event.type in types or (is_rest and event.source_timestamp is not None):
                    continue
                is_known = is_known or await _is_answered(client, params, event)
                if not is_known:
                    continue
                if params.unique_type:
                    types.add(event.type)
                yield event
                n_left = None if n_left is None else n_left - 1
                if n_left == 0:
                    return


async def _by_spans(
    client: TargetClient, part: _Part, limit: int | None, on_searched: Callable[[int], None]
) -> AsyncGenerator[Event, None]:
    """What spans find, up to a limit in each; calls back with how much further the search is."""
    params, begin_us, last_us, latency_s = part
    before_us = begin_us
    is_descending = params.order is Order.DESCENDING
    span_us = limits.FIRST_SEARCH_SPAN_US
    while True:
        if is_descending:
            end_us = max(begin_us - span_us, last_us)
        else:
            end_us = min(begin_us + span_us, last_us)
        span = _bounded(params, begin_us, end_us)
        took_s, waits_since_s = 0.0, time.monotonic()
        async for event in client.query_all(span, limit=limit):
            took_s += time.monotonic() - waits_since_s
            yield event
            waits_since_s = time.monotonic()
        took_s += time.monotonic() - waits_since_s
        # on a slow link each query takes long, however short its span
        is_slow = took_s > max(limits.SEARCH_S, limits.SLOW_SEARCH * latency_s)
        span_us = span_us // 2 if is_slow else span_us * 2 + 1
        on_searched(abs(end_us - before_us))
        if end_us == last_us:
            return
        before_us = end_us
        # where there are no events, nothing has to be searched
        rest = _bounded(params, end_us - 1 if is_descending else end_us + 1, last_us)
        following_us = await _first_us(client, rest)
        if following_us is None:
            return
        begin_us = following_us


async def _parts(client: TargetClient, params: QueryTimeseriesParams) -> list[_Part]:
    """A part by the timestamp of the order, and one of what has no such timestamp."""
    parts = [await _part(client, params)]
    is_by_source = params.order_by is OrderBy.SOURCE_TIMESTAMP
    if is_by_source and params.source_t_from is None and params.source_t_to is None:
        parts.append(await _part(client, replace(params, order_by=OrderBy.TIMESTAMP)))
    return [i for i in parts if i is not None]


async def _part(client: TargetClient, params: QueryTimeseriesParams) -> _Part | None:
    """A query as a part; None: there is nothing to search."""
    started_s = time.monotonic()
    first_us = await _first_us(client, params)
    latency_s = time.monotonic() - started_s
    last_us = await _first_us(client, replace(params, order=_OPPOSITE[params.order]))
    if first_us is None or last_us is None:
        return None
    return _Part(params, first_us, last_us, latency_s)


async def _first_us(client: TargetClient, params: QueryTimeseriesParams) -> int | None:
    """Where the first event of any payload is in the order, in microseconds; None: there is none.

    Nor is there if it has no source timestamp: then no event has one.
    """
    any_payload = replace(params, payload=None, unique_type=False)
    is_by_source = params.order_by is OrderBy.SOURCE_TIMESTAMP
    for event in [i async for i in client.query_all(any_payload, limit=1)]:
        at = event.source_timestamp if is_by_source else event.timestamp
        return None if at is None else at.s * _SECOND_US + at.us
    return None


async def _is_answered(client: TargetClient, params: QueryTimeseriesParams, event: Event) -> bool:
    """Whether the server's answer has an event without source timestamp: not every server's has."""
    at = event.timestamp
    only = replace(params, event_types=[event.type], t_from=at, t_to=at, ids=[event.id])
    return [i async for i in client.query_all(only, limit=1)] != []


def _bounded(params: QueryTimeseriesParams, begin_us: int, end_us: int) -> QueryTimeseriesParams:
    """A query of a span of its order."""
    first, last = (Timestamp(*divmod(i, _SECOND_US)) for i in sorted((begin_us, end_us)))
    if params.order_by is OrderBy.TIMESTAMP:
        return replace(params, t_from=first, t_to=last)
    return replace(params, source_t_from=first, source_t_to=last)
