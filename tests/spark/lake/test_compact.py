"""Compaction: the same rows in fewer files, beside readers and writers."""

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import TableFeatures, write_deltalake
from deltalake.transaction import AddAction

from mariner_spark import limits
from mariner_spark.errors import LakeError
from mariner_spark.lake import maintenance
from mariner_spark.lake.maintenance import compact, info
from mariner_spark.lake.parquet import write_rows as write
from tests.spark.lake.beside import SIZE, work_beside
from tests.spark.lake.support import append, commit, draw_events, named, opened, stored
from tests.spark.lake.support import write as write_files
from tests.spark.reports.support import run_report, table
from tests.spark.support import COLUMNS, plain_events, rows_of

DAYS_S = 86_400


def age(root: Path, days: float) -> None:
    """Have all files been written so long ago."""
    moment = time.time() - days * DAYS_S
    for path in root.rglob("*.parquet"):
        os.utime(path, (moment, moment))


@pytest.mark.parametrize("is_by_type", [False, True])
def test_the_same_rows_in_fewer_files(tmp_path: Path, is_by_type: bool) -> None:
    drawn = draw_events()
    drawn.sort(key=lambda i: i.id.session)
    for begin in range(0, len(drawn), 10):
        append(tmp_path, drawn[begin : begin + 10])
    maintenance.update(str(tmp_path))
    before = len(named(tmp_path))
    done = compact(str(tmp_path), is_by_type=is_by_type)
    assert done.deleted == 0
    n_days = len({path.partition("/")[0] for path in named(tmp_path)})
    assert len(named(tmp_path)) == n_days < before
    assert stored(tmp_path) == rows_of(drawn)
    again = compact(str(tmp_path))
    assert (again.replaced, again.written) == (0, 0)
    [found] = info(str(tmp_path)).positions.keys() & {2}
    append(tmp_path, drawn)  # nothing is new
    assert stored(tmp_path) == rows_of(drawn)
    assert found == 2


def test_files_keep_their_order_and_statistics(tmp_path: Path) -> None:
    events = plain_events(3_000)
    for begin in range(0, 3_000, 1_000):
        append(tmp_path, events[begin : begin + 1_000])
    compact(str(tmp_path))
    [path] = named(tmp_path)
    [add] = pa.table(opened(tmp_path).get_add_actions(flatten=True)).to_pylist()
    assert {i for i in add if i.startswith("min.")} == {
        "min.timestamp", "min.server", "min.session", "min.type_path"
    }  # fmt: skip
    columns = pq.ParquetFile(tmp_path / "events" / path).metadata.row_group(0)
    found = {columns.column(i).path_in_schema: columns.column(i) for i in range(12)}
    assert found["timestamp"].compression == "ZSTD"
    assert "DELTA_BINARY_PACKED" in found["timestamp"].encodings
    assert "RLE_DICTIONARY" in found["type_path"].encodings


@pytest.mark.parametrize("is_by_type", [False, True])
def test_of_two_at_once_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_by_type: bool
) -> None:
    append(tmp_path, plain_events(100))
    append(tmp_path, plain_events(200))
    n_writes = 0

    def compact_between(*arguments: Any, **options: Any) -> Any:
        nonlocal n_writes
        n_writes += 1
        if n_writes == 1:
            compact(str(tmp_path))
            append(tmp_path, plain_events(300))
        return write(*arguments, **options)

    monkeypatch.setattr("mariner_spark.lake.parquet.write_rows", compact_between)
    done = compact(str(tmp_path), is_by_type=is_by_type)
    assert (n_writes, done.replaced) == (3, 0)  # a write is of new events
    assert stored(tmp_path) == rows_of(plain_events(300))


