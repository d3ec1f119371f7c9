"""Directories of stores: making, copying and removing them so that a crash leaves no half.

Runs on threads that may block. A directory is made under a name of its own beside its
place (or on the store's file system), synced, and renamed when it is whole.

What is stored is its owner's only: directories of stores have mode 0700, which is enough to keep
others out whatever is in them. Files have 0600 where the process makes them so
(:func:`private_files`): RocksDB knows no modes, only the umask, which is the whole process'.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from eventer_bridge.errors import ClosedError, StorageError

PARTIAL: Final = ".partial"
"""End of the name of a directory that is being made."""

PRIVATE: Final = 0o700
"""Mode of the directory of a store."""


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Files and directories that the process makes meanwhile are its user's only.

    For processes that have no other umask to mind, such as the gateway and the commands that
    make stores; in those of others, it would be theirs.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def make_private(path: Path) -> int:
    """Take all rights of others from a directory and its files.

    Returns:
        How many of them others had rights on.

    Raises:
        OSError: it may not be done.
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
    """A directory that appears at ``path`` when the body is done, and not at all if it fails.

    Yields:
        Where to fill it: a name beside it that does not exist yet.

    Raises:
        StorageError: something is there, or it cannot be made.
    """
    path = path.absolute()
    with _os_errors(path):
        refuse_within_store(path)
        refuse_existing(path, may_be_empty=True)
        refuse_unfinished(path)
        path.parent.mkdir(parents=True, exist_ok=True)
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


def refuse_within_store(path: Path) -> None:
    """Refuse a place in the directory of an event store: what is there is the store's.

    Raises:
        StorageError: it is in one.
    """
    for parent in path.resolve().parents:
        if _is_database(parent):
            raise StorageError(f"{path}: is in the event store {parent}: name a place outside it")


def _is_database(path: Path) -> bool:
    try:
        return (path / "CURRENT").read_bytes().startswith(b"MANIFEST-")
    except OSError:
        return False


def refuse_unfinished(path: Path) -> None:
    """Refuse to make a store where a command is making one, or did not get to its end.

    Raises:
        StorageError: it is so.
    """
    partial = path.with_name(path.name + PARTIAL)
    if os.path.lexists(partial):
        raise StorageError(
            f"{partial}: exists already: remove it, if nobody is making {path} right now"
        )


def refuse_existing(path: Path, *, may_be_empty: bool) -> None:
    """Refuse a place that is taken.

    Raises:
        StorageError: something is there; with ``may_be_empty`` other than an empty directory.
    """
    if not os.path.lexists(path):
        return
    if not may_be_empty or not path.is_dir() or path.is_symlink():
        raise StorageError(f"{path}: exists already")
    if any(path.iterdir()):
        raise StorageError(f"{path}: exists already, and is not empty")
    if path.is_mount():
        raise StorageError(f"{path}: is a mount point: name a directory in it")


def move(source: Path, target: Path, is_stopped: Callable[[], bool]) -> None:
    """Move a directory of files, to another file system too.

    Args:
        source: the directory.
        target: a path that does not exist, in a directory that does.
        is_stopped: asked before each file is copied.

    Raises:
        OSError: it failed.
        ClosedError: it was stopped.
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
    """Copy the files of a store into a new directory, synced; what is no file is left out.

    CURRENT, without which it is no store, comes last: a copy that was killed is none.

    Raises:
        OSError: it failed.
        ClosedError: it was stopped.
    """
    target.mkdir(mode=PRIVATE)
    files = [i for i in source.iterdir() if i.is_file() and i.name != "LOCK"]
    for file in sorted(files, key=lambda i: (i.name == "CURRENT", i.name)):
        if is_stopped():
            raise ClosedError("copying was stopped")
        if file.name == "CURRENT":
            sync(target)
        shutil.copyfile(file, target / file.name)
        (target / file.name).chmod(0o600)
        sync(target / file.name)
    sync(target)


def sync(path: Path) -> None:
    """Sync a file, or the names in a directory.

    Raises:
        OSError: it failed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_to_owner_of(pattern: Path, path: Path) -> None:
    """Give a directory of files to the owner of another, if we may (as root).

    So that the gateway can use files that its operator's command made.

    Raises:
        OSError: it failed.
    """
    if os.geteuid() != 0:
        return
    owner = pattern.stat()
    for file in (path, *path.iterdir()):
        if (file.lstat().st_uid, file.lstat().st_gid) != (owner.st_uid, owner.st_gid):
            os.chown(file, owner.st_uid, owner.st_gid, follow_symlinks=False)


@contextlib.contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise StorageError(f"{path}: cannot be made: {e.strerror}") from e
