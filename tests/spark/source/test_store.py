"""The reader of stores without Spark around it: every event once, and only what is asked for."""

import operator
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from eventer_bridge.errors import StorageError
from eventer_bridge.model import Event, EventType, Timestamp
from mariner_spark import limits, schema, type_path
from mariner_spark.errors import OptionError, SnapshotError
from mariner_spark.source import owner, selection, store
from mariner_spark.source.selection import Selection
from tests.spark.support import (
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


def read_partitions(
    path: Path, selected: Selection, n_partitions: int | None = None
) -> list[list[Row]]:
    me = owner.of_this_process()
    found: list[list[Row]] = []
    for partition in store.plan(path, me, selected, n_partitions):
        batches = list(store.read(partition, selected, ARROW_SCHEMA))
        found.append([row for batch in batches for row in batch.to_pylist()])
    return found


def read_all(path: Path, selected: Selection, n_partitions: int | None = None) -> list[Row]:
    rows = [row for part in read_partitions(path, selected, n_partitions) for row in part]
    for row in rows:
        assert type_path.decode(row.pop("type_path")) == tuple(row["type"])
    return in_order(rows)


@given(events, st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_every_event_once_and_equal(stored: list[Event], n_partitions: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "store")
        fill(path, stored)
        assert read_all(path, Selection(), n_partitions) == rows_of(stored)


_MOMENTS = timestamps.map(moment)
_TIME_COLUMNS = st.sampled_from([("timestamp",), ("source_timestamp",)])
_FILTERS = st.one_of(
    st.builds(GreaterThan, _TIME_COLUMNS, _MOMENTS),
    st.builds(GreaterThanOrEqual, _TIME_COLUMNS, _MOMENTS),
    st.builds(LessThan, _TIME_COLUMNS, _MOMENTS),
    st.builds(LessThanOrEqual, _TIME_COLUMNS, _MOMENTS),
    st.builds(EqualTo, _TIME_COLUMNS, _MOMENTS),
    st.builds(IsNotNull, st.sampled_from([("source_timestamp",), ("type_path",)])),
    st.builds(EqualTo, st.just(("server",)), st.sampled_from([2, 3, 4])),
    st.builds(In, st.just(("server",)), st.sampled_from([(2, -5), (3, None)])),
    st.builds(StringStartsWith, st.just(("type_path",)), st.sampled_from(["", "a", "/", "~"])),
    st.builds(EqualTo, st.just(("type_path",)), event_types.map(type_path.encode)),
)


_COMPARE: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def keeps(row: Row, item: Filter) -> bool:
    """What SQL says of a filter, with null for what is not true."""
    if isinstance(item, StringStartsWith):
        return type_path.encode(tuple(row["type"])).startswith(item.value)
    assert isinstance(
        item,
        IsNotNull | In | EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual,
    )
    column = item.attribute[0]
    value = type_path.encode(tuple(row["type"])) if column == "type_path" else row[column]
    if isinstance(item, IsNotNull) or value is None:
        return value is not None
    if isinstance(item, In):
        return value in item.value
    return bool(_COMPARE[type(item)](value, item.value))


@given(events, st.lists(_FILTERS, min_size=1, max_size=3), st.integers(1, 3), st.data())
@settings(max_examples=35, deadline=None)
def test_filters_that_are_taken_over_are_kept_exactly(
    stored: list[Event], filters: list[Filter], n_partitions: int, data: st.DataObject
) -> None:
    event = data.draw(st.sampled_from([None, *stored]))
    if event is not None:
        filters.append(EqualTo(("timestamp",), moment(event.timestamp)))
    pushed, left = selection.push(Selection(), filters)
    assert left == []
    expected = [row for row in rows_of(stored) if all(keeps(row, i) for i in filters)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "store")
        fill(path, stored)
        assert read_all(path, pushed, n_partitions) == expected


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
    me = owner.of_this_process()
    [partition] = store.plan(tmp_path / "store", me, Selection(), 1)
    with largest.open("r+b") as file:  # a hard link of the snapshot's
        file.seek(largest.stat().st_size // 2)
        file.write(b"\xff" * 64)
    with pytest.raises(StorageError, match="damaged"):
        list(store.read(partition, Selection(), ARROW_SCHEMA))


def test_a_snapshot_that_is_gone_is_told(plain: Path) -> None:
    [partition] = store.plan(plain, owner.of_this_process(), Selection(), 1)
    shutil.rmtree(partition.snapshot)
    with pytest.raises(SnapshotError, match=r"is gone: a driver keeps the 64 .* data frame anew"):
        next(store.read(partition, Selection(), ARROW_SCHEMA))


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^path: .*nothing: no event store: no such directory"):
        store.plan(tmp_path / "nothing", owner.of_this_process(), Selection(), 1)


def test_large_payloads_make_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES", 1_000)
    stored = plain_events(500)
    fill(tmp_path / "store", stored)
    [partition] = store.plan(tmp_path / "store", owner.of_this_process(), Selection(), 1)
    batches: list[pa.RecordBatch] = list(store.read(partition, Selection(), ARROW_SCHEMA))
    assert len(batches) > 5
    assert sum(i.num_rows for i in batches) == 500


def test_a_row_is_what_the_schema_says() -> None:
    [event] = plain_events(1)
    assert set(row_of(event)) | {"type_path"} == set(ARROW_SCHEMA.names)
