"""The reader of stores without Spark around it: every event once, and only what is asked for."""

import shutil
import tempfile
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventer_bridge import limits as core_limits
from eventer_bridge import slices
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.types import TypeRegistry
from eventer_bridge.errors import StorageError
from eventer_bridge.model import Event, EventId, EventType, Timestamp
from eventer_bridge.packed import batch_parts, stored_batch
from eventer_bridge.subscription import Subscription
from mariner_spark import limits, schema, times, type_path
from mariner_spark.errors import OptionError, SnapshotError
from mariner_spark.source import snapshots, store
from mariner_spark.source.options import Selection
from mariner_spark.source.rows import Columns
from mariner_spark.times import Interval
from tests.eventer_bridge.backends.putting import TYPES, stage
from tests.spark.support import (
    EXAMPLES,
    Row,
    event_types,
    events,
    fill,
    in_order,
    moment,
    plain_events,
    row_of,
    rows_of,
    timestamps,
)

ARROW_SCHEMA = schema.arrow_schema(schema.SCHEMA)
ALL = Columns(ARROW_SCHEMA)


def read_partitions(
    path: Path, selected: Selection, n_partitions: int | None = None
) -> list[list[Row]]:
    me = snapshots.this_driver()
    found: list[list[Row]] = []
    for partition in store.plan(path, me, selected, n_partitions):
        batches = list(store.read(partition, selected, ALL))
        found.append([row for batch in batches for row in batch.to_pylist()])
    return found


def read_all(path: Path, selected: Selection, n_partitions: int | None = None) -> list[Row]:
    rows = [row for part in read_partitions(path, selected, n_partitions) for row in part]
    for row in rows:
        assert type_path.decode(row.pop("type_path")) == tuple(row["type"])
    return in_order(rows)


@given(events, st.integers(1, 5))
@settings(max_examples=10 * EXAMPLES, deadline=None)
def test_every_event_once_and_equal(stored: list[Event], n_partitions: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "store")
        fill(path, stored)
        assert read_all(path, Selection(), n_partitions) == rows_of(stored)


def test_a_session_that_was_not_written_whole_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_limits, "COMMIT_PART_ROWS", 512)
    path = tmp_path / "store"
    whole = [made(1, 1, i) for i in range(1, 4)]
    fill(path, [*whole, made(2, 1, 1)])
    events_store = Store(path)
    commit = Commit(1_000)
    large = [made(1, 2, i) for i in range(1, 1_001)]
    types = TypeRegistry(events_store.ext_types())
    batch = stored_batch(large, TYPES)
    for part in batch_parts(batch):
        events_store.stage(commit, [batch], types.ids, part)
        events_store.put_part(commit)
    events_store.stage_block(commit, [])
    while commit.before:
        events_store.write(commit)
    events_store.ext_close()
    expected = rows_of([*whole, made(2, 1, 1)])
    for n_partitions in 1, 3:
        assert read_all(path, Selection(), n_partitions) == expected


def made(server: int, session: int, instance: int) -> Event:
    event_id = EventId(server, session, instance)
    return Event(event_id, ("a", str(instance % 3)), Timestamp(session, 0), None, None)


def test_timestamps_of_sessions_that_came_together(tmp_path: Path) -> None:
    path = tmp_path / "store"
    fill(path, [made(1, 9, 1)])
    events_store = Store(path)
    types = TypeRegistry(events_store.ext_types())
    for server, sessions in ((2, (3, 5)), (3, (4, 7))):
        commit = Commit()
        block = [[made(server, i, 1)] for i in sessions]
        block = [[msgspec.structs.replace(i, timestamp=Timestamp(20, 0))] for [i] in block]
        new: list[tuple[bytes, bytes]] = []
        slices.at_once(types.intern([(0, i.type) for [i] in block], new))
        events_store.stage_types(commit, new)
        stage(events_store, commit, block, types.ids)
        events_store.ext_write_synced(commit)
    events_store.ext_close()
    me = snapshots.this_driver()
    for asked, found in (
        ({1: 9, 2: 5, 3: 4}, {1: Timestamp(9, 0), 2: Timestamp(20, 0), 3: Timestamp(20, 0)}),
        ({1: 10, 2: 4, 3: 8, 4: 1}, {}),
    ):
        assert store.find_servers(path, me, asked).timestamps == found


_ends = st.lists(st.none() | timestamps.map(moment), min_size=2, max_size=2)
_SERVERS: Final = (2, 3, 4, -5)
_PATTERNS: Final[tuple[EventType, ...]] = (("*",), ("a", "*"), ("?",), ("?", "/"), ("~",), ())
_types = st.lists(st.sampled_from(_PATTERNS) | event_types, min_size=1, max_size=3)


def between(first: datetime | None, last: datetime | None) -> Interval:
    """What lies between two moments, in the order in which they follow each other."""
    if first is not None and last is not None:
        first, last = min(first, last), max(first, last)
    return Interval(
        None if first is None else times.from_datetime(first),
        None if last is None else times.from_datetime(last),
    )


