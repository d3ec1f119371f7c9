"""Large sessions are written in parts, of which nobody sees some and not the others."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventer_bridge import limits, slices
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.backend import RocksDbBackend
from eventer_bridge.backends.rocksdb.control import checkpoint
from eventer_bridge.backends.rocksdb.info import ext_info
from eventer_bridge.backends.rocksdb.retention import Deletion, ext_oldest
from eventer_bridge.backends.rocksdb.scan import KeyRange
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.verify import Finding, ext_verify
from eventer_bridge.errors import LimitError, OutcomeUnknownError, StorageError
from eventer_bridge.model import (
    EventId,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
)
from tests.eventer_bridge.backends.consistency import check_store
from tests.eventer_bridge.backends.putting import put, put_in_steps
from tests.eventer_bridge.backends.rocksdb import unfinished_child
from tests.eventer_bridge.backends.rocksdb.unfinished_child import LARGE, QUOTA, SMALL, events_of
from tests.support import forked

N_PARTS = 6
"""In which the large session is written; its new types are in the first."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMMIT_PART_ROWS", limits.COMMIT_PART_ROWS)
    unfinished_child.make_parts_small()


class Halting:
    """Lets the storage thread sync one part after the other, each when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_written = 0
        self.failure: StorageError | None = None
        self._allowed = threading.Semaphore(0)
        ext_sync = Store.ext_sync

        def halting(store: Store) -> None:
            self.n_written += 1
            self._allowed.acquire()
            if self.failure is not None:
                raise self.failure
            ext_sync(store)

        monkeypatch.setattr(Store, "ext_sync", halting)

    async def wait_written(self, n_parts: int) -> None:
        """Until so many parts are written, of which the last is not synced."""
        while self.n_written < n_parts:
            await asyncio.sleep(0)

    def __enter__(self) -> None:
        self.go_on()  # the first session

    def __exit__(self, *_: object) -> None:
        self.failure = None
        self.go_on(1_000)

    def go_on(self, n_parts: int = 1) -> None:
        for _ in range(n_parts):
            self._allowed.release()


@pytest.fixture
def halting(monkeypatch: pytest.MonkeyPatch) -> Halting:
    return Halting(monkeypatch)


def large_in_steps(backend: RocksDbBackend) -> slices.Steps[asyncio.Future[None]]:
    return put_in_steps(backend, events_of(2, LARGE), QUOTA, LARGE)


async def seen(backend: RocksDbBackend) -> list[int]:
    """How many events several queries find."""
    second = [EventId(1, 2, 1), EventId(1, 2, LARGE)]
    upwards = Order.ASCENDING
    by_source = OrderBy.SOURCE_TIMESTAMP
    results = [
        await backend.query(params)
        for params in (
            QueryTimeseriesParams(max_results=SMALL + 1),
            QueryTimeseriesParams(order=upwards, max_results=SMALL + 1),
            QueryTimeseriesParams([("all", "1")], max_results=1_000),
            QueryTimeseriesParams([("all", "1")], order_by=by_source, max_results=1_000),
            QueryTimeseriesParams(order=upwards, order_by=by_source, max_results=SMALL + 1),
            QueryTimeseriesParams([("of", "2", "*")], max_results=1_000),
            QueryTimeseriesParams(ids=second),
            QueryServerParams(1, max_results=SMALL + 1),
            QueryServerParams(1, persisted=True, max_results=SMALL + 1),
            QueryLatestParams([("all", "?")]),
            QueryLatestParams([("of", "*")]),
        )
    ]
    return [len(result.events) for result in results]


N_OF_TYPE = sum(i % 7 == 1 and i % 3 > 0 for i in range(1, LARGE + 1))
BEFORE = [3, 3, 1, 1, 3, 0, 0, 3, 3, 2, 1]
AFTER = [4, 4, 1 + N_OF_TYPE, 1 + N_OF_TYPE, 4, LARGE // 3, 2, 4, 4, 7, 1 + LARGE // 3]


async def test_nobody_sees_a_part(tmp_path: Path, halting: Halting) -> None:
    async with await rocksdb.create(tmp_path / "store") as backend:
        with halting:
            await put(backend, events_of(1, SMALL), QUOTA, SMALL)
            large = await slices.run(large_in_steps(backend))
            small = put(backend, events_of(3, 1))
            for n_parts in range(1, N_PARTS):
                await halting.wait_written(1 + n_parts)
                assert await seen(backend) == BEFORE, n_parts
                assert backend.high_water_mark(1).session == 1
                halting.go_on()
            await halting.wait_written(1 + N_PARTS)
            assert not large.done()
            assert not small.done()
            assert await seen(backend) == BEFORE
            halting.go_on(1_000)
            await asyncio.gather(large, small)
            with_third = list(AFTER)
            with_third[2] += 1
            with_third[3] += 1
            assert await seen(backend) == with_third
    check_store(tmp_path / "store")


async def test_a_copy_has_it_whole_or_not(tmp_path: Path, halting: Halting) -> None:
    async with await rocksdb.create(tmp_path / "store") as backend:
        with halting:
            await put(backend, events_of(1, SMALL), QUOTA, SMALL)
            large = await slices.run(large_in_steps(backend))
            for n_parts in range(1, N_PARTS):
                await halting.wait_written(1 + n_parts)
                await asyncio.to_thread(
                    checkpoint, tmp_path / "store", tmp_path / f"copy {n_parts}"
                )
                halting.go_on()
            halting.go_on(1_000)
            await large
    for n_parts in range(1, N_PARTS):
        copy = tmp_path / f"copy {n_parts}"
        check_copy(copy)
        assert len(check_store(copy)) == SMALL  # opened to be written
        check_copy(copy, is_undone=True)


def check_copy(copy: Path, *, is_undone: bool = False) -> None:
    """Look at a copy without writing to it."""
    findings: list[Finding] = []
    store = Store(copy, read_only=True)
    try:
        assert (store.unfinished_session() is None) is is_undone
        counts = ext_verify(store, findings.append)
        assert not findings
        assert (counts.events, counts.sessions) == (SMALL, 1)
        info = ext_info(store)
        assert [server.last_session for server in info.servers] == [1]
        if is_undone:
            assert len(store.ext_types()) == SMALL
            # each of the small one has a type of its own, and so is in order
            for family, n_left in (("event", SMALL), ("source", 0)):
                rows = store.iterator(family)
                rows.seek_to_first()
                assert sum(1 for _ in iterate(rows)) == n_left
                del rows
    finally:
        store.ext_close()


def iterate(row: object) -> Iterator[bytes]:
    while row.valid():  # type: ignore[attr-defined]
        yield row.key()  # type: ignore[attr-defined]
        row.next()  # type: ignore[attr-defined]


@pytest.mark.parametrize("n_parts", range(1, N_PARTS + 1))
async def test_a_killed_process_leaves_it_whole_or_not(tmp_path: Path, n_parts: int) -> None:
    store = tmp_path / "store"
    command = (unfinished_child.__name__, str(store), str(n_parts))
    child = await forked.start(*command, environment=os.environ)
    _, errors = await child.communicate()
    assert child.returncode == -9, errors.decode()
    async with await rocksdb.create(store) as backend:
        more = [("x", str(i)) for i in range(QUOTA.max_types - SMALL)]
        if n_parts == N_PARTS:
            assert await seen(backend) == AFTER
            with pytest.raises(LimitError):
                backend.check_types(more, QUOTA)
            return
        assert await seen(backend) == BEFORE
        assert backend.high_water_mark(1).session == 1
        assert backend.stats().event_types == SMALL
        backend.check_types(more, QUOTA)  # its types are not the client's, either
        await slices.run(large_in_steps(backend))  # it can come again
        await backend.flush()
        assert await seen(backend) == AFTER
    assert len(check_store(store)) == SMALL + LARGE


@pytest.mark.parametrize("n_parts", [1, 4, N_PARTS])
async def test_a_part_that_fails_takes_it_back(
    tmp_path: Path, halting: Halting, n_parts: int
) -> None:
    async with await rocksdb.create(tmp_path / "store") as backend:
        with halting:
            await put(backend, events_of(1, SMALL), QUOTA, SMALL)
            writable = asyncio.Event()
            backend.failure_cbs.register(
                lambda: writable.set() if backend.failure is None else None
            )
            large = await slices.run(large_in_steps(backend))
            halting.go_on(n_parts - 1)
            await halting.wait_written(1 + n_parts)
            halting.failure = StorageError("the disk is full")
            halting.go_on()
            is_last = n_parts == N_PARTS
            with pytest.raises(
                OutcomeUnknownError if is_last else StorageError, match="disk is full"
            ):
                await large
            halting.failure = None
            halting.go_on(1_000)
            await writable.wait()
            if is_last:
                assert await seen(backend) == AFTER
                return
            assert await seen(backend) == BEFORE
            await slices.run(large_in_steps(backend))
            await backend.flush()
            assert await seen(backend) == AFTER
    check_store(tmp_path / "store")


async def deletion_is_refused(backend: RocksDbBackend) -> bool:
    """Whether what the large session follows may not be deleted now, with ranges up to it."""
    store = backend._store
    with store.in_use():
        snapshot = store.ext_begin_deleting()
        types = [keys.encode_type_id(n) for n in range(SMALL)]
        events = ext_oldest(snapshot, types, KeyRange(b"", keys.KEY_MAX), 1_000)
        assert [event.is_latest for event in events] == [True] * SMALL
        # it would delete ranges in which there are rows that nobody sees yet
        deletion = Deletion(store, snapshot, events)
        deletion.newest = keys.session_key(events_of(2, 1)[0].timestamp, 1, 2)
        deleting = asyncio.ensure_future(backend._delete(deletion))
        await asyncio.sleep(0)  # else it waits for its commit, behind the session
        return deleting.done() and not deleting.result()


async def test_what_it_follows_is_not_deleted_before_it_is_there(
    tmp_path: Path, halting: Halting
) -> None:
    async with await rocksdb.create(tmp_path / "store") as backend:
        with halting:
            await put(backend, events_of(1, SMALL), QUOTA, SMALL)
            large = await slices.run(large_in_steps(backend))
            halting.go_on(N_PARTS - 2)
            await halting.wait_written(1 + N_PARTS - 1)
            assert await deletion_is_refused(backend)
            halting.go_on(1_000)
            await large
            assert await seen(backend) == AFTER
    check_store(tmp_path / "store")


async def test_nor_while_it_is_staged(tmp_path: Path) -> None:
    """In whichever step it is: before its first event is staged, too."""
    async with await rocksdb.create(tmp_path / "store") as backend:
        await put(backend, events_of(1, SMALL), QUOTA, SMALL)
        refused: list[bool] = []

        async def ask() -> None:
            if backend._groups:
                refused.append(await deletion_is_refused(backend))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "SLICE_S", 0)  # after each step
            large = await slices.run(large_in_steps(backend), ask)
        await large
        assert len(refused) > LARGE // limits.STEP_EVENTS
        assert all(refused)
        assert await seen(backend) == AFTER
    check_store(tmp_path / "store")
