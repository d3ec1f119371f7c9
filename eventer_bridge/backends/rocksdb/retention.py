"""Retention: deletes events by the rules, in the background.

A thread of its own counts the stored events (once, and only for rules that need it), and then runs
a pass every ``limits.RETENTION_PERIOD_S``. It deletes the oldest events of one rule after the
other, ``limits.RETENTION_BATCH_EVENTS`` per commit, which the backend queues with its own commits::

    count ─▶ pass: choose ─▶ Deletion ─▶ backend: commit ─▶ rest ─▶ choose …

While events are registered, it rests after each step, so that it takes a small share of a processor
(``limits.RETENTION_CPU_SHARE``, more while the event loop is idle between them); without
registrations it does not rest. So it may fall behind at the highest rates, and catches up at lower
ones. It has no state on disk: after a crash it starts as usual.

A :class:`Deletion` is an ordinary commit: all families stay consistent, even after a crash.
Sessions that are registered meanwhile may join it. ``event``: by range if many events of a type are
deleted, else by key. ``source``: by key (a new event may have any position in it). ``session``: a
block is rewritten without the events, or deleted with its row in ``server`` if none is left; many
successive ones by range. ``default``: the last id and timestamp of a server, if one of its sessions
is deleted.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rocksdict import ColumnFamily, RdictIter

from eventer_bridge import limits
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.base import HeldCb
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.readers import yield_gil
from eventer_bridge.backends.retention import Budget, Progress, RetentionRule, Share, Shares
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.keys import LOCAL_ID_BYTES, SessionBlock, TypeId
from eventer_bridge.backends.rocksdb.opening import ext_call
from eventer_bridge.backends.rocksdb.scan import KeyRange, find_in_blocks, scan_blocks
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.types import TypeRegistry
from eventer_bridge.errors import ClosedError, StorageError
from eventer_bridge.model import EventType

mlog = logging.getLogger(__name__)


class StoredEvent(NamedTuple):
    """A row of ``event``; ``is_latest``: no event of its type comes after it."""

    key: bytes
    value: bytes
    is_latest: bool

    @property
    def n_bytes(self) -> int:
        """Size, for a rule's limit."""
        return len(self.key) + len(self.value)


class _ReducedBlock(NamedTuple):
    """A block, sessions and instances of its events to delete, and whether it is the next one."""

    block: SessionBlock
    local_ids: set[bytes]
    is_next: bool


def ext_oldest(
    snapshot: Snapshot, type_ids: Sequence[TypeId], span: KeyRange, max_events: int
) -> list[StoredEvent]:
    """The first events of some types, in natural order.

    Blocks of sessions are walked as long as that is cheaper than seeking every type.
    """
    blocks = scan_blocks(snapshot, span)
    found = find_in_blocks(snapshot, blocks, frozenset(type_ids), span, limit=max_events)
    yield_gil()
    rows: list[StoredEvent] = []
    iterator = snapshot.iterator("event")
    for key in sorted(found):
        value = snapshot.next_value(iterator, key)
        rows.append(StoredEvent(key, value, not _has_next(snapshot, iterator, key)))
    rows.sort(key=lambda row: row.key[keys.TYPE_BYTES :])
    return rows


def _has_next(snapshot: Snapshot, iterator: RdictIter, key: bytes) -> bool:
    """Whether an iterator, which is after an event, is at another one of its type."""
    if not iterator.valid():
        return False
    following: bytes = iterator.key()
    return following.startswith(key[: keys.TYPE_BYTES]) and not snapshot.hides(following)


