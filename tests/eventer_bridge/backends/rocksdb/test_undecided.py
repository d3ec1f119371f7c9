"""What is written but not known to be durable is seen by nobody, until it is known."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import RocksDbBackend, keys
from eventer_bridge.backends.rocksdb.control import ext_checkpoint
from eventer_bridge.backends.rocksdb.retention import Deletion, ext_oldest
from eventer_bridge.backends.rocksdb.scan import KeyRange
from eventer_bridge.errors import OutcomeUnknownError, StorageError
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from tests.eventer_bridge.backends.faults import (
    changed,
    failing_for_good,
    failing_sync,
    full_disk,
    held_sync,
    query_when_open,
    recovered,
)
from tests.eventer_bridge.backends.oracle import Writer, draft, is_right, numbered
from tests.eventer_bridge.backends.putting import put, put_in_steps

UPWARDS = QueryTimeseriesParams(order=Order.ASCENDING)
EVERYTHING = (("*",),)


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORE_RETRY_PERIOD_S", 0.02)


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[RocksDbBackend]:
    backend = await rocksdb.create(tmp_path / "store")
    yield backend
    await backend.async_close()


def every_query(events: Sequence[Event]) -> list[QueryParams]:
    """Queries that find all of these events, or some, each by another way."""
    ids = tuple(event.id for event in events)
    types = sorted({event.type for event in events})
    many = [*types, *((f"none{n}",) for n in range(20))]  # more than are always merged
    timeseries: list[dict[str, Any]] = [
        {},
        {"order": Order.ASCENDING},
        {"event_types": types[:1]},
        {"event_types": many, "order": Order.ASCENDING},
        {"order_by": OrderBy.SOURCE_TIMESTAMP},
        {"order_by": OrderBy.SOURCE_TIMESTAMP, "event_types": types[:2]},
        {"ids": ids},
        {"unique_type": True},
        {"unique_type": True, "order": Order.ASCENDING},
        {"payload": JsonPayload.of(0)},
        {"t_from": Timestamp(2, 0)},
    ]
    return [
        *(QueryTimeseriesParams(**arguments) for arguments in timeseries),
        *(QueryServerParams(server, persisted) for server in (1, 2) for persisted in (False, True)),
        QueryServerParams(1, last_event_id=EventId(1, 1, 1)),
        QueryLatestParams(),
        *(QueryLatestParams([event_type]) for event_type in types),
    ]


async def check(backend: RocksDbBackend, stored: Sequence[Event], asked: Sequence[Event]) -> None:
    """Every query about ``asked`` finds what is stored, and nothing else."""
    for params in every_query(asked):
        result = await query_when_open(backend, params)
        assert is_right(result, stored, params, EVERYTHING), params


@pytest.mark.parametrize(
    ("fault", "is_stored"), [(failing_for_good, True), (full_disk, False)], ids=["sync", "full"]
)
async def test_nobody_sees_it_before_it_is_decided(
    backend: RocksDbBackend,
    fault: Callable[[], contextlib.AbstractContextManager[None]],
    is_stored: bool,
) -> None:
    writer = Writer(backend)
    await writer.session(*numbered("a", "b", "known"), time=1)
    await writer.session(*numbered("a", "remote"), server=2, time=1)
    before = list(writer.events)
    undecided = [
        writer.make(draft("a", 5, JsonPayload.of(0)), draft("new", 6), time=3),
        writer.make(*numbered("a", "newer"), server=2, time=2),  # of another server, and older
        writer.make(*numbered("b", "a"), time=4),
    ]
    with fault():
        commits = [put(backend, session) for session in undecided]
        for commit in commits:
            with pytest.raises(OutcomeUnknownError, match=r"^outcome unknown: .*store: commit"):
                await commit
        refused = writer.make(*numbered("a", "refused"), time=9)
        with pytest.raises(StorageError):
            await put(backend, refused)
        error = commits[0].exception()
        assert isinstance(error, OutcomeUnknownError)
        await check(backend, before, writer.events)
        while "commit failed" in str(backend.failure):
            await changed(backend)
        await check(backend, before, writer.events)  # it was tried to go on, in vain
        assert error.is_stored() is None
    await recovered(backend)
    assert error.is_stored() is is_stored
    stored = [event for event in writer.events if event not in refused]
    await check(backend, stored if is_stored else before, writer.events)


async def test_a_query_beside_a_commit_sees_what_is_durable(backend: RocksDbBackend) -> None:
    writer = Writer(backend)
    await writer.session(*numbered("a", "b"))
    before = list(writer.events)
    persisted = QueryServerParams(1, persisted=True)
    with held_sync() as may_sync:
        first = put(backend, writer.make(*numbered("a", "first")))
        await asyncio.sleep(0)  # it is written, and being synced
        assert (await backend.query(persisted)).events == before
        waiting = asyncio.ensure_future(backend.query(UPWARDS))
        await asyncio.sleep(0)
        between = list(writer.events)
        second = put(backend, writer.make(*numbered("a", "second")))
        may_sync.release()
        # it waits for what came before it; what is written since then is not durable
        assert (await waiting).events == between
        assert first.done()
        assert not second.done()
        assert (await backend.query(persisted)).events == between
        may_sync.release()
        await second
        assert (await backend.query(persisted)).events == writer.events


async def test_a_large_session_whose_part_fails_is_refused(
    backend: RocksDbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COMMIT_PART_ROWS", 4)
    monkeypatch.setattr(limits, "STEP_EVENTS", 5)
    writer = Writer(backend)
    await writer.session(*numbered("a"))
    before = list(writer.events)
    events = writer.make(*numbered(*["a"] * 20))
    with failing_for_good():
        steps = put_in_steps(backend, events)
        while True:
            try:
                next(steps)
            except StopIteration as e:
                commit = e.value
                break
        with pytest.raises(StorageError, match="While fdatasync"):
            await commit
        await check(backend, before, writer.events)
    await recovered(backend)
    await check(backend, before, writer.events)


async def test_no_copy_has_what_could_still_be_lost(
    backend: RocksDbBackend, tmp_path: Path
) -> None:
    writer = Writer(backend)
    await writer.session(*numbered("a"))
    target = tmp_path / "copy"
    with failing_sync():
        with pytest.raises(OutcomeUnknownError):
            await writer.session(*numbered("b"))
        with pytest.raises(StorageError, match=r"While fdatasync|being opened again"):
            await asyncio.to_thread(ext_checkpoint, backend._store, target)
    assert not target.exists()
    await recovered(backend)
    await asyncio.to_thread(ext_checkpoint, backend._store, target)
    async with await rocksdb.create(target) as copy:
        assert (await copy.query(UPWARDS)).events == writer.events


async def test_after_a_sync_that_failed_none_is_believed(
    backend: RocksDbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailsOnce:
        """The kernel tells of lost pages once: the next sync of the same file succeeds."""

        def __init__(self, db: Any) -> None:
            self._db = db

        def __getattr__(self, name: str) -> Any:
            return getattr(self._db, name)

        def flush_wal(self, sync: bool) -> None:
            raise OSError("While fdatasync: Input/output error")

    monkeypatch.setattr(limits, "STORE_RETRY_PERIOD_S", 60.0)
    store = backend._store
    writer = Writer(backend)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_db", FailsOnce(store._db))
        with pytest.raises(StorageError, match="While fdatasync"):
            await asyncio.to_thread(store.ext_sync)
    for _ in range(2):
        with pytest.raises(StorageError, match="While fdatasync"):
            await asyncio.to_thread(store.ext_sync)
    with pytest.raises(StorageError, match="While fdatasync"):
        await writer.session(draft())
    await asyncio.to_thread(store.ext_reopen)
    await asyncio.to_thread(store.ext_sync)


async def test_a_backend_that_closes_decides_nothing(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path / "store") as backend:
        writer = Writer(backend)
        with failing_for_good():
            with pytest.raises(OutcomeUnknownError) as caught:
                await writer.session(draft())
            await backend.async_close()
        assert caught.value.is_stored() is None
        assert caught.value.decided is not None
        assert caught.value.decided.cancelled()
    async with await rocksdb.create(tmp_path / "store") as again:
        assert (await again.query(UPWARDS)).events == writer.events


async def test_what_was_under_way_when_old_events_were_chosen_is_not_deleted(
    backend: RocksDbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RETENTION_RANGE_ROWS", 2)
    writer = Writer(backend)
    for time in (1, 3, 4):
        await writer.session(draft("a"), time=time)
    store = backend._store
    with held_sync() as may_sync:
        between = put(backend, writer.make(draft("a"), server=2, time=2))
        await asyncio.sleep(0)  # it is written, and being synced
        with store.in_use():
            snapshot = store.ext_begin_deleting()
            type_id = keys.encode_type_id(0)
            events = ext_oldest(snapshot, [type_id], KeyRange(b"", keys.KEY_MAX), 10)
            assert len(events) == 3  # it is not seen
            deletion = Deletion(store, snapshot, events[:2])
            may_sync.release(2)
            await between
            assert not await backend._delete(deletion)
            del snapshot
    assert len((await backend.query(UPWARDS)).events) == len(writer.events)
