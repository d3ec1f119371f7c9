"""A stream into a lake: every event once and equal, whatever happens on the way."""

import contextlib
import os
import resource
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import permutations
from pathlib import Path
from uuid import UUID

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from eventer_bridge.backends import history
from eventer_bridge.model import Event, EventId, JsonPayload, Timestamp
from mariner_spark import limits, type_path
from mariner_spark.errors import LakeError, OptionError
from mariner_spark.lake import ingest, positions, writer
from mariner_spark.lake.compact import compact
from mariner_spark.lake.positions import Position
from mariner_spark.lake.read import read_events
from mariner_spark.lake.tables import EVENTS, Lake, log_name
from mariner_spark.lake.writer import LakeWriter, Written
from tests.spark.lake.support import (
    Feed,
    append,
    draw_events,
    named,
    opened,
    parquet_files,
    stored,
    write,
)
from tests.spark.support import in_order, plain_events, rows_of

SESSION = 10  # events of one in plain_events


def run(spark: SparkSession, feed: Feed, root: Path, checkpoint: Path) -> None:
    query = ingest.start(feed.stream(spark), str(root), checkpoint)
    assert query.awaitTermination(60)


def commit(root: Path, *written: Written | None) -> None:
    LakeWriter(str(root)).commit(list(written), 0)


def position(root: Path, server: int) -> Position | None:
    return positions.find(opened(root), server)


def test_every_event_once_and_equal(spark: SparkSession, tmp_path: Path) -> None:
    """Also of a batch that Spark offers again, and to a query that knows nothing."""
    drawn = draw_events()
    feed, root, checkpoint = Feed(tmp_path / "feed"), tmp_path / "lake", tmp_path / "checkpoint"
    third = len(drawn) // 3
    feed.give(drawn[:third])
    feed.give(drawn[third : 2 * third])
    run(spark, feed, root, checkpoint)
    # as after a kill between the commit and Spark's own note
    for note in (checkpoint / "commits").glob("*1*"):
        note.unlink()
    feed.give(drawn[2 * third :])
    run(spark, feed, root, checkpoint)
    expected = rows_of(drawn)
    assert stored(root) == expected
    run(spark, feed, root, tmp_path / "other")
    assert stored(root) == expected
    assert parquet_files(root) >= named(root)
    rows = read_events(spark, str(root)).drop("value").toArrow().to_pylist()
    for row in rows:
        assert type_path.decode(row.pop("type_path")) == tuple(row["type"])
    assert in_order(rows) == expected


def test_wrong_columns_are_told(spark: SparkSession, tmp_path: Path) -> None:
    Feed(tmp_path / "feed").give(plain_events(10))
    spark.dataSource.register(writer.LakeSink)
    stream = (
        Feed(tmp_path / "feed")
        .stream(spark)
        .drop("payload_kind")
        .writeStream.format("mariner_lake")
    )
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = stream.start(str(tmp_path / "lake"))
    with pytest.raises(PySparkException, match=r"columns: expected server bigint, .*binary; got"):
        query.awaitTermination(60)


def test_values_are_of_one_path(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path, plain_events(10))
    found = opened(tmp_path).to_pyarrow_table().column("value").to_pylist()
    assert sorted(found) == list(map(float, range(10)))
    with pytest.raises(LakeError, match=r"values are those of \$\.value, not of \$\.other"):
        append(tmp_path, plain_events(20), "$.other")
    with pytest.raises(OptionError, match="value_path: 'other': expected a path"):
        ingest.check(str(tmp_path), "other")


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
        done, is_new = 0, True
        for size, end in runs:
            # a new query knows nothing: its first batch begins at the beginning
            batch = given_events[(0 if is_new else done) : done + size]
            written = [write(root, batch[i::n_tasks]) for i in range(n_tasks)]
            if end == "killed":
                continue
            if end == "aborted":
                LakeWriter(str(root)).abort([*written, None], 0)
                continue
            commit(root, *written)
            done += size
            if end == "offered again":
                again = [write(root, batch[i::n_tasks]) for i in range(n_tasks)]
                commit(root, *again)
                commit(root, *written)
            is_new = end == "new query"
        assert (stored(root) if done else []) == rows_of(given_events[:done])


