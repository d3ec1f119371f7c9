"""Retention of both backends: the contract, random rules, crashes, what only RocksDB does."""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Rdict

from eventer_bridge import limits, packed
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.retention import Deletion, ext_oldest
from eventer_bridge.backends.rocksdb.scan import KeyRange
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StorageError
from eventer_bridge.model import (
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    QueryServerParams,
    Timestamp,
)
from tests.eventer_bridge.backends import retention_child
from tests.eventer_bridge.backends.consistency import check_open_store, check_store
from tests.eventer_bridge.backends.contract_retention import (
    Open,
    RetentionContract,
    TestClock,
    check_all_queries,
    everything,
    hurry,  # noqa: F401
    kept,
    rule,
    settled,
)
from tests.eventer_bridge.backends.faults import full_disk, recovered
from tests.eventer_bridge.backends.oracle import Writer, draft, event_bytes, numbered
from tests.eventer_bridge.backends.putting import put, put_all, stage
from tests.eventer_bridge.backends.strategies import EventMaker, Session, blocks
from tests.support.examples import examples


class TestRocksDb(RetentionContract):
    @pytest.fixture
    def open_backend(self, tmp_path: Path) -> Open:
        @contextlib.asynccontextmanager
        async def open_it(*rules: RetentionRule, clock: PassedTime) -> AsyncIterator[Backend]:
            async with await rocksdb.create(tmp_path, retention=rules, clock=clock) as backend:
                yield backend
            check_store(tmp_path)

        return open_it


# random events and rules

_patterns = st.sampled_from([("*",), ("a", "*"), ("?",), ("b",), ("a", "b"), ()])
_rules = st.builds(
    RetentionRule,
    st.lists(_patterns, min_size=1, max_size=2).map(tuple),
    st.integers(0, 6),
    st.none() | st.integers(0, 15),
    st.none() | st.sampled_from([0, 0.5, 1, 2]),
    st.none() | st.integers(0, 600),
)


async def fill(writer: Writer, backend: Backend, cases: list[list[Session]]) -> None:
    maker = EventMaker()
    for together in cases:
        made = maker.make_all(together)
        writer.events += chain.from_iterable(made)
        put_all(backend, made)


@pytest.mark.usefixtures("hurry")
class TestRandom:
    @settings(max_examples=examples(10))
    @given(st.lists(blocks, max_size=8), st.lists(_rules, min_size=1, max_size=3))
    def test_rocksdb_keeps_what_the_rules_say(
        self, cases: list[list[Session]], rules: list[RetentionRule]
    ) -> None:
        async def run(path: Path) -> None:
            async with await rocksdb.create(path) as backend:
                writer = Writer(backend)
                await fill(writer, backend, cases)
                await backend.flush()
                marks = [backend.high_water_mark(i) for i in (-1, 1, 2)]
            clock = TestClock(2)
            expected = kept(writer.events, rules, clock.at)
            async with await rocksdb.create(path, retention=rules, clock=clock) as backend:
                assert await settled(backend, clock) == expected
                await check_all_queries(backend, expected)
            assert len(check_store(path)) == len(expected)
            async with await rocksdb.create(path) as backend:
                assert [backend.high_water_mark(i) for i in (-1, 1, 2)] == marks
                await check_all_queries(backend, expected)

        with tempfile.TemporaryDirectory() as path:
            asyncio.run(run(Path(path)))


# RocksDB only


