"""The durable backend: group commit and queries on the event loop.

While one group of sessions is being synced on the storage thread, the next one gathers.
Queries run on ``limits.READER_THREADS`` reader threads, which never wait for a commit
(other than what the contract says) and never delay one::

    register() ─▶ encode into the gathering group ─▶ write ─▶ storage thread: sync ─▶ future done
    query() ─▶ (pending group done) ─▶ reader thread, or the cache of latest events
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from hat import aio

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend, ServerMark, StoreStats
from eventer_bridge.backends.common import check_ids, failed, take, visible_types
from eventer_bridge.backends.rocksdb import control
from eventer_bridge.backends.rocksdb.checkpoint import ext_remove_scratch
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.latest import LatestCache
from eventer_bridge.backends.rocksdb.query import Reader, decode_rows
from eventer_bridge.backends.rocksdb.store import Commit, Store
from eventer_bridge.backends.rocksdb.types import Types
from eventer_bridge.errors import ClosedError, EventerBridgeError, StorageError
from eventer_bridge.model import (
    Event,
    EventType,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
)
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)

CommitCb = Callable[[int, float], None]
"""Called on the loop after a commit: events in it, seconds until it was durable."""

QUICK_TYPES: Final = 64
"""Types whose latest events are looked up on the loop; more would hold up others."""


async def create(path: Path, on_commit: CommitCb | None = None) -> "RocksDbBackend":
    """Open a store, and create it where there is none.

    Args:
        path: its directory.
        on_commit: see :data:`CommitCb`.

    Raises:
        StoreLockedError: another process has it open.
        StoreFormatError: it has a format that this version does not know.
        StoreDamagedError: it is damaged, or something else than a store.
        StorageError: it cannot be opened for another reason.
    """
    loop = asyncio.get_running_loop()
    readers = ThreadPoolExecutor(limits.READER_THREADS, "store-reader")
    try:
        opened = await loop.run_in_executor(readers, _ext_open, path)
    except BaseException:
        readers.shutdown(wait=False)
        raise
    mlog.info("event store opened", extra={"path": str(path), "types": len(opened.types)})
    backend = RocksDbBackend(opened, readers, on_commit)
    try:
        backend._control = await control.listen(opened.store)
    except BaseException:
        await aio.uncancellable(backend.async_close())
        raise
    return backend


class _Opened(NamedTuple):
    store: Store
    types: Types
    latest: LatestCache


def _ext_open(path: Path) -> _Opened:
    store = Store(path)
    try:
        ext_remove_scratch(path)
        types = Types(store.ext_types())
        latest = store.ext_latest(islice(types.names, limits.LATEST_CACHE_TYPES))
        return _Opened(store, types, LatestCache(store.ext_last_place(), latest))
    except BaseException:
        store.ext_close()
        raise


class _Group:
    """One commit, and the future of all who wait for it."""

    __slots__ = ("commit", "future")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.commit = Commit()
        self.future = future


class RocksDbBackend(Backend):
    """See the module and :class:`Backend`. Made by :func:`create`."""

    def __init__(
        self, opened: _Opened, readers: ThreadPoolExecutor, on_commit: CommitCb | None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._store, self._types, self._latest = opened
        self._reader = Reader(self._store, self._types.names)
        self._readers = readers
        self._on_commit = on_commit
        self._control: control.ControlServer | None = None
        self._groups: deque[_Group] = deque()  # the first is being committed, or will be next
        self._is_committing = False
        self._started_s = 0.0
        self._failure: str | None = None
        self._jobs: queue.SimpleQueue[bool] = queue.SimpleQueue()  # true: sync, false: stop
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._ext_run, name="store-writer", daemon=True)
        self._thread.start()
        self._async_group = aio.Group()
        self._async_group.spawn(aio.call_on_cancel, self._stop)

    @property
    def async_group(self) -> aio.Group:
        """Group of the backend's tasks."""
        return self._async_group

    def stats(self) -> StoreStats:
        """See :class:`Backend`; takes well below a millisecond.

        Raises:
            ClosedError: the backend is closed.
        """
        self._check_open()
        return StoreStats(self._store.n_events(), len(self._types), self._store.disk_bytes())

    def server_mark(self, server_id: int) -> ServerMark:
        """See :class:`Backend`. Two short reads on the loop's thread."""
        self._check_open()
        return self._store.mark(server_id)

    def reserve(self, server_id: int, session: int) -> asyncio.Future[None]:
        """See :class:`Backend`."""
        try:
            self._check_open()
        except EventerBridgeError as e:
            return failed(self._loop.create_future(), e)
        group = self._gather(0)
        self._store.stage_reservation(group.commit, server_id, session)
        return group.future

    def check_types(self, event_types: Iterable[EventType]) -> None:
        """See :class:`Backend`."""
        self._types.check(event_types)

    def register(self, events: Sequence[Event]) -> asyncio.Future[None]:
        """See :class:`Backend`. Types that were not checked before may fail it, too."""
        new_types: list[tuple[TypeId, bytes]] = []
        try:
            self._check_open()
            type_ids = self._types.intern(events, new_types)
        except EventerBridgeError as e:
            return failed(self._loop.create_future(), e)
        group = self._gather(len(events))
        self._store.stage(group.commit, events, type_ids, new_types)
        return group.future

    async def query(
        self, params: QueryParams, subscription: Subscription | None = None
    ) -> QueryResult:
        """See :class:`Backend`."""
        self._check_open()
        check_ids(params)
        types = visible_types(params, subscription)
        if not (isinstance(params, QueryServerParams) and params.persisted):
            await self.flush()
        ids = None if types is None or types.is_everything else self._types.resolve(types)
        if ids is not None and not ids:
            return QueryResult([], False)
        match params:
            case QueryLatestParams():
                return await self._query_latest(ids)
            case QueryTimeseriesParams():
                return await self._read(self._reader.ext_timeseries, params, ids)
            case QueryServerParams():
                result = await self._read(self._reader.ext_server, params, ids)
                if params.persisted and self._is_committing:
                    # rows can be read a moment before the log that holds them is synced
                    await asyncio.shield(self._groups[0].future)
                return result

    async def flush(self) -> None:
        """See :class:`Backend`.

        Raises:
            StorageError: a commit failed.
        """
        if self._failure is not None:
            raise StorageError(self._failure)
        if self._groups:
            # shared with others: who gives up waiting must not cancel it for them
            await asyncio.shield(self._groups[-1].future)

    def _check_open(self) -> None:
        if not self.is_open:
            raise ClosedError(f"{self._store.path}: the event store is closed")

    def _gather(self, n_events: int) -> _Group:
        """The group that so many events are to join."""
        groups = self._groups
        if not groups:
            # everything that this iteration of the loop brings joins the first group
            self._loop.call_soon(self._commit_first)
        elif len(groups) > self._is_committing:
            n_gathered = groups[-1].commit.n_events
            if not n_gathered or n_gathered + n_events <= limits.MAX_GROUP_EVENTS:
                return groups[-1]
        groups.append(_Group(self._loop.create_future()))
        return groups[-1]

    def _commit_first(self) -> None:
        group = self._groups[0]
        self._is_committing = True
        self._started_s = time.perf_counter()
        try:
            self._store.write(group.commit)
        except StorageError as e:
            self._on_synced(e)
        else:
            self._jobs.put(True)

    def _on_synced(self, error: StorageError | None) -> None:
        group = self._groups.popleft()
        self._is_committing = False
        if error is not None:
            self._on_failure(group, str(error))
            return
        seconds = time.perf_counter() - self._started_s
        if self._groups:
            self._commit_first()
        self._latest.update(group.commit.latest)
        if not group.future.done():
            group.future.set_result(None)
        if self._on_commit:
            self._on_commit(group.commit.n_events, seconds)

    def _on_failure(self, group: _Group, reason: str) -> None:
        mlog.error("event store failed and closes", extra={"reason": reason})
        self._failure = reason
        self.close()
        for unsaved in (group, *self._groups):
            if not unsaved.future.done():
                failed(unsaved.future, StorageError(reason))
        self._groups.clear()

    async def _query_latest(self, ids: list[TypeId] | None) -> QueryResult:
        names = self._types.names
        if ids is None:
            ids = list(islice(names, limits.MAX_LATEST_RESULTS + 1))
        if len(ids) <= QUICK_TYPES:
            rows = [row for type_id in ids if (row := self._latest.get(type_id))]
            if len(rows) == len(ids):
                return take(decode_rows(rows, names), limits.MAX_LATEST_RESULTS)
        return await self._read(self._reader.ext_latest, ids)

    async def _read(self, ext_fn: Callable[..., QueryResult], *args: Any) -> QueryResult:
        self._check_open()
        return await self._loop.run_in_executor(self._readers, ext_fn, *args)

    async def _stop(self) -> None:
        with contextlib.suppress(StorageError):  # those who wait for a commit are told
            await self.flush()
        if self._control is not None:
            await self._control.async_close()
        self._store.is_closing = True
        self._jobs.put(False)
        await self._stopped
        self._thread.join()

    def _ext_run(self) -> None:
        while self._jobs.get():
            error: StorageError | None = None
            try:
                self._store.ext_sync()
            except StorageError as e:
                error = e
            self._loop.call_soon_threadsafe(self._on_synced, error)
        self._readers.shutdown()
        try:
            self._store.ext_close()
        except StorageError as e:
            mlog.error("event store failed while it closed", extra={"reason": str(e)})
        self._loop.call_soon_threadsafe(self._stopped.set_result, None)