def ends_at(found: Iterable[Timestamp]) -> st.SearchStrategy[list[datetime | None]]:
    """Two moments of events, if there are any."""
    moments: list[datetime | None] = [moment(i) for i in found] or [None]
    return st.lists(st.sampled_from(moments), min_size=2, max_size=2)


def is_selected(row: Row, selected: Selection) -> bool:
    """Whether a selection asks for a row."""
    source = row["source_timestamp"]
    return all(
        (
            selected.types is None or Subscription(selected.types).matches(tuple(row["type"])),
            selected.servers is None or row["server"] in selected.servers,
            selected.time.contains(times.from_datetime(row["timestamp"])),
            selected.source is None
            or (source is not None and selected.source.contains(times.from_datetime(source))),
        )
    )


@given(events, st.data(), st.integers(1, 3))
@settings(max_examples=20 * EXAMPLES, deadline=None)
def test_a_selection_is_kept_exactly(
    stored: list[Event], data: st.DataObject, n_partitions: int
) -> None:
    ends = _ends | ends_at(i.timestamp for i in stored)
    source_ends = _ends | ends_at(i.source_timestamp for i in stored if i.source_timestamp)
    selected = Selection(
        types=data.draw(st.none() | _types.map(tuple)),
        time=between(*data.draw(ends)),
        servers=data.draw(st.none() | st.frozensets(st.sampled_from(_SERVERS), min_size=1)),
        source=data.draw(st.none() | source_ends.map(lambda i: between(*i))),
    )
    expected = [row for row in rows_of(stored) if is_selected(row, selected)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "store")
        fill(path, stored)
        assert read_all(path, selected, n_partitions) == expected


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "store"
    fill(path, plain_events(20_000))
    return path


def test_partitions_share_the_work(plain: Path) -> None:
    sizes = [len(i) for i in read_partitions(plain, Selection(), 4)]
    assert sum(sizes) == 20_000
    assert len(sizes) == 4
    assert min(sizes) > 3_000


def test_partitions_share_the_work_also_of_a_burst(tmp_path: Path) -> None:
    stored = plain_events(5_000)
    old = Event(stored[0].id, ("old",), Timestamp(-(10**10), 0), None, None)
    fill(tmp_path / "store", [old, *stored[10:]])
    sizes = [len(i) for i in read_partitions(tmp_path / "store", Selection(), 2)]
    assert sum(sizes) == 4_991
    assert min(sizes) > 2_000


def test_very_many_types_are_cut_by_type(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_RANGES", 20)
    parts = read_partitions(plain, Selection(), 3)
    assert [len({row["type_path"] for row in part}) for part in parts] == [4, 3, 3]
    assert sum(map(len, parts)) == 20_000


@pytest.mark.parametrize(
    ("types", "n_types"), [((("site", "0", "*"),), 5), ((("?", "?", "d7"), ("x",)), 1), ((), 0)]
)
def test_types(plain: Path, types: tuple[EventType, ...], n_types: int) -> None:
    rows = read_all(plain, Selection(types=types))
    assert len({tuple(row["type"]) for row in rows}) == n_types
    assert len(rows) == 2_000 * n_types


def test_a_damaged_file_is_an_error_not_an_end(plain: Path, tmp_path: Path) -> None:
    shutil.copytree(plain, tmp_path / "store", ignore=shutil.ignore_patterns("spark-*"))
    largest = max((tmp_path / "store").glob("*.sst"), key=lambda i: i.stat().st_size)
    me = snapshots.this_driver()
    [partition] = store.plan(tmp_path / "store", me, Selection(), 1)
    with largest.open("r+b") as file:  # a hard link of the snapshot's
        file.seek(largest.stat().st_size // 2)
        file.write(b"\xff" * 64)
    with pytest.raises(StorageError, match="damaged"):
        list(store.read(partition, Selection(), ALL))


def test_a_snapshot_that_is_gone_is_told(plain: Path) -> None:
    [partition] = store.plan(plain, snapshots.this_driver(), Selection(), 1)
    shutil.rmtree(partition.snapshot)
    with pytest.raises(SnapshotError, match=r"is gone: a driver keeps the 64 .* data frame anew"):
        next(store.read(partition, Selection(), ALL))


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"^path: .*nothing: not an event store: no such directory"
    ):
        store.plan(tmp_path / "nothing", snapshots.this_driver(), Selection(), 1)


def test_large_payloads_make_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES", 1_000)
    stored = plain_events(500)
    fill(tmp_path / "store", stored)
    [partition] = store.plan(tmp_path / "store", snapshots.this_driver(), Selection(), 1)
    batches: list[pa.RecordBatch] = list(store.read(partition, Selection(), ALL))
    assert len(batches) > 5
    assert sum(i.num_rows for i in batches) == 500


def test_a_row_is_what_the_schema_says() -> None:
    [event] = plain_events(1)
    assert set(row_of(event)) | {"type_path"} == set(ARROW_SCHEMA.names)
