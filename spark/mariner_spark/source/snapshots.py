"""Snapshots: what all tasks of one read from a store open, so that they see one moment.

A snapshot is an ordinary store in a folder within the store's own, made of hard links: that
takes milliseconds, however large the store is. If a gateway has the store open it is asked
for a checkpoint, otherwise the files are linked as they stand. Nothing is locked, so that a
gateway may start at any moment.

It lasts until its driver ends, because Spark may execute a read more than once. The oldest of
a driver that makes very many are removed, as are those of drivers that are gone.

Runs where a read is planned.
"""

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from eventer_bridge.backends.rocksdb import database
from eventer_bridge.backends.rocksdb.control import checkpoint, is_served
from eventer_bridge.errors import StorageError
from mariner_spark import limits
from mariner_spark.errors import SnapshotError
from mariner_spark.source import driver_process
from mariner_spark.source.driver_process import DriverProcess

_NAME: Final = re.compile(r"spark-(?P<node>.+)-(?P<pid>\d+)-(?P<started>\d+)-[0-9a-f]{8}")

_NOT_COPIED: Final = ("LOCK", "LOG", "control.sock")
"""How names begin of files that belong to whoever has a store open."""

_State = dict[str, tuple[int, int, int]]


class _Found(NamedTuple):
    """A snapshot that is in a store."""

    path: Path
    node: str
    pid: int
    started: int
    used: float


def make(store_path: Path, owner: DriverProcess) -> Path:
    """Make a snapshot of a store.

    Args:
        store_path: directory of the store, absolute.
        owner: the driver that it is for.

    Returns:
        Its directory.

    Raises:
        StorageError: it is no store, or the snapshot cannot be made.
    """
    database.check_exists(store_path)
    sweep(store_path, owner)
    name = f"spark-{owner.node}-{owner.pid}-{owner.started}-{secrets.token_hex(4)}"
    target = store_path / name
    for _ in range(limits.SNAPSHOT_TRIES):
        if is_served(store_path):
            checkpoint(store_path, target)
            break
        if _link(store_path, target):
            break
    else:
        raise StorageError(f"{store_path}: is changed by something that cannot be asked")
    owner.note(target)
    return target


def use(snapshot: Path) -> None:
    """Note that a snapshot is used, so that it is kept.

    Raises:
        SnapshotError: it is not there any more.
    """
    try:
        os.utime(snapshot)
    except FileNotFoundError:
        if not snapshot.parent.exists():
            raise SnapshotError(
                f"{snapshot.parent}: is not on this machine ({driver_process.node_name()}), which"
                " is to read it: every machine of a cluster needs the store there; or read from its"
                " gateway (host)"
            ) from None
        raise SnapshotError(
            f"{snapshot}: the snapshot of this read is gone: a driver keeps the"
            f" {limits.MAX_SNAPSHOTS} that it made last. Load the data frame anew."
        ) from None
    except OSError:
        pass  # it belongs to somebody else, as does what removes it


def sweep(store_path: Path, owner: DriverProcess) -> None:
    """Remove what is no longer needed: of drivers that are gone, and the oldest of this one."""
    kept: list[_Found] = []
    for found in _find(store_path):
        if _is_needed(found):
            if found[1:4] == owner[:3]:
                kept.append(found)
        else:
            shutil.rmtree(found.path, ignore_errors=True)
    kept.sort(key=lambda i: i.used, reverse=True)
    for found in kept[limits.MAX_SNAPSHOTS - 1 :]:
        shutil.rmtree(found.path, ignore_errors=True)


def _find(store_path: Path) -> Iterator[_Found]:
    for entry in os.scandir(store_path):
        match = _NAME.fullmatch(entry.name)
        if match is not None and entry.is_dir(follow_symlinks=False):
            pid, started = int(match["pid"]), int(match["started"])
            try:
                used = entry.stat(follow_symlinks=False).st_mtime
            except FileNotFoundError:
                continue  # another read, planned at the same time, removed it
            yield _Found(Path(entry.path), match["node"], pid, started, used)


def _is_needed(found: _Found) -> bool:
    if found.node == driver_process.node_name():
        return driver_process.start_ticks(found.pid) == found.started
    return time.time() - found.used < limits.MAX_SNAPSHOT_AGE_S


def _link(store_path: Path, target: Path) -> bool:
    """Link a store that nobody has open.

    Returns:
        Whether nothing changed meanwhile; if not, nothing is left of it.

    Raises:
        StorageError: it cannot be done.
    """
    try:
        before = _state(store_path)
        target.mkdir()
        for name in before:
            if name.endswith(".sst"):  # never changed, only removed
                os.link(store_path / name, target / name)
            else:
                shutil.copyfile(store_path / name, target / name)
        if _state(store_path) == before:
            return True
    except FileNotFoundError:
        pass  # something removed a file
    except OSError as e:
        shutil.rmtree(target, ignore_errors=True)
        raise StorageError(
            f"{store_path}: no snapshot can be made in it: {e.strerror} (needed is a store of"
            " this user, on a file system with hard links; or make a copy by `mariner backup`)"
        ) from e
    shutil.rmtree(target, ignore_errors=True)
    return False


def _state(store_path: Path) -> _State:
    state: _State = {}
    for entry in os.scandir(store_path):
        if entry.is_file(follow_symlinks=False) and not entry.name.startswith(_NOT_COPIED):
            stat = entry.stat(follow_symlinks=False)
            state[entry.name] = stat.st_size, stat.st_mtime_ns, stat.st_ino
    return state
