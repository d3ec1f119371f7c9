"""Backend that keeps events in memory only: for tests, demonstrations, and events that may be lost.

It grows with every event that retention does not delete. Queries are answered on reader threads,
from a snapshot of the events.
"""

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import msgspec
from hat import aio

from eventer_bridge import limits
from eventer_bridge.backends.base import HeldCb, QueryLoad, StoreStats
from eventer_bridge.backends.common import check_ids
from eventer_bridge.backends.event_blocks import EventBlocks
from eventer_bridge.backends.memory_query import MemoryReader
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.readers import LargeCb, PauseCb, Readers
from eventer_bridge.backends.request_keys import KeptRequest, KeyRetention, RequestKey
from eventer_bridge.backends.retention import (
    Budget,
    Progress,
    RetentionRule,
    Share,
    Shares,
    event_bytes,
)
from eventer_bridge.backends.type_budget import TypeBudget, TypeQuota
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.backends.volatile import VolatileBackend
from eventer_bridge.model import (
    INT64_MIN,
    Event,
    EventId,
    EventType,
    QueryLatestParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
    natural_key,
)


def create(
    retention: Sequence[RetentionRule] = (),
    clock: PassedTime | None = None,
    key_retention: KeyRetention | None = None,
) -> "MemoryBackend":
    """Create an empty backend.

    Args:
        retention: rules of how long events are kept (see ``backends.retention``).
        clock: measures their age; None: as time passes.
        key_retention: how long request keys are kept; None: the defaults.
    """
    return MemoryBackend(retention, clock or PassedTime(), key_retention or KeyRetention())


