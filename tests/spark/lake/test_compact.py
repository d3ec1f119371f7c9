"""Compaction: fewer files, the same events, at every moment and after every accident."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from eventer_bridge.model import Event, JsonPayload
from mariner_spark import limits
from mariner_spark.errors import LakeError
from mariner_spark.lake import compact, manifest, segments
from mariner_spark.lake.compact import Compacted
from mariner_spark.lake.files import Files
from mariner_spark.lake.info import info
from mariner_spark.lake.lock import locked
from mariner_spark.lake.manifest import Replaced
from mariner_spark.lake.writer import LakeWriter, write_new
from tests.spark.lake.support import (
    append,
    named,
    parquet_files,
    stored,
    table,
    wait_until,
    with_no_value,
)
from tests.spark.support import plain_events, rows_of

EVENTS = plain_events(1_000)
NOW = -1.0  # a grace that is over at once


def fill(root: Path, events: Sequence[Event], size: int) -> None:
    for begin in range(0, len(events), size):
        append(root, events[begin : begin + size])


def test_many_small_become_few_large(tmp_path: Path) -> None:
    fill(tmp_path, EVENTS, 50)
    steps: list[tuple[int, int]] = []
    done = compact.compact(str(tmp_path), on_progress=lambda *step: steps.append(step))
    assert done == Compacted(replaced=20, written=1, deleted=0)
    assert steps == [(0, 20), (20, 20)]
    assert stored(tmp_path) == rows_of(EVENTS)
    assert compact.compact(str(tmp_path)) == Compacted(0, 0, 0)
    found = info(str(tmp_path))
    assert (found.rows, found.segments, found.replaced) == (1_000, 1, 20)


def test_every_day_has_its_folder_and_is_sorted_by_time(tmp_path: Path) -> None:
    events = plain_events(200_000)[::400]
    fill(tmp_path, events[::2] + events[1::2], 125)  # out of order
    assert {i.split("/")[0] for i in named(tmp_path)} == {
        "date=2025-01-01", "date=2025-01-02", "date=2025-01-03",
    }  # fmt: skip
    compact.compact(str(tmp_path))
    assert info(str(tmp_path)).segments == info(str(tmp_path)).days == 3
    for segment in manifest.load(Files(str(tmp_path))).segments:
        read = pq.ParquetFile(tmp_path / segment.path)
        moments = read.read(columns=["timestamp"]).column(0).cast("int64").to_pylist()
        assert moments == sorted(moments)
        assert (segment.first, segment.last) == (moments[0], moments[-1])
        assert segment.rows == len(moments)
        assert segment.bytes == (tmp_path / segment.path).stat().st_size
        assert read.metadata.row_group(0).column(0).compression == "ZSTD"
    assert stored(tmp_path) == rows_of(events)


def test_large_segments_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_ROWS", 100)
    monkeypatch.setattr(limits, "LARGE_ROWS", 50)
    fill(tmp_path, EVENTS[:60], 60)
    fill(tmp_path, EVENTS[60:500], 40)
    large = manifest.load(Files(str(tmp_path))).segments[0]
    assert compact.compact(str(tmp_path)) == Compacted(replaced=10, written=5, deleted=0)
    after = manifest.load(Files(str(tmp_path))).segments
    assert after[0] == large
    # the last one found no other
    assert [i.rows for i in after] == [60, 80, 80, 80, 80, 80, 40]
    assert stored(tmp_path) == rows_of(EVENTS[:500])


def test_what_is_read_at_once_is_bounded_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the files are: equal payloads take next to nothing there."""
    payload = JsonPayload.of("all is well " * 1_000)
    events = [structs.replace(i, payload=payload) for i in EVENTS[:120]]
    fill(tmp_path, events, 10)
    found = manifest.load(Files(str(tmp_path))).segments
    for segment in found:
        assert segment.bytes < 10_000
        assert 120_000 < segment.raw_bytes < 130_000
    monkeypatch.setattr(limits, "SEGMENT_BYTES", 500_000)
    monkeypatch.setattr(limits, "LARGE_BYTES", 250_000)
    assert compact.compact(str(tmp_path)) == Compacted(replaced=12, written=3, deleted=0)
    assert stored(tmp_path) == rows_of(events)
    monkeypatch.setattr(limits, "LARGE_BYTES", 100_000)
    fill(tmp_path, EVENTS[120:140], 10)
    assert compact.compact(str(tmp_path)) == Compacted(replaced=2, written=1, deleted=0)


