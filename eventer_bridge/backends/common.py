"""What backends have in common: limits of questions and answers, refusals."""

import asyncio
from collections.abc import Iterable
from typing import Final

from eventer_bridge import limits
from eventer_bridge.errors import EventerBridgeError, LimitError
from eventer_bridge.model import (
    Event,
    QueryParams,
    QueryResult,
    QueryTimeseriesParams,
)


def check_ids(params: QueryParams) -> None:
    """Refuse a query that asks for too many ids.

    Raises:
        LimitError: more than ``limits.MAX_QUERY_IDS``.
    """
    if isinstance(params, QueryTimeseriesParams) and params.ids is not None:
        n_ids = len(params.ids)
        if n_ids > limits.MAX_QUERY_IDS:
            raise LimitError(
                f"{n_ids} ids in one query, at most {limits.MAX_QUERY_IDS} are allowed"
            )


def result_limit(max_results: int | None) -> int:
    """Events in an answer to a timeseries or server query, at most."""
    return limits.MAX_RESULTS if max_results is None else min(max_results, limits.MAX_RESULTS)


def take(events: Iterable[Event], max_events: int) -> QueryResult:
    """An answer of the first events, cut at a number and ``limits.MAX_RESULT_BYTES``."""
    taken: list[Event] = []
    n_bytes = 0
    for event in events:
        if event.payload is not None:
            n_bytes += len(event.payload.data)
        if len(taken) >= max_events or (n_bytes > limits.MAX_RESULT_BYTES and taken):
            return QueryResult(taken, True)
        taken.append(event)
    return QueryResult(taken, False)


NO_WAY_ON: Final = QueryResult((), True)
"""Answer to a query for the latest that is to go on from an event that is not there."""


def failed(future: asyncio.Future[None], error: EventerBridgeError) -> asyncio.Future[None]:
    """Fail a future that nobody has to await."""
    future.set_exception(error)
    future.exception()  # counts as looked at: no warning when it is dropped
    return future