@pytest.mark.usefixtures("hurry")
async def test_what_is_there_already_is_counted(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for n in range(30):
            put(backend, writer.make(*numbered("a", f"b/{n % 3}")))
    rules = [rule("a", max_entries=12), rule("b/*", size=800)]
    clock = TestClock()
    for _ in range(3):
        async with await rocksdb.create(tmp_path, retention=rules, clock=clock) as backend:
            writer = Writer(backend)
            writer.events = await settled(backend, clock)
            for _ in range(3):
                put(backend, writer.make(*numbered("a", "b/new")))
            await backend.flush()
            expected = kept(writer.events, rules, clock.at)
            assert await settled(backend, clock) == expected
            assert sum(event.type == ("a",) for event in expected) == 12
        check_store(tmp_path)


@pytest.mark.usefixtures("hurry")
async def test_every_moment_is_consistent(tmp_path: Path) -> None:
    backend = await rocksdb.create(tmp_path, retention=[rule("a", "c", max_entries=20)])
    writer = Writer(backend)
    n_seen: set[int] = set()
    for n in range(200):
        await writer.session(*numbered("a", f"b/{n % 40}", "c", "a"))
        n_seen.add(len(check_open_store(backend._store)))
    await backend.async_close()
    assert len(n_seen) > 10
    assert max(n_seen) < 800
    check_store(tmp_path)


def test_the_size_of_an_event_is_that_of_its_row(tmp_path: Path) -> None:
    store = Store(tmp_path)
    commit = Commit()
    drafts = [
        draft("a"),
        draft("a", 5, JsonPayload.of({"a": "ž"})),
        draft("a", None, BinaryPayload("ž", b"123")),
        draft("a", -5, BinaryPayload("", b"")),
    ]
    events = [
        Event(EventId(1, 1, n), i.type, Timestamp(1, 0), i.source_timestamp, i.payload)
        for n, i in enumerate(drafts, 1)
    ]
    type_id = keys.encode_type_id(0)
    store.stage_types(commit, [(type_id, packed.encode_type(("a",)))])
    stage(store, commit, [events], {("a",): type_id})
    store.write(commit)
    store.ext_sync()
    assert store.decide()
    rows = store.snapshot().rows("event")
    assert [len(key) + len(value) for key, value in rows] == [event_bytes(i) for i in events]
    store.ext_close()


@pytest.mark.usefixtures("hurry")
async def test_events_that_come_late_are_not_deleted_with_a_range(tmp_path: Path) -> None:
    """A server whose clock is behind registers between the choice and the deletion."""
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for n in range(1, 41):
            await writer.session(draft("a"), time=10 * n)
        for with_ranges, time, is_written, is_done in (
            (True, 15, False, False),
            (True, 16, True, False),
            (False, 17, True, True),
            (True, 305, True, True),  # comes after the range
        ):
            store = backend._store
            snapshot = store.ext_begin_deleting()
            events = ext_oldest(snapshot, [keys.encode_type_id(0)], KeyRange(b"", keys.KEY_MAX), 15)
            deletion = Deletion(store, snapshot, events, with_ranges)
            late = put(backend, writer.make(draft("a"), server=2, time=time))
            if is_written:
                await late
            n_before = len(check_open_store(store)) + (not is_written)
            assert await backend._delete(deletion) is is_done
            del snapshot  # or else the store stays locked
            await backend.flush()
            assert len(check_open_store(store)) == n_before - (15 if is_done else 0)
        found = (await backend.query(QueryServerParams(2))).events
        assert [event.timestamp.s for event in found] == [305]  # the others were chosen later on
    check_store(tmp_path)


@pytest.mark.usefixtures("hurry")
async def test_large_sessions_are_rewritten_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RETENTION_BATCH_BYTES", 1_000)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for _ in range(10):
            await writer.session(draft("a"), *(draft("b") for _ in range(29)))  # 600 bytes
        snapshot = backend._store.ext_begin_deleting()
        events = ext_oldest(snapshot, [keys.encode_type_id(0)], KeyRange(b"", keys.KEY_MAX), 9)
        deletion = Deletion(backend._store, snapshot, events)
        assert deletion.events == events[:2]
        assert deletion.newest == keys.session_of(events[1].key)
        del snapshot, deletion
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 3_600)  # all of it in one pass
    rules = [rule("a", max_entries=4)]
    async with await rocksdb.create(tmp_path, retention=rules) as backend:
        expected = kept(writer.events, rules, Timestamp(0, 0))
        while len(await everything(backend)) > len(expected):
            await asyncio.sleep(0.001)
        await check_all_queries(backend, expected)
    assert len(check_store(tmp_path)) == len(expected) == 294


