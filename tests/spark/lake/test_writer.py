"""A stream into a lake: every event once and equal, whatever happens on the way."""

import tempfile
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from eventer_bridge.backends import history
from eventer_bridge.model import Event, EventId, JsonPayload, Timestamp
from mariner_spark import limits, type_path
from mariner_spark.errors import LakeError
from mariner_spark.lake import compact, ingest, manifest, writer
from mariner_spark.lake.files import Files
from mariner_spark.lake.read import read
from mariner_spark.lake.writer import LakeWriter, TaskResult
from tests.spark.lake.support import (
    Feed,
    draw_events,
    named,
    parquet_files,
    stored,
    table,
    with_no_value,
)
from tests.spark.support import in_order, plain_events, rows_of

SESSION = 10  # events of one in plain_events


def run(spark: SparkSession, feed: Feed, root: Path, checkpoint: Path) -> None:
    query = ingest.start(feed.stream(spark), str(root), checkpoint)
    assert query.awaitTermination(60)


def write(root: Path, query_id: str, part: Sequence[Event]) -> TaskResult:
    batches = with_no_value(table(part)).to_batches(max_chunksize=7)
    return writer.write_new(Files(str(root)), query_id, batches)


def commit(root: Path, batch_id: int, *written: TaskResult | None) -> None:
    LakeWriter(str(root)).commit(list(written), batch_id)


def test_every_event_once_and_equal(spark: SparkSession, tmp_path: Path) -> None:
    """Also of a batch that Spark offers again, and to a query that knows nothing."""
    drawn = draw_events()
    feed, root, checkpoint = Feed(tmp_path / "feed"), tmp_path / "lake", tmp_path / "checkpoint"
    third = len(drawn) // 3
    feed.give(drawn[:third])
    feed.give(drawn[third : 2 * third])
    run(spark, feed, root, checkpoint)
    # as after a kill between the manifest and Spark's own note
    for note in (checkpoint / "commits").glob("*1*"):
        note.unlink()
    feed.give(drawn[2 * third :])
    run(spark, feed, root, checkpoint)
    expected = rows_of(drawn)
    assert stored(root) == expected
    run(spark, feed, root, tmp_path / "other")
    assert stored(root) == expected
    assert parquet_files(root) == named(root)
    rows = read(spark, str(root)).drop("value").toArrow().to_pylist()
    for row in rows:
        assert type_path.decode(row.pop("type_path")) == tuple(row["type"])
    assert in_order(rows) == expected


def test_a_driver_killed_between_writing_and_commit(spark: SparkSession, tmp_path: Path) -> None:
    """Such a kill leaves files that the manifest does not name, and a batch that is not over.

    The torture run ``lake-kill`` kills it there.
    """
    given_events = plain_events(200)
    feed, root, checkpoint = Feed(tmp_path / "feed"), tmp_path / "lake", tmp_path / "checkpoint"
    feed.give(given_events[:100])
    run(spark, feed, root, checkpoint)
    before = (root / manifest.MANIFEST).read_bytes()
    feed.give(given_events[100:])
    run(spark, feed, root, checkpoint)
    (root / manifest.MANIFEST).write_bytes(before)
    for note in (checkpoint / "commits").glob("*1*"):
        note.unlink()
    assert stored(root) == rows_of(given_events[:100])
    run(spark, feed, root, checkpoint)
    assert stored(root) == rows_of(given_events)
    assert parquet_files(root) > named(root)
    compact.compact(str(root), grace_s=-1)
    assert parquet_files(root) == named(root)
    assert stored(root) == rows_of(given_events)


def test_wrong_columns_are_told(spark: SparkSession, tmp_path: Path) -> None:
    Feed(tmp_path / "feed").give(plain_events(10))
    spark.dataSource.register(writer.LakeSink)
    stream = Feed(tmp_path / "feed").stream(spark).writeStream.format("mariner_lake")
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = stream.start(str(tmp_path / "lake"))
    with pytest.raises(PySparkException, match=r"columns: expected server bigint, .*value double"):
        query.awaitTermination(60)


def test_values_are_of_one_path(spark: SparkSession, tmp_path: Path) -> None:
    feed, root = Feed(tmp_path / "feed"), str(tmp_path / "lake")
    feed.give(plain_events(10))
    run(spark, feed, tmp_path / "lake", tmp_path / "checkpoint")
    assert sorted(i.value for i in read(spark, root).collect()) == list(map(float, range(10)))
    with pytest.raises(LakeError, match=r"values are those of \$\.value, not of \$\.other"):
        ingest.start(feed.stream(spark), root, tmp_path / "checkpoint", value_path="$.other")
    # as a second stream that began when there was no lake
    written = write(tmp_path / "lake", "second", plain_events(20))
    with pytest.raises(LakeError, match=r"values are those of \$\.value, not of \$\.other"):
        LakeWriter(root, "$.other").commit([written], 0)


# --- the same without Spark: a driver and its tasks, with every accident -------------------


@st.composite
def _runs(draw: st.DrawFn) -> list[tuple[int, str]]:
    """Steps of a driver: how many events a batch has, and how it ends."""
    ends = st.sampled_from(["commit", "offered again", "killed", "aborted", "new query"])
    return draw(st.lists(st.tuples(st.integers(0, 30), ends), max_size=12))


