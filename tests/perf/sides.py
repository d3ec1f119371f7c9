"""The servers that are measured, and the clients that measure them."""

import asyncio
import contextlib
import shutil
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from tests.perf import client, rsb_client, workload
from tests.perf.client import Job, Outcome
from tests.perf.report import Sample
from tests.perf.rsb_client import RsbJob
from tests.perf.scenarios import Sizes
from tests.perf.wires import WireName
from tests.support.certificates import make_certificates
from tests.support.gateway import gateway
from tests.support.hat_peers import HOST, hat_gateway
from tests.support.process import ChildError, child, wait_listening

T = TypeVar("T")

ROOT: Final = Path(__file__).parents[2]

JOB_TIMEOUT_S: Final = 300.0
"""Of one client process, which takes some seconds."""

FILL_REQUEST_EVENTS: Final = 1_000

FILL_REQUESTS: Final = 50
"""Requests of one client process while filling; bounds its memory to about 50 MB."""

CLIENT_BUSY: Final = 0.9
"""A client that computes for this share of the time may be what limits a rate."""

HAT_FLUSH_PERIOD_S: Final = 1.0
"""How often hat-event writes to the disk what it acknowledged until then, and its longest rounds
take two of them at least. Its schema has no default; with 10 s, and 20 s of registrations, its
rates were a sixth lower, and its CPU a tenth higher."""


class Server(NamedTuple):
    """A running server of any side, which may be several processes.

    Attributes:
        host, port, eventer_port: where it listens.
        pids: its processes.
        ca: certificate that its own is issued by; None: it speaks no TLS.
    """

    host: str
    port: int
    eventer_port: int
    pids: list[int]
    ca: str | None = None

    def port_of(self, wire: WireName) -> int:
        """Where a wire is spoken."""
        return self.eventer_port if wire == "eventer" else self.port


class Side(NamedTuple):
    """What is measured side by side.

    Attributes:
        name: of its values.
        start: runs the server on a directory.
        wire: all that it speaks; None: Mariner, and Eventer on its other port.
        program: what has to be installed.
        has_keys: whether its registrations have request keys.
        is_backwards: whether their source timestamps go back from one to the next.
    """

    name: str
    start: Callable[[Path], AbstractAsyncContextManager[Server]]
    wire: WireName | None = None
    program: str | None = None
    has_keys: bool = False
    is_backwards: bool = False

    @property
    def is_there(self) -> bool:
        """Whether it can be measured on this machine."""
        return self.program is None or shutil.which(self.program) is not None


@contextlib.asynccontextmanager
async def _start_ours(directory: Path) -> AsyncIterator[Server]:
    async with gateway(directory, core={"eventer_server": {"host": HOST, "port": 0}}) as ours:
        assert ours.eventer_port is not None
        yield Server(ours.host, ours.port, ours.eventer_port, [ours.pid])


@contextlib.asynccontextmanager
async def _start_tls(directory: Path) -> AsyncIterator[Server]:
    certificates = make_certificates(directory / "certificates")
    tls = {"cert": str(certificates.server_cert), "key": str(certificates.server_key)}
    async with gateway(directory, tls=tls) as ours:
        yield Server(ours.host, ours.port, 0, [ours.pid], str(certificates.ca))


@contextlib.asynccontextmanager
async def _start_hat(directory: Path) -> AsyncIterator[Server]:
    async with hat_gateway(directory, flush_period_s=HAT_FLUSH_PERIOD_S) as hat:
        pids = [hat.event_server_pid, hat.mariner_server_pid]
        yield Server(hat.host, hat.mariner_port, hat.eventer_port, pids)


@contextlib.asynccontextmanager
async def _start_limit(directory: Path) -> AsyncIterator[Server]:
    output = directory / "limit.log"
    async with child("tests.perf.limit", output=output) as process:
        yield Server(HOST, await wait_listening(process, output), 0, [process.pid])


@contextlib.asynccontextmanager
async def _start_redis(directory: Path) -> AsyncIterator[Server]:
    """Streams that are synced before they are acknowledged, as ours; their log is never rewritten.

    Redis does not let the kernel choose a port, so it gets one that was free a moment before.
    """
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    output = directory / "redis.log"
    options = {
        "bind": HOST,
        "port": str(port),
        "dir": str(directory),
        "logfile": str(output),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always",
        "auto-aof-rewrite-percentage": "0",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    output.touch()
    async with running("redis-server", *arguments) as process:
        yield Server(HOST, await wait_listening(process, output), 0, [process.pid])


OURS: Final = Side("ours", _start_ours)
TLS: Final = Side("tls", _start_tls)
KEYED: Final = Side("keyed", _start_ours, has_keys=True)
BACKWARDS: Final = Side("backwards", _start_ours, is_backwards=True)
HAT: Final = Side("hat", _start_hat)
LIMIT: Final = Side("limit", _start_limit)
REDIS: Final = Side("redis", _start_redis, "redis", "redis-server")
SIDES: Final = (OURS, KEYED, BACKWARDS, TLS, HAT, LIMIT, REDIS)


def in_turn(number: int, sides: Sequence[Side] = (OURS, HAT)) -> list[Side]:
    """Sides in the order of a round: none is always the first."""
    first = number % len(sides)
    return [*sides[first:], *sides[:first]]


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


def sample_of(job: Job, outcome: Outcome, unit: str) -> Sample:
    """What a row is told: the median time (``ms``), or the rate of events, pings or queries."""
    count = job.requests // job.connections * job.connections
    if job.kind == "register":
        count *= job.events_per_request
    return Sample(
        outcome.median_s * 1_000 if unit == "ms" else count / outcome.seconds,
        outcome.server_cpu_s / count * 1e6,
        outcome.p99_s * 1_000,
        is_client_busy=outcome.client_cpu_s > CLIENT_BUSY * outcome.seconds,
    )


async def do_in_process(job: Job | RsbJob) -> Outcome:
    """As :func:`do`, always in a process of its own."""
    module = client if isinstance(job, Job) else rsb_client
    async with running(sys.executable, "-m", module.__name__) as process:
        return await finish(process, Outcome, msgspec.json.encode(job))


@contextlib.asynccontextmanager
async def running(*command: str) -> AsyncIterator[Process]:
    """A process with pipes, in the checkout; it is killed on the way out, if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT
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


def used_bytes(directory: Path) -> int:
    """Blocks that a store (``events*``) has on disk: of files with holes (LMDB) what they use."""
    files = [file for path in directory.glob("events*") for file in (path, *path.rglob("*"))]
    return sum(file.stat().st_blocks * 512 for file in files)
