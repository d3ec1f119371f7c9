"""The lock of a lake: one process at a time replaces the manifest.

It is held while the manifest is read, changed and replaced, which takes milliseconds, and by
nobody while events are written. On this machine it is a lock of the kernel, which ends with its
process. In an object store it is a claim: an object of one's own in ``_lock/``. Who finds no
other claim besides its own has the lock; who finds one withdraws its own and tries again: of
two, at least one sees the other, because a listing shows what was put before it. A claim that is
older than ``limits.LOCK_LEASE_S`` is of a process that was killed, and is removed; so who has
the lock gives up what it was about to do if that takes nearly as long.
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
        What to call right before the manifest is replaced; raises LakeError if the lock may
        be held by another meanwhile.

    Raises:
        LakeError: another process holds it all the time.
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