@pytest.mark.usefixtures("hurry")
async def test_a_damaged_store_does_not_stop_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for _ in range(20):
            await writer.session(draft("a"))
        # as a store would look that lost a row
        row, _ = next(backend._store.snapshot().rows("session"))
        family: Rdict = backend._store._families["session"]
        family.delete(row)
        del family
    async with await rocksdb.create(tmp_path, retention=[rule("*", max_entries=1)]) as backend:
        while "retention failed, and will try again" not in caplog.text:
            await asyncio.sleep(0.001)
        await Writer(backend).session(draft("b"), server=2)
        result = await backend.query(QueryServerParams(2))
        assert len(result.events) == 1
    failures = [i for i in caplog.records if i.message.startswith("retention failed")]
    assert "the event store is damaged: no row" in vars(failures[0])["reason"]


@pytest.mark.usefixtures("hurry")
async def test_it_goes_on_after_the_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STORE_RETRY_PERIOD_S", 0.02)
    clock = TestClock()
    rules = [rule("a", max_entries=10), rule("*", duration=100)]
    async with await rocksdb.create(tmp_path, retention=rules, clock=clock) as backend:
        writer = Writer(backend)
        for n in range(60):
            await writer.session(draft("a"), draft("b"), time=n)
        with full_disk():
            clock.at = Timestamp(120, 0)  # what is to be deleted now cannot be
            while backend.failure is None:
                await asyncio.sleep(0.001)
            with pytest.raises(StorageError):
                await writer.session(draft("new"))
            del writer.events[-1]
        await recovered(backend)
        # ids of types may have changed, and it counts anew
        for n in range(60, 65):
            await writer.session(draft("c"), draft("a"), time=n)
        expected = kept(writer.events, rules, clock.at)
        assert await settled(backend, clock) == expected
        await check_all_queries(backend, expected)
    assert len(check_store(tmp_path)) == len(expected)


async def test_kill_in_the_middle_of_deleting(tmp_path: Path) -> None:
    done: set[int] = set()
    for _ in range(3):
        new = run_and_kill(tmp_path, sessions=1500)
        assert min(new) > max(done, default=0)
        done |= new
        n_left = len(check_store(tmp_path))
        async with await rocksdb.create(tmp_path) as backend:
            assert backend.high_water_mark(retention_child.SERVER).session >= max(done)
            stored: dict[EventId, Event] = {}
            page = await backend.query(QueryServerParams(retention_child.SERVER))
            stored |= {event.id: event for event in page.events}
            while page.more_follows:
                last = page.events[-1].id
                page = await backend.query(
                    QueryServerParams(retention_child.SERVER, last_event_id=last)
                )
                stored |= {event.id: event for event in page.events}
        assert len(stored) == n_left
        assert all(i in retention_child.events_of(i.id.session) for i in stored.values())
        acknowledged = [i for session in sorted(done) for i in retention_child.events_of(session)]
        assert len(stored) < len(acknowledged)
        for event in acknowledged[-retention_child.MAX_ENTRIES // 2 :]:
            assert stored[event.id] == event


def run_and_kill(path: Path, sessions: int) -> set[int]:
    """Let the child run until so many sessions are acknowledged; return their ids."""
    done: set[int] = set()
    with subprocess.Popen(
        [sys.executable, "-m", retention_child.__name__, path],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            done.add(int(line.removeprefix(b"done ")))
            if len(done) == sessions:
                process.kill()  # what is in the pipe already is still read
    return done


@pytest.mark.usefixtures("hurry")
async def test_registration_goes_on_while_it_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rests between two steps, for so long that it takes its share of a processor."""
    monkeypatch.setattr(limits, "RETENTION_CPU_SHARE", 1e-6)
    monkeypatch.setattr(limits, "RETENTION_IDLE_SHARE", 1e-6)
    async with await rocksdb.create(tmp_path, retention=[rule("*", max_entries=5)]) as backend:
        writer = Writer(backend)
        for _ in range(100):
            await writer.session(*numbered(*["a"] * 5))
        # at most a few steps: each of them makes it rest for minutes
        n_left = len((await backend.query(QueryServerParams(1))).events)
        assert n_left > 400
    # and closing does not wait for it
    assert len(check_store(tmp_path)) == n_left


def test_rules_are_read_from_a_configuration() -> None:
    data = {"subscriptions": [["a", "*"]], "max_entries": 5, "duration": 1.5, "size": 10}
    assert msgspec.convert(data, RetentionRule) == RetentionRule((("a", "*"),), 0, 5, 1.5, 10)
    huge = RetentionRule((), duration_s=1e12)
    assert not huge.is_counted
