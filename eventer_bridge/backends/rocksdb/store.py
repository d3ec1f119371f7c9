"""The rows of the store: committing them, and what is asked about all of them.

:class:`Store` may be used from any thread, except that only one may commit. A commit is atomic over
all column families; it holds rows, or their deletion. Reading is done from a ``Snapshot``.

Whatever reads raises ``StorageError``. Everything but committing happens inside ``in_use``, as
``Database`` asks for. Every commit goes through the log, one at a time: ``log_files`` relies on it.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from rocksdict import (
    BottommostLevelCompaction,
    Checkpoint,
    ColumnFamily,
    CompactOptions,
    Rdict,
    RdictIter,
    WriteBatch,
)

from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.base import HighWaterMark
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.retention import Share
from eventer_bridge.backends.rocksdb import contents, keys
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.contents import (
    GroupRow,
    note,
    read_clock,
    read_group,
    read_in_order_ends,
    read_spent,
    read_types,
    unfinished_session,
)
from eventer_bridge.backends.rocksdb.database import COMMIT, explain, synced
from eventer_bridge.backends.rocksdb.keys import ENTRY_BYTES, ORIGIN_BYTES, TypeId
from eventer_bridge.backends.rocksdb.latest import Row
from eventer_bridge.backends.rocksdb.lifecycle import Database
from eventer_bridge.backends.rocksdb.records import RowBatch
from eventer_bridge.backends.rocksdb.rows import ROWS
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.source_order import SourceOrder, ext_read_order
from eventer_bridge.errors import StorageError, StoreDamagedError
from eventer_bridge.model import EventType
from eventer_bridge.packed import Batch

_exhaust: Final = deque[None](maxlen=0).extend
"""Takes everything out of an iterator, which is what its steps do."""

_NO_ROW: Final[Row] = b"", b""


class Store(Database):
    """See the module; raises and arguments: see ``database.open_database``.

    ``counted`` are retention's: types whose events commits tally, each with where to; ``order``
    says which events need a row in ``source``; to be loaded before others than those of new types
    are staged. ``new_commit`` makes a commit (:class:`Commit`) of ``n_events``.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        is_volatile: bool = False,
        is_recorded: bool = False,
    ) -> None:
        super().__init__(
            path, read_only=read_only, is_volatile=is_volatile, is_recorded=is_recorded
        )
        self.counted: Mapping[TypeId, Share] = {}
        self.order = SourceOrder({}, {})
        self.new_commit: Callable[..., Commit] = self._new_recorded if is_recorded else Commit
        self._write_lock = threading.Lock()
        self._oldest_written = keys.KEY_MAX  # since the last ``ext_begin_deleting``
        self._sync_lock = threading.Lock()
        self._commit_failure: str | None = None  # until it is opened again

    def _new_recorded(self, n_events: int = 0) -> Commit:
        make_batch = partial(RowBatch, self.all_handles)
        return Commit(n_events, make_batch(), make_batch)

    def ext_types(self) -> list[tuple[TypeId, EventType]]:
        """The types that are stored; raises ``StoreDamagedError`` if one is missing."""
        with self.errors():
            return read_types(self.path, self.family("type"))

    def ext_spent(self) -> dict[str, int]:
        """What the types cost that each owner brought (``TypeBudget.spent``)."""
        with self.errors():
            return read_spent(self.path, self._db)

    def ext_clock(self) -> PassedTime:
        """The time that passed with it."""
        with self.errors():
            return read_clock(self.path, self._db)

    def ext_last_position(self) -> bytes:
        """A position (see ``keys``) behind every stored one; empty if the store is empty."""
        snapshot = self.snapshot()
        last = snapshot.seek_last(snapshot.iterator("session"), b"")
        return b"" if last is None else last[:ORIGIN_BYTES] + keys.KEY_MAX

    def ext_load_order(
        self, type_ids: Iterable[TypeId], latest: Iterable[tuple[TypeId, Row]]
    ) -> None:
        """Load :attr:`order`, which is to know these types, from the latest rows of them."""
        with self.errors():
            ends = read_in_order_ends(self.path, self._db)
        snapshot, rows = self._all(), dict(latest)
        last = snapshot.seek_last(snapshot.iterator("session"), b"")
        floor = b"" if last is None else last[:ORIGIN_BYTES] + keys.KEY_MAX
        of_types = [(i, rows.get(i)) for i in type_ids]
        self.order = ext_read_order(snapshot, ends, of_types, floor)
        self.in_order_ends = ends

    def _all(self) -> Snapshot:
        """This moment, also what is undecided."""
        return Snapshot(self, self._db, self._families, is_all_seen=True)

    def ext_latest(self, type_ids: Iterable[TypeId]) -> list[tuple[TypeId, Row]]:
        """The latest row of each of these types, also of what is undecided."""
        snapshot = self._all()
        iterator = snapshot.iterator("event")
        found = [(i, snapshot.seek_last(iterator, i)) for i in type_ids]
        return [(i, (key, snapshot.value(key))) for i, key in found if key is not None]

    def stage(
        self,
        commit: Commit,
        batches: list[Batch],
        ids: Mapping[EventType, TypeId],
        part: slice | None = None,
    ) -> None:
        """Add batches to a commit that was not written yet, as a block (``session_block``).

        ``batches`` are by ascending session, of one server, with one timestamp, ``ids`` of all
        their types. ``part``: events of the only batch, to be put then (:meth:`put_part`);
        :meth:`stage_block` adds its block in the end.
        """
        begin, end = (0, -1) if part is None else (part.start, part.stop)
        if part is not None:
            commit.cut()
        if commit.rows is None:
            commit.rows = ROWS(store_limits.MAX_PASSED_EVENTS, store_limits.MAX_ORDERED_BYTES)
        staged = self.order.stage(
            commit.rows, batches, ids, begin, end, is_counted=bool(self.counted)
        )
        entries, session_keys, sources, n_bytes, counts, ended = staged
        for type_id, position in ended:
            commit.batch.put(keys.IN_ORDER_KEY + type_id, position)
        commit.sessions.update(session_keys)
        commit.sources += sources
        n_rows = len(entries) // ENTRY_BYTES
        commit.n_bytes += n_bytes + n_rows * keys.EVENT_KEY_BYTES
        commit.n_bytes += len(sources) * keys.SOURCE_KEY_BYTES
        for type_id, n_events, n_value_bytes in counts:
            self._count(commit, type_id, n_events, n_value_bytes)
        if part is None:
            commit.n_events += n_rows
            self._stage_block(commit, session_keys[0], entries)
        else:
            commit.entries.append(entries)

    def put_part(self, commit: Commit) -> None:
        """Put the rows of a part that was staged: in a step of its own, as values are copied."""
        self._put_events(commit)

    def stage_block(self, commit: Commit, new_types: Sequence[tuple[TypeId, bytes]]) -> None:
        """Complete a commit of a batch in parts, of which ``new_types`` were staged before."""
        [session_key] = commit.sessions
        self._stage_block(commit, session_key, b"".join(commit.entries))
        commit.entries = []
        if commit.before:
            first_new = new_types[0][0] if new_types else keys.KEY_MAX[: keys.TYPE_BYTES]
            noted = note(session_key, first_new, commit.latest)
            commit.before[0].put(keys.UNFINISHED_KEY, noted)
            commit.batch.delete(keys.UNFINISHED_KEY)

    def stage_types(self, commit: Commit, new_types: Sequence[tuple[TypeId, bytes]]) -> None:
        """Add types, encoded, to a commit."""
        for type_id, data in new_types:
            commit.batch.put(type_id, data, self._handles[-1])
        self.order.add_types(type_id for type_id, _ in new_types)

    def _stage_block(self, commit: Commit, key: bytes, entries: bytes) -> None:
        _, _, session_cf, server_cf, _ = self._handles
        n_bytes = keys.TIMESTAMP_BYTES
        commit.batch.put(key, entries, session_cf)
        commit.batch.put(key[n_bytes:], key[:n_bytes], server_cf)

    def _count(self, commit: Commit, type_id: TypeId, n_events: int, n_value_bytes: int) -> None:
        if (share := self.counted.get(type_id)) is not None:
            n_before, n_bytes = commit.tally.get(share, (0, 0))
            n_bytes += n_events * keys.EVENT_KEY_BYTES + n_value_bytes
            commit.tally[share] = n_before + n_events, n_bytes

    def _put_events(self, commit: Commit) -> None:
        """Put the rows of events in the batch, sorted: neighbors are written at half the cost."""
        event_cf, source_cf, _, _, _ = self._handles
        batch, latest = commit.batch, commit.latest
        if commit.rows is not None:
            for type_id, row in commit.rows.put(batch.put, event_cf):
                if latest.get(type_id, _NO_ROW)[0] < row[0]:
                    latest[type_id] = row
        if commit.sources:
            _put(batch, source_cf, sorted(commit.sources), repeat(b""))
            commit.sources = []

    def stage_reservation(self, commit: Commit, server: int, session: int) -> None:
        """Add to a commit that sessions of a server are reserved up to this one."""
        commit.batch.put(keys.RESERVED_KEY + keys.encode_int(server), keys.encode_int(session))

    def stage_history(self, commit: Commit, history_id: str) -> None:
        """Add to a commit which history the store is of."""
        commit.batch.put(keys.HISTORY_KEY, history_id.encode())

    def stage_spent(self, commit: Commit, owner: str, price: int) -> None:
        """Add to a commit what the types of an owner cost, those that it stores included."""
        commit.batch.put(keys.encode_owner(owner), keys.encode_int(price))

    def write(self, commit: Commit) -> None:
        """Write a commit, or the next part of it, to the log, which is to be synced then.

        With the last part, it becomes :attr:`undecided`. On the loop's thread: rocksdict keeps the
        interpreter's lock meanwhile, and would hold up the loop from another one all the same.
        ``StorageError``: it failed; what the disk holds then is known after opening again.
        """
        with self._write_lock:
            if self._commit_failure is not None:
                raise StorageError(self._commit_failure)
            self._oldest_written = min(self._oldest_written, *commit.sessions, keys.KEY_MAX)
            try:
                if commit.before:
                    self._db.write(commit.before.popleft())
                else:
                    self._put_events(commit)
                    commit.is_written = True
                    self.undecided = commit.sessions
                    self._db.write(commit.batch)
            except BaseException as e:  # a panic of RocksDB's binding is no Exception
                raise self._failed(e) from None

    def ext_write_synced(self, commit: Commit) -> None:
        """Write a small commit and sync it, while nobody else uses the store."""
        with self.errors(COMMIT):
            self._put_events(commit)
            self._db.write(commit.batch, synced())

    def ext_sync(self) -> None:
        """Sync what was written: the slow part of a commit, which leaves the lock free.

        A sync after one that failed may succeed without what that one was to sync: nothing is
        synced any more before the database was opened again. What is synced may be acknowledged;
        the mark beside the log says so (``log_tail``).
        """
        if self.is_recorded and self._mark is not None:
            self._mark.ext_look()
        self._sync()
        if self._mark is not None:
            self._mark.ext_advance()

    def _sync(self) -> None:
        with self._sync_lock:
            if self._commit_failure is not None:
                raise StorageError(self._commit_failure)
            if self.is_volatile:
                return
            try:
                self._db.flush_wal(True)
            except BaseException as e:
                raise self._failed(e) from None

    def _failed(self, error: BaseException) -> BaseException:
        """What to raise where a step of a commit failed; no other one succeeds from then on."""
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            return error
        failure = error if isinstance(error, StorageError) else explain(self.path, COMMIT, error)
        self._commit_failure = str(failure)
        return failure

    @property
    def has_failed(self) -> bool:
        """Whether a commit failed, and it is to be opened again."""
        return self._commit_failure is not None or self._unusable is not None

    def ext_reopen(self) -> None:
        """See :class:`Database`. What is :attr:`undecided` stays so, but can be decided now."""
        super().ext_reopen()
        self._commit_failure = None

    def decide(self) -> bool:
        """Whether what is undecided is stored, after the store was opened again; it is seen then.

        A commit is in the log whole or not at all: one block tells of all. The least session key
        is that of a block, as any other of its block would be less.
        """
        block_key = min(self.undecided, default=None)
        is_stored = block_key is not None and self.values("session", [block_key]) != [None]
        self.undecided = frozenset()
        return is_stored

    def ext_checkpoint(self, path: Path) -> None:
        """Make a copy of the store, as of a moment within this call, out of hard links.

        It has nothing that the store could still lose: not while a commit has failed. ``path`` must
        not exist, and is on the file system of the store.
        """
        with self.in_use():
            with self.errors("checkpoint failed"):
                # RocksDB writes what is in memory to files first, and rocksdict keeps the
                # interpreter's lock meanwhile (80 ms for 100,000 rows). When it only flushes it
                # does not. So that is done before, again and again, until little is left.
                for _ in range(store_limits.MAX_FLUSHES):
                    for family in (self._db, *self._families.values()):
                        family.flush(True)
                    n_left = sum(map(self._n_unflushed, self._families.values()))
                    if n_left <= store_limits.CHECKPOINT_ROWS:
                        break
                Checkpoint(self._db).create_checkpoint(str(path))
            self._sync()

    def ext_free_bytes(self) -> int:
        """Bytes that are free on its disk."""
        try:
            disk = os.statvfs(self.path)
        except OSError as e:
            raise StorageError(f"{self.path}: the disk cannot be asked: {e.strerror}") from e
        return disk.f_bavail * disk.f_frsize

    def ext_compact(self, family: str) -> None:
        """Rewrite the files of a column family, without what is no longer needed."""
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        with self.errors("compaction failed"):
            self.family(family).flush(True)
            self.family(family).compact_range(None, None, options)

    def iterator(self, family: str) -> RdictIter:
        """Iterator of a column family, which sees this moment."""
        return self.family(family).iter()

    def snapshot(self, pause: Callable[[], None] | None = None) -> Snapshot:
        """This moment; ``pause``: see :class:`Snapshot`."""
        return Snapshot(self, self._db, self._families, pause)

    def unfinished_session(self) -> bytes | None:
        """Key of the session of which only parts are written now (``contents``)."""
        with self.errors():
            return unfinished_session(self._db)

    def ext_begin_deleting(self) -> Snapshot:
        """This moment, to choose from it what is to be deleted."""
        with self._write_lock:
            self._oldest_written = min(self.undecided, default=keys.KEY_MAX)
            return self.snapshot()

    def has_written_up_to(self, session_key: bytes) -> bool:
        """Whether an event up to this session key was written since ``ext_begin_deleting``."""
        return self._oldest_written <= session_key

    def values(self, family: str, row_keys: Iterable[bytes]) -> list[bytes | None]:
        """Values of many rows, None where there is no such row; raises ``StorageError``."""
        with self.errors():
            found: Any = self.family(family).get([*row_keys])
        return [*found]

    def handle(self, family: str) -> ColumnFamily:
        """What names a column family in a ``WriteBatch``."""
        return self._handle_of[family]

    def reader_rows(self, prefix: bytes) -> dict[bytes, bytes]:
        """See ``Backend.reader_rows``."""
        with self.errors():
            return dict(contents.rows(self._families["reader"], prefix))

    def stage_reader_rows(self, commit: Commit, rows: Mapping[bytes, bytes | None]) -> None:
        """Add rows of readers to a commit, or their deletion."""
        handle = self.handle("reader")
        for key, value in rows.items():
            if value is None:
                commit.batch.delete(key, handle)
            else:
                commit.batch.put(key, value, handle)

    def deleted_position(self, server: bytes) -> bytes:
        """How far a server had come in what was deleted of it, or empty (see ``keys``)."""
        with self.errors():
            position: bytes | None = self._db.get(keys.DELETED_KEY + server)
        return position or b""

    def mark(self, server_id: int) -> HighWaterMark:
        """See ``Backend.high_water_mark``."""
        with self.errors():
            reserved = self._db.get(keys.RESERVED_KEY + keys.encode_int(server_id))
        session = 0 if reserved is None else keys.decode_int(reserved)
        last, timestamp = self.last_session(server_id)
        return HighWaterMark(session if timestamp is None else max(session, last), timestamp)

    def last_session(self, server_id: int) -> HighWaterMark:
        """See ``Backend.last_session``."""
        server = keys.encode_int(server_id)
        last = self.snapshot().last_block(server)
        stored = b"" if last is None else last.last_session + last.key[: keys.TIMESTAMP_BYTES]
        position = max(stored, self.deleted_position(server))  # the later session
        if not position:
            return HighWaterMark(0, None)
        session = keys.decode_int(position[: keys.INT_BYTES])
        return HighWaterMark(session, keys.decode_timestamp(position, keys.INT_BYTES))

    def servers(self) -> list[int]:
        """Servers of which there are events, or were; a short read for each of them."""
        found: set[int] = set()
        with self.errors():
            for family, prefix in ("server", b""), ("default", keys.DELETED_KEY):
                rows = self.iterator(family)
                rows.seek(prefix)
                while rows.valid() and (key := rows.key()).startswith(prefix):
                    server = key[: len(prefix) + keys.INT_BYTES]
                    found.add(keys.decode_int(server[len(prefix) :]))
                    rows.seek(server + keys.KEY_MAX)
                rows.status()
        return sorted(found)

    def group_row(self) -> GroupRow | None:
        """Its group, and how far it has come (``member``); None: it belongs to none."""
        with self.errors():
            return read_group(self.path, self._db)

    def history_id(self) -> str | None:
        """Name of the history (``history``); None: it was just created."""
        return self._name(keys.HISTORY_KEY)

    def histories(self) -> tuple[str, ...]:
        """Names of the histories that this one continues, oldest first, and of its own.

        At most ``limits.MAX_HISTORY_SPANS`` of the former; empty as :meth:`history_id` is None.
        """
        before = self._name(keys.HISTORIES_KEY) or ""
        return (*before.split(), *filter(None, (self.history_id(),)))

    def _name(self, key: bytes) -> str | None:
        with self.errors():
            found: bytes | None = self._db.get(key)
        if found is not None and not found.isascii():
            raise StoreDamagedError(
                f"{self.path}: the event store is damaged: its history has no name"
            )
        return None if found is None else found.decode()

    def sequence(self) -> int:
        """How many rows were ever written to the store: later states of a history have more."""
        with self.errors():
            return self._db.latest_sequence_number()

    def n_events(self) -> int:
        """Estimate of the number of stored events; does not read them."""
        return self.n_rows("event")

    def n_rows(self, family: str) -> int:
        """Estimate of the number of rows of a column family; does not read them."""
        return self.family(family).property_int_value("rocksdb.estimate-num-keys") or 0

    def file_bytes(self, family: str) -> int:
        """Bytes of the files of a column family; rows in the log are not in it."""
        names = "rocksdb.total-sst-files-size", "rocksdb.total-blob-file-size"
        return sum(self.family(family).property_int_value(name) or 0 for name in names)

    def compaction_bytes(self) -> int:
        """Estimate of the bytes that compactions have still to rewrite."""
        name = "rocksdb.estimate-pending-compaction-bytes"
        return sum(i.property_int_value(name) or 0 for i in self._families.values())

    def disk_bytes(self) -> int:
        """Bytes of the disk that the store's files take."""
        size = 0
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        size += entry.stat().st_blocks * 512
        except OSError as e:
            raise StorageError(f"{self.path}: cannot be looked at: {e.strerror}") from e
        return size

    def _n_unflushed(self, family: Rdict) -> int:
        names = "rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables"
        return sum(family.property_int_value(name) or 0 for name in names)


def _put(
    batch: WriteBatch, family: ColumnFamily, row_keys: Iterable[bytes], values: Iterable[bytes]
) -> None:
    batch.set_default_column_family(family)  # spares passing it with each row
    _exhaust(map(batch.put, row_keys, values))
    batch.set_default_column_family(None)