def test_of_two_streams_at_once_the_second_fails_and_can_start_again(tmp_path: Path) -> None:
    written = [write(tmp_path, plain_events(n)) for n in (100, 110)]
    commit(tmp_path, written[0])
    message = "another ingestion added events of server 7 meanwhile: one at a time; start this"
    with pytest.raises(LakeError, match=message):
        commit(tmp_path, written[1])
    LakeWriter(str(tmp_path)).abort([written[1]], 0)  # as Spark does then
    assert stored(tmp_path) == rows_of(plain_events(100))
    commit(tmp_path, write(tmp_path, plain_events(120)))
    assert stored(tmp_path) == rows_of(plain_events(120))
    assert parquet_files(tmp_path) > named(tmp_path)


def test_streams_that_commit_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen the same positions; Delta lets one pass."""
    written = [write(tmp_path, plain_events(n)) for n in (100, 110)]
    find, n_finds = positions.find, 0

    def commit_between(events: DeltaTable, server: int) -> Position | None:
        nonlocal n_finds
        found = find(events, server)
        n_finds += 1
        if n_finds == 1:
            commit(tmp_path, written[0])
        return found

    monkeypatch.setattr(positions, "find", commit_between)
    with pytest.raises(LakeError, match="another ingestion added events of server 7"):
        commit(tmp_path, written[1])
    assert n_finds == 3
    assert stored(tmp_path) == rows_of(plain_events(100))


@pytest.mark.parametrize("n_writers", [6])
def test_streams_of_different_servers_do_not_disturb_each_other(
    tmp_path: Path, n_writers: int
) -> None:
    parts = [plain_events(50, server=i) for i in range(n_writers)]
    written = [write(tmp_path, part) for part in parts]
    with ThreadPoolExecutor(n_writers) as pool:
        list(pool.map(partial(commit, tmp_path), written))
    assert stored(tmp_path) == rows_of([event for part in parts for event in part])
    assert sorted(positions.find_servers(opened(tmp_path))) == list(range(n_writers))


def test_a_commit_whose_answer_was_lost(tmp_path: Path) -> None:
    """Spark tries again, or aborts."""
    written = write(tmp_path, plain_events(50))
    for _ in range(2):
        commit(tmp_path, written)
    LakeWriter(str(tmp_path)).abort([written, None], 0)
    assert stored(tmp_path) == rows_of(plain_events(50))


def test_what_is_acknowledged_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, their folders, and the log from its beginning, with checkpoints."""
    synced, sync = set(), os.fsync

    def note(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    root = tmp_path / "lake"
    append(root, plain_events(10))
    assert {*root.rglob("*"), root} == synced
    opened(root).create_checkpoint()
    append(root, plain_events(20))
    compact(str(root))
    assert {*root.rglob("*"), root} - synced == set(root.rglob("*1.checkpoint.parquet"))


@pytest.mark.parametrize("limit", [100, 3_000, 4_500, 5_000])
def test_a_disk_that_is_full(tmp_path: Path, limit: int) -> None:
    append(tmp_path, plain_events(50))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        for work in (partial(append, tmp_path, plain_events(999)), partial(compact, str(tmp_path))):
            with contextlib.suppress(LakeError):
                work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    append(tmp_path, plain_events(1_000))
    assert stored(tmp_path) == rows_of(plain_events(1_000))


def test_a_log_that_is_damaged(tmp_path: Path) -> None:
    append(tmp_path, plain_events(50))
    log = tmp_path / "events" / "_delta_log" / log_name(1)
    whole = log.read_bytes()
    for content in (whole[:100], b"{", b"\xff", b"[]", bytes(100)):
        log.write_bytes(content)
        with pytest.raises(LakeError, match=rf"^{tmp_path}: [^\n\x1b]*$") as caught:
            append(tmp_path, plain_events(60))
        assert "unknown" not in str(caught.value)
    log.write_bytes(whole)
    append(tmp_path, plain_events(60))
    assert stored(tmp_path) == rows_of(plain_events(60))


def test_a_batch_whose_files_a_vacuum_deleted(tmp_path: Path) -> None:
    written = write(tmp_path, plain_events(50))
    (tmp_path / EVENTS / written.files[0].path).unlink()
    with pytest.raises(LakeError, match="is gone or changed since it was written"):
        commit(tmp_path, written)
    assert stored(tmp_path) == []


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILE_ROWS", 14)
    commit(tmp_path, write(tmp_path, plain_events(50)))
    assert len(named(tmp_path)) == 4
    assert stored(tmp_path) == rows_of(plain_events(50))


@given(st.integers(-(2**63), 2**63 - 1), st.uuids(), st.integers(0, 2**63 - 1))
@settings(max_examples=10)
def test_positions_are_kept(server: int, name: UUID, number: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        lake = Lake(directory)
        reached = Position(number, 2**63 - 1, -(2**40), str(name))
        for given_position in (Position(number // 2, 1, 0), reached):
            table_ = lake.create(EVENTS)
            found = {server: given_position}
            assert lake.commit(table_, EVENTS, [], positions.transactions(table_, found))
            lake.open().create_checkpoint()
            assert positions.find_all(lake.open()) == found


HISTORIES = [f"{i:08}-0000-4000-8000-000000000000" for i in range(3)]


def told(session: int, history_id: str, *before: history.HistorySpan) -> Event:
    """What server 1 tells of its history."""
    payload = JsonPayload.of({"id": history_id, "before": before})
    event_id = EventId(1, session, 2)
    return Event(event_id, history.type_of(1), Timestamp(session, 0), None, payload)


def some(session: int) -> Event:
    return Event(EventId(1, session, 1), ("a",), Timestamp(session, 0), None, None)


def history_of(root: Path) -> str | None:
    found = position(root, 1)
    assert found is not None
    return found.history


def test_a_stream_of_another_history_is_refused(tmp_path: Path) -> None:
    """However the stream was begun."""
    a, b, c = HISTORIES
    for number, part in enumerate(
        ([some(1)], [told(2, a, history.HistorySpan(None, 0, 1)), some(3)], [some(4)])
    ):
        commit(tmp_path, write(tmp_path, part))
        assert history_of(tmp_path) == (None, a, a)[number]
    before = opened(tmp_path).version()
    for spans in ((), (history.HistorySpan(b, 2, 9),), (history.HistorySpan(a, 2, 3),)):
        with pytest.raises(LakeError, match=r"server 1: .* session 4.* into a new lake"):
            write(tmp_path, [told(100, c, *spans), some(101)])
    assert opened(tmp_path).version() == before
    commit(tmp_path, write(tmp_path, [told(100, c, history.HistorySpan(a, 2, 4)), some(101)]))
    assert history_of(tmp_path) == c


def test_the_history_of_a_task_lasts_until_another_one_is_told(tmp_path: Path) -> None:
    a, b, _ = HISTORIES
    parts = [
        [told(2, a), some(3)],
        [some(4)],
        [told(9, b, history.HistorySpan(a, 2, 4))],
        [some(12)],
    ]
    for number, order in enumerate(permutations(parts)):
        root = tmp_path / str(number)
        commit(root, *(write(root, part) for part in order))
        assert history_of(root) == b


def test_a_history_that_is_no_uuid_is_not_kept(tmp_path: Path) -> None:
    commit(tmp_path, write(tmp_path, [told(2, "hand-made")]))
    assert history_of(tmp_path) is None
