"""The servers that are measured, and the client processes that measure them."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tests.perf.client import Job, Outcome
from tests.perf.rsb_client import RsbJob
from tests.support.gateway import gateway
from tests.support.hat_peers import hat_gateway
from tests.support.process import ChildError

ROOT: Final = Path(__file__).parents[2]

JOB_TIMEOUT_S: Final = 300.0
"""Of one client process; hat-event needs about 10 s for the longest."""


class Server(NamedTuple):
    """A running server of either side."""

    host: str
    port: int
    pids: list[int]


class Side(NamedTuple):
    """Ours or theirs.

    Attributes:
        name: ``ours`` or ``theirs``.
        start: runs the server on a directory.
        store: name of its store in that directory.
    """

    name: str
    start: Callable[[Path], AbstractAsyncContextManager[Server]]
    store: str


@contextlib.asynccontextmanager
async def _start_ours(directory: Path) -> AsyncIterator[Server]:
    async with gateway(directory) as ours:
        yield Server(ours.host, ours.port, [ours.pid])


@contextlib.asynccontextmanager
async def _start_theirs(directory: Path) -> AsyncIterator[Server]:
    async with hat_gateway(directory) as theirs:
        yield Server(
            theirs.host, theirs.mariner_port, [theirs.event_server_pid, theirs.mariner_server_pid]
        )


OURS: Final = Side("ours", _start_ours, "events")
THEIRS: Final = Side("theirs", _start_theirs, "events.db")
SIDES: Final = (OURS, THEIRS)


async def do(job: Job | RsbJob, client: str = "tests.perf.client") -> Outcome:
    """Run a client process.

    Args:
        job: what it does.
        client: module of a client that does such jobs.

    Raises:
        ChildError: it failed; the message has its traceback.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        client,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        async with asyncio.timeout(JOB_TIMEOUT_S):
            output, errors = await process.communicate(msgspec.json.encode(job))
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise ChildError(f"{job}\n{errors.decode(errors='replace')}")
    return msgspec.json.decode(output, type=Outcome)


def used_bytes(directory: Path, store: str) -> int:
    """Blocks that a store has on disk: files with holes (LMDB) count what they use."""
    path = directory / store
    files = [path, *path.rglob("*")] if path.is_dir() else list(directory.glob(f"{store}*"))
    return sum(file.stat().st_blocks * 512 for file in files)
