"""Runs the scenarios on both sides in turn.

Only one side's server runs at a time, and every measurement has a client process of its
own (``client``). Scenarios on an empty store get a new directory each round; those on a
filled store share one that is filled once.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import psutil

from tests.perf.client import Connection, Job, Outcome
from tests.perf.report import Bound, Measure
from tests.perf.scenarios import NAMES, ON_EMPTY, ON_FILLED, Scenario, Sizes
from tests.support.gateway import gateway
from tests.support.hat_peers import hat_gateway
from tests.support.process import ChildError

ROOT: Final = Path(__file__).parents[2]

JOB_TIMEOUT_S: Final = 300.0
"""Of one client process; hat-event needs about 10 s for the longest."""

FILL_REQUEST_EVENTS: Final = 1_000

FILL_REQUESTS: Final = 50
"""Requests of one client process while filling; bounds its memory to about 50 MB."""


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


async def run(
    directory: Path, sizes: Sizes, names: frozenset[str] = frozenset(NAMES)
) -> list[Measure]:
    """Run scenarios on both sides.

    Args:
        directory: empty; stores go there.
        sizes: ``scenarios.FULL`` or ``scenarios.SMALL``.
        names: which, out of ``scenarios.NAMES``.

    Returns:
        A measure for each scenario, in the order of the tables.

    Raises:
        ChildError: a server or a client failed; an answer was not right.
    """
    empty = [i for i in ON_EMPTY if i.name in names]
    filled = [i for i in ON_FILLED if i.name in names]
    measures = {
        i.name: Measure(i.name, i.title, i.unit, i.target, Bound.SPEED_UP) for i in empty + filled
    }
    measures |= {i.name: i for i in _records(sizes) if i.name in names}

    for number in range(sizes.rounds if empty else 0):
        for side in _in_turn(number):
            await _run_round(side, _new(directory, side, f"empty-{number}"), empty, sizes, measures)
    stores = {side.name: _new(directory, side, "filled") for side in SIDES}
    if filled or "disk" in names:
        for side in SIDES:
            await _fill_store(side, stores[side.name], sizes, measures)
    for number in range(sizes.rounds if filled else 0):
        for side in _in_turn(number):
            await _run_round(side, stores[side.name], filled, sizes, measures)
    if "memory" in names:
        await _measure_memory(_new(directory, OURS, "many"), sizes, measures["memory"])
    if "idle-connection" in names:
        for side in SIDES:
            path = _new(directory, side, "idle")
            await _measure_idle(side, path, sizes, measures["idle-connection"])
    if "slow-subscriber" in names:
        path = _new(directory, OURS, "slow-subscriber")
        await _measure_slow_subscriber(path, sizes, measures["slow-subscriber"])
    return list(measures.values())


def _records(sizes: Sizes) -> list[Measure]:
    """What is recorded besides the scenarios."""
    return [
        Measure("disk", f"bytes on disk an event, {sizes.stored:,} stored", "B"),
        Measure(
            "memory", f"memory (RSS) with {sizes.many:,} stored events", "MB", 300, Bound.AT_MOST
        ),
        Measure(
            "idle-connection",
            f"memory (RSS) of an idle connection, of {sizes.idle}",
            "kB",
            30,
            Bound.AT_MOST,
        ),
        Measure("slow-subscriber", "register p99: with a deaf subscriber", "x", 2, Bound.AT_MOST),
    ]


def _in_turn(number: int) -> tuple[Side, ...]:
    return SIDES if number % 2 == 0 else SIDES[::-1]


def _new(directory: Path, side: Side, name: str) -> Path:
    path = directory / f"{side.name}-{name}"
    path.mkdir()
    return path


async def _run_round(
    side: Side,
    directory: Path,
    scenarios: list[Scenario],
    sizes: Sizes,
    measures: dict[str, Measure],
) -> None:
    async with side.start(directory) as server:
        for scenario in scenarios:
            requests = scenario.counts.small if sizes.small else getattr(scenario.counts, side.name)
            job = Job(
                server.host,
                server.port,
                scenario.kind,
                requests=requests,
                warm_up=max(1, requests // 20),
                in_flight=scenario.in_flight,
                events_per_request=scenario.events_per_request,
                stored=sizes.stored,
            )
            outcome = await _do(job)
            value = (
                outcome.median_s * 1_000
                if scenario.unit == "ms"
                else requests * scenario.events_per_request / outcome.seconds
            )
            measures[scenario.name].add(side.name, value)


async def _fill_store(
    side: Side, directory: Path, sizes: Sizes, measures: dict[str, Measure]
) -> None:
    async with side.start(directory) as server:
        await _fill(server, sizes.stored)
    if "disk" in measures:
        used_bytes = _used_bytes(directory, side.store)
        measures["disk"].add(side.name, used_bytes / sizes.stored)


async def _fill(server: Server, events: int) -> None:
    """Register the events 0 to ``events``, a multiple of ``FILL_REQUEST_EVENTS``."""
    step = FILL_REQUESTS * FILL_REQUEST_EVENTS
    for first in range(0, events, step):
        requests = min(step, events - first) // FILL_REQUEST_EVENTS
        await _do(
            Job(
                server.host,
                server.port,
                "register",
                requests=requests,
                in_flight=4,
                events_per_request=FILL_REQUEST_EVENTS,
                first=first,
            )
        )


async def _measure_memory(directory: Path, sizes: Sizes, measure: Measure) -> None:
    """Ours only: hat-event would need some minutes to store as many."""
    async with OURS.start(directory) as server:
        await _fill(server, sizes.many)
        rss_bytes = sum(psutil.Process(pid).memory_info().rss for pid in server.pids)
        measure.add(OURS.name, rss_bytes / 1e6)


async def _measure_idle(side: Side, directory: Path, sizes: Sizes, measure: Measure) -> None:
    async with side.start(directory) as server:
        job = Job(
            server.host,
            server.port,
            "idle",
            requests=sizes.idle,
            warm_up=sizes.idle // 10,
            pids=server.pids,
        )
        measure.add(side.name, (await _do(job)).bytes_per_connection / 1e3)


async def _measure_slow_subscriber(directory: Path, sizes: Sizes, measure: Measure) -> None:
    """Ours only: one in flight, with and without a subscriber that never reads, in turn."""
    async with OURS.start(directory) as server:
        first = 0
        for _ in range(sizes.rounds):
            p99_s = []
            for is_beside_one in (False, True):
                slow = Connection(server.host, server.port, [["*"]]) if is_beside_one else None
                job = Job(
                    server.host,
                    server.port,
                    "register",
                    requests=sizes.latencies,
                    warm_up=100,
                    first=first,
                )
                p99_s.append((await _do(job)).p99_s)
                first += sizes.latencies + 100
                if slow is not None:
                    slow.close()
            measure.add(OURS.name, p99_s[1] / p99_s[0])


async def _do(job: Job) -> Outcome:
    """Run a client process.

    Raises:
        ChildError: it failed; the message has its traceback.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.perf.client",
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


def _used_bytes(directory: Path, store: str) -> int:
    """Blocks that a store has on disk: files with holes (LMDB) count what they use."""
    path = directory / store
    files = [path, *path.rglob("*")] if path.is_dir() else list(directory.glob(f"{store}*"))
    return sum(file.stat().st_blocks * 512 for file in files)
