"""The servers that are measured, and the clients that measure them."""

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from tests.perf import client, rsb_client, workload
from tests.perf.client import Job, Outcome
from tests.perf.rsb_client import RsbJob
from tests.perf.scenarios import Sizes
from tests.perf.wires import WireName
from tests.support.gateway import gateway
from tests.support.hat_peers import HOST, hat_gateway
from tests.support.process import ChildError

T = TypeVar("T")

ROOT: Final = Path(__file__).parents[2]

JOB_TIMEOUT_S: Final = 300.0
"""Of one client process; hat-event needs about 10 s for the longest."""


FILL_REQUEST_EVENTS: Final = 1_000

FILL_REQUESTS: Final = 50
"""Requests of one client process while filling; bounds its memory to about 50 MB."""


class Server(NamedTuple):
    """A running server of either side, which may be several processes."""

    host: str
    port: int
    eventer_port: int
    pids: list[int]

    def port_of(self, wire: WireName) -> int:
        """Where a wire is spoken."""
        return self.port if wire == "mariner" else self.eventer_port


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
    async with gateway(directory, core={"eventer_server": {"host": HOST, "port": 0}}) as ours:
        assert ours.eventer_port is not None
        yield Server(ours.host, ours.port, ours.eventer_port, [ours.pid])


@contextlib.asynccontextmanager
async def _start_theirs(directory: Path) -> AsyncIterator[Server]:
    async with hat_gateway(directory) as theirs:
        pids = [theirs.event_server_pid, theirs.mariner_server_pid]
        yield Server(theirs.host, theirs.mariner_port, theirs.eventer_port, pids)


OURS: Final = Side("ours", _start_ours, "events")
THEIRS: Final = Side("theirs", _start_theirs, "events.db")
SIDES: Final = (OURS, THEIRS)


def in_turn(number: int) -> tuple[Side, ...]:
    """Both sides, in the order of a round: neither is always the first."""
    return SIDES if number % 2 == 0 else SIDES[::-1]


def new_directory(parent: Path, side: Side, name: str) -> Path:
    """An empty directory for a store."""
    path = parent / f"{side.name}-{name}"
    path.mkdir()
    return path


async def do(job: Job | RsbJob, sizes: Sizes) -> Outcome:
    """Let a client do a job: a process of its own, but in small a thread of this one.

    Raises:
        ChildError: the process failed; the message has its traceback. A thread raises it.
    """
    if sizes.small:
        if isinstance(job, Job):
            return await asyncio.to_thread(client.run, job)
        return await asyncio.to_thread(rsb_client.run, job)
    return await do_in_process(job)


async def do_in_process(job: Job | RsbJob) -> Outcome:
    """As :func:`do`, always in a process of its own."""
    module = client if isinstance(job, Job) else rsb_client
    async with client_process(module.__name__) as process:
        return await finish(process, Outcome, msgspec.json.encode(job))


@contextlib.asynccontextmanager
async def client_process(module: str) -> AsyncIterator[Process]:
    """A client that is killed on the way out, if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module), stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def finish(process: Process, outcome_type: type[T], data: bytes | None = None) -> T:
    """Wait until a client ends.

    Args:
        process: the client.
        outcome_type: what it writes (JSON).
        data: what it is to read before.

    Raises:
        ChildError: it failed; the message has its traceback.
    """
    return msgspec.json.decode(await output_of(process, data), type=outcome_type)


async def output_of(process: Process, data: bytes | None = None) -> bytes:
    """What a client writes until it ends; see :func:`finish`."""
    async with asyncio.timeout(JOB_TIMEOUT_S):
        output, errors = await process.communicate(data)
    if process.returncode != 0:
        raise ChildError(f"{(data or b'').decode()}\n{errors.decode(errors='replace')}")
    return output


async def fill(
    server: Server, sizes: Sizes, events: int, types: int = workload.EVENT_TYPES
) -> None:
    """Register the events 0 to ``events``, a multiple of ``FILL_REQUEST_EVENTS``."""
    step = FILL_REQUESTS * FILL_REQUEST_EVENTS
    for first in range(0, events, step):
        requests = min(step, events - first) // FILL_REQUEST_EVENTS
        await do(
            Job(
                server.host,
                server.port,
                "register",
                requests=requests,
                in_flight=4,
                events_per_request=FILL_REQUEST_EVENTS,
                first=first,
                types=types,
            ),
            sizes,
        )


def used_bytes(directory: Path, store: str) -> int:
    """Blocks that a store has on disk: files with holes (LMDB) count what they use."""
    path = directory / store
    files = [path, *path.rglob("*")] if path.is_dir() else list(directory.glob(f"{store}*"))
    return sum(file.stat().st_blocks * 512 for file in files)
