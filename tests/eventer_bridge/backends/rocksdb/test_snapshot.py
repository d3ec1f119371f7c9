"""A snapshot sees one moment, whatever is written after it, and however late it is read."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from rocksdict import RdictIter

from eventer_bridge import packed
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb import snapshot as snapshots
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.latest import Row
from eventer_bridge.backends.rocksdb.snapshot import READ_FAMILIES, Snapshot
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StoreDamagedError
from eventer_bridge.model import Event, EventId, EventType, JsonPayload, Timestamp
from tests.eventer_bridge.backends.putting import stage

ReadRows: TypeAlias = Callable[..., tuple[list[Row], int, bool]]
"""As ``packed.read_rows``."""


def write(store: Store, session: int, payload: JsonPayload | None = None, n_types: int = 1) -> None:
    """A session with an event of each type."""
    commit, moment = Commit(), Timestamp(session, 0)
    ids: dict[EventType, keys.TypeId] = {(str(i),): keys.encode_type_id(i) for i in range(n_types)}
    events = [
        Event(EventId(1, session, n), event_type, moment, moment, payload)
        for n, event_type in enumerate(ids, 1)
    ]
    stage(store, commit, [events], ids)
    store.write(commit)
    store.ext_sync()
    assert store.decide()


def test_what_is_written_later_is_not_seen(tmp_path: Path) -> None:
    store = Store(tmp_path)
    try:
        write(store, 1)
        snapshot = store.snapshot()
        write(store, 2)
        for family in READ_FAMILIES:
            assert len(list(snapshot.rows(family))) == 1, family
        assert snapshot.find(EventId(1, 1, 1)) is not None
        assert snapshot.find(EventId(1, 2, 1)) is None
        for family in READ_FAMILIES:
            assert len(list(store.snapshot().rows(family))) == 2, family
        del snapshot
    finally:
        store.ext_close()


def rows_at(read: Snapshot, event_keys: list[bytes]) -> list[Row]:
    return [row for some, _ in read.rows_at(event_keys) for row in some]


@pytest.mark.parametrize("n_ahead", [3, 17, 1_000])
def test_rows_at_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_ahead: int) -> None:
    """Whether they lie side by side, or others lie between; large ones are not kept ahead."""
    monkeypatch.setattr(store_limits, "AHEAD_ROWS", n_ahead)
    monkeypatch.setattr(store_limits, "AHEAD_BYTES", 2_000)
    store, drawn = Store(tmp_path), random.Random(1)
    try:
        for session in range(60):
            size = 3_000 if session % 20 == 7 else session
            write(store, session, JsonPayload.of("x" * size), n_types=3)
        read = store.snapshot()
        rows = list(read.rows("event"))
        assert len(rows) == 180
        for some in (rows, rows[::2], rows[:70:7], drawn.sample(rows, 180), drawn.sample(rows, 50)):
            assert rows_at(read, [key for key, _ in some]) == some
        ahead = read._read_ahead([key for key, _ in rows])
        assert 2_000 < sum(map(len, ahead.values())) < 2_000 + 3_100
        gone = keys.encode_type_id(1) + rows[0][0][keys.TYPE_BYTES :][:-1] + b"\x7f"
        with pytest.raises(StoreDamagedError, match="damaged"):
            rows_at(read, [*(key for key, _ in rows[60:70]), gone])
        del read
    finally:
        store.ext_close()


@pytest.fixture(params=["compiled", "python"])
def read_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ReadRows:
    """Both ways to read rows, of which snapshots take the one that is given."""
    if request.param == "python":
        read: ReadRows = snapshots._read_in_python
    elif packed.IS_COMPILED:
        read = packed.read_rows
        assert snapshots._read_rows is read
    else:
        pytest.skip("eventer_bridge.packed is not compiled (no compiler)")
    monkeypatch.setattr(snapshots, "_read_rows", read)
    return read


@pytest.mark.usefixtures("read_rows")
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("limit", [0, 1, store_limits.STEP_ROWS, store_limits.STEP_ROWS + 1, 50])
def test_no_more_rows_are_read_than_are_wanted(
    tmp_path: Path, limit: int, *, descending: bool
) -> None:
    store = Store(tmp_path)
    try:
        for session in range(40):
            write(store, session, JsonPayload.of(session))
        type_id = keys.encode_type_id(0)
        span = type_id, type_id + keys.KEY_MAX
        read = store.snapshot()
        rows = list(read.rows("event"))[:: -1 if descending else 1]
        steps = list(read.event_rows(*span, descending=descending, limit=limit))
        assert [row for some, _ in steps for row in some] == rows[:limit]
        assert [n for _, n in steps] == [sum(len(i) for _, i in some) for some, _ in steps]
        wanted = rows[3::7]
        conditions = [{value for _, value in some}.__contains__ for some in (rows[3:], wanted)]
        steps = list(
            read.event_rows(*span, descending=descending, limit=limit, conditions=conditions)
        )
        found = [row for some, _ in steps for row in some]
        assert found[:limit] == wanted[:limit]
        assert len(found) < limit + store_limits.STEP_ROWS
        assert [n for _, n in steps] == [sum(len(i) for _, i in some) for some, _ in steps]
        del read
    finally:
        store.ext_close()


@pytest.mark.usefixtures("read_rows")
def test_rows_that_are_passed_over_are_read_in_short_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_limits, "STEP_S", 60.0)  # however slow the machine is
    pauses: list[int] = []
    store, seen = Store(tmp_path), list[bytes]()
    try:
        for session in range(40):
            write(
                store,
                session,
                JsonPayload.of("x" * (store_limits.STEP_BYTES if session == 20 else 1)),
            )
        read = store.snapshot(lambda: pauses.append(len(seen)))

        def refuse(value: bytes) -> bool:
            seen.append(value)
            return False

        steps = read.event_rows(b"", keys.KEY_MAX, descending=False, limit=1, conditions=[refuse])
        assert sum(len(rows) + n_bytes for rows, n_bytes in steps) == 0
        assert len(seen) == 40
        assert pauses == [0, store_limits.STEP_ROWS, 21, 21 + store_limits.STEP_ROWS]
        del read, steps
    finally:
        store.ext_close()


def read_step(
    read_rows: ReadRows,
    iterator: RdictIter,
    start: bytes,
    stop: bytes,
    *,
    descending: bool,
    max_rows: int = 999,
    max_bytes: int = 9_999,
    seconds: float = 60.0,
) -> tuple[list[Row], int, bool]:
    """What is read where little of it is bounded."""
    return read_rows(
        iterator,
        start,
        stop,
        descending=descending,
        max_rows=max_rows,
        max_bytes=max_bytes,
        seconds=seconds,
    )


def test_a_step_ends_by_rows_bytes_time_or_span(tmp_path: Path, read_rows: ReadRows) -> None:
    store = Store(tmp_path)
    try:
        for session in range(100):
            write(store, session, JsonPayload.of("x" * (session % 7)))
        read = store.snapshot()
        every = list(read.rows("event"))
        iterator = read.iterator("event")
        drawn = random.Random(1)
        for _ in range(300):
            first, last = sorted(drawn.sample(range(100), 2))
            expected, descending = every[first:last], drawn.random() < 0.5
            if descending:
                expected.reverse()
            sizes = [len(value) for _, value in expected]
            max_rows = drawn.choice([1, 30, 999])
            max_bytes = drawn.choice([50, sum(sizes[:3]), 9_999])
            seconds = drawn.choice([0.0, 60.0])
            iterator.seek(expected[0][0])
            rows, n_bytes, is_end = read_step(
                read_rows,
                iterator,
                every[first][0],
                every[last][0],
                descending=descending,
                max_rows=max_rows,
                max_bytes=max_bytes,
                seconds=seconds,
            )
            most = next((n for n in range(len(sizes)) if sum(sizes[:n]) > max_bytes), len(sizes))
            most = min(most, max_rows, 999 if seconds else 1)
            assert rows == expected[:most]
            assert n_bytes == sum(sizes[: len(rows)])
            assert not is_end or len(rows) == len(expected)
            assert is_end or len(rows) == most
        del read, iterator
    finally:
        store.ext_close()


@pytest.mark.usefixtures("read_rows")
def test_it_pauses_when_the_time_of_a_step_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_limits, "STEP_S", 0.0)
    pauses: list[None] = []
    store = Store(tmp_path)
    try:
        for session in range(5):
            write(store, session)
        read = store.snapshot(lambda: pauses.append(None))
        steps = list(read.event_rows(b"", keys.KEY_MAX, descending=True, limit=4))
        assert [len(rows) for rows, _ in steps] == [1, 1, 1, 1]
        assert len(pauses) == 4
        del read
    finally:
        store.ext_close()


def test_reading_ends_with_the_span(tmp_path: Path, read_rows: ReadRows) -> None:
    store = Store(tmp_path)
    try:
        write(store, 1, JsonPayload.of(1))
        read = store.snapshot()
        [row] = read.rows("event")
        iterator = read.iterator("event")
        for descending in (False, True):
            iterator.seek(row[0])
            step = read_step(read_rows, iterator, b"", keys.KEY_MAX, descending=descending)
            assert step == ([row], len(row[1]), True)
            assert not iterator.valid()
        key = row[0]
        following = key[:-1] + bytes((key[-1] + 1,))
        for start, stop, is_within in (
            (key, following, True),
            (key[:-1], key + b"\x00", True),
            (key[:-1], key, False),
            (b"", key[:-1], False),
            (key + b"\x00", keys.KEY_MAX, False),
            (following, keys.KEY_MAX, False),
        ):
            iterator.seek(key)
            rows, _, is_end = read_step(
                read_rows, iterator, start, stop, descending=True, max_rows=1
            )
            assert (rows, is_end) == (([row], False) if is_within else ([], True)), (start, stop)
        del read, iterator
    finally:
        store.ext_close()