def test_segments_that_fail_do_not_keep_others_from_it(tmp_path: Path) -> None:
    """Nor what is to be deleted."""
    days = plain_events(200_000)[::400]
    fill(tmp_path, days, 100)
    wrong = min(named(tmp_path))
    data = (tmp_path / wrong).read_bytes()
    (tmp_path / wrong).write_bytes(b"no Parquet")
    with pytest.raises(LakeError, match=f"{wrong}: .*Parquet"):
        compact.compact(str(tmp_path), grace_s=NOW)
    (tmp_path / wrong).write_bytes(data)
    assert parquet_files(tmp_path) == named(tmp_path)
    folders = sorted(i.split("/")[0] for i in named(tmp_path))
    assert folders[-2:] == ["date=2025-01-02", "date=2025-01-03"]
    assert folders.count("date=2025-01-01") > 1
    assert stored(tmp_path) == rows_of(days)


def test_what_arrow_cannot_merge_is_told(tmp_path: Path) -> None:
    fill(tmp_path, EVENTS, 500)
    path = tmp_path / min(named(tmp_path))
    read = pq.ParquetFile(path).read()
    column = pa.array(["no number"] * read.num_rows)
    pq.write_table(read.set_column(0, "server", column), path)
    with pytest.raises(LakeError, match=r"events-.*\.parquet: cannot be made into one: .*number"):
        compact.compact(str(tmp_path))
    assert parquet_files(tmp_path) == named(tmp_path)


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROW_GROUP_ROWS", 100)
    fill(tmp_path, EVENTS[:250], 250)
    [path] = named(tmp_path)
    metadata = pq.ParquetFile(tmp_path / path).metadata
    assert [metadata.row_group(i).num_rows for i in range(3)] == [100, 100, 50]


def test_in_an_object_store(root: str) -> None:
    """And on this machine: the whole way of some events, without Spark."""
    files = Files(root)
    for batch_id in range(4):
        part = EVENTS[batch_id * 100 : batch_id * 100 + 110]  # ten of them twice
        written = write_new(files, "query", with_no_value(table(part)).to_batches())
        LakeWriter(root).commit([written], batch_id)
        LakeWriter(root).commit([written], batch_id)
    assert info(root).rows == 410
    assert compact.compact(root, grace_s=NOW) == Compacted(replaced=4, written=1, deleted=4)
    found = manifest.load(files)
    assert segments.read(files, list(found.segments)).num_rows == 410
    kept = {i.path for i in files.walk()} - {"_lock"}
    assert kept == {"_manifest.json", found.segments[0].path}


# --- beside others -------------------------------------------------------------------------


def test_readers_see_every_event_once_at_every_moment(tmp_path: Path) -> None:
    append(tmp_path, EVENTS[:10])
    is_over = threading.Event()
    counts: list[int] = []
    wrong: list[object] = []

    def read() -> None:
        while not is_over.is_set():
            rows = stored(tmp_path)
            counts.append(len(rows))
            if rows != rows_of(EVENTS[: len(rows)]) or counts[-1] < counts[max(0, len(counts) - 2)]:
                wrong.append(rows)

    def tidy() -> None:
        while not is_over.is_set():
            compact.compact(str(tmp_path))

    threads = [threading.Thread(target=i) for i in (read, tidy)]
    for thread in threads:
        thread.start()
    for begin in range(10, 1_000, 10):
        append(tmp_path, EVENTS[begin : begin + 10])
    wait_until(lambda: bool(counts) and counts[-1] == 1_000)
    is_over.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(set(counts)) > 3  # it did read meanwhile
    assert stored(tmp_path) == rows_of(EVENTS)


