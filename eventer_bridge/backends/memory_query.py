"""Answering queries from events in memory (001, "Queries"), on a reader thread.

Every event may have to be looked at: this costs what is stored, not what is returned. Only the next
page of a server's events is found at once.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, dropwhile, islice
from operator import attrgetter
from typing import Final

from eventer_bridge import limits
from eventer_bridge.backends.common import NO_WAY_ON, result_limit, take
from eventer_bridge.backends.readers import LargeCb, PauseCb
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from eventer_bridge.payloads import same_as
from eventer_bridge.subscription import Subscription

EVENTS_AT_A_TIME: Final = 16
"""Events that are looked at before it pauses: some 0.1 ms."""

_source_timestamp = attrgetter("source_timestamp")


class MemoryReader:
    """Answers one query.

    Args:
        blocks: all events, in natural order.
        types: what is asked for and may be seen.
        pause: called again and again.
        become_large: called before the answer gets large.
    """

    def __init__(
        self,
        blocks: Sequence[Sequence[Event]],
        types: Subscription,
        pause: PauseCb,
        become_large: LargeCb,
    ) -> None:
        self._blocks = blocks
        self._types = types
        self._pause = pause
        self._become_large = become_large

    def ext_latest(self, params: QueryLatestParams, latest: Sequence[Event]) -> QueryResult:
        """Latest event of each type, of those of all types in the order in which they came."""
        types, last_id = self._types, params.last_event_id
        found: Iterator[Event] = (
            i for i in self._pausing(latest) if types.is_everything or types.matches(i.type)
        )
        if last_id is not None:
            every = self._pausing(chain.from_iterable(self._blocks))
            last_type = next((i.type for i in every if i.id == last_id), None)
            if last_type is None or not types.matches(last_type):
                return NO_WAY_ON
            found = dropwhile(lambda event: event.type != last_type, found)
            next(found, None)
        return self._take(found, limits.MAX_LATEST_RESULTS)

    def ext_server(self, params: QueryServerParams) -> QueryResult:
        """Events of a server, by id."""
        server_id, last_id, types = params.server_id, params.last_event_id, self._types
        is_any_type = types.is_everything

        def accept(event: Event) -> bool:
            return (
                event.id.server == server_id
                and (last_id is None or event.id > last_id)
                and (is_any_type or types.matches(event.type))
            )

        begin = 0
        if last_id is not None and last_id.server == server_id:
            begin = self._block_behind(last_id)
        found = (event for block in self._accepted(accept, begin) for event in block)
        return self._take(found, result_limit(params.max_results))

    def _block_behind(self, last_id: EventId) -> int:
        """Number of a block before which nothing comes after an event of its server.

        Events of a server are in the order of their ids, with those of others between them.
        """
        low, high = 0, len(self._blocks)
        while high - low > 1:
            middle = (low + high) // 2
            events = chain.from_iterable(islice(self._blocks, middle, high))
            of_server = (i.id for i in self._pausing(events) if i.id.server == last_id.server)
            first = next(of_server, None)
            if first is None or first > last_id:
                high = middle
            else:
                low = middle
        return low

    def ext_timeseries(self, params: QueryTimeseriesParams) -> QueryResult:
        """Events by timestamp or source timestamp."""
        is_descending = params.order is Order.DESCENDING
        accept = _timeseries_filter(params, self._types)
        if params.order_by is OrderBy.SOURCE_TIMESTAMP:
            found = self._by_source(accept, is_descending=is_descending)
        else:
            blocks = self._accepted(accept, is_descending=is_descending)
            found = (event for block in blocks for event in block)
        if params.unique_type:
            found = _first_of_types(found)
        if params.last_event_id is not None:
            found = dropwhile(lambda event: event.id != params.last_event_id, found)
            next(found, None)
        return self._take(found, result_limit(params.max_results))

    def _accepted(
        self, accept: Callable[[Event], bool], begin: int = 0, *, is_descending: bool = False
    ) -> Iterator[Sequence[Event]]:
        """Events that a filter accepts, block by block, in the order that is asked for."""
        blocks = islice(self._blocks, begin, None)
        for block in reversed(self._blocks) if is_descending else blocks:
            accepted = [event for event in self._pausing(block) if accept(event)]
            yield accepted[::-1] if is_descending else accepted

    def _by_source(
        self, accept: Callable[[Event], bool], *, is_descending: bool
    ) -> Iterator[Event]:
        """Events by source timestamp, those without behind all others; equals stay in order."""
        sourced: list[list[Event]] = []
        others: list[Sequence[Event]] = []
        for block in self._accepted(accept, is_descending=is_descending):
            run = [event for event in block if event.source_timestamp is not None]
            run.sort(key=_source_timestamp, reverse=is_descending)
            if run:
                sourced.append(run)
            if len(run) < len(block):
                others.append([event for event in block if event.source_timestamp is None])
        merged = heapq.merge(*sourced, key=_source_timestamp, reverse=is_descending)
        yield from self._pausing(merged)
        for block in others:
            yield from block

    def _take(self, found: Iterable[Event], max_events: int) -> QueryResult:
        return take(self._counted(found), max_events)

    def _counted(self, found: Iterable[Event]) -> Iterator[Event]:
        """The same events; waits until there may be so many bytes of them."""
        found = iter(found)
        n_bytes = 0
        for event in found:
            n_bytes += limits.ANSWER_EVENT_BYTES
            if event.payload is not None:
                n_bytes += len(event.payload.data)
            if n_bytes > limits.LARGE_ANSWER_BYTES:
                self._become_large()
                yield event
                break
            yield event
        yield from found

    def _pausing(self, events: Iterable[Event]) -> Iterator[Event]:
        for n_events, event in enumerate(events):
            if n_events % EVENTS_AT_A_TIME == 0:
                self._pause()
            yield event


def _timeseries_filter(
    params: QueryTimeseriesParams, types: Subscription
) -> Callable[[Event], bool]:
    ids = None if params.ids is None else frozenset(params.ids)
    is_any_type = types.is_everything
    has_payload = None if params.payload is None else same_as(params.payload)
    has_source_bounds = params.source_t_from is not None or params.source_t_to is not None

    def accept(event: Event) -> bool:
        if ids is not None and event.id not in ids:
            return False
        if not (is_any_type or types.matches(event.type)):
            return False
        if not _is_between(event.timestamp, params.t_from, params.t_to):
            return False
        if has_payload is not None and not has_payload(event.payload):
            return False
        if not has_source_bounds:
            return True
        source = event.source_timestamp
        return source is not None and _is_between(source, params.source_t_from, params.source_t_to)

    return accept


def _first_of_types(events: Iterable[Event]) -> Iterator[Event]:
    types: set[EventType] = set()
    for event in events:
        if event.type not in types:
            types.add(event.type)
            yield event


def _is_between(value: Timestamp, low: Timestamp | None, high: Timestamp | None) -> bool:
    return (low is None or low <= value) and (high is None or value <= high)
