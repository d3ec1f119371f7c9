"""The derived tables: as computed from the events, however the commits came."""

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from eventer_bridge.model import Event
from mariner_spark.errors import LakeError
from mariner_spark.lake import maintenance, parquet
from mariner_spark.lake.maintenance import compact, info
from mariner_spark.lake.tables import LATEST, ROLLUPS, Lake
from tests.spark.lake.oracle import check_rollups
from tests.spark.lake.support import append, named, opened
from tests.spark.support import many_events, not_simplest, plain_events, rows_of


def rows(root: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = opened(root, name).to_pyarrow_table().to_pylist()
    return found


def check(root: Path, events: Iterable[Event] | None) -> None:
    """Compare the tables with the events; their numbers are tested by ``test_payload_numbers``."""
    everything = rows(root, "events")
    assert events is None or len(everything) == len(rows_of(events))
    last: dict[str, dict[str, Any]] = {}
    for row in sorted(
        everything, key=lambda i: [i[j] for j in ("timestamp", "server", "session", "instance")]
    ):
        last[row["type_path"]] = {i: j for i, j in row.items() if i != "date"}
    assert sorted(rows(root, "latest"), key=str) == sorted(last.values(), key=str)
    check_rollups(root)


STEPS = st.sampled_from(["add", "update", "compact", "rebuild", "killed"])


@given(not_simplest(st.lists(STEPS, min_size=4, max_size=8)), many_events)
@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_each_commit_is_included_once(steps: list[str], odd: list[Event]) -> None:
    drawn = [*odd, *plain_events(20, server=99)]
    drawn.sort(key=lambda i: i.id.session)
    with tempfile.TemporaryDirectory() as directory:
        root, n = Path(directory), 0
        append(root, [])
        for step in [*steps, "add", "update", "update"]:
            if step == "add":
                n += 15
                append(root, drawn[:n])
            elif step == "compact":
                compact(directory)
            elif step == "rebuild":
                maintenance.update(directory, is_new=True)
            elif step == "killed":  # between the files and the commit
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(Lake, "commit", lambda *_, **__: False)
                    with contextlib.suppress(LakeError):
                        maintenance.update(directory)
            else:
                maintenance.update(directory)
                check(root, drawn[:n])


def test_nothing_changes_with_a_compaction_alone(tmp_path: Path) -> None:
    for n in (50, 100):
        append(tmp_path, plain_events(n))
    maintenance.update(str(tmp_path))
    compact(str(tmp_path))
    before = named(tmp_path, LATEST)
    assert behind(tmp_path) == [0, 0]
    assert named(tmp_path, LATEST) == before
    check(tmp_path, plain_events(100))


@pytest.mark.parametrize("work", [maintenance.update, partial(maintenance.update, is_new=True)])
def test_of_two_updates_at_once_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[str], None]
) -> None:
    append(tmp_path, plain_events(100))
    maintenance.update(str(tmp_path))
    append(tmp_path, plain_events(200))
    read, has_updated = maintenance._with_later, False

    def update_between(*arguments: Any) -> Any:
        nonlocal has_updated
        if not has_updated:
            has_updated = True
            maintenance.update(str(tmp_path))
        return read(*arguments)

    monkeypatch.setattr(maintenance, "_with_later", update_between)
    work(str(tmp_path))
    check(tmp_path, plain_events(200))
    assert has_updated


@pytest.mark.parametrize("work", [maintenance.update, partial(maintenance.update, is_new=True)])
def test_beside_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[str], None]
) -> None:
    """It changes the tables, too: its vacuum is a commit even if nothing is to be deleted."""
    for n in (50, 100):
        append(tmp_path, plain_events(n))
        maintenance.update(str(tmp_path))
    append(tmp_path, plain_events(150))
    added, n_calls, compacting = parquet.read_rows, 0, set[int]()

    def compact_between(*arguments: Any, **options: Any) -> Any:
        nonlocal n_calls
        if (thread := threading.get_ident()) not in compacting:
            n_calls += 1
            if n_calls in {2, 6}:
                compacting.add(thread)
                compact(str(tmp_path))
                compacting.remove(thread)
        return added(*arguments, **options)

    monkeypatch.setattr(parquet, "read_rows", compact_between)
    work(str(tmp_path))
    check(tmp_path, plain_events(150))
    assert behind(tmp_path) == [0, 0]


def behind(root: Path) -> list[int]:
    """Commits of ``events`` with rows that the tables do not include."""
    maintenance.update(str(root))
    return [info(str(root)).tables[name].behind for name in (LATEST, ROLLUPS)]


def test_commits_that_are_missing_are_counted_without_compactions(tmp_path: Path) -> None:
    for n in (50, 100):
        append(tmp_path, plain_events(n))
    maintenance.update(str(tmp_path))
    compact(str(tmp_path))
    found = info(str(tmp_path)).tables
    assert found["events"].version == 3  # created, two batches, compacted
    assert [found[name].behind for name in ("events", LATEST, ROLLUPS)] == [0, 0, 0]
    append(tmp_path, plain_events(150))
    compact(str(tmp_path))
    append(tmp_path, plain_events(160))
    found = info(str(tmp_path)).tables
    assert [found[name].behind for name in ("events", LATEST, ROLLUPS)] == [0, 2, 2]


def test_after_many_conflicts_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path, plain_events(100))
    monkeypatch.setattr(Lake, "commit", lambda *_, **__: False)
    with pytest.raises(LakeError, match=r": table latest: 20 commits failed$"):
        maintenance.update(str(tmp_path))


def remove_from_log(root: Path) -> None:
    """As time does."""
    append(root, plain_events(205))
    opened(root).create_checkpoint()
    (root / "events" / "_delta_log" / f"{2:020}.json").unlink()


def merge_and_vacuum(root: Path) -> None:
    compact(str(root))
    opened(root).vacuum(0, dry_run=False, enforce_retention_duration=False)


def delete_some(root: Path) -> None:
    assert opened(root).delete("instance = 3")["num_deleted_rows"] == 20


def delete_a_day(root: Path) -> None:
    opened(root).delete("date = '2025-01-01'")


def overwrite(root: Path) -> None:
    write_deltalake(root / "events", opened(root).to_pyarrow_table()[:10], mode="overwrite")


@pytest.mark.parametrize(
    "change", [remove_from_log, merge_and_vacuum, delete_some, delete_a_day, overwrite]
)
def test_what_the_log_does_not_tell(tmp_path: Path, change: Callable[[Path], None]) -> None:
    append(tmp_path, plain_events(100))
    maintenance.update(str(tmp_path))
    append(tmp_path, plain_events(200))
    change(tmp_path)
    maintenance.update(str(tmp_path))
    check(tmp_path, None)
    append(tmp_path, plain_events(210))
    maintenance.update(str(tmp_path))
    check(tmp_path, None)
    compact(str(tmp_path))
    check(tmp_path, None)


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    append(tmp_path, plain_events(100))
    for path in (tmp_path / "events").rglob("date=*/*"):
        path.unlink()
    with pytest.raises(LakeError, match=r"\.parquet"):
        maintenance.update(str(tmp_path))
