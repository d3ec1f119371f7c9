"""Snapshots of a store: all tasks of a read open the same one, so that they see one moment.

A snapshot is an ordinary store in a subfolder of the store, made of hard links, in milliseconds. A
gateway that has the store open creates it as a checkpoint; otherwise the files are linked as they
are. Nothing is locked, so a gateway may start at any moment.

It lasts as long as its driver may execute the read, any number of times. So it is named after the
driver process, and linked in a folder of the driver, which removes the linked snapshots when it
exits. The oldest ones of a driver with many are removed, as are those of drivers that no longer
run, when the next one is created. Runs in the process that plans a read.
"""

import atexit
import os
import platform
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from eventer_bridge.backends.rocksdb import database
from eventer_bridge.backends.rocksdb.control import checkpoint, is_served
from eventer_bridge.errors import StorageError
from mariner_spark import limits
from mariner_spark.errors import SnapshotError

_NAME: Final = re.compile(r"spark-(?P<node>.+)-(?P<pid>\d+)-(?P<started>\d+)-[0-9a-f]{8}")

_NOT_COPIED: Final = ("LOCK", "LOG", "control.sock")
"""Prefixes of the names of files that belong to the process that has the store open."""

_State = dict[str, tuple[int, int, int]]


class DriverProcess(NamedTuple):
    """A driver process, with the folder of the links to its snapshots.

    ``node`` is the name of its machine (or container). ``started`` is in the kernel's ticks, and
    distinguishes it from a later process with the same pid.
    """

    node: str
    pid: int
    started: int
    folder: Path


@cache
def this_driver() -> DriverProcess:
    """This process, as a driver; its snapshots are removed when it exits."""
    pid = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix="mariner-spark-"))
    atexit.register(_remove_linked, folder, pid)
    return DriverProcess(node_name(), pid, start_ticks(pid) or 0, folder)


def node_name() -> str:
    """Name of this machine, fit for the name of a file."""
    return platform.node().replace("/", "_") or "localhost"


def start_ticks(pid: int) -> int | None:
    """When a process of this machine started, in the kernel's ticks; None: there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # the second field is the name, in parentheses, and may hold anything
    fields = stat.rpartition(b")")[2].split()
    return int(fields[19])


def _remove_linked(folder: Path, pid: int) -> None:
    if os.getpid() != pid:
        return  # a child by fork
    for link in folder.iterdir():
        shutil.rmtree(link.resolve(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


class _Found(NamedTuple):
    """A snapshot in the folder of a store."""

    path: Path
    node: str
    pid: int
    started: int
    used: float


def create(store_path: Path, driver: DriverProcess) -> Path:
    """Create a snapshot of a store, which a driver owns; raises StorageError."""
    database.check_exists(store_path)
    sweep(store_path, driver)
    name = f"spark-{driver.node}-{driver.pid}-{driver.started}-{secrets.token_hex(4)}"
    target = store_path / name
    for _ in range(limits.SNAPSHOT_TRIES):
        if is_served(store_path):
            checkpoint(store_path, target)
            break
        if _link(store_path, target):
            break
    else:
        raise StorageError(f"{store_path}: is changed by something that cannot be asked")
    if driver.folder.is_dir():  # it runs on this machine, and removes it when it exits
        (driver.folder / name).symlink_to(target)
    return target


def touch(snapshot: Path) -> None:
    """Mark a snapshot as used, so that it is kept; raises SnapshotError if it no longer exists."""
    try:
        os.utime(snapshot)
    except FileNotFoundError:
        if not snapshot.parent.exists():
            raise SnapshotError(
                f"{snapshot.parent}: is not on this machine ({node_name()}), which is to read it:"
                " every machine of a cluster needs the store there; or read from its gateway (host)"
            ) from None
        raise SnapshotError(
            f"{snapshot}: the snapshot of this read is gone: a driver keeps the"
            f" {limits.MAX_SNAPSHOTS} that it used last. Load the data frame anew."
        ) from None
    except OSError:
        pass  # another user owns it; that user's driver keeps it or removes it


def sweep(store_path: Path, driver: DriverProcess) -> None:
    """Remove snapshots of drivers that no longer run, and the oldest ones of this driver."""
    kept: list[_Found] = []
    for found in _find(store_path):
        if _is_needed(found):
            if found[1:4] == driver[:3]:
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
                continue  # removed by another read that is planned at the same time
            yield _Found(Path(entry.path), match["node"], pid, started, used)


def _is_needed(found: _Found) -> bool:
    if found.node == node_name():
        return start_ticks(found.pid) == found.started
    return time.time() - found.used < limits.MAX_SNAPSHOT_AGE_S


def _link(store_path: Path, target: Path) -> bool:
    """Link the files of a store that no process has open; false: it changed meanwhile.

    Then there is no target. Raises StorageError if the file system refuses it.
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
        pass  # a file was removed meanwhile
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
