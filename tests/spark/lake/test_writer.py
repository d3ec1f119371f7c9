"""Events into a lake: every one once, whatever happens on the way."""

import contextlib
import os
import resource
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from eventer_bridge.backends.history import History, HistorySpan
from mariner_spark import limits
from mariner_spark.errors import LakeError, OptionError
from mariner_spark.lake import ingest, writer
from mariner_spark.lake.ingest import processes
from mariner_spark.lake.maintenance import compact
from mariner_spark.lake.tables import EVENTS, Lake
from mariner_spark.lake.writer import Position
from tests.spark.lake.support import (
    append,
    commit,
    named,
    opened,
    parquet_files,
    stored,
    write,
)
from tests.spark.support import plain_events, rows_of

SESSION = 10  # events of one in plain_events


def position(root: Path, server: int) -> Position | None:
    return writer.position_of(opened(root), server)


def test_values_are_of_one_path(tmp_path: Path) -> None:
    append(tmp_path, plain_events(10))
    found = opened(tmp_path).to_pyarrow_table().column("value").to_pylist()
    assert sorted(found) == list(map(float, range(10)))
    with pytest.raises(LakeError, match=r"values are those of \$\.value, not of \$\.other"):
        append(tmp_path, plain_events(20), "$.other")
    with pytest.raises(OptionError, match="value_path: 'other': expected a path"):
        append(tmp_path, plain_events(20), "other")


# --- a driver and its tasks, with every accident --------------------------------------------


@st.composite
def _runs(draw: st.DrawFn) -> list[tuple[int, str]]:
    """Steps of a driver: how many events a batch has, and how it ends."""
    ends = st.sampled_from(["commit", "offered again", "killed", "new query"])
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
            parts = [batch[i::n_tasks] for i in range(n_tasks)]
            written = write(root, *parts)
            if end == "killed":
                continue
            commit(root, written)
            done += size
            if end == "offered again":
                commit(root, write(root, *parts))
                commit(root, written)
            is_new = end == "new query"
        assert (stored(root) if done else []) == rows_of(given_events[:done])


def test_of_two_ingestions_at_once_the_second_fails_and_can_start_again(tmp_path: Path) -> None:
    written = [write(tmp_path, plain_events(n)) for n in (100, 110)]
    commit(tmp_path, written[0])
    message = "another ingestion added events of server 7 meanwhile: one at a time; start this"
    with pytest.raises(LakeError, match=message):
        commit(tmp_path, written[1])
    assert stored(tmp_path) == rows_of(plain_events(100))
    commit(tmp_path, write(tmp_path, plain_events(120)))
    assert stored(tmp_path) == rows_of(plain_events(120))
    assert parquet_files(tmp_path) > named(tmp_path)


def test_each_of_two_ingestions_counts_what_it_added(tmp_path: Path) -> None:
    """Of different servers, of the same events, and one that is offered again."""
    one, other = write(tmp_path, plain_events(100)), write(tmp_path, plain_events(70, server=8))
    same = write(tmp_path, plain_events(50), plain_events(100)[50:])
    assert [commit(tmp_path, batch) for batch in (other, one, same)] == [70, 100, 0]
    assert commit(tmp_path, one) == 100
    assert commit(tmp_path, write(tmp_path, [])) == 0
    assert len(stored(tmp_path)) == 170


def test_ingestions_that_commit_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen the same positions; Delta lets one pass."""
    written = [write(tmp_path, plain_events(n)) for n in (100, 110)]
    find, n_finds = writer.position_of, 0

    def commit_between(events: DeltaTable, server: int) -> Position | None:
        nonlocal n_finds
        found = find(events, server)
        n_finds += 1
        if n_finds == 1:
            commit(tmp_path, written[0])
        return found

    monkeypatch.setattr(writer, "position_of", commit_between)
    with pytest.raises(LakeError, match="another ingestion added events of server 7"):
        commit(tmp_path, written[1])
    assert n_finds == 3
    assert stored(tmp_path) == rows_of(plain_events(100))


@pytest.mark.parametrize("n_writers", [6])
def test_ingestions_of_different_servers_do_not_disturb_each_other(
    tmp_path: Path, n_writers: int
) -> None:
    parts = [plain_events(50, server=i) for i in range(n_writers)]
    written = [write(tmp_path, part) for part in parts]
    with ThreadPoolExecutor(n_writers) as pool:
        list(pool.map(partial(commit, tmp_path), written))
    assert stored(tmp_path) == rows_of([event for part in parts for event in part])
    assert sorted(writer.servers_of(opened(tmp_path))) == list(range(n_writers))


def test_a_commit_whose_answer_was_lost(tmp_path: Path) -> None:
    written = write(tmp_path, plain_events(50))
    for _ in range(2):
        commit(tmp_path, written)
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
    log = tmp_path / "events" / "_delta_log" / f"{1:020}.json"
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
    (tmp_path / EVENTS / written.parts[0].files[0].path).unlink()
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
            assert lake.commit(table_, EVENTS, [], writer.transactions(table_, found))
            lake.open().create_checkpoint()
            assert writer.positions_of(lake.open()) == found


HISTORIES = [f"{i:08}-0000-4000-8000-000000000000" for i in range(3)]


def test_the_last_history_of_a_server_is_kept(tmp_path: Path) -> None:
    a, b, _ = HISTORIES
    told: list[dict[int, str]] = [{}, {7: a}, {}, {7: "hand-made", 8: b}, {7: b}]
    for n, histories, kept in zip(range(10, 60, 10), told, (None, a, a, a, b), strict=True):
        commit(tmp_path, write(tmp_path, plain_events(n)), histories)
        found = position(tmp_path, 7)
        assert found is not None
        assert found.history == kept


def test_another_history_is_refused_whenever_it_is_told(tmp_path: Path) -> None:
    """As of a server that a gateway begins to replicate."""
    a, b, c = HISTORIES
    commit(tmp_path, write(tmp_path, plain_events(40)), {7: a})
    before = opened(tmp_path).version()

    def add(*spans: HistorySpan) -> None:
        found = {7: History(c, 100, spans)}
        with processes() as pool:
            ingest._add(Lake(str(tmp_path)), iter, [], pool, histories=found)

    for spans in ((), (HistorySpan(b, 2, 9),), (HistorySpan(a, 2, 3),)):
        with pytest.raises(LakeError, match=r"server 7: .* session 4.* into a new lake"):
            add(*spans)
    add(HistorySpan(a, 2, 4))
    assert opened(tmp_path).version() == before
