"""The derived tables: as computed from the events, however the commits came."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from eventer_bridge.model import Event
from mariner_spark.errors import LakeError
from mariner_spark.lake import derived
from mariner_spark.lake.compact import compact
from mariner_spark.lake.tables import VALUES, Lake
from tests.spark.lake.support import append, opened
from tests.spark.support import many_events, not_simplest, plain_events, rows_of


def rows(root: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = opened(root, name).to_pyarrow_table().to_pylist()
    return found


def check(root: Path, events: Iterable[Event]) -> None:
    """Compare the tables with the events; their numbers are tested by ``test_payload_numbers``."""
    everything = rows(root, "events")
    assert len(everything) == len(rows_of(events))
    last: dict[str, dict[str, Any]] = {}
    for row in sorted(
        everything, key=lambda i: [i[j] for j in ("timestamp", "server", "session", "instance")]
    ):
        last[row["type_path"]] = {i: j for i, j in row.items() if i != "date"}
    key = str
    assert sorted(rows(root, "latest"), key=key) == sorted(last.values(), key=key)
    numbers = [
        {i: row[i] for i in ("type_path", "timestamp", "value", "date")}
        for row in everything
        if row["value"] is not None
    ]
    assert sorted(rows(root, "values"), key=key) == sorted(numbers, key=key)


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
                derived.rebuild(directory)
            elif step == "killed":  # between the files and the commit
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(Lake, "commit", lambda *_, **__: False)
                    derived.update(directory)
            else:
                derived.update(directory)
        check(root, drawn[:n])


def test_of_two_updates_at_once_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = plain_events(100)
    append(tmp_path, events)
    read, has_updated = derived._read_last, False

    def update_between(*arguments: Any) -> Any:
        nonlocal has_updated
        if not has_updated:
            has_updated = True
            derived.update(str(tmp_path))
        return read(*arguments)

    monkeypatch.setattr(derived, "_read_last", update_between)
    derived.update(str(tmp_path))
    check(tmp_path, events)
    has_updated = False
    append(tmp_path, plain_events(110))
    with pytest.raises(LakeError, match="table latest was changed meanwhile: rebuild it again"):
        derived.rebuild(str(tmp_path))
    check(tmp_path, plain_events(110))


def test_a_rebuild_that_a_compaction_overtook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (50, 100):
        append(tmp_path, plain_events(n))
        derived.update(str(tmp_path))
    numbers, n_calls = derived._numbers, 0

    def compact_between(*arguments: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 1:
            compact(str(tmp_path))
        return numbers(*arguments)

    monkeypatch.setattr(derived, "_numbers", compact_between)
    with pytest.raises(LakeError, match="table values was changed meanwhile: rebuild it again"):
        derived.rebuild(str(tmp_path))
    check(tmp_path, plain_events(100))
    derived.rebuild(str(tmp_path))
    check(tmp_path, plain_events(100))


def test_what_is_gone_is_told(tmp_path: Path) -> None:
    append(tmp_path, plain_events(100))
    [log] = (tmp_path / "events" / "_delta_log").glob("*1.json")
    lake = Lake(str(tmp_path))
    lake.open().create_checkpoint()
    content = log.read_bytes()
    log.unlink()
    message = r"commit 1 is no longer in the log: rebuild the tables \(mariner lake rebuild\)"
    with pytest.raises(LakeError, match=message):
        derived.update(str(tmp_path))
    log.write_bytes(content)
    for path in (tmp_path / "events").rglob("date=*/*"):
        path.rename(path.with_suffix(".away"))
    with pytest.raises(LakeError, match=r"parquet is deleted: rebuild"):
        derived.update(str(tmp_path))
    for path in (tmp_path / "events").rglob("*.away"):
        path.rename(path.with_suffix(".parquet"))
    derived.rebuild(str(tmp_path))
    check(tmp_path, plain_events(100))
    assert lake.open(VALUES).version() == 1
