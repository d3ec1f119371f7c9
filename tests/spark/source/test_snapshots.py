"""Snapshots: who makes them, who removes them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StorageError
from mariner_spark import limits
from mariner_spark.errors import SnapshotError
from mariner_spark.source import snapshots
from mariner_spark.source.snapshots import DriverProcess
from tests.spark.support import fill, plain_events

README = Path(__file__).parents[3] / "spark" / "README.md"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fill(tmp_path / "store", plain_events(100))
    return tmp_path / "store"


def names(path: Path) -> set[str]:
    return {i.name for i in path.glob("spark-*")}


def test_a_store_that_nobody_has_open_is_linked_and_not_changed(path: Path) -> None:
    before = {i.name: i.stat().st_mtime_ns for i in path.iterdir()}
    snapshot = snapshots.create(path, snapshots.this_driver())
    after = {i.name: i.stat().st_mtime_ns for i in path.iterdir() if i != snapshot}
    assert after == before
    linked = {i.name: i.stat().st_ino for i in snapshot.glob("*.sst")}
    assert linked == {i.name: i.stat().st_ino for i in path.glob("*.sst")}
    # the store can be opened, and goes on, while the snapshot stays as it was
    fill(path, plain_events(100, server=8))
    store = Store(snapshot, read_only=True)
    try:
        assert store.n_events() == 100
    finally:
        store.ext_close()


def test_snapshots_of_drivers_that_are_gone_are_removed(path: Path) -> None:
    me = snapshots.this_driver()
    other_life = me._replace(started=me.started - 1)
    gone = snapshots.create(path, other_life)
    elsewhere = snapshots.create(path, me._replace(node="else-where"))
    assert names(path) == {elsewhere.name}
    assert not gone.exists()
    mine = snapshots.create(path, me)
    old = mine.stat().st_mtime - limits.MAX_SNAPSHOT_AGE_S - 10
    os.utime(elsewhere, (old, old))
    snapshots.sweep(path, me)
    assert names(path) == {mine.name}


def test_another_read_removes_what_is_being_looked_at(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = snapshots.this_driver()
    gone = snapshots.create(path, me._replace(started=me.started - 1))
    listed = list(os.scandir(path))
    shutil.rmtree(gone)
    monkeypatch.setattr(os, "scandir", lambda _: iter(listed))
    snapshots.sweep(path, me)


def test_the_oldest_of_very_many_are_removed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SNAPSHOTS", 3)
    me = snapshots.this_driver()
    made = [snapshots.create(path, me) for _ in range(3)]
    for used, snapshot in zip((100, 200, 300), made, strict=True):
        os.utime(snapshot, (used, used))
    snapshots.touch(made[0])
    last = snapshots.create(path, me)
    assert names(path) == {made[0].name, made[2].name, last.name}
    with pytest.raises(SnapshotError, match="a driver keeps the 3 that it used last"):
        snapshots.touch(made[1])


def test_the_bound_stands_where_users_read_of_it() -> None:
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert f"until its driver has made {limits.MAX_SNAPSHOTS} newer reads of the store" in text
    assert f"a driver keeps the {limits.MAX_SNAPSHOTS} snapshots that it used last" in text


def test_a_machine_without_the_store_is_told(path: Path) -> None:
    snapshot = snapshots.create(path, snapshots.this_driver())
    path.rename(path.parent / "elsewhere")
    message = rf"^{path}: is not on this machine \(.+\), which is to read it: every machine of a"
    with pytest.raises(SnapshotError, match=message):
        snapshots.touch(snapshot)


def test_a_driver_removes_its_own_when_it_ends(path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from mariner_spark.source import snapshots\n"
        "me = snapshots.this_driver()\n"
        "assert snapshots.create(pathlib.Path(sys.argv[1]), me).is_dir()\n"
        "print(me.folder)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert names(path) == set()
    assert not Path(done.stdout.strip()).exists()


def test_a_driver_on_another_machine_is_not_noted(path: Path, tmp_path: Path) -> None:
    snapshots.create(path, DriverProcess("elsewhere", 1, 1, tmp_path / "missing"))
    assert not (tmp_path / "missing").exists()


def test_where_no_snapshot_can_be_made_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)  # as root may do anything
    with pytest.raises(
        StorageError, match="no snapshot can be made in it: Operation not permitted"
    ):
        snapshots.create(path, snapshots.this_driver())
    assert names(path) == set()


def test_a_store_that_changes_meanwhile_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, n_links = os.link, 0

    def link_and_change(source: Path, target: Path) -> None:
        nonlocal n_links
        n_links += 1
        if n_links == 1:
            (path / "MANIFEST-999999").touch()
        link(source, target)

    monkeypatch.setattr(os, "link", link_and_change)
    snapshot = snapshots.create(path, snapshots.this_driver())
    assert (snapshot / "MANIFEST-999999").exists()
    assert names(path) == {snapshot.name}
