"""What is wrong with the machine of a gateway that is attacked: few descriptors, a disk that
fails, a standard error that nobody reads."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.torture.strace import require_strace

FAILING_S: Final = 3.0
"""How long the disk fails: every sync and every look at a directory."""

_INJECT: Final = "inject=fdatasync,fsync,openat,getdents64:error=EIO"


def descriptor_limit(n_files: int) -> Sequence[str]:
    """A wrapper for ``gateway`` that limits its descriptors."""
    return ("sh", "-c", f'ulimit -n {n_files} && exec "$@"', "sh")


@contextlib.asynccontextmanager
async def failing_disk(pid: int) -> AsyncIterator[None]:
    """Let the disk of a process fail for a while, beside the body.

    Raises:
        UnavailableError: there is no strace.
    """
    require_strace()
    tracing = await asyncio.create_subprocess_exec(
        *("strace", "-f", "-p", str(pid), "-o", "/dev/null"),
        *("-e", "trace=fdatasync,fsync,openat,getdents64", "-e", _INJECT),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
        await asyncio.sleep(FAILING_S)
    finally:
        tracing.terminate()
        await tracing.wait()


class StuckStderr:
    """Reads what a gateway writes to standard error, until it is told to read no more.

    Attributes:
        wrapper: for ``gateway``.
    """

    def __init__(self, pipe: Path, log: Path) -> None:
        os.mkfifo(pipe)
        self.wrapper = ("sh", "-c", 'exec 2>"$0" && exec "$@"', str(pipe))
        # also for writing: it must not end when the gateway does
        self._file = os.open(pipe, os.O_RDWR)
        self._log = log
        self._is_reading = True
        self._thread = threading.Thread(target=self._read)

    def stop_reading(self) -> None:
        """Read no more."""
        if self._is_reading:
            self._is_reading = False
            os.write(self._file, b"\n")  # the reader waits for a line
            self._thread.join()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Read while the body runs."""
        self._thread.start()
        try:
            yield
        finally:
            self.stop_reading()
            os.close(self._file)

    def _read(self) -> None:
        while self._is_reading:
            data = os.read(self._file, 4096)
            with self._log.open("ab") as log:
                log.write(data)


@contextlib.contextmanager
def stderr_of(directory: Path) -> Iterator[StuckStderr]:
    """A standard error whose reader can get stuck; what it read is in ``gateway.log``."""
    stuck = StuckStderr(directory / "stderr", directory / "gateway.log")
    with stuck.reading():
        yield stuck