def test_of_two_compactions_the_second_drops_its_work(tmp_path: Path) -> None:
    fill(tmp_path, EVENTS, 100)
    files = Files(str(tmp_path))
    [group] = compact.plan(manifest.load(files))
    read, both_read = segments.read, threading.Barrier(2)
    done: list[bool] = []

    def read_and_meet(*arguments: object) -> object:
        found = read(files, group)
        both_read.wait()
        return found

    def rewrite() -> None:
        done.append(compact._replace(files, group, compact._merge(files, group)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "read", read_and_meet)
        threads = [threading.Thread(target=rewrite) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(done) == [False, True]
    assert stored(tmp_path) == rows_of(EVENTS)
    assert parquet_files(tmp_path) == named(tmp_path) | {i.path for i in group}


# --- what is deleted -----------------------------------------------------------------------


def test_replaced_files_are_kept_for_the_grace(tmp_path: Path) -> None:
    fill(tmp_path, EVENTS, 100)
    before = manifest.load(Files(str(tmp_path)))
    assert compact.compact(str(tmp_path)).deleted == 0
    # a reader that chose its files before
    old = segments.read(Files(str(tmp_path)), list(before.segments))
    assert old.num_rows == 1_000
    assert compact.compact(str(tmp_path), grace_s=3_600).deleted == 0
    assert compact.compact(str(tmp_path), grace_s=NOW).deleted == 10
    assert parquet_files(tmp_path) == named(tmp_path)
    assert stored(tmp_path) == rows_of(EVENTS)


def test_orphans_are_swept_and_what_is_not_ours_is_kept(tmp_path: Path) -> None:
    append(tmp_path, EVENTS)
    day = tmp_path / "date=2025-01-01"
    name = f"events-{32 * 'a'}.parquet"
    temporary = f"_tmp-{32 * 'b'}-"
    ours = [day / name, day / f"{temporary}{name}", tmp_path / f"{temporary}_manifest.json"]
    others = [day / "mine.parquet", tmp_path / "date=2025-01-01.txt", tmp_path / name]
    for path in ours + others:
        path.write_bytes(b"")
        os.utime(path, (1e9, 1e9))
    new = day / f"events-{32 * 'd'}.parquet"
    new.write_bytes(b"")
    assert compact.compact(str(tmp_path)).deleted == 3
    assert not any(i.exists() for i in ours)
    assert all(i.exists() for i in [*others, new])
    assert stored(tmp_path) == rows_of(EVENTS)


def test_what_is_being_swept_cannot_become_part_of_the_lake(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    written = write_new(files, "query", with_no_value(table(EVENTS)).to_batches())
    [path] = parquet_files(tmp_path)
    manifest.update(files, lambda old: old.changed(replaced=(Replaced(path, 0),)))
    with pytest.raises(LakeError, match=f"{path}: is gone or changed since it was written"):
        LakeWriter(str(tmp_path)).commit([written], 0)
    assert manifest.load(files).segments == ()


# --- killed --------------------------------------------------------------------------------

_COMPACTION = "import sys; from mariner_spark.lake.compact import compact; compact(sys.argv[1])"


def test_killed_before_the_manifest_is_replaced(tmp_path: Path) -> None:
    fill(tmp_path, EVENTS, 100)
    before = named(tmp_path)
    with locked(Files(str(tmp_path))):  # it gets as far as this
        process = subprocess.Popen([sys.executable, "-c", _COMPACTION, str(tmp_path)])
        try:
            wait_until(lambda: any("_tmp-" not in i for i in parquet_files(tmp_path) - before))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert named(tmp_path) == before
    assert stored(tmp_path) == rows_of(EVENTS)
    assert compact.compact(str(tmp_path), grace_s=NOW) == Compacted(10, 1, 11)
    assert parquet_files(tmp_path) == named(tmp_path)
    assert stored(tmp_path) == rows_of(EVENTS)


def test_killed_while_it_deletes(tmp_path: Path) -> None:
    fill(tmp_path, EVENTS, 100)
    before = named(tmp_path)
    compact.compact(str(tmp_path))
    for path in sorted(before)[:4]:
        (tmp_path / path).unlink()
    assert compact.compact(str(tmp_path), grace_s=NOW).deleted == 10
    assert manifest.load(Files(str(tmp_path))).replaced == ()
    assert parquet_files(tmp_path) == named(tmp_path)
    assert stored(tmp_path) == rows_of(EVENTS)
