"""The lock of a lake: one process at a time replaces the manifest.

It is held while the manifest is read, changed and replaced, which takes milliseconds, but not while
events are written. On a local file system it is a kernel lock, which is released when its process
exits. In an object store, each process creates a claim: an object of its own in ``_lock/``. A
process that finds no other claim has the lock; one that finds another withdraws its own and
retries. Of two processes, at least one sees the other's claim, because a listing shows every object
created before it. A claim older than ``limits.LOCK_LEASE_S`` belongs to a killed process and is
removed; so the holder of the lock aborts its change if that takes nearly as long.
"""

import contextlib
import fcntl
import random
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from mariner_spark import limits
from mariner_spark.errors import LakeError
from mariner_spark.lake.files import Files, make_folder

LOCK: Final = "_lock"


@contextlib.contextmanager
def locked(files: Files) -> Iterator[Callable[[], None]]:
    """Hold the lock of a lake.

    Yields:
        A check to call right before the manifest is replaced; raises LakeError if another
        process may have taken the lock over.

    Raises:
        LakeError: another process holds it for too long.
    """
    with (_locked_file if files.is_local else _locked_object)(files) as check:
        yield check


@contextlib.contextmanager
def _locked_file(files: Files) -> Iterator[Callable[[], None]]:
    path = Path(files.full(LOCK))
    try:
        make_folder(path.parent)
        file = path.open("ab")
    except OSError as e:
        raise LakeError(f"{e.filename}: {e.strerror}") from e
    with file:
        _wait(files, lambda: _try_flock(file))
        yield lambda: None


def _try_flock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _locked_object(files: Files) -> Iterator[Callable[[], None]]:
    claim = f"{LOCK}/{uuid.uuid4().hex}"
    started = 0.0

    def try_claim() -> bool:
        nonlocal started
        started = time.monotonic()
        with files.create(claim) as file:
            file.write(b"1")
        claims = {i.path: i.modified_s for i in files.walk(LOCK)}
        mine = claims.pop(claim, None)
        live = 0
        for path, modified_s in claims.items():
            # both by the clock of the object store
            if mine is not None and mine - modified_s > limits.LOCK_LEASE_S:
                files.delete(path)
            else:
                live += 1
        if mine is None or live:
            files.delete(claim)
            return False
        return True

    def check() -> None:
        if time.monotonic() - started > limits.LOCK_LEASE_S / 2:
            raise LakeError(f"{files}: too slow: the lock may have been taken over")

    _wait(files, try_claim)
    try:
        yield check
    finally:
        files.delete(claim)


def _wait(files: Files, take: Callable[[], bool]) -> None:
    deadline = time.monotonic() + limits.LOCK_WAIT_S
    while not take():
        if time.monotonic() > deadline:
            raise LakeError(f"{files}: another process holds the lock ({LOCK})")
        time.sleep(random.uniform(0.5, 1.5) * limits.LOCK_RETRY_S)  # noqa: S311  # no secret
