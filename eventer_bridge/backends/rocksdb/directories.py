"""Directories of stores: creating, copying and removing them atomically.

A directory is created under a temporary name beside its target (or on the store's file system),
synced, and renamed when it is complete.

Stores are private to their owner: directories have mode 0700, which is enough to keep others out.
Files have mode 0600 if the process sets it (:func:`private_files`): RocksDB only knows the umask,
which applies to the whole process.

Runs on threads that may block. Functions raise ``OSError`` where the file system fails, and those
that refuse a path ``StorageError``.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from eventer_bridge.errors import ClosedError, StorageError, StoreDamagedError
from eventer_bridge.resources import blocking_entry, open_regular

PARTIAL: Final = ".partial"
"""Suffix of the name of a directory that is being created."""

_CURRENT: Final = b"MANIFEST-"
"""Beginning of the file CURRENT of any database."""

BACKED_UP: Final = "backed-up"
DRILLED: Final = "restore-drill"
"""Empty files in a store: their times are those of its last backup, and of its last drill."""

_OF_ITSELF: Final = frozenset(("LOCK", BACKED_UP, DRILLED))

PRIVATE: Final = 0o700
"""Mode of the directory of a store."""


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Make files and directories that the process creates in the block private to its user.

    For processes of our own: the umask of an embedding program is not ours to change.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def make_private(path: Path) -> int:
    """Remove all rights of other users on a directory and its files; returns how many had some."""
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

    Yields a path beside it that does not exist yet, to create and fill.
    """
    path = path.absolute()
    with os_errors(path):
        refuse_within_store(path)
        refuse_existing(path, may_be_empty=True)
        refuse_unfinished(path)
        make_parents(path)
        partial = path.with_name(path.name + PARTIAL)
    try:
        yield partial
        with os_errors(path):
            give_to_owner_of(path.parent, partial)
            sync(partial)
            partial.rename(path)
            sync(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def make_parents(path: Path) -> None:
    """Create the missing directories above a path, for the owner of the one they are in."""
    missing = [i for i in path.parents if not i.exists()]
    for parent in reversed(missing):
        parent.mkdir(exist_ok=True)
        give_to_owner_of(parent.parent, parent)


def refuse_within_store(path: Path) -> None:
    """Refuse a path inside an event store."""
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
    """Refuse a store with a FIFO or a device, which may block RocksDB, as damaged."""
    if (found := blocking_entry(path)) is not None:
        raise StoreDamagedError(f"{found}: a FIFO or a device, expected a regular file")


def refuse_unfinished(path: Path) -> None:
    """Refuse to create a store where a command is creating one, or was interrupted."""
    partial = path.with_name(path.name + PARTIAL)
    if os.path.lexists(partial):
        raise StorageError(
            f"{partial}: exists already: remove it, unless something is creating {path} right now"
        )


def refuse_existing(path: Path, *, may_be_empty: bool) -> None:
    """Refuse a path that exists; with ``may_be_empty``: and is not an empty directory."""
    if not os.path.lexists(path):
        return
    if not may_be_empty or not path.is_dir() or path.is_symlink():
        raise StorageError(f"{path}: exists already")
    if any(path.iterdir()):
        raise StorageError(f"{path}: exists already, and is not empty")
    if path.is_mount():
        raise StorageError(f"{path}: is a mount point: choose a directory in it")


def move(source: Path, target: Path, is_stopped: Callable[[], bool]) -> None:
    """Move a directory of files to a path that does not exist, on another file system too.

    ``is_stopped`` is called before each file is copied; true cancels, by ``ClosedError``.
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
    """Copy the files of a store to a new directory, and sync them; cancelled as :func:`move`.

    CURRENT, without which it is no store, is copied last: an interrupted copy is no store.
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
    """The files of a store that a copy needs, CURRENT last."""
    files = [i for i in store.iterdir() if i.is_file() and i.name not in _OF_ITSELF]
    return sorted(files, key=lambda i: (i.name == "CURRENT", i.name))


def sync(path: Path) -> None:
    """Sync a file, or the entries of a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_to_owner_of(pattern: Path, path: Path) -> None:
    """Give a file, or a directory of files, to the owner of a directory, if this process is root's.

    So the gateway can use files that its operator's command created.
    """
    if os.geteuid() != 0:
        return
    owner = pattern.stat()
    for file in _with_files(path):
        if (file.lstat().st_uid, file.lstat().st_gid) != (owner.st_uid, owner.st_gid):
            os.chown(file, owner.st_uid, owner.st_gid, follow_symlinks=False)


def share_with_group_of(pattern: Path, path: Path) -> None:
    """Give the group of a directory the same rights on a file, or a directory of files.

    It gets none if the file has another group, which this process cannot change.
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
def os_errors(path: Path, what: str = "cannot be created") -> Iterator[None]:
    """Turn ``OSError`` into ``StorageError``."""
    try:
        yield
    except OSError as e:
        raise StorageError(f"{path}: {what}: {e.strerror}") from e


@contextlib.contextmanager
def written(file: Path) -> Iterator[BinaryIO]:
    """Write a file that replaces another one at the end of the block, synced; ``OSError``."""
    temporary = file.with_name(f"{file.name}.dbtmp")
    with temporary.open("wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)
    sync(file.parent)
