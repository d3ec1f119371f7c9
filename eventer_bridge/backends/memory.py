"""Backend that keeps events in memory only: for tests, demonstrations, and what may be lost.

It grows with every event that retention does not delete.
"""

import asyncio
import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import dropwhile
from operator import itemgetter

from eventer_bridge import limits
from eventer_bridge.backends.base import StoreStats
from eventer_bridge.backends.common import check_ids, result_limit, take, visible_types
from eventer_bridge.backends.retention import (
    Budget,
    Clock,
    Progress,
    RetentionRule,
    Share,
    Shares,
    event_bytes,
)
from eventer_bridge.backends.volatile import VolatileBackend
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
    Timestamp,
    natural_key,
)
from eventer_bridge.payloads import same_as
from eventer_bridge.subscription import Subscription
from eventer_bridge.type_budget import TypeBudget, TypeQuota


def create(
    retention: Sequence[RetentionRule] = (), clock: Clock = Timestamp.now
) -> "MemoryBackend":
    """Create an empty backend.

    Args:
        retention: how long events are kept (see ``backends.retention``).
        clock: what their age is measured with.
    """
    return MemoryBackend(retention, clock)


class MemoryBackend(VolatileBackend):
    """See the module. Made by :func:`create`."""

    def __init__(self, retention: Sequence[RetentionRule], clock: Clock) -> None:
        super().__init__()
        self._events: list[Event] = []  # in natural order
        self._latest: dict[EventType, Event] = {}
        self._budget = TypeBudget()
        self._clock = clock
        self._shares = Shares(retention)
        for share in self._shares.all:
            share.is_known = True
        self._share_of: dict[EventType, Share | None] = {}
        self._look_now = asyncio.Event()
        if retention:
            self.async_group.spawn(self._retain)

    def check_types(self, event_types: Iterable[EventType], quota: TypeQuota | None = None) -> None:
        """See :class:`Backend`."""
        self._budget.check(set(event_types).difference(self._latest), quota)

    async def query(
        self,
        params: QueryParams,
        subscription: Subscription | None = None,
        client: str = "",
        holding: ExitStack | None = None,
    ) -> QueryResult:
        """See :class:`Backend`."""
        self._check_open()
        check_ids(params)
        types = visible_types(params, subscription)
        if isinstance(params, QueryServerParams):
            found = self._server_events(params, types)
            return take(found, result_limit(params.max_results))
        if isinstance(params, QueryLatestParams):
            latest = (i for t, i in self._latest.items() if types is None or types.matches(t))
            return take(latest, limits.MAX_LATEST_RESULTS)
        found = _ordered(params, filter(_timeseries_filter(params, types), self._events))
        if params.unique_type:
            found = _first_of_types(found)
        if params.last_event_id is not None:
            found = dropwhile(lambda event: event.id != params.last_event_id, found)
            next(found, None)
        return take(found, result_limit(params.max_results))

    def stats(self) -> StoreStats:
        """See :class:`Backend`."""
        self._check_open()
        return StoreStats(len(self._events), len(self._latest), 0)

    def _keep(self, events: Sequence[Event], quota: TypeQuota | None, n_asked: int) -> None:
        for number, event in enumerate(events):
            if event.type not in self._latest:
                owner = quota.owner if quota is not None and number < n_asked else None
                self._budget.add(event.type, owner)
            if not self._events or natural_key(self._events[-1]) < natural_key(event):
                self._events.append(event)
            else:
                bisect.insort(self._events, event, key=natural_key)
            latest = self._latest.get(event.type)
            if latest is None or natural_key(latest) < natural_key(event):
                self._latest[event.type] = event
            if self._shares.all:
                self._count(event)

    def _count(self, event: Event) -> None:
        if event.type not in self._share_of:
            share = self._share_of[event.type] = self._shares.find(event.type)
            if share is not None:
                share.n_types += 1
        share = self._share_of[event.type]
        if share is not None:
            share.new_events += 1
            share.new_bytes += event_bytes(event)
            if share.is_urgent:
                self._look_now.set()

    async def _retain(self) -> None:
        progress = Progress("memory")
        while True:
            if not await self._look(progress):
                progress.done()
            await asyncio.sleep(limits.RETENTION_MIN_PERIOD_S)
            # not wait_for(): before Python 3.12 it may swallow a cancellation
            timer = self._loop.call_later(limits.RETENTION_PERIOD_S, self._look_now.set)
            try:
                await self._look_now.wait()
            finally:
                timer.cancel()
            self._look_now.clear()

    async def _look(self, progress: Progress) -> int:
        """Delete what may go, oldest first, some at a time; returns how many."""
        n_deleted = n_kept = 0
        budgets: dict[Share | None, Budget] = {}
        for share in self._shares.all:
            budget = Budget(share, self._clock)
            if not budget.is_empty:
                budgets[share] = budget
        while budgets and n_kept < len(self._events):
            some = self._events[n_kept : n_kept + limits.RETENTION_BATCH_EVENTS]
            kept = [event for event in some if not self._take(event, budgets)]
            if len(kept) < len(some):
                self._events[n_kept : n_kept + len(some)] = kept
                n_bytes = sum(map(event_bytes, some)) - sum(map(event_bytes, kept))
                progress.deleted(len(some) - len(kept), n_bytes)
                n_deleted += len(some) - len(kept)
            n_kept += len(kept)
            await asyncio.sleep(0)
        return n_deleted

    def _take(self, event: Event, budgets: dict[Share | None, Budget]) -> bool:
        """Whether an event is to be deleted; a budget that refuses is used up."""
        share = self._share_of[event.type]
        budget = budgets.get(share)
        if share is None or budget is None or self._latest[event.type] is event:
            return False
        moment, n_bytes = budget.expired_before, event_bytes(event)
        if not budget.take(moment is not None and event.timestamp < moment, n_bytes):
            del budgets[share]
            return False
        share.old_events -= 1
        share.old_bytes -= n_bytes
        return True

    def _server_events(
        self, params: QueryServerParams, rights: Subscription | None
    ) -> Iterator[Event]:
        last = params.last_event_id
        for event in self._events:
            if (
                event.id.server == params.server_id
                and (last is None or event.id > last)
                and (rights is None or rights.matches(event.type))
            ):
                yield event


def _timeseries_filter(
    params: QueryTimeseriesParams, types: Subscription | None
) -> Callable[[Event], bool]:
    ids = None if params.ids is None else frozenset(params.ids)
    has_payload = None if params.payload is None else same_as(params.payload)
    has_source_bounds = params.source_t_from is not None or params.source_t_to is not None

    def accept(event: Event) -> bool:
        if ids is not None and event.id not in ids:
            return False
        if types is not None and not types.matches(event.type):
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


def _ordered(params: QueryTimeseriesParams, events: Iterable[Event]) -> Iterator[Event]:
    """Events, given in natural order, in the order that is asked for."""
    ordered = list(events)
    is_descending = params.order is Order.DESCENDING
    if is_descending:
        ordered.reverse()
    if params.order_by is OrderBy.SOURCE_TIMESTAMP:
        sourced = [(i.source_timestamp, i) for i in ordered if i.source_timestamp is not None]
        sourced.sort(key=itemgetter(0), reverse=is_descending)  # keeps the order of equals
        ordered = [i for _, i in sourced] + [i for i in ordered if i.source_timestamp is None]
    return iter(ordered)