@given(_runs(), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_whatever_happens_every_event_is_once(runs: list[tuple[int, str]], n_tasks: int) -> None:
    pairs = zip(plain_events(200, server=1), plain_events(200, server=2), strict=True)
    given_events = [event for pair in pairs for event in pair]
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "lake")
        done, batch_id, query = 0, 0, 0
        for size, end in runs:
            # a new query knows nothing: its first batch begins at the beginning
            batch = given_events[(0 if batch_id == 0 else done) : done + size]
            written = [write(root, str(query), batch[i::n_tasks]) for i in range(n_tasks)]
            if end == "killed":
                continue
            if end == "aborted":
                LakeWriter(str(root)).abort([*written, None], batch_id)
                continue
            commit(root, batch_id, *written)
            done += size
            if end == "offered again":
                again = [write(root, str(query), batch[i::n_tasks]) for i in range(n_tasks)]
                commit(root, batch_id, *again)
            batch_id += 1
            if end == "new query":
                query, batch_id = query + 1, 0
        assert (stored(root) if done else []) == rows_of(given_events[:done])


def test_of_two_streams_at_once_the_second_fails_and_can_start_again(tmp_path: Path) -> None:
    given_events = plain_events(100)
    write_both = [write(tmp_path, query, given_events) for query in ("one", "two")]
    commit(tmp_path, 0, write_both[0])
    message = "another stream added events of server 7 meanwhile: one at a time; start this"
    with pytest.raises(LakeError, match=message):
        commit(tmp_path, 0, write_both[1])
    LakeWriter(str(tmp_path)).abort([write_both[1]], 0)  # as Spark does then
    assert stored(tmp_path) == rows_of(given_events)
    commit(tmp_path, 0, write(tmp_path, "two", plain_events(120)))
    assert stored(tmp_path) == rows_of(plain_events(120))
    assert parquet_files(tmp_path) == named(tmp_path)


def test_streams_of_different_servers_do_not_disturb_each_other(tmp_path: Path) -> None:
    one, two = plain_events(50, server=1), plain_events(50, server=2)
    written = [write(tmp_path, "one", one), write(tmp_path, "two", two)]
    commit(tmp_path, 0, written[0])
    commit(tmp_path, 0, written[1])
    assert stored(tmp_path) == rows_of([*one, *two])


def test_an_abort_after_the_commit_deletes_nothing(tmp_path: Path) -> None:
    """Spark aborts a batch whose commit failed, and a commit can fail at its very end."""
    written = write(tmp_path, "query", plain_events(50))
    commit(tmp_path, 0, written)
    LakeWriter(str(tmp_path)).abort([written, None], 0)
    assert stored(tmp_path) == rows_of(plain_events(50))


def test_a_task_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_ROWS", 10)
    batches = with_no_value(table(plain_events(50))).to_batches(max_chunksize=10)

    def fail() -> Iterator[pa.RecordBatch]:
        yield from batches
        assert len(parquet_files(tmp_path)) == 5
        raise ConnectionError

    with pytest.raises(ConnectionError):
        writer.write_new(Files(str(tmp_path)), "query", fail())
    assert parquet_files(tmp_path) == set()


def test_the_manifest_remembers_the_last_queries_only(tmp_path: Path) -> None:
    for number in range(limits.LAKE_QUERIES + 5):
        commit(tmp_path, 3, write(tmp_path, str(number), plain_events(1)))
    found = manifest.load(Files(str(tmp_path)))
    assert len(found.queries) == limits.LAKE_QUERIES
    assert found.queries[str(limits.LAKE_QUERIES + 4)] == 3
    assert stored(tmp_path) == rows_of(plain_events(1))


def told(session: int, history_id: str, *before: history.HistorySpan) -> Event:
    """What server 1 tells of its history."""
    payload = JsonPayload.of({"id": history_id, "before": before})
    event_id = EventId(1, session, 2)
    return Event(event_id, history.type_of(1), Timestamp(session, 0), None, payload)


def some(session: int) -> Event:
    return Event(EventId(1, session, 1), ("a",), Timestamp(session, 0), None, None)


def test_a_stream_of_another_history_is_refused(tmp_path: Path) -> None:
    """However the stream was begun."""
    lake = manifest.update(Files(str(tmp_path)), lambda old: old)
    for number, part in enumerate(
        ([some(1)], [told(2, "a", history.HistorySpan(None, 0, 1)), some(3)], [some(4)])
    ):
        commit(tmp_path, number, write(tmp_path, "q", part))
        lake = manifest.load(Files(str(tmp_path)))
        assert lake.positions[1].history_id == (None, "a", "a")[number]
    for before in ((), (history.HistorySpan("b", 2, 9),), (history.HistorySpan("a", 2, 3),)):
        with pytest.raises(LakeError, match=r"server 1: .* session 4.* into a new lake"):
            write(tmp_path, "other", [told(100, "c", *before), some(101)])
    assert manifest.load(Files(str(tmp_path))) == lake
    commit(
        tmp_path,
        3,
        write(tmp_path, "q", [told(100, "c", history.HistorySpan("a", 2, 4)), some(101)]),
    )
    assert manifest.load(Files(str(tmp_path))).positions[1].history_id == "c"


def test_the_history_of_a_task_lasts_until_another_one_is_told(tmp_path: Path) -> None:
    parts = [
        [told(2, "a"), some(3)],
        [some(4)],
        [told(9, "b", history.HistorySpan("a", 2, 4))],
        [some(12)],
    ]
    for order in permutations(parts):
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        commit(root, 0, *(write(root, "q", part) for part in order))
        assert manifest.load(Files(str(root))).positions[1].history_id == "b"
