"""What a process takes: memory, descriptors, processor, bytes of its log."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import psutil

from tests.torture.attacks.attack import BYTES_PER_MB
from tests.torture.attacks.outcome import Outcome

PERIOD_S: Final = 0.05

QUIET_S: Final = 0.5
"""How long a process has to be quiet."""

QUIET_SHARE: Final = 0.25
"""Of a processor, below which a gateway works for nobody but the observer."""


class Meter:
    """Of one process.

    Args:
        pid: its id.
        log: what it logs to.
        store: directory of its store.

    Attributes:
        n_files_before: descriptors at the beginning.
    """

    def __init__(self, pid: int, log: Path, store: Path) -> None:
        self._pid = pid
        self._process = psutil.Process(pid)
        self._log = log
        self._store = store
        self._store_before_bytes = _size_bytes(store)
        self._before_bytes = self._process.memory_info().rss
        self._log_before_bytes = log.stat().st_size
        self.n_files_before = self._process.num_fds()
        self._memory_bytes = self._before_bytes
        self._n_files = self.n_files_before
        self._n_threads = 0
        self._starved_before_s = _starved_s(pid)

    def tell(self, outcome: Outcome) -> None:
        """Note all figures."""
        now_bytes = self._process.memory_info().rss if self._process.is_running() else 0
        disk_bytes = _size_bytes(self._store) - self._store_before_bytes
        outcome.more_memory_mb = (self._memory_bytes - self._before_bytes) / BYTES_PER_MB
        outcome.left_memory_mb = (now_bytes - self._before_bytes) / BYTES_PER_MB
        outcome.starved_s = _starved_s(self._pid) - self._starved_before_s
        outcome.n_files = self._n_files
        outcome.n_threads = self._n_threads
        outcome.log_bytes = self._log.stat().st_size - self._log_before_bytes
        outcome.disk_mb = disk_bytes / BYTES_PER_MB

    @contextlib.asynccontextmanager
    async def measuring(self) -> AsyncIterator[None]:
        """Measure while the body runs."""
        task = asyncio.create_task(self._measure())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, psutil.Error):
                await task

    async def until_files(self, n_files: int, timeout_s: float) -> bool:
        """Wait until there are as few descriptors again; whether that came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._process.num_fds() > n_files:
                    await asyncio.sleep(PERIOD_S)
                return True
        return False

    async def _measure(self) -> None:
        while True:
            with self._process.oneshot():
                self._memory_bytes = max(self._memory_bytes, self._process.memory_info().rss)
                self._n_threads = max(self._n_threads, self._process.num_threads())
            self._n_files = max(self._n_files, self._process.num_fds())
            await asyncio.sleep(PERIOD_S)


async def until_quiet(pid: int, timeout_s: float) -> float:
    """Seconds until the process hardly works any more; as much as the timeout, if never."""
    process = psutil.Process(pid)
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        before_s = sum(process.cpu_times()[:2])
        at = loop.time()
        await asyncio.sleep(QUIET_S)
        used_s = sum(process.cpu_times()[:2]) - before_s
        if used_s / (loop.time() - at) < QUIET_SHARE:
            return at - began
        if at - began >= timeout_s:
            return timeout_s


def _starved_s(pid: int) -> float:
    """Seconds that the main thread, which runs the loop, could run and got no processor."""
    with contextlib.suppress(OSError, IndexError):  # not every kernel counts it
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _size_bytes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the store deletes files of its own
            total += path.stat().st_size
    return total
