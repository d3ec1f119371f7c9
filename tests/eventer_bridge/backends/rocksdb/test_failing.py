"""A store whose commits fail: everybody is told, and it goes on when the disk does."""

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.backends.rocksdb import RocksDbBackend, storage_thread
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.query import StoreReader
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.core import engine
from eventer_bridge.core.base import Observer
from eventer_bridge.errors import (
    ClosedError,
    EventerBridgeError,
    LimitError,
    OutcomeUnknownError,
    StorageError,
)
from eventer_bridge.model import (
    EventId,
    Order,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Source,
    SourceType,
    Status,
    Timestamp,
)
from eventer_bridge.packed import Batch
from eventer_bridge.slices import at_once
from tests.eventer_bridge.backends.consistency import check_store
from tests.eventer_bridge.backends.contract_retention import TestClock
from tests.eventer_bridge.backends.faults import (
    changed,
    failing_sync,
    full_disk,
    no_descriptors,
    recovered,
)
from tests.eventer_bridge.backends.oracle import Writer, draft, numbered
from tests.eventer_bridge.backends.putting import put, put_in_steps

UPWARDS = QueryTimeseriesParams(order=Order.ASCENDING)


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORE_RETRY_PERIOD_S", 0.02)


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[RocksDbBackend]:
    backend = await rocksdb.create(tmp_path / "store")
    yield backend
    await backend.async_close()


class Panic(BaseException):
    """What RocksDB's binding raises for its own mistakes is no Exception either."""


async def not_known(writer: Writer, *names: str) -> str:
    """Register what may be stored or not, and is taken for not stored; returns why."""
    known = len(writer.events)
    with pytest.raises(OutcomeUnknownError) as caught:
        await writer.session(*numbered(*names))
    del writer.events[known:]
    return str(caught.value)


