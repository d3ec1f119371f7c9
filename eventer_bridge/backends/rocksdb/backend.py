"""The durable backend, on RocksDB.

Registrations are committed in groups (``group_commit``). Queries run on threads of their own
(``query``), which never wait for a commit (other than what the contract says) and never delay one::

    query() ─▶ (pending group done) ─▶ reader thread, or the cache of latest events
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import override

from eventer_bridge import limits
from eventer_bridge.backends.base import HighWaterMark, QueryLoad, StoreStats
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.request_keys import KeyRetention
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.backends.rocksdb import control, keys, markers, restoring, trimmed
from eventer_bridge.backends.rocksdb.commit import Group
from eventer_bridge.backends.rocksdb.group_commit import CommitObserver, GroupCommit
from eventer_bridge.backends.rocksdb.opening import Opened, ext_open, ext_open_temporary
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.errors import OutcomeUnknownError, StorageError
from eventer_bridge.model import EventId, QueryResult, QueryServerParams, Timestamp
from eventer_bridge.resources import call_on_cancel, uncancellable

mlog = logging.getLogger(__name__)

T = TypeVar("T")


async def create(
    path: Path,
    on_commit: CommitObserver | None = None,
    retention: Sequence[RetentionRule] = (),
    clock: PassedTime | None = None,
    *,
    key_retention: KeyRetention | None = None,
    accept_loss_of: int | None = None,
) -> "RocksDbBackend":
    """Open a store in a directory, and create it where there is none.

    ``retention`` says how long events are kept, ``clock`` measures their age (None: the time that
    passed with this store), ``key_retention`` how long request keys are (None: the defaults).
    ``accept_loss_of``: continue without lost acknowledged events of this server (``restoring``).

    ``StoreLockedError``: another process has it open. ``StoreFormatError``: its format is not
    supported. ``StoreLossError``: it lost acknowledged events, and that is not accepted.
    ``StoreDamagedError``: it is damaged, or not a store. ``StorageError``: it cannot be opened for
    another reason.
    """
    opened = await asyncio.to_thread(ext_open, path, accept_loss_of)
    mlog.info("event store opened", extra={"path": str(path), "types": len(opened.types)})
    keys_kept, clock = key_retention or KeyRetention(), clock or opened.clock
    backend = RocksDbBackend(opened, on_commit, retention, clock, keys_kept)
    try:
        backend.control = await control.listen(opened.store)
    except BaseException:
        await uncancellable(backend.async_close())
        raise
    return backend


async def create_temporary(
    retention: Sequence[RetentionRule] = (),
    clock: PassedTime | None = None,
    *,
    key_retention: KeyRetention | None = None,
) -> "RocksDbBackend":
    """As :func:`create`, of a store in a temporary directory, of which nothing is synced."""
    opened = await asyncio.to_thread(ext_open_temporary)
    keys_kept = key_retention or KeyRetention()
    return RocksDbBackend(opened, None, retention, clock or opened.clock, keys_kept)


class RocksDbBackend(GroupCommit):
    """See the module and :class:`Backend`. Made by :func:`create`."""

    def __init__(
        self,
        opened: Opened,
        on_commit: CommitObserver | None,
        rules: Sequence[RetentionRule],
        clock: PassedTime,
        key_retention: KeyRetention,
    ) -> None:
        super().__init__(opened, on_commit, rules, clock, key_retention)
        self.history_id = self._store.history_id() or ""
        self.path = self._store.path
        self.is_whole = markers.is_whole(self._store.path, self.history_id)
        self._stats = StoreStats(0, 0, 0)
        self.control: control.StoreControl | None = None  # None: the file system has no sockets
        self._looking: asyncio.Future[None] | None = None  # until the disk was looked at
        self._free_bytes: int | StorageError = 0
        self.async_group.spawn(call_on_cancel, self._stop)

    def stats(self) -> StoreStats:
        """See :class:`Backend`; takes well below 1 ms. The last one while it cannot be read."""
        self._check_open()
        store = self._store
        with contextlib.suppress(StorageError), store.in_use():
            size: tuple[int, ...] = (0,)
            if not store.is_volatile:
                size = store.disk_bytes(), store.ext_free_bytes(), store.compaction_bytes()
            self._stats = StoreStats(store.n_events(), len(self._types), *size)
        if self._committed_s is None or store.is_volatile:
            return self._stats
        return self._stats._replace(since_commit_s=time.perf_counter() - self._committed_s)

    @override
    async def check(self, min_free_bytes: int | None = None) -> None:
        if self.failure is not None:
            raise StorageError(self.failure)
        path = self._store.path
        is_retention_alive = self._retention is None or self._retention.is_alive
        if not (self._thread.is_alive and is_retention_alive and self._queries.readers.is_whole):
            raise StorageError(f"{path}: a thread of the event store ended")
        looking = self._looking
        if looking is None:  # else others ask, too
            looking = self._looking = self._loop.create_future()
            self._thread.run(self._store.ext_free_bytes, self._on_looked)
        await asyncio.wait([looking], timeout=limits.LOOK_TIMEOUT_S)
        if not looking.done():
            raise StorageError(f"{path}: the storage thread does not answer")
        if isinstance(self._free_bytes, StorageError):
            raise self._free_bytes
        if min_free_bytes is None:
            min_free_bytes = limits.MIN_FREE_BYTES
        if self._free_bytes < min_free_bytes:
            raise StorageError(
                f"{path}: the disk is full: {self._free_bytes} bytes are free,"
                f" {min_free_bytes} are needed"
            )

    def _on_looked(self, free_bytes: int | StorageError) -> None:
        self._free_bytes = free_bytes
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.set_result(None)

    def _read(self, read: Callable[..., T], *args: Any) -> T:
        """Some short reads on the loop's thread."""
        self._check_open()
        with self._store.in_use():
            return read(*args)

    @override
    def high_water_mark(self, server_id: int) -> HighWaterMark:
        return self._read(self._store.mark, server_id)

    @override
    async def note_whole(self) -> None:
        if not self.is_whole:
            await asyncio.to_thread(markers.ext_note_whole, self._store.path, self.history_id)
            self.is_whole = True

    @override
    async def begin_history(self, server_id: int) -> None:
        await self.flush()
        self._check_writable()
        group = self._gather(0)
        with self._store.in_use():
            restored = restoring.stage_history(self._store, group.commit, [server_id])
        await asyncio.shield(group.future)
        self.history_id, self.is_whole = restored.history_id, False

    @override
    def last_session(self, server_id: int) -> HighWaterMark:
        return self._read(self._store.last_session, server_id)

    @override
    async def answer(
        self, query: VisibleQuery, client: str = "", holding: contextlib.ExitStack | None = None
    ) -> QueryResult:
        params = query.params
        if self._groups and not (isinstance(params, QueryServerParams) and params.persisted):
            await self._settled()
        if not self.async_group.is_open:
            raise self._closed()
        return await self._queries.run(query, client, holding)

    @override
    def answer_at_once(self, query: VisibleQuery) -> QueryResult | None:
        if self._groups or not self.async_group.is_open:
            return None
        return self._queries.at_once(query)

    @override
    def servers(self) -> list[int]:
        return self._read(self._store.servers)

    @override
    async def count_server(self, query: VisibleQuery, client: str) -> tuple[int, Timestamp | None]:
        self._check_open()
        return await self._queries.count_server(query, client)

    @override
    def n_deletions(self) -> int:
        return self._read(trimmed.number_of, self._store)

    @override
    def may_be_deleted(self, event_id: EventId) -> bool:
        deleted = self._read(self._store.deleted_position, keys.encode_int(event_id.server))
        return deleted[: keys.INT_BYTES] >= keys.encode_int(event_id.session)

    @property
    @override
    def query_turns(self) -> int:
        return self._queries.readers.n_turns

    @property
    @override
    def query_load(self) -> QueryLoad:
        return self._queries.readers.load

    async def _settled(self) -> None:
        """Wait for the commits that come before that of a large session."""
        last: Group | None = None
        for group in self._groups:
            if group.is_large:
                break
            last = group
        if last is not None:
            await asyncio.wait([last.future])  # if it failed, it is not to be found

    async def _stop(self) -> None:
        with contextlib.suppress(StorageError, OutcomeUnknownError):  # the waiting callers get it
            await self.flush()
        if self.control is not None:
            await self.control.async_close()
        self._store.is_closing = True
        self._thread.stop(self._ext_end)
        await self._stopped
        self._thread.join()
        if self._decided is not None:
            self._decided.cancel()
