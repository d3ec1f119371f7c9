"""Faults of the disk under a RocksDB store, in the process of the test."""

import asyncio
import contextlib
import os
import resource
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from rocksdict import Rdict

from eventer_bridge.backends.rocksdb import RocksDbBackend, keys, lifecycle
from eventer_bridge.backends.rocksdb.database import make_durable
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import StorageError
from eventer_bridge.model import EventType, QueryParams, QueryResult, Timestamp
from eventer_bridge.packed import Batch


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let the kernel refuse every write of this process to a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def failing_sync() -> Iterator[None]:
    """Rows are written, but that they are on the disk cannot be had."""

    def sync(store: Store) -> None:
        raise StorageError(f"{store.path}: commit failed: IO error: While fdatasync")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "_sync", sync)
        yield


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Let the kernel refuse this process every further file descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(i.name) for i in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    eaten: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                eaten.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in eaten:
            os.close(descriptor)


@contextlib.contextmanager
def failing_for_good() -> Iterator[None]:
    """The same; and it is opened again and again, but nothing can be made durable."""

    def fail(*_: object) -> None:
        raise OSError("Input/output error")

    with failing_sync(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "make_durable", fail)
        yield


@contextlib.contextmanager
def failing_from(core: Engine, event_type: EventType) -> Iterator[None]:
    """The same from the commit of the first session on that begins with this type."""
    submit, ext_sync = core.submit, Store.ext_sync
    doomed: set[bytes] = set()
    is_failing = False

    def submit_doomed(batches: list[Batch]) -> None:
        submit(batches)
        for i in batches:
            if i.session and i.event_types[0] == event_type:
                doomed.add(keys.session_key(Timestamp(i.s, i.us), i.server, i.session))

    def ext_fail(store: Store) -> None:
        nonlocal is_failing
        is_failing |= not doomed.isdisjoint(store.undecided)
        if is_failing:
            raise StorageError(f"{store.path}: commit failed: IO error: While fdatasync")
        ext_sync(store)

    def fail(db: Rdict, families: Iterable[Rdict]) -> None:
        if is_failing:
            raise OSError("Input/output error")
        make_durable(db, families)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "submit", submit_doomed)
        patch.setattr(Store, "ext_sync", ext_fail)
        patch.setattr(lifecycle, "make_durable", fail)
        yield


@contextlib.contextmanager
def held_sync() -> Iterator[threading.Semaphore]:
    """Each sync takes until the semaphore lets it go on; in the end all do."""
    ext_sync = Store.ext_sync
    may_sync = threading.Semaphore(0)

    def ext_held(store: Store) -> None:
        may_sync.acquire()
        ext_sync(store)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "ext_sync", ext_held)
        try:
            yield may_sync
        finally:
            may_sync.release(1000)


async def being_synced(backend: object) -> None:
    """Wait until something is written, and its sync is held (:func:`held_sync`)."""
    assert isinstance(backend, RocksDbBackend)
    while not backend._store.undecided:
        await asyncio.sleep(0)


async def changed(backend: RocksDbBackend) -> str | None:
    """Wait for the next change of ``failure``."""
    happened = asyncio.Event()
    with backend.failure_cbs.register(happened.set):
        await happened.wait()
    return backend.failure


async def recovered(backend: RocksDbBackend) -> None:
    while backend.failure is not None:
        await changed(backend)


async def query_when_open(backend: RocksDbBackend, params: QueryParams) -> QueryResult:
    """Query a store that is opened again and again: for a moment each time it cannot be read."""
    while True:
        try:
            return await backend.query(params)
        except StorageError as e:
            if "is being opened again" not in str(e):
                raise
        await asyncio.sleep(0.001)