async def test_all_who_wait_are_told_and_then_it_goes_on(
    backend: RocksDbBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    monkeypatch.setattr(limits, "MAX_GROUP_EVENTS", 2)
    writer = Writer(backend)
    await writer.session(draft())
    lost = [writer.make(draft()) for _ in range(4)]
    with full_disk():
        futures = [put(backend, i) for i in lost]
        waiting = asyncio.ensure_future(backend.query(UPWARDS))
        for number, future in enumerate(futures):
            # the first two were being committed
            error = OutcomeUnknownError if number < 2 else StorageError
            with pytest.raises(error, match=r"store: commit failed: .*too large"):
                await future
        assert backend.failure is not None
        # asked before the failure or after it: what is there is answered
        assert (await waiting).events == writer.events[:1]
        assert (await backend.query(UPWARDS)).events == writer.events[:1]
        assert len((await backend.query(QueryLatestParams())).events) == 1
        cannot = "commit failed|cannot be written"  # it may have been tried again by now
        result = await backend.query(QueryServerParams(1, persisted=True))
        assert result.events == writer.events[:1]
        with pytest.raises(StorageError, match=cannot):
            await backend.flush()
        # refused at once: without a round of the loop
        for refusal in put(backend, lost[0]), backend.reserve(1, 1000):
            assert isinstance(refusal.exception(), StorageError)
        assert backend.high_water_mark(1).session == 1
        assert backend.stats().event_types == 1
        tried: str | None = backend.failure
        if tried is not None and "commit failed" in tried:
            tried = await changed(backend)
        assert tried is not None
        assert "the event store cannot be written: File too large (" in tried
    await recovered(backend)
    del writer.events[1:]
    await writer.session(draft(), time=9)
    assert (await backend.query(UPWARDS)).events == writer.events
    result = await backend.query(QueryServerParams(1, persisted=True))
    assert result.events == writer.events
    assert [(i.levelno, i.getMessage()) for i in caplog.records] == [
        (logging.ERROR, "event store cannot be written"),  # the commit
        (logging.ERROR, "event store cannot be written"),  # the first try, and as all others
        (logging.INFO, "commit that failed is decided"),
        (logging.INFO, "event store can be written again"),
    ]
    del futures, future, waiting, refusal
    gc.collect()
    assert unheard == []


class Circle:
    """Garbage that only a collection finds."""

    def __init__(self, held: object) -> None:
        self.held = held
        self.itself = self


async def test_frozen_garbage_that_has_an_iterator_does_not_keep_it_locked(
    backend: RocksDbBackend,
) -> None:
    writer = Writer(backend)
    await writer.session(*numbered("a"))
    circle = Circle(backend._store.snapshot())
    gc.freeze()  # as mariner.gateway.memory does
    del circle
    try:
        with failing_sync():
            await not_known(writer, "b")
        await recovered(backend)
    finally:
        gc.unfreeze()
    assert (await backend.query(UPWARDS)).events


async def test_types_of_what_failed_do_not_shift_others(
    backend: RocksDbBackend, tmp_path: Path
) -> None:
    writer = Writer(backend)
    await writer.session(*numbered("a", "b"))
    with full_disk():
        await not_known(writer, "never", "stored")
    await recovered(backend)
    assert backend.stats().event_types == 2
    await writer.session(*numbered("stored", "c", "a"), time=5)
    await backend.async_close()
    async with await rocksdb.create(tmp_path / "store") as again:
        assert (await again.query(UPWARDS)).events == writer.events
        for name in "a", "stored", "c", "never":
            found = (
                await again.query(QueryTimeseriesParams([(name,)], order=Order.ASCENDING))
            ).events
            assert found == [i for i in writer.events if i.type == (name,)]


async def test_what_was_written_but_not_synced_is_there_whole(
    backend: RocksDbBackend, tmp_path: Path
) -> None:
    writer = Writer(backend)
    await writer.session(*numbered("a", "b"))
    with failing_sync():
        future = put(backend, writer.make(*numbered("a", "new")))
        with pytest.raises(OutcomeUnknownError, match="While fdatasync") as caught:
            await future
        assert caught.value.is_stored() is None
    await recovered(backend)
    assert caught.value.is_stored()
    # it was in the log, so it is stored now; the cache of latest events knows it, too
    assert (await backend.query(UPWARDS)).events == writer.events
    latest = (await backend.query(QueryLatestParams([("a",), ("new",)]))).events
    assert sorted(i.id for i in latest) == [EventId(1, 2, 1), EventId(1, 2, 2)]
    assert backend.high_water_mark(1).session == 2
    # and durable: nothing of it is left to the log, whose pages the kernel may have lost
    assert [i.stat().st_size for i in (tmp_path / "store").glob("*.sst")]
    for log in (tmp_path / "store").glob("*.log"):
        assert b'["new"]' not in log.read_bytes()


async def test_it_fails_again_and_again(backend: RocksDbBackend, tmp_path: Path) -> None:
    writer = Writer(backend)
    for n in range(5):
        await writer.session(*numbered("a", f"t{n}"), time=n)
        fault = full_disk() if n % 2 else failing_sync()
        stored_all_the_same = writer.make(*numbered("a"), time=n)
        with fault, pytest.raises(OutcomeUnknownError):
            await put(backend, stored_all_the_same)
        if n % 2:
            writer.events.remove(stored_all_the_same[0])
        await recovered(backend)
    await backend.async_close()
    async with await rocksdb.create(tmp_path / "store") as again:
        assert (await again.query(QueryServerParams(1))).events == writer.events


async def test_it_goes_on_after_there_were_no_descriptors(
    backend: RocksDbBackend, tmp_path: Path
) -> None:
    writer = Writer(backend)
    await writer.session(draft())
    with failing_sync(), no_descriptors():
        await not_known(writer, "a")
        while "Too many open files" not in str(backend.failure):
            await changed(backend)
        backend.stats()  # metrics are told all the same
    await recovered(backend)
    await writer.session(draft(), time=5)


@pytest.mark.parametrize(
    ("method", "error"),
    [("ext_sync", Panic), ("ext_reopen", UnboundLocalError), ("ext_types", MemoryError)],
)
async def test_whatever_the_storage_thread_raises_it_goes_on(
    backend: RocksDbBackend,
    method: str,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = Writer(backend)
    await writer.session(draft())

    def broken(store: Store) -> None:
        raise error("what nobody thought of")

    with failing_sync(), monkeypatch.context() as patch:
        patch.setattr(Store, method, broken)
        await not_known(writer, "a")
        while "what nobody thought of" not in str(backend.failure):
            await changed(backend)
    await recovered(backend)
    await writer.session(draft(), time=5)
    unexpected = [i for i in caplog.records if i.message == "event store failed unexpectedly"]
    assert unexpected[0].exc_info


async def test_a_panic_in_a_query_fails_that_query(
    backend: RocksDbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(backend)
    await writer.session(draft())

    def panic(reader: StoreReader, *_: object) -> None:
        raise Panic("what nobody thought of")

    with monkeypatch.context() as patch:
        patch.setattr(StoreReader, "ext_timeseries", panic)
        with pytest.raises(StorageError, match="Panic: what nobody thought of"):
            await backend.query(UPWARDS)
    assert (await backend.query(UPWARDS)).events == writer.events


async def test_a_panic_in_a_write_is_a_failed_commit(
    backend: RocksDbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(backend)
    await writer.session(draft())

    class BrokenDb:
        def write(self, batch: object) -> None:
            raise Panic("what nobody thought of")

    with monkeypatch.context() as patch:
        patch.setattr(backend._store, "_db", BrokenDb())
        assert "commit failed: what nobody thought of" in await not_known(writer, "a")
    await recovered(backend)
    await writer.session(draft(), time=5)


@pytest.mark.parametrize("n_events", [1, limits.LARGE_SESSION_EVENTS + 1])
async def test_staging_that_panics_closes_the_backend(
    backend: RocksDbBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_events: int
) -> None:
    """What was to come behind is refused: it may have types that are not stored."""
    core = await engine.create(backend, 1)
    source = Source(SourceType.CONNECTION, 1)
    good, wrong = (RegisterEvent((i,), None, None) for i in ("good", "wrong"))
    await core.register(source, [good]).committed
    stage = Store.stage

    def panicking(store: Store, commit: Commit, batches: list[Batch], *others: Any) -> None:
        if any(("wrong",) in batch.types for batch in batches):
            raise Panic
        stage(store, commit, batches, *others)

    monkeypatch.setattr(Store, "stage", panicking)
    if n_events == 1:
        with pytest.raises(Panic):
            core.register(source, [wrong])
    else:
        sessions = [core.register(source, i) for i in ([wrong] * n_events, [good])]
        for session in sessions:
            await asyncio.wait([session.committed])
            assert isinstance(session.committed.exception(), EventerBridgeError)
    await backend.wait_closed()
    await core.async_close()
    assert len(await asyncio.to_thread(check_store, tmp_path / "store")) > 0
    async with await rocksdb.create(tmp_path / "store") as again:
        result = await again.query(QueryTimeseriesParams([("good",), ("wrong",)]))
        assert [i.type for i in result.events] == [("good",)]


async def test_a_storage_thread_that_ends_closes_the_backend(
    backend: RocksDbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)

    def die(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Store, "ext_sync", die)
    monkeypatch.setattr(storage_thread, "unexpected", die)
    writer = Writer(backend)
    committed = put(backend, writer.make(draft()))
    with pytest.raises(OutcomeUnknownError, match="the storage thread ended"):
        await committed
    await backend.wait_closed()
    assert [i.exc_type for i in ended] == [MemoryError]
    with pytest.raises(ClosedError):
        await put(backend, writer.make(draft()))


async def test_retention_goes_on_whatever_it_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.02)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.02)

    class Panicking(TestClock):
        def before(self, seconds: float | None) -> Timestamp | None:
            moment = super().before(seconds)
            if self.n_looks < 3:
                raise Panic("what nobody thought of")
            return moment

    rule = RetentionRule((("*",),), duration_s=1)
    clock = Panicking(1_000)
    async with await rocksdb.create(tmp_path / "kept", retention=[rule], clock=clock) as backend:
        writer = Writer(backend)
        await writer.session(*numbered("a", "a"))
        while len((await backend.query(UPWARDS)).events) > 1:  # the latest stays
            await asyncio.sleep(0.01)


async def test_what_was_not_deleted_after_all_is_not_missing(backend: RocksDbBackend) -> None:
    writer = Writer(backend)
    await writer.session(draft("a"))
    lost, missing = EventId(2, 9, 1), EventId(2, 5, 1)
    with full_disk():
        backend.note_missing(lost)
        with pytest.raises(OutcomeUnknownError):
            await backend.flush()
    await recovered(backend)
    backend.note_missing(missing)
    await writer.session(draft("a"), time=5)
    result = await backend.query(QueryServerParams(2, True))
    assert (result.deleted, result.n_deletions) == (missing, 1)


async def test_retention_that_gets_no_thread_is_another_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = RetentionRule((("*",),), max_entries=1)
    async with await rocksdb.create(tmp_path / "kept", retention=[rule]) as backend:
        writer = Writer(backend)

        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with failing_sync():
                await not_known(writer, "a")
            while "can't start new thread" not in str(backend.failure):
                await changed(backend)
        await recovered(backend)
        await writer.session(draft(), time=5)


async def test_queries_under_way_do_not_keep_it_from_going_on(backend: RocksDbBackend) -> None:
    writer = Writer(backend)
    await writer.session(*numbered(*["a"] * 2000))
    queries = [asyncio.ensure_future(backend.query(UPWARDS)) for _ in range(20)]
    with failing_sync():
        await not_known(writer, "a")
    await recovered(backend)
    for query in queries:
        with contextlib.suppress(StorageError):  # while it was being opened
            assert (await query).events[:2000] == writer.events
    assert (await backend.query(UPWARDS)).events[:2000] == writer.events


async def test_a_store_that_is_gone_is_waited_for_and_not_made_anew(
    backend: RocksDbBackend, tmp_path: Path
) -> None:
    writer = Writer(backend)
    await writer.session(draft())
    path, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    with failing_sync():
        path.rename(elsewhere)  # as when its file system is unmounted
        path.mkdir()
        await not_known(writer, "a")
    while backend.failure != f"{path}: the event store no longer exists":
        await changed(backend)
    assert not list(path.iterdir())
    path.rmdir()
    elsewhere.rename(path)
    await recovered(backend)
    await writer.session(draft(), time=5)
    stored = (await backend.query(UPWARDS)).events
    assert [i for i in stored if i.id.session != 2 or i in writer.events] == writer.events


async def test_a_store_that_is_found_damaged_closes_for_good(
    backend: RocksDbBackend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(backend)
    await writer.session(draft())
    with failing_sync():
        (tmp_path / "store" / "CURRENT").write_text("nonsense")
        await not_known(writer, "a")
        await backend.wait_closed()
    assert [i.getMessage() for i in caplog.records][-1] == "event store closes for good"
    assert "the event store is damaged: " in vars(caplog.records[-1])["reason"]
    with pytest.raises(ClosedError):
        await put(backend, writer.make(draft()))


@pytest.mark.parametrize("is_open_again", [False, True])
async def test_a_large_session_of_known_types_that_it_failed_meanwhile(
    backend: RocksDbBackend, monkeypatch: pytest.MonkeyPatch, is_open_again: bool
) -> None:
    writer = Writer(backend)
    await writer.session(draft("a"))
    n_opened = 0
    ext_reopen = backend._ext_reopen

    def count(*arguments: Any) -> Any:
        nonlocal n_opened
        n_opened += 1
        return ext_reopen(*arguments)

    monkeypatch.setattr(backend, "_ext_reopen", count)
    with full_disk():
        lost = put(backend, writer.make(draft("a")))
        large = writer.make(*[draft("a")] * (2 * limits.STEP_EVENTS))
        steps = put_in_steps(backend, large)
        next(steps)
        with pytest.raises(OutcomeUnknownError):
            await lost
    if is_open_again:
        await recovered(backend)
    commit = at_once(steps)
    with pytest.raises(StorageError):
        await commit
    await recovered(backend)
    await writer.session(draft("a"), time=9)
    assert [i.type for i in (await backend.query(UPWARDS)).events] == [("a",)] * 2
    assert n_opened == 1


async def test_closing_while_it_fails(backend: RocksDbBackend, tmp_path: Path) -> None:
    writer = Writer(backend)
    await writer.session(draft())
    with full_disk():
        await not_known(writer, "a")
        await backend.async_close()
    async with await rocksdb.create(tmp_path / "store") as again:
        assert (await again.query(UPWARDS)).events == writer.events


async def test_ids_that_run_out_meanwhile_come_again(
    backend: RocksDbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESERVED_SESSIONS", 8)
    core = await engine.create(backend, 1)
    source = Source(SourceType.CONNECTION, 1)
    event = RegisterEvent(("a",), None, None)
    await core.register(source, [event]).committed
    with full_disk():
        reasons = []
        for _ in range(20):
            try:
                await core.register(source, [event]).committed
            except EventerBridgeError as e:
                reasons.append(str(e))
        assert len(reasons) == 20
        assert "commit failed" in reasons[0]
    await recovered(backend)
    for _ in range(20):
        try:
            await core.register(source, [event]).committed
        except LimitError:  # while they are being reserved
            await backend.flush()
    await core.async_close()
    stored = (await backend.query(QueryServerParams(1))).events
    ids = [i.id.session for i in stored if i.id.instance == 1]
    assert ids == sorted(set(ids))
    assert len(ids) >= 19


async def test_the_engine_is_standby_until_the_disk_is_back(backend: RocksDbBackend) -> None:
    core = await engine.create(backend, 1)
    recorder = StatusRecorder()
    core.add_observer(recorder)
    source = core.create_source(SourceType.CONNECTION)
    wanted = [RegisterEvent(("a",), None, None)]
    with full_disk():
        session = core.register(source, wanted)
        await asyncio.wait([session.committed])
        assert isinstance(session.committed.exception(), OutcomeUnknownError)
        assert core.status is Status.STANDBY
        with pytest.raises(StorageError, match="commit failed"):
            core.register(source, wanted)
    await recovered(backend)
    assert recorder.statuses == [Status.STANDBY, Status.OPERATIONAL]
    await core.register(source, wanted).committed
    await core.async_close()
    assert recorder.statuses[2:] == [Status.STOPPING, Status.STANDBY]


class StatusRecorder(Observer):
    """An observer of the status only."""

    def __init__(self) -> None:
        self.statuses: list[Status] = []

    def on_status(self, status: Status) -> None:
        self.statuses.append(status)
