"""A disk that fills up, again and again, and has space again.

The store of the gateway is on a small tmpfs, in a mount namespace of its own: nothing is
left of it when the gateway ends, and no rights are needed where the system lets users make
namespaces.
"""

import contextlib
import functools
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.model import Order, QueryTimeseriesParams
from tests.support.gateway import Gateway, gateway
from tests.torture.clients import connected, loaded
from tests.torture.ledger import Ledger, ViolationError, read_store
from tests.torture.report import Progress, UnavailableError

DISK_BYTES: Final = 64 << 20

FREE_BYTES: Final = 2 << 20
"""Left free in each round, to be filled by events."""

_PADDING_BYTES: Final = 2000

_MOUNT: Final = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'


@functools.cache
def require_namespaces() -> None:
    """Check that file systems can be mounted here.

    Raises:
        UnavailableError: they cannot; it says why.
    """
    try:
        done = subprocess.run(
            [*_on_tmpfs(Path("/mnt"), 1 << 20), "true"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except FileNotFoundError:
        raise UnavailableError("there is no unshare") from None
    if done.returncode != 0:
        raise UnavailableError(f"no file system can be mounted: {done.stderr.strip()}")


def _on_tmpfs(path: Path, n_bytes: int) -> Sequence[str]:
    return ("unshare", "-rm", "sh", "-c", _MOUNT, "sh", str(n_bytes), str(path))


class _Disk:
    """The disk of a running gateway, seen from outside its namespace."""

    def __init__(self, running: Gateway, path: Path) -> None:
        self.path = Path(f"/proc/{running.pid}/root{path}")
        self._filler = self.path / "filler"

    def fill(self, free_bytes: int) -> None:
        """Leave so much free."""
        status = os.statvfs(self.path)
        with self._filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize - free_bytes)

    def free(self) -> None:
        """Free what :meth:`fill` took."""
        self._filler.unlink()


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Fill the disk ``rounds`` times.

    Raises:
        ViolationError: something acknowledged was lost, or whatever else must not happen.
        UnavailableError: no file system can be mounted.
    """
    require_namespaces()
    ledger = Ledger(_PADDING_BYTES)
    mounted = directory / "disk"
    mounted.mkdir()
    copy = directory / "events"
    n_refused = 0
    wrapper = _on_tmpfs(mounted, DISK_BYTES)
    async with gateway(directory, store=mounted / "events", wrapper=wrapper, http=True) as running:
        disk = _Disk(running, mounted)
        for n in range(1, rounds + 1):
            await _check_ready(running, 200)
            disk.fill(chance.randrange(FREE_BYTES))
            await _check_ready(running, 503)  # although nobody registers
            async with loaded(running, ledger) as load:
                await load.until(lambda: len(load.refusals) > 100)  # is awaited
                async with connected(running) as client:
                    first = QueryTimeseriesParams(order=Order.ASCENDING, max_results=10)
                    if len((await client.query(first)).events) != 10:
                        raise ViolationError("a full disk cannot be read")
                disk.free()
                await load.until_acknowledged(20)
            _check_reasons(load.refusals)
            n_refused += len(load.refusals)
            progress(n, rounds)
        async with connected(running) as client:
            ledger.check(await read_store(client))
        with _stopped(running.pid):
            directories.copy(disk.path / "events", copy)  # as after kill -9
    async with gateway(directory) as running, connected(running) as client:
        ledger.check(await read_store(client))
    return (
        f"filled and freed {rounds} times without a restart: {n_refused} requests refused,"
        f" {len(ledger.acknowledged)} events acknowledged, all of them stored"
    )


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """A process that does nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        while " T " not in Path(f"/proc/{pid}/stat").read_text():
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def _check_ready(running: Gateway, expected: int) -> None:
    url = f"http://{running.host}:{running.http_port}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        if response.status != expected:
            raise ViolationError(f"/readyz is {response.status}, not {expected}")


def _check_reasons(refusals: Sequence[str]) -> None:
    if not any("No space left on device" in i for i in refusals):
        raise ViolationError(f"nobody was told why: {set(refusals)}")
