"""Directories of stores: creating, copying and removing them atomically.

Runs on threads that may block. A directory is created under a temporary name beside its target (or
on the store's file system), synced, and renamed when it is complete.

Stores are private to their owner: directories have mode 0700, which is enough to keep others out.
Files have mode 0600 if the process sets it (:func:`private_files`): RocksDB only knows the umask,
which applies to the whole process.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from eventer_bridge.errors import ClosedError, StorageError, StoreDamagedError
from eventer_bridge.resources import blocking_entry, open_regular

PARTIAL: Final = ".partial"
"""Suffix of the name of a directory that is being created."""

_CURRENT: Final = b"MANIFEST-"
"""Beginning of the file CURRENT of any database."""

PRIVATE: Final = 0o700
"""Mode of the directory of a store."""


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Make files and directories that the process creates in the block private to its user.

    For processes of our own, such as the gateway and the commands that create stores: the umask of
    an embedding program is not ours to change.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def make_private(path: Path) -> int:
    """Remove all rights of other users on a directory and its files.

    Returns:
        Number of files on which others had rights.

    Raises:
        OSError: this process may not change them.
    """
    n_open = 0
    for file in (path, *path.iterdir()):
        mode = file.lstat().st_mode
        if mode & 0o077 and not stat.S_ISLNK(mode):
            file.chmod(stat.S_IMODE(mode) & 0o700)
            n_open += 1
    return n_open


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Create a directory that appears at ``path`` when the block is done, or not if it fails.

    Yields:
        A path beside it that does not exist yet, to create and fill.

    Raises:
        StorageError: the path exists, or cannot be created.
    """
    path = path.absolute()
    with _os_errors(path):
        refuse_within_store(path)
        refuse_existing(path, may_be_empty=True)
        refuse_unfinished(path)
        make_parents(path)
        partial = path.with_name(path.name + PARTIAL)
    try:
        yield partial
        with _os_errors(path):
            give_to_owner_of(path.parent, partial)
            sync(partial)
            partial.rename(path)
            sync(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def make_parents(path: Path) -> None:
    """Make the directories above a path that are missing, for the owner of the one they are in.

    Raises:
        OSError: it failed.
    """
    missing = [i for i in path.parents if not i.exists()]
    for parent in reversed(missing):
        parent.mkdir(exist_ok=True)
        give_to_owner_of(parent.parent, parent)


def refuse_within_store(path: Path) -> None:
    """Refuse a path inside an event store.

    Raises:
        StorageError: it is inside one.
    """
    for parent in path.resolve().parents:
        if _is_database(parent):
            raise StorageError(f"{path}: is in the event store {parent}: choose a path outside it")


def _is_database(path: Path) -> bool:
    try:
        with open_regular(path / "CURRENT") as file:
            return file.read(len(_CURRENT)) == _CURRENT
    except OSError:
        return False


def refuse_blocking(path: Path) -> None:
    """Refuse a store that RocksDB, or a copy of it, may block at.

    Raises:
        StoreDamagedError: one of its files is a FIFO or a device.
        OSError: it cannot be read.
    """
    if (found := blocking_entry(path)) is not None:
        raise StoreDamagedError(f"{found}: a FIFO or a device, expected a regular file")


def refuse_unfinished(path: Path) -> None:
    """Refuse to create a store where a command is creating one, or was interrupted.

    Raises:
        StorageError: there is a partial directory.
    """
    partial = path.with_name(path.name + PARTIAL)
    if os.path.lexists(partial):
        raise StorageError(
            f"{partial}: exists already: remove it, unless something is creating {path} right now"
        )


def refuse_existing(path: Path, *, may_be_empty: bool) -> None:
    """Refuse a path that exists.

    Raises:
        StorageError: it exists; with ``may_be_empty``: and is not an empty directory.
    """
    if not os.path.lexists(path):
        return
    if not may_be_empty or not path.is_dir() or path.is_symlink():
        raise StorageError(f"{path}: exists already")
    if any(path.iterdir()):
        raise StorageError(f"{path}: exists already, and is not empty")
    if path.is_mount():
        raise StorageError(f"{path}: is a mount point: choose a directory in it")


def move(source: Path, target: Path, is_stopped: Callable[[], bool]) -> None:
    """Move a directory of files, to another file system too.

    Args:
        source: the directory.
        target: a path that does not exist, in a directory that does.
        is_stopped: called before each file is copied; true cancels.

    Raises:
        OSError: it failed.
        ClosedError: it was cancelled.
    """
    try:
        source.rename(target)
    except OSError as e:
        if e.errno != errno.EXDEV:
            raise
        refuse_unfinished(target)
        partial = target.with_name(target.name + PARTIAL)
        try:
            copy(source, partial, is_stopped)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(source)
    sync(target.parent)


def copy(source: Path, target: Path, is_stopped: Callable[[], bool] = lambda: False) -> None:
    """Copy the files of a store to a new directory, and sync them; other entries are left out.

    CURRENT, without which it is no store, is copied last: an interrupted copy is no store.

    Raises:
        OSError: it failed.
        ClosedError: it was cancelled.
    """
    target.mkdir(mode=PRIVATE)
    for file in files_of(source):
        if is_stopped():
            raise ClosedError("copying was stopped")
        if file.name == "CURRENT":
            sync(target)
        shutil.copyfile(file, target / file.name)
        (target / file.name).chmod(0o600)
        sync(target / file.name)
    sync(target)


def files_of(store: Path) -> list[Path]:
    """The files of a store that a copy needs, CURRENT last.

    Raises:
        OSError: it cannot be read.
    """
    files = [i for i in store.iterdir() if i.is_file() and i.name != "LOCK"]
    return sorted(files, key=lambda i: (i.name == "CURRENT", i.name))


def sync(path: Path) -> None:
    """Sync a file, or the entries of a directory.

    Raises:
        OSError: it failed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_to_owner_of(pattern: Path, path: Path) -> None:
    """Give a file, or a directory of files, to the owner of a directory, if this process is root's.

    So the gateway can use files that its operator's command created.

    Raises:
        OSError: it failed.
    """
    if os.geteuid() != 0:
        return
    owner = pattern.stat()
    for file in _with_files(path):
        if (file.lstat().st_uid, file.lstat().st_gid) != (owner.st_uid, owner.st_gid):
            os.chown(file, owner.st_uid, owner.st_gid, follow_symlinks=False)


def share_with_group_of(pattern: Path, path: Path) -> None:
    """Let the group of a directory do with a file, or a directory of files, what it may do there.

    It may do nothing if the file has another group, which this process cannot change.

    Raises:
        OSError: it failed.
    """
    owner = pattern.stat()
    for file in _with_files(path):
        with contextlib.suppress(PermissionError):
            os.chown(file, -1, owner.st_gid, follow_symlinks=False)
        found = file.lstat()
        if found.st_gid == owner.st_gid and not stat.S_ISLNK(found.st_mode):
            rights = owner.st_mode & (0o070 if stat.S_ISDIR(found.st_mode) else 0o060)
            file.chmod(stat.S_IMODE(found.st_mode) | rights)


def _with_files(path: Path) -> list[Path]:
    return [path, *path.iterdir()] if path.is_dir() else [path]


@contextlib.contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise StorageError(f"{path}: cannot be created: {e.strerror}") from e