class Deletion:
    """A commit that deletes the oldest events of some types, in all families.

    Args:
        store, snapshot: where the events are.
        events: the first events of some types from a position on, in natural order, without the
            latest of each.
        with_ranges: whether to delete ranges; false: by key only.

    Attributes:
        events: those that it deletes: the first ones, as ``limits.RETENTION_BATCH_BYTES`` says.
        missing: events to notify readers of; see ``trimmed.Deletions``.
        newest: session key up to which ranges are deleted; empty: no ranges. No event up to there
            may be written between the snapshot and the deletion.
    """

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot,
        events: Sequence[StoredEvent],
        with_ranges: bool = True,
    ) -> None:
        self.commit = store.new_commit()
        self._batch = self.commit.batch
        self.newest = b""
        self.missing: dict[bytes, bytes] = {}
        self._with_ranges = with_ranges
        blocks = [*_blocks_of(snapshot, events)]
        self.events = events[: sum(len(local_ids) for _, local_ids, _ in blocks)]
        if with_ranges and events:
            self.newest = keys.session_of(self.events[-1].key)
        self._delete_events(store, self.events)
        self._delete_blocks(store, blocks)

    def _delete_events(self, store: Store, events: Sequence[StoredEvent]) -> None:
        by_type: dict[TypeId, list[bytes]] = {}
        source_cf = store.handle("source")
        for key, value, _ in events:
            if source_key := keys.source_key(key, value):
                self._batch.delete(source_key, source_cf)
            type_id = key[: keys.TYPE_BYTES]
            by_type.setdefault(type_id, []).append(key)
            self.missing[key[-keys.ID_BYTES : -LOCAL_ID_BYTES] + type_id] = key[-LOCAL_ID_BYTES:]
        for of_type in by_type.values():
            self._delete_rows(of_type, store.handle("event"))

    def _delete_blocks(self, store: Store, blocks: Iterable[_ReducedBlock]) -> None:
        runs: list[list[SessionBlock]] = []  # successive blocks to be deleted
        positions: dict[bytes, bytes] = {}  # the last session of each server that is gone
        for block, local_ids, is_next in blocks:
            left = block.without(local_ids)
            if left.entries:
                self._batch.put(left.key, left.entries, store.handle("session"))
                runs.append([])
            else:
                if not (is_next and runs):
                    runs.append([])
                runs[-1].append(block)
            gone = {i[: keys.INT_BYTES] for i in local_ids}
            gone = {session for session in gone if not left.has_session(session)}
            if gone:  # blocks come in the order of time
                server = block.server_key[: keys.INT_BYTES]
                positions[server] = max(gone) + block.key[: keys.TIMESTAMP_BYTES]
        for run in runs:
            self._delete_rows([block.key for block in run], store.handle("session"))
            self._delete_servers(store, run)
        for server, position in positions.items():
            if position > store.deleted_position(server):
                self._batch.put(keys.DELETED_KEY + server, position)

    def _delete_servers(self, store: Store, blocks: Iterable[SessionBlock]) -> None:
        """Delete rows of ``server``; successive blocks of a server are successive there, too."""
        by_server: dict[bytes, list[bytes]] = {}
        for block in blocks:
            server = block.server_key[: keys.INT_BYTES]
            by_server.setdefault(server, []).append(block.server_key)
        for server_keys in by_server.values():
            self._delete_rows(server_keys, store.handle("server"))

    def _delete_rows(self, row_keys: Sequence[bytes], family: ColumnFamily) -> None:
        """Delete successive rows."""
        if self._with_ranges and len(row_keys) >= limits.RETENTION_RANGE_ROWS:
            self._batch.delete_range(row_keys[0], row_keys[-1] + b"\x00", family)
        else:
            for key in row_keys:
                self._batch.delete(key, family)


def _blocks_of(snapshot: Snapshot, events: Iterable[StoredEvent]) -> Iterator[_ReducedBlock]:
    """Blocks that have events, which come in order: as many as one commit may rewrite."""
    iterator = snapshot.iterator("session")
    block, is_next = SessionBlock(b"", b""), False
    local_ids: set[bytes] = set()
    n_bytes = 0
    for key, _, _ in events:
        session_key = keys.session_of(key)
        if not block.spans(session_key):
            if local_ids:
                yield _ReducedBlock(block, local_ids, is_next)
            if n_bytes > limits.RETENTION_BATCH_BYTES:
                return
            block, is_next = _block_of(snapshot, iterator, session_key)
            n_bytes += len(block.entries)
            local_ids = set()
        local_ids.add(key[-LOCAL_ID_BYTES:])
    if local_ids:
        yield _ReducedBlock(block, local_ids, is_next)


def _block_of(
    snapshot: Snapshot, iterator: RdictIter, session_key: bytes
) -> tuple[SessionBlock, bool]:
    """The block that has a session, and whether the iterator, which moves behind it, was there."""
    if iterator.valid() and iterator.key() <= session_key:
        block = SessionBlock(iterator.key(), iterator.value())
        if block.spans(session_key):
            iterator.next()
            return block, True
    iterator.seek_for_prev(session_key)
    block = SessionBlock(iterator.key() or b"", iterator.value() or b"")
    if not block.spans(session_key):
        with snapshot.errors():
            iterator.status()
        raise snapshot.damaged(session_key)
    iterator.next()
    return block, False


