"""Group commit: how the durable backend stores events.

While one group of sessions is being synced on the storage thread, the next one gathers. What need
not be kept is chosen by a thread of its own (``retention``), and deleted as a commit among the
others::

    register() ─▶ encode into the gathering group ─▶ write ─▶ storage thread: sync ─▶ future done
                                                       ▲ next part of a large session │
                                                       └──────────────────────────────┘

When a commit fails, everything that waits for one fails with it, and the storage thread
opens the database again, every ``limits.STORE_RETRY_PERIOD_S``, until it can be written.
What is known in memory (types, latest events, what is missing) is then read anew. Whatever the
storage thread raises is such a failure; should it end all the same, the backend closes.

What was not handed to the database yet is refused. Of the commit that was, nobody knows: it
fails with ``OutcomeUnknownError``, and nobody sees its events (``Store.undecided``) until the
database is open again. Then it is looked up once, and from there on queries find it or not;
``decided`` of the error says so to the one who kept it.

Belongs to the event loop's thread; what is named ``ext_`` runs on the storage thread.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

from hat import util

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend, HeldCb, ReadTypeCb, failed, find_type
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.request_keys import KeptRequest, KeyRetention
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.commit import Commit, Group
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.opening import Opened, ext_call, ext_load
from eventer_bridge.backends.rocksdb.query import QueryRunner
from eventer_bridge.backends.rocksdb.request_rows import RequestRows
from eventer_bridge.backends.rocksdb.retention import Deletion, Retention
from eventer_bridge.backends.rocksdb.storage_thread import StorageThread
from eventer_bridge.backends.rocksdb.trimmed import ANY_TYPE, Deletions
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.errors import (
    ClosedError,
    EventerBridgeError,
    OutcomeUnknownError,
    StorageError,
    StoreDamagedError,
    StoreFormatError,
)
from eventer_bridge.model import EventId, EventType, Timestamp
from eventer_bridge.packed import (
    Batch,
    TypeTable,
    are_keyed,
    batch_parts,
    totals,
    unready,
)
from eventer_bridge.slices import Steps, WorkQueue, parts

mlog = logging.getLogger(__name__)


class CommitObserver(NamedTuple):
    """Called after each commit: with its events, the seconds until it was durable, and of sync."""

    events: Callable[[float], None]
    seconds: Callable[[float], None]
    sync_seconds: Callable[[float], None]


class GroupCommit(Backend):
    """See the module, and ``backend.create``; ``RocksDbBackend`` reads, too."""

    def __init__(
        self,
        opened: Opened,
        on_commit: CommitObserver | None,
        rules: Sequence[RetentionRule],
        clock: PassedTime,
        key_retention: KeyRetention,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._held_since: HeldCb = lambda: None
        self._store, self._types, self._latest, _ = opened
        self._queries = QueryRunner(self._store, self._types, self._latest)
        self._on_commit = on_commit
        self._committed_s: float | None = None  # when the last commit was synced
        self._rules, self._clock = rules, clock
        self._clock_kept_s = time.perf_counter() - limits.COURSE_PERIOD_S
        self._key_retention = key_retention
        self._requests = RequestRows(self._store, key_retention, clock)
        self._deletions = Deletions(self._store)
        self._type_tables: list[TypeTable] = []
        self._groups: deque[Group] = deque()  # the first is being committed, or will be next
        self._is_committing = False
        self._decided: asyncio.Future[bool] | None = None  # of the commit that failed
        self._ending = WorkQueue()
        self._started_s = 0.0
        self._sync_s = 0.0  # set by the storage thread before it tells of a sync
        self.failure_cbs = util.CallbackRegistry()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._thread = StorageThread(self._on_thread_ended)
        self._retention = self._start_retention()
        self._uncounted: Group | None = None  # the last one that a new retention does not count

    def reserve(self, server_id: int, session: int) -> asyncio.Future[None]:
        """See :class:`Backend`."""
        try:
            self._check_writable()
        except EventerBridgeError as e:
            return failed(self._loop.create_future(), e)
        group = self._gather(0)
        self._store.stage_reservation(group.commit, server_id, session)
        return group.future

    def types_cost(self, owner: str) -> int:
        """See :class:`Backend`."""
        return self._types.spent(owner)

    def hold_retention(self, held_since: HeldCb) -> None:
        """See :class:`Backend`."""
        self._held_since = held_since

    def note_newest(self, newest: Timestamp) -> None:
        """See :class:`Backend`."""
        self._clock.note(newest)
        idle_s = time.perf_counter() - self._clock_kept_s
        is_able = self.failure is None and self.is_open and not self.is_passive
        if is_able and not self._groups and idle_s >= limits.IDLE_COURSE_PERIOD_S:
            self._gather(0)

    def moment_before(self, seconds: float) -> Timestamp | None:
        """See :class:`Backend`."""
        return self._clock.before(seconds)

    def reader_rows(self, prefix: bytes) -> dict[bytes, bytes]:
        """See :class:`Backend`. A short read on the loop's thread."""
        self._check_open()
        with self._store.in_use():
            return self._store.reader_rows(prefix)

    def keep_reader_rows(self, rows: Mapping[bytes, bytes | None]) -> asyncio.Future[None]:
        """See :class:`Backend`."""
        try:
            self._check_writable()
        except EventerBridgeError as e:
            return failed(self._loop.create_future(), e)
        group = self._gather(0)
        self._store.stage_reader_rows(group.commit, rows)
        return group.future

    def note_missing(self, last: EventId) -> None:
        """See :class:`Backend`."""
        self._check_writable()
        encoded = keys.encode_id(last)
        server, local_id = encoded[: keys.INT_BYTES], encoded[keys.INT_BYTES :]
        self._deletions.stage(self._gather(0).commit, {server + ANY_TYPE: local_id})

    def check_types(self, event_types: Iterable[EventType], quota: TypeQuota | None = None) -> None:
        """See :class:`Backend`."""
        self._types.check(event_types, quota)

    def has_types(self, event_types: AbstractSet[EventType]) -> bool:
        """See :class:`Backend`."""
        return self._types.ids.keys() >= event_types

    def find_requests(self, owner: str, names: Sequence[str]) -> list[KeptRequest | None]:
        """See :class:`Backend`. Four short reads each on the loop's thread at most."""
        self._check_writable()
        return self._requests.find(owner, names)

    def type_table(self, read: ReadTypeCb, checked: Container[EventType]) -> TypeTable:
        """See :class:`Backend`."""
        table = TypeTable(partial(find_type, read), limits.CACHE_BYTES, self._types.ids, checked)
        self._type_tables.append(table)
        return table

    def register(self, batches: list[Batch]) -> Steps[asyncio.Future[None]]:
        """See :class:`Backend`. Types that were not checked before may fail it, too."""
        first = batches[0]
        quota = first.quota if len(batches) == 1 else None
        new_types: list[tuple[TypeId, bytes]] = []
        try:
            if self.failure is not None or not self.async_group.is_open or self.is_passive:
                self._check_writable()
            found = [] if first.is_stepwise else unready(batches)
            if found or first.is_stepwise:
                yield from self._intern(first, found, new_types, quota)
        except EventerBridgeError as e:
            return failed(self._loop.create_future(), e)
        if first.is_stepwise:
            group = self._append(self._store.new_commit(len(first)))
            group.is_large = group.is_open = True
        else:
            n_events, _, _ = totals(batches)
            group = self._gather(n_events)
        try:
            for _ in self._stage(group.commit, batches, new_types, quota):
                if group.future.done():  # a commit before it failed, and everything with it
                    return group.future
                yield
        except GeneratorExit:  # the loop ends
            raise
        except BaseException as e:
            self._abandon(group, e)
            raise
        if first.is_stepwise:
            group.is_open = False
            self._commit_first()
        return group.future

    def _intern(
        self,
        first: Batch,
        found: list[tuple[int, EventType]],
        new_types: list[tuple[TypeId, bytes]],
        quota: TypeQuota | None,
    ) -> Steps[None]:
        """Add types that batches bring; raises if they cannot be registered, or no more.

        ``found``: as ``packed.unready``, unless the first one is stepwise. ``new_types`` is filled.
        """
        types = self._types
        for part in parts(len(first)) if first.is_stepwise else ():
            found += unready([first], part.start, part.stop)
            yield
        yield from types.intern(found, new_types, quota, first.requested)
        for part in parts(len(new_types)):
            self._note_new_types(new_types[part])
            yield
        self._check_writable()  # it took steps
        if types is not self._types:
            raise StorageError(f"{self._store.path}: the event store was opened again")

    def _stage(
        self,
        commit: Commit,
        batches: list[Batch],
        new_types: Sequence[tuple[TypeId, bytes]],
        quota: TypeQuota | None,
    ) -> Steps[None]:
        """Add batches, their keys, and new types with what these cost, to a commit."""
        first, ids = batches[0], self._types.ids
        spent = self._types.spent(quota.owner) if quota is not None and new_types else 0
        if first.is_stepwise:
            # what is deleted meanwhile is before it
            timestamp = Timestamp(first.s, first.us)
            commit.sessions.add(keys.session_key(timestamp, first.server, first.session))
            for part in parts(len(new_types)):
                commit.cut()
                self._store.stage_types(commit, new_types[part])
                yield
            for part in batch_parts(first):
                self._store.stage(commit, batches, ids, part)
                yield
                self._store.put_part(commit)
                yield
            self._store.stage_block(commit, new_types)
            yield
        else:
            if new_types:
                self._store.stage_types(commit, new_types)
            self._store.stage(commit, batches, ids)
        if are_keyed(batches):
            self._requests.stage(commit.batch, batches)
        if new_types and quota is not None:
            self._store.stage_spent(commit, quota.owner, spent)

    def _note_new_types(self, new_types: Sequence[tuple[TypeId, bytes]]) -> None:
        if self._retention is not None:
            names = self._types.names
            self._retention.add_types([(type_id, names[type_id]) for type_id, _ in new_types])

    async def flush(self) -> None:
        """See :class:`Backend`."""
        if self.failure is not None:
            raise StorageError(self.failure)
        if self._groups:
            # shared with others: who gives up waiting must not cancel it for them
            await asyncio.shield(self._groups[-1].future)
        else:
            await asyncio.sleep(0)  # callbacks of the last commit may still be due

    def _check_open(self) -> None:
        if not self.async_group.is_open:
            raise self._closed()

    def _closed(self) -> ClosedError:
        return ClosedError(f"{self._store.path}: the event store is closed")

    def _check_writable(self) -> None:
        self._check_open()
        if self.failure is not None:
            raise StorageError(self.failure)
        if self.is_passive:
            raise StorageError(f"{self._store.path}: it only follows others")

    def _gather(self, n_events: int) -> Group:
        """The group that so many events are to join."""
        groups = self._groups
        if len(groups) > self._is_committing:
            last = groups[-1]
            if not last.is_large and last.commit.has_room(n_events):
                return last
        return self._append(self._store.new_commit())

    def _append(self, commit: Commit) -> Group:
        if not self._groups:
            # everything that this iteration of the loop brings joins the first group
            end_s = time.perf_counter() + limits.MAX_GATHERING_S
            self._loop.call_soon(self._commit_grown, 1, end_s)
        group = Group(commit, self._loop.create_future())
        self._groups.append(group)
        return group

    async def retain(self, rules: Sequence[RetentionRule]) -> None:
        """Go on with other retention rules; counts the stored events anew, in the background."""
        self._rules = rules
        before = self._retention
        if before is not None:
            await asyncio.to_thread(before.ext_close)
        if self._retention is not before or not self.is_open or self.failure is not None:
            return  # the store was opened again, or will be
        if not self._groups:
            self._retention = self._start_retention()
            return
        # what is staged so far is counted when all of it is stored, the rest by its commits
        self._retention = self._make_retention()
        self._uncounted = self._groups[-1]
        for group in self._groups:
            group.commit.is_closed = True

    def _make_retention(self) -> Retention | None:
        if not self._rules:
            self._store.counted = {}
            return None
        opened = self._store, self._types, self._rules, self._clock
        return Retention(*opened, self._ext_delete, held_since=self._ext_held_since)

    def _ext_held_since(self) -> Timestamp | None:
        return self._held_since()

    def _start_retention(self) -> Retention | None:
        retention = self._make_retention()
        if retention is not None:
            retention.start()
        return retention

    def _ext_delete(self, deletion: Deletion) -> bool:
        return asyncio.run_coroutine_threadsafe(self._delete(deletion), self._loop).result()

    async def _delete(self, deletion: Deletion) -> bool:
        """See ``Retention``; those that come from now on are written behind it."""
        self._check_writable()
        # the first may be written in part, unseen by who chose what is deleted
        if self._store.has_written_up_to(deletion.newest) or any(
            group.commit.oldest <= deletion.newest for group in self._groups
        ):
            return False
        if deletion.missing:
            self._deletions.stage(deletion.commit, deletion.missing)
        try:
            await asyncio.shield(self._append(deletion.commit).future)
        except OutcomeUnknownError as e:
            raise StorageError(str(e)) from e
        return True

    def _abandon(self, group: Group, error: BaseException) -> None:
        """Close: staging panicked, and the groups behind may need types that only this one has."""
        mlog.error("event store closes for good", extra={"reason": f"staging failed: {error!r}"})
        while group in self._groups:
            unsaved = self._groups.pop()
            if not unsaved.future.done():
                failed(unsaved.future, StorageError(f"{self._store.path}: it failed: {error!r}"))
        self.close()

    def _commit_first(self) -> None:
        """Commit the first group, if it is there, whole, and not being committed."""
        if self._is_committing or not self._groups or self._groups[0].is_open:
            return
        self._is_committing = True
        self._started_s = time.perf_counter()
        commit = self._groups[0].commit
        if self._started_s - self._clock_kept_s >= limits.COURSE_PERIOD_S:
            self._clock_kept_s = self._started_s
            commit.batch.put(keys.CLOCK_KEY, self._clock.encode())
        self._write(commit)

    def _commit_grown(self, n_events: int, end_s: float) -> None:
        """Commit the first group when it no longer grows, is full, or is waited for too long.

        Those who sent much take turns in several iterations of the loop. A commit for each of
        them would cost more than what they sent. A client that waits for each answer sends no
        more: a single event is committed at once. It had ``n_events`` in the iteration before.
        """
        is_alone = len(self._groups) == 1 and not self._is_committing
        if is_alone and time.perf_counter() < end_s:
            n_gathered = self._groups[0].commit.n_events
            if n_gathered > n_events:
                self._loop.call_soon(self._commit_grown, n_gathered, end_s)
                return
        self._commit_first()

    def _write(self, commit: Commit) -> None:
        """Write a commit, or the next part of it."""
        try:
            self._store.write(commit)
        except StorageError as e:
            self._on_synced(e)
        else:
            self._thread.run(self._ext_sync, self._on_synced)

    def _on_synced(self, error: StorageError | None) -> None:
        group = self._groups[0]
        if error is not None:
            self._is_committing = False
            self._fail_groups(error)
            self._retry(error)
        elif not group.commit.is_written:
            self._write(group.commit)
        elif group.is_large:
            self._ending.add(partial(self._end_in_steps, group))
        else:
            self._on_durable(group)

    def _end_in_steps(self, group: Group) -> Steps[None]:
        """Note the latest events of a large session, and then report it as durable."""
        yield from self._latest.update_in_steps(group.commit.latest)
        group.commit.latest = {}
        if not group.future.done():  # else the storage thread ended meanwhile
            self._on_durable(group)

    def _on_durable(self, group: Group) -> None:
        del self._groups[0]
        self._is_committing = False
        self._store.undecided = frozenset()
        if self._retention is not None and not group.commit.is_closed:
            self._retention.on_commit(group.commit)
        if group is self._uncounted:
            self._uncounted = None
            self._count_stored()
        self._committed_s = now_s = time.perf_counter()
        seconds = now_s - self._started_s
        if self._groups:
            self._commit_grown(0, now_s + limits.MAX_GATHERING_S)
        self._latest.update(group.commit.latest.items())
        if not group.future.done():
            group.future.set_result(None)
        if self._on_commit:
            self._on_commit.events(group.commit.n_events)
            self._on_commit.seconds(seconds)
            self._on_commit.sync_seconds(self._sync_s)

    def _count_stored(self) -> None:
        if self._retention is not None:
            try:
                self._retention.start()
            except (StorageError, RuntimeError) as e:  # RuntimeError: no more threads
                mlog.error("retention does not start", extra={"reason": str(e)})

    def _fail_groups(self, error: StorageError) -> None:
        """Nothing can be stored: fail all commits that are waited for."""
        self._set_failure(str(error))
        self._refuse_groups(error)

    def _refuse_groups(self, error: StorageError) -> None:
        self._uncounted = None
        for unsaved in self._groups:
            if unsaved.future.done():
                continue
            if unsaved.commit.is_written:  # the first one, if any
                self._decided = self._loop.create_future()
                failed(
                    unsaved.future, OutcomeUnknownError(f"outcome unknown: {error}", self._decided)
                )
            else:
                failed(unsaved.future, StorageError(str(error)))
        self._groups.clear()

    def _retry(self, error: StorageError) -> None:
        if isinstance(error, (StoreDamagedError, StoreFormatError)):
            mlog.error("event store closes for good", extra={"reason": str(error)})
            self.close()
        if self.is_open:
            delay_s = limits.STORE_RETRY_PERIOD_S
            self._loop.call_later(delay_s, self._thread.run, self._ext_reopen, self._on_reopened)

    def _on_reopened(self, opened: Opened | StorageError) -> None:
        if isinstance(opened, StorageError):
            self._set_failure(str(opened))
            self._retry(opened)
            return
        try:
            self._decide(opened)
            if self.is_open:
                self._retention = self._start_retention()
        except (StorageError, RuntimeError) as e:  # RuntimeError: no more threads
            self._on_reopened(StorageError(f"{self._store.path}: {e}"))
            return
        self._set_failure(None)

    def _decide(self, opened: Opened) -> None:
        """From now on, what was undecided is found, or is not."""
        is_stored = self._store.decide()
        self._adopt(opened)
        if self._decided is not None:
            mlog.info("commit that failed is decided", extra={"is_stored": is_stored})
            self._decided.set_result(is_stored)
            self._decided = None

    def _adopt(self, opened: Opened) -> None:
        """Go on with what was read from the store."""
        _, self._types, self._latest, _ = opened
        self._queries.use(self._types, self._latest)
        for table in self._type_tables:
            table.use(self._types.ids)
        self._requests = RequestRows(self._store, self._key_retention, self._clock)
        self._deletions = Deletions(self._store)

    def _set_failure(self, failure: str | None) -> None:
        if failure == self.failure:
            return
        self.failure = failure
        if failure is None:
            mlog.info("event store can be written again", extra={"path": str(self._store.path)})
        else:
            mlog.error("event store cannot be written", extra={"reason": failure})
        self.failure_cbs.notify()

    def _on_thread_ended(self) -> None:
        self._stopped.set_result(None)
        if self.is_open or self._groups:  # not by _stop
            self._fail_groups(StorageError(f"{self._store.path}: the storage thread ended"))
            self.close()

    def _ext_sync(self) -> None:
        started_s = time.perf_counter()
        self._store.ext_sync()
        self._sync_s = time.perf_counter() - started_s

    def _ext_reopen(self) -> Opened:
        if self._retention is not None:
            self._retention.ext_close()
        self._store.ext_reopen()
        return ext_call(ext_load, self._store)

    def _ext_end(self) -> None:
        if self._retention is not None:
            self._retention.ext_close()
        self._queries.readers.ext_close()
        try:
            self._store.ext_close()
        except StorageError as e:
            mlog.error("event store failed while it closed", extra={"reason": str(e)})