class MemoryBackend(VolatileBackend):
    """See the module. Made by :func:`create`."""

    def __init__(
        self, retention: Sequence[RetentionRule], clock: PassedTime, key_retention: KeyRetention
    ) -> None:
        super().__init__()
        self._lock = threading.Lock()  # guards the next two, which queries read
        self._events = EventBlocks()
        self._latest: dict[EventType, Event] = {}
        # guarded as well: the last event that is missing of each server and type, and when
        self._missing: dict[tuple[int, EventType | None], tuple[EventId, int]] = {}
        self._n_deletions = 0
        self._deleted: dict[int, int] = {}  # by server: the last session that misses some
        self._readers = Readers(self._check_open)
        self.async_group.spawn(aio.call_on_cancel, self._stop)
        self._budget = TypeBudget()
        self._clock = clock
        self._key_retention = key_retention
        self._held_since: HeldCb = lambda: None
        self._reader_rows: dict[bytes, bytes] = {}
        self._requests: dict[str, dict[str, KeptRequest]] = {}  # by client, the oldest first
        self._shares = Shares(retention)
        self._share_of: dict[EventType, Share | None] = {}
        self._retention_due = asyncio.Event()
        self._retaining: asyncio.Task[None] | None = None
        self._start_retention()

    async def retain(self, rules: Sequence[RetentionRule]) -> None:
        """Go on with other retention rules; counts the events anew, in the background.

        Args:
            rules: how long events are kept (see ``backends.retention``).
        """
        if self._retaining is not None:
            self._retaining.cancel()
            await asyncio.wait([self._retaining])
        self._shares = Shares(rules)
        self._share_of.clear()
        self._start_retention()

    def _start_retention(self) -> None:
        if not self._shares.all:
            return
        for event_type in self._latest:
            self._find_share(event_type)
        self._retaining = self.async_group.spawn(self._retain, self._events.snapshot())

    def types_cost(self, owner: str) -> int:
        """See :class:`Backend`."""
        return self._budget.spent.get(owner, 0)

    def check_types(self, event_types: Iterable[EventType], quota: TypeQuota | None = None) -> None:
        """See :class:`Backend`."""
        self._budget.check(set(event_types).difference(self._latest), quota)

    async def answer(
        self, query: VisibleQuery, client: str = "", holding: ExitStack | None = None
    ) -> QueryResult:
        """See :class:`Backend`."""
        self._check_open()
        check_ids(query.params)
        return await self._readers.run(client, partial(self._ext_query, query), holding)

    @property
    def query_load(self) -> QueryLoad:
        """See :class:`Backend`."""
        return self._readers.load

    @property
    def query_turns(self) -> int:
        """See :class:`Backend`."""
        return self._readers.n_turns

    def stats(self) -> StoreStats:
        """See :class:`Backend`."""
        self._check_open()
        return StoreStats(len(self._events), len(self._latest), 0)

    def find_requests(self, owner: str, names: Sequence[str]) -> list[KeptRequest | None]:
        """See :class:`Backend`."""
        self._check_open()
        clock, retention = self._clock, self._key_retention
        found = map(self._requests.get(owner, {}).get, names)
        return [None if i is None or retention.is_expired(i.timestamp, clock) else i for i in found]

    def may_be_deleted(self, event_id: EventId) -> bool:
        """See :class:`Backend`."""
        return self._deleted.get(event_id.server, INT64_MIN) >= event_id.session

    def n_deletions(self) -> int:
        """See :class:`Backend`."""
        return self._n_deletions

    def note_missing(self, last: EventId) -> None:
        """See :class:`Backend`."""
        self._check_open()
        with self._lock:
            self._note_missing([(last, None)])

    def _note_missing(self, missing: Iterable[tuple[EventId, EventType | None]]) -> None:
        self._n_deletions += 1
        for last, event_type in missing:
            self._missing[last.server, event_type] = last, self._n_deletions

    def _note_deleted(self, events: Sequence[Event]) -> None:
        told: list[tuple[EventId, EventType | None]] = []
        for event in events:
            server_id, session = event.id.server, event.id.session
            self._deleted[server_id] = max(session, self._deleted.get(server_id, session))
            share = self._share_of[event.type]
            if share is not None and share.rule.is_told:
                told.append((event.id, event.type))
        if told:
            self._note_missing(told)

    def hold_retention(self, held_since: HeldCb) -> None:
        """See :class:`Backend`."""
        self._held_since = held_since

    def note_newest(self, newest: Timestamp) -> None:
        """See :class:`Backend`."""
        self._clock.note(newest)

    def moment_before(self, seconds: float) -> Timestamp | None:
        """See :class:`Backend`."""
        return self._clock.before(seconds)

    def reader_rows(self, prefix: bytes) -> dict[bytes, bytes]:
        """See :class:`Backend`."""
        return {key: value for key, value in self._reader_rows.items() if key.startswith(prefix)}

    def keep_reader_rows(self, rows: Mapping[bytes, bytes | None]) -> asyncio.Future[None]:
        """See :class:`Backend`."""
        for key, value in rows.items():
            if value is None:
                self._reader_rows.pop(key, None)
            else:
                self._reader_rows[key] = value
        return self._done()

    def _keep_request(self, request: RequestKey, event: Event) -> None:
        kept = self._requests.setdefault(request.owner, {})
        kept.pop(request.key, None)  # it expired
        kept[request.key] = KeptRequest(
            request.digest, event.timestamp, event.id.server, event.id.session
        )
        oldest = next(iter(kept))
        if len(kept) > self._key_retention.max_entries or self._key_retention.is_expired(
            kept[oldest].timestamp, self._clock
        ):
            del kept[oldest]

    def _keep(self, events: Sequence[Event], quota: TypeQuota | None, n_asked: int) -> None:
        with self._lock:
            for number, event in enumerate(events):
                latest = self._latest.get(event.type)
                if latest is None:
                    owner = quota.owner if quota is not None and number < n_asked else None
                    self._budget.add(event.type, owner)
                self._events.add(event)
                if latest is None or natural_key(latest) < natural_key(event):
                    self._latest[event.type] = event
                if self._shares.all:
                    self._count(event)

    def _count(self, event: Event) -> None:
        share = self._find_share(event.type)
        if share is not None:
            share.new_events += 1
            share.new_bytes += event_bytes(event)
            if share.is_urgent:
                self._retention_due.set()

    def _find_share(self, event_type: EventType) -> Share | None:
        if event_type not in self._share_of:
            share = self._share_of[event_type] = self._shares.find(event_type)
            if share is not None:
                share.n_types += 1
        return self._share_of[event_type]

    async def _retain(self, stored: list[list[Event]]) -> None:
        """Count the events stored so far, then delete what is not kept."""
        while stored:
            for event in stored.pop():
                share = self._share_of[event.type]
                if share is not None:
                    share.old_events += 1
                    share.old_bytes += event_bytes(event)
            await asyncio.sleep(0)
        for share in self._shares.all:
            share.is_known = True
        progress = Progress("memory")
        while True:
            if not await self._delete_excess(progress):
                progress.done()
            await asyncio.sleep(limits.RETENTION_MIN_PERIOD_S)
            # not wait_for(): before Python 3.12 it may swallow a cancellation
            timer = self._loop.call_later(limits.RETENTION_PERIOD_S, self._retention_due.set)
            try:
                await self._retention_due.wait()
            finally:
                timer.cancel()
            self._retention_due.clear()

    async def _delete_excess(self, progress: Progress) -> int:
        """Delete events by the rules, a block at a time; returns the number of deleted events."""
        n_deleted = n_seen = 0
        budgets: dict[Share | None, Budget] = {}
        for share in self._shares.all:
            budget = Budget(share, self._clock)
            if not budget.is_empty:
                budgets[share] = budget
        while budgets and n_seen < self._events.n_blocks:
            some = self._events.block(n_seen)
            deleted = [event for event in some if self._take(event, budgets)]
            n_seen += 1
            if deleted:
                gone = {event.id for event in deleted}
                kept = [event for event in some if event.id not in gone]
                with self._lock:
                    n_seen = self._events.replace(n_seen - 1, kept)
                    self._note_deleted(deleted)
                n_bytes = sum(map(event_bytes, some)) - sum(map(event_bytes, kept))
                progress.deleted(len(some) - len(kept), n_bytes)
                n_deleted += len(some) - len(kept)
            await asyncio.sleep(0)
        return n_deleted

    def _take(self, event: Event, budgets: dict[Share | None, Budget]) -> bool:
        """Whether to delete an event; removes a budget that is used up."""
        share = self._share_of[event.type]
        budget = budgets.get(share)
        if share is None or budget is None or self._latest[event.type] is event:
            return False
        held_since = self._held_since()
        if held_since is not None and event.timestamp >= held_since:
            return False
        moment, n_bytes = budget.expired_before, event_bytes(event)
        if not budget.take(moment is not None and event.timestamp < moment, n_bytes):
            del budgets[share]
            return False
        share.old_events -= 1
        share.old_bytes -= n_bytes
        return True

    async def _stop(self) -> None:
        await asyncio.to_thread(self._readers.ext_close)

    # on a reader thread

    def _ext_query(self, query: VisibleQuery, pause: PauseCb, become_large: LargeCb) -> QueryResult:
        params, types = query.params, query.types
        with self._lock:
            blocks = self._events.snapshot()
            latest = tuple(self._latest.values()) if isinstance(params, QueryLatestParams) else ()
            missing = [*self._missing.items()] if isinstance(params, QueryServerParams) else []
            n_deletions = self._n_deletions
        reader = MemoryReader(blocks, types, pause, become_large)
        if isinstance(params, QueryServerParams):
            last = params.last_event_id
            deleted = [
                event_id
                for (server_id, event_type), (event_id, number) in missing
                if server_id == params.server_id
                and (last is None or event_id > last)
                and number > query.n_deletions
                and (event_type is None or types.matches(event_type))
            ]
            return msgspec.structs.replace(
                reader.ext_server(params),
                deleted=max(deleted, default=None),
                n_deletions=n_deletions,
            )
        if isinstance(params, QueryTimeseriesParams):
            return reader.ext_timeseries(params)
        return reader.ext_latest(params, latest)