class _Step(NamedTuple):
    """The next step for a rule: from which position, and whether it may delete ranges."""

    share: Share
    start: bytes = b""
    with_ranges: bool = True


class Retention:
    """See the module.

    Created on the loop's thread; new types, and the commits of events that are staged from then on,
    are reported to it there. It is started when all events staged before are durable, and ends
    before the store is closed or reopened; then a new one is created.

    The first of ``rules`` that matches an event's type applies; ``clock`` measures its duration.
    ``ext_commit`` commits a deletion, and waits for it. False: it was not committed, because a new
    event is in its ranges.
    """

    def __init__(
        self,
        store: Store,
        types: TypeRegistry,
        rules: Sequence[RetentionRule],
        clock: PassedTime,
        ext_commit: Callable[[Deletion], bool],
        *,
        held_since: HeldCb = lambda: None,
    ) -> None:
        self._store = store
        self._ext_commit = ext_commit
        self._held_since = held_since
        self._clock = clock
        self._shares = Shares(rules)
        self._types_of: dict[Share, list[TypeId]] = {share: [] for share in self._shares.all}
        self._counted: dict[TypeId, Share] = {}
        self._n_commits = self._seen_commits = 0
        self._rested_s = 0.0  # time of the thread when it last rested
        self._progress = Progress(str(store.path))
        self._is_closing = threading.Event()
        self._wake = threading.Event()
        self.add_types(types.names.items())
        store.counted = self._counted
        self._using = contextlib.ExitStack()
        self._before: Snapshot | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to count and delete; ``StorageError``: the store is being opened again.

        Raises ``RuntimeError`` if there are no more threads.
        """
        if any(share.rule.is_counted for share in self._shares.all):
            # events that are committed from now on are counted by their commit
            self._using.enter_context(self._store.in_use())
            self._before = self._store.snapshot()
        thread = threading.Thread(target=self._ext_run, name="store-retention", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._before = None  # its iterators keep the database open
            self._using.close()
            self._before = None
            raise
        self._thread = thread

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs, or is not started yet."""
        return self._thread is None or self._thread.is_alive()

    def add_types(self, new: Iterable[tuple[TypeId, EventType]]) -> None:
        """Add new types; to be called before their events are staged."""
        for type_id, event_type in new:
            share = self._shares.find(event_type)
            if share is None:
                continue
            self._types_of[share].append(type_id)
            share.n_types += 1
            if share.rule.is_counted:
                self._counted[type_id] = share

    def on_commit(self, commit: Commit) -> None:
        """Count the events of a durable commit."""
        self._n_commits += commit.n_events > 0
        for share, (n_events, n_bytes) in commit.tally.items():
            share.new_events += n_events
            share.new_bytes += n_bytes
            if share.is_urgent:
                self._wake.set()

    def ext_close(self) -> None:
        """Stop after the current step, again and on any thread but the loop's (it commits)."""
        self._is_closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _ext_run(self) -> None:
        with contextlib.suppress(ClosedError):
            with self._using:
                try:
                    self._ext_retry(self._ext_count)
                finally:
                    self._before = None
            while True:
                self._ext_retry(self._ext_pass)
                self._ext_wait(self._is_closing, limits.RETENTION_MIN_PERIOD_S)
                self._ext_wait(self._wake, limits.RETENTION_PERIOD_S)
                self._wake.clear()

    def _ext_retry(self, ext_fn: Callable[[], None]) -> None:
        """Call a function until it succeeds."""
        while True:
            try:
                return ext_call(ext_fn)
            except StorageError as e:
                reason = str(e)
            mlog.error(
                "retention failed, and will try again",
                extra={"reason": reason, "after_s": limits.RETENTION_PERIOD_S},
            )
            self._ext_wait(self._is_closing, limits.RETENTION_PERIOD_S)

    def _ext_wait(self, event: threading.Event, seconds: float) -> None:
        event.wait(seconds)
        if self._is_closing.is_set():
            raise ClosedError("retention ends")

    def _ext_count(self) -> None:
        if self._before is None:
            return
        began_s = time.monotonic()
        for share in self._shares.all:
            if share.is_known:
                continue
            n_events = n_bytes = 0
            for type_id in tuple(self._types_of[share]):
                for key, value in self._before.rows("event", type_id):
                    n_events += 1
                    n_bytes += len(key) + len(value)
                    if n_events % store_limits.COUNTED_ROWS == 0:
                        self._ext_rest()
            share.old_events, share.old_bytes = n_events, n_bytes
            share.is_known = True
        mlog.info(
            "retention has counted the events",
            extra={
                "store": str(self._store.path),
                "events": sum(share.old_events for share in self._shares.all),
                "seconds": round(time.monotonic() - began_s, 3),
            },
        )

    def _ext_pass(self) -> None:
        """Delete events by the rules: a step of each rule in turn, until nothing is left."""
        waiting = deque(_Step(share) for share in self._shares.all)
        is_anything_deleted = False
        while waiting:
            step = waiting.popleft()
            n_before = step.share.old_events
            with self._store.in_use():
                following = ext_call(self._ext_step, step)
            is_anything_deleted |= step.share.old_events != n_before
            if following is not None:
                waiting.append(following)
            self._ext_rest()
        if not is_anything_deleted:
            self._progress.done()

    def _ext_step(self, step: _Step) -> _Step | None:
        """Delete some events; returns the next step of the rule, or None."""
        share, start, with_ranges = step
        budget = Budget(share, self._clock)
        if budget.is_empty:
            return None
        snapshot = self._store.ext_begin_deleting()
        events = self._ext_candidates(snapshot, share, budget, start)
        chosen, is_last = _choose(events, budget)
        if chosen:
            deletion = Deletion(self._store, snapshot, chosen, with_ranges)
            if not self._ext_commit(deletion):
                return _Step(share, start, with_ranges=False)
            self._record(share, deletion.events)
            if len(deletion.events) < len(chosen):
                return _Step(share, deletion.events[-1].key[keys.TYPE_BYTES :] + b"\x00")
        if not events or is_last:
            return None
        return _Step(share, events[-1].key[keys.TYPE_BYTES :] + b"\x00")

    def _ext_candidates(
        self, snapshot: Snapshot, share: Share, budget: Budget, start: bytes
    ) -> list[StoredEvent]:
        stop = keys.KEY_MAX
        if not budget.is_exceeded and budget.expired_before:
            stop = keys.encode_timestamp(budget.expired_before)
        if (held_since := self._held_since()) is not None:
            stop = min(stop, keys.encode_timestamp(held_since))
        type_ids = tuple(self._types_of[share])
        return ext_oldest(snapshot, type_ids, KeyRange(start, stop), limits.RETENTION_BATCH_EVENTS)

    def _record(self, share: Share, chosen: Sequence[StoredEvent]) -> None:
        n_bytes = sum(event.n_bytes for event in chosen)
        share.old_events -= len(chosen)
        share.old_bytes -= n_bytes
        self._progress.deleted(len(chosen), n_bytes)

    def _ext_rest(self) -> None:
        """Yield to other threads: shortly, or longer if events were registered meanwhile."""
        worked_s = time.thread_time() - self._rested_s
        began_s = time.perf_counter()
        yield_gil()
        if self._n_commits != self._seen_commits:
            self._seen_commits = self._n_commits
            is_loop_busy = time.perf_counter() - began_s > store_limits.BUSY_S
            share = limits.RETENTION_CPU_SHARE if is_loop_busy else limits.RETENTION_IDLE_SHARE
            self._is_closing.wait(min(worked_s * (1 / share - 1), threading.TIMEOUT_MAX))
        if self._is_closing.is_set():
            raise ClosedError("retention ends")
        self._rested_s = time.thread_time()


def _choose(events: Sequence[StoredEvent], budget: Budget) -> tuple[list[StoredEvent], bool]:
    """The events to delete, and whether no later ones are to be deleted."""
    chosen: list[StoredEvent] = []
    moment = budget.expired_before
    expired = b"" if moment is None else keys.encode_timestamp(moment)
    for event in events:
        if event.is_latest:
            continue
        position = event.key[keys.TYPE_BYTES :]
        if not budget.take(position < expired, event.n_bytes):
            return chosen, True
        chosen.append(event)
    return chosen, len(events) < limits.RETENTION_BATCH_EVENTS
