"""Queries for a payload, which a server finds by reading every other one: span by span.

For an answer with as many events as were asked for, a server still has to look whether more follow.
So a query for the last ten with a rare payload would read the whole store. Here each query is
limited to a span of time, which becomes longer or shorter so that the server searches it for about
``limits.SEARCH_S``; between them it is known how far the search is, and whether there are enough.
"""

import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from eventer_bridge.model import (
    Event,
    Order,
    OrderBy,
    QueryParams,
    QueryTimeseriesParams,
    Timestamp,
)
from mariner import limits
from mariner.cli.target import TargetClient

_SECOND_US: Final = 1_000_000


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
        and not params.unique_type
        and params.order_by is OrderBy.TIMESTAMP
    ):
        return _search(client, params, limit, on_progress)
    return client.query_all(params, limit=limit)


async def _search(
    client: TargetClient,
    params: QueryTimeseriesParams,
    n_left: int | None,
    on_progress: Callable[[int, int], None],
) -> AsyncIterator[Event]:
    is_descending = params.order is Order.DESCENDING
    near, far = ("t_to", "t_from") if is_descending else ("t_from", "t_to")
    opposite = Order.ASCENDING if is_descending else Order.DESCENDING
    # without the payload: the first and the last event that may have it
    any_payload = msgspec.structs.replace(params, payload=None)
    first_us = await _first_us(client, any_payload)
    last_us = await _first_us(client, msgspec.structs.replace(any_payload, order=opposite))
    if first_us is None or last_us is None:
        return
    begin_us: int | None = first_us
    span_us = limits.FIRST_SEARCH_SPAN_US
    while begin_us is not None:
        if is_descending:
            end_us = max(begin_us - span_us, last_us)
        else:
            end_us = min(begin_us + span_us, last_us)
        span = {near: _timestamp(begin_us), far: _timestamp(end_us)}
        started_s = time.monotonic()
        async for event in client.query_all(msgspec.structs.replace(params, **span), limit=n_left):
            yield event
            n_left = None if n_left is None else n_left - 1
        took_s = time.monotonic() - started_s
        span_us = span_us // 2 if took_s > limits.SEARCH_S else span_us * 2 + 1
        on_progress(abs(end_us - first_us), abs(last_us - first_us))
        if end_us == last_us or n_left == 0:
            return
        next_us = end_us - 1 if is_descending else end_us + 1
        # where there are no events, nothing has to be searched
        rest = msgspec.structs.replace(any_payload, **{near: _timestamp(next_us)})
        begin_us = await _first_us(client, rest)


async def _first_us(client: TargetClient, params: QueryTimeseriesParams) -> int | None:
    """Microseconds of the first event of a query; None: there is none."""
    for event in [i async for i in client.query_all(params, limit=1)]:
        return event.timestamp.s * _SECOND_US + event.timestamp.us
    return None


def _timestamp(us: int) -> Timestamp:
    return Timestamp(*divmod(us, _SECOND_US))