def test_sorted_by_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SMALL_GROUP_ROWS", 100)
    monkeypatch.setattr(limits, "FILE_ROWS", 700)
    for n in range(200, 1_001, 200):
        append(tmp_path, plain_events(n))
    assert compact(str(tmp_path), is_by_type=True).written == 2
    for path in named(tmp_path):
        file = pq.ParquetFile(tmp_path / "events" / path)
        rows = file.read(columns=["type_path", "timestamp"]).to_pylist()
        assert rows == sorted(rows, key=lambda i: (i["type_path"], i["timestamp"]))
        assert file.metadata.num_row_groups == -(-len(rows) // 100)
    assert stored(tmp_path) == rows_of(plain_events(1_000))


def test_the_vacuum_leaves_what_may_be_used(tmp_path: Path) -> None:
    """Files of readers and of writers, until they are old; of the table, always."""
    for n in (100, 200):
        append(tmp_path, plain_events(n))
    maintenance.update(str(tmp_path))
    age(tmp_path, 3)
    reader = opened(tmp_path).to_pyarrow_dataset()
    pending = write_files(tmp_path, plain_events(300))
    orphan = tmp_path / "events" / "date=2025-01-01" / "orphan.parquet"
    orphan.write_bytes(b"")
    os.utime(orphan, (0, 0))
    done = compact(str(tmp_path))
    # the replaced files are old, but were replaced now
    assert (done.replaced, done.written, done.deleted) == (2, 1, 1)
    assert not orphan.exists()
    assert reader.count_rows() == 200
    commit(tmp_path, pending)
    assert stored(tmp_path) == rows_of(plain_events(300))


def test_a_batch_that_a_vacuum_overtook_is_refused(tmp_path: Path) -> None:
    append(tmp_path, plain_events(100))
    pending = write_files(tmp_path, plain_events(200))
    age(tmp_path, 3)
    assert compact(str(tmp_path)).deleted == 1
    with pytest.raises(LakeError, match="is gone or changed since it was written"):
        commit(tmp_path, pending)
    assert stored(tmp_path) == rows_of(plain_events(100))


def test_files_of_other_tools(tmp_path: Path) -> None:
    """With other types of Arrow, without statistics or a column, or in another order."""
    append(tmp_path, plain_events(100))
    append(tmp_path, plain_events(200))
    rows = opened(tmp_path).to_pyarrow_table()
    opened(tmp_path).optimize.z_order(["type_path"])
    append(tmp_path, plain_events(210))
    write_deltalake(tmp_path / "events", rows[:1], mode="append")
    opened(tmp_path).update(new_values={"value": 1.0}, predicate="instance = 3")
    path = "date=2025-01-01/without.parquet"
    without = rows[1:3].drop(["date", "payload_binary"])  # which both have none of
    pq.write_table(without, tmp_path / "events" / path)
    size = (tmp_path / "events" / path).stat().st_size
    add = AddAction(path, size, {"date": "2025-01-01"}, 0, True, "{}")
    events = opened(tmp_path)
    events.create_write_transaction([add], "append", events.schema(), ["date"])
    foreign = rows[:3].select(list(COLUMNS)).to_pylist()
    expected = sorted([*rows_of(plain_events(210)), *foreign], key=str)
    for is_by_type in (False, True):
        compact(str(tmp_path), is_by_type=is_by_type)
        assert sorted(stored(tmp_path), key=str) == expected
        assert len(named(tmp_path)) == 2
    assert path in named(tmp_path)
    maintenance.update(str(tmp_path), is_new=True)
    result = run_report("all", "--lake", tmp_path, "--out", tmp_path / "out", "--engine", "duckdb")
    assert result.exit_code == 0, result
    assert sum(row["events"] for row in table(tmp_path / "out", "top")) == len(expected)


@pytest.mark.parametrize(
    ("feature", "name"),
    [
        (TableFeatures.DeletionVectors, "deletionVectors"),
        (TableFeatures.ColumnMapping, "columnMapping"),
    ],
)
def test_a_table_with_rows_that_are_not_in_its_files_is_refused(
    tmp_path: Path, feature: TableFeatures, name: str
) -> None:
    append(tmp_path, plain_events(10))
    opened(tmp_path).alter.add_feature(feature, allow_protocol_versions_increase=True)
    message = f"another tool changed table events: it needs {name}$"
    for work in (compact, info, maintenance.update):
        with pytest.raises(LakeError, match=message):
            work(str(tmp_path))


def test_nothing_outside_is_deleted(tmp_path: Path) -> None:
    """The vacuum of deltalake follows links."""
    append(tmp_path / "real", plain_events(10))
    (tmp_path / "lake").symlink_to("real")
    root, precious = tmp_path / "lake", tmp_path / "other" / "precious"
    compact(str(root))
    precious.parent.mkdir()
    precious.write_text("x")
    age(tmp_path, 3)
    os.utime(precious, (0, 0))
    link = root / "events" / "date=2025-01-01" / "link"
    for target in (precious, precious.parent):
        link.symlink_to(target)
        with pytest.raises(LakeError, match=f"^{link}: is a link: what it leads to would"):
            compact(str(root))
        link.unlink()
    assert precious.exists()
    assert stored(root) == rows_of(plain_events(10))


def test_readers_see_whole_commits_beside_everything_else(tmp_path: Path) -> None:
    """Longer: the torture run ``lake-beside``."""
    assert work_beside(tmp_path, 3).most > 2 * SIZE
