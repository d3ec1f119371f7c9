"""Many connections while operators look: no lost or doubled notification, flat memory.

``mariner status --watch`` reads all the time, and somebody has the console open in a real
browser, where it also follows the events of one group. ``mariner ping`` measures what others pay.
"""

import asyncio
import contextlib
import random
import re
import resource
import signal
import statistics
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from eventer_bridge import limits
from eventer_bridge.model import JsonPayload, RegisterEvent
from mariner import client
from mariner.gateway.status import GatewayStatus
from tests.console.browsing import PROGRAM, Seen, browser, logged_in
from tests.console.support import console, watched
from tests.support.gateway import Gateway, gateway
from tests.support.hat_peers import CLIENTS
from tests.support.process import tail, wait_ready
from tests.torture.attacks.observer import Times
from tests.torture.clients import connected
from tests.torture.crowd_clients import CROWD, GROUP, Crowd, configured, crowd
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress, UnavailableError

N_IDLE: int = 2_000
N_ACTIVE: int = 200

ROUND_S: float = 60.0

FILL_EVENTS: int = 1_000_000
"""Stored before: the buffers and the cache of the store, which are bounded, are full then."""

FILL_SESSION_EVENTS: Final = 100
FILL_IN_FLIGHT: Final = 16

MAX_GROWTH_BYTES: int = 4 * limits.MERGED_BUFFERS * limits.WRITE_BUFFER_BYTES
"""Of a process, from the second fifth to the last one, by their medians. Buffers of the store are
full at one time and empty at another. In five minutes there are 180 s between the two, in which
720,000 events are notified: 50 bytes kept for each would be more than this."""

STATUS_PERIOD_S: Final = 1.0
PING_PERIOD_S: Final = 0.05
SAMPLE_PERIOD_S: Final = 0.25
LOOK_PERIOD_S: Final = 2.0
"""For how long a panel of the console is looked at."""

SPARE_FILES: Final = 500
"""Descriptors of a gateway besides its connections, and of this process."""

_EXIT_INTERRUPTED: Final = 128 + signal.SIGINT


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Work for ``rounds`` minutes.

    Raises:
        ViolationError: a notification was lost, doubled or out of order, a connection was closed,
            memory grew, or an operator was told something else.
        UnavailableError: there is no browser, or there are too few descriptors.
    """
    if PROGRAM is None:
        raise UnavailableError("no Chromium")
    _allow_files(N_IDLE + N_ACTIVE + SPARE_FILES)
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        running = await enter(
            gateway(directory, clients=[*CLIENTS, *configured(N_ACTIVE)], http=True)
        )
        await _fill(running)
        here = await enter(crowd(running, N_IDLE, N_ACTIVE, chance))
        control = str(directory / "events" / "control.sock")
        shown = await enter(console(directory, [watched(running, control=control)]))
        seen = await enter(logged_in(await enter(browser()), shown.url))
        await _follow(seen)
        status = directory / "status.jsonl"
        watching = await enter(_watching(directory / "gateway.json", status))
        pings = directory / "pings.jsonl"
        await enter(_pinging(running, pings))
        memory = FlatMemory(
            {"gateway": running.pid, "console": shown.process.pid, "status": watching.pid}
        )
        here.begin()
        async with _looking(seen) as looks:
            await _work(rounds, here, memory, looks, progress)
        await here.finish()
        await _check_followed(seen, here)
    n_statuses = _check_status(status, rounds * ROUND_S)
    return _told(here, looks.n, n_statuses, memory, _times(pings))


async def _fill(running: Gateway) -> None:
    """Store events that nobody hears of."""
    numbers = iter(range(0, FILL_EVENTS, FILL_SESSION_EVENTS))

    async def register(connection: client.Client) -> None:
        for number in numbers:
            events = [
                RegisterEvent(("fill", str(i)), None, JsonPayload.of({"position": number}))
                for i in range(FILL_SESSION_EVENTS)
            ]
            await connection.register(events)

    async with connected(running) as connection:
        await asyncio.gather(*(register(connection) for _ in range(FILL_IN_FLIGHT)))


def _told(here: Crowd, n_looks: int, n_statuses: int, memory: "FlatMemory", pings: Times) -> str:
    n_registered = sum(i.n_registered for i in here.active)
    n_heard = sum(i.n_heard for i in here.active)
    return (
        f"{N_IDLE} idle and {N_ACTIVE} active connections; {n_registered} events registered,"
        f" {n_heard} notified, each once and in order; {n_statuses} statuses, {n_looks} looks at"
        f" the console; {memory.check()}; pings {pings} (median/p99/most) of {pings.n}"
    )


async def _work(
    rounds: int, here: Crowd, memory: "FlatMemory", looks: "_Looks", progress: Progress
) -> None:
    """Let them work, and look at it."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while (passed_s := loop.time() - began_s) < rounds * ROUND_S:
        memory.sample(passed_s / (rounds * ROUND_S))
        here.look()
        looks.check()
        progress(int(passed_s / ROUND_S), rounds)
        await asyncio.sleep(SAMPLE_PERIOD_S)
    progress(rounds, rounds)


def _allow_files(n_files: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < n_files:
        raise UnavailableError(f"a process may have {hard} descriptors, {n_files} are needed")
    if soft != resource.RLIM_INFINITY and soft < n_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, hard))  # the gateway inherits it


class FlatMemory:
    """Resident memory of processes, by fifths of the time.

    Args:
        pids: of processes, by their name.
    """

    def __init__(self, pids: dict[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._sizes: dict[str, list[list[int]]] = {name: [[] for _ in range(5)] for name in pids}

    def sample(self, part: float) -> None:
        """Look at them now; ``part`` of the time has passed."""
        for name, process in self._processes.items():
            self._sizes[name][min(4, int(part * 5))].append(process.memory_info().rss)

    def check(self) -> str:
        """Compare medians: the first fifth is a warm-up.

        Raises:
            ViolationError: one of them grew.
        """
        facts = []
        for name, sizes in self._sizes.items():
            medians = [statistics.median(i) for i in sizes if i]
            facts.append(f"{name} {'/'.join(f'{i / 1e6:.0f}' for i in medians)} MB")
            if medians[-1] - medians[1] > MAX_GROWTH_BYTES:
                raise ViolationError(f"memory is not flat: {facts[-1]}")
        return "memory by fifths of the time: " + ", ".join(facts)


async def _follow(seen: Seen) -> None:
    """Follow the events of the first group, none of which is there yet."""
    await seen.open("Tail")
    await seen.page.get_by_label("Types").last.fill(f"{CROWD}/0/*")
    await seen.page.keyboard.press("Enter")
    await seen.until("0 so far")


async def _check_followed(seen: Seen, here: Crowd) -> None:
    """The console was told as much as the members of the group; it says so, or this times out."""
    n_registered = sum(i.n_registered for i in here.active[:GROUP])
    await seen.open("Tail")
    await seen.page.get_by_text(re.compile(f"^{n_registered:,} so far")).wait_for()


class _Looks:
    """Looks at the console in a browser. Created by :func:`_looking`.

    Attributes:
        n: how many there were.
    """

    def __init__(self, seen: Seen) -> None:
        self.n = 0
        self._is_over = asyncio.Event()
        self._task = asyncio.create_task(self._look(seen))

    async def _look(self, seen: Seen) -> None:
        panels = {
            "Overview": "OPERATIONAL",
            "Clients": "active-",
            "Store": "Events",
            "Tail": "so far",
        }
        while True:
            for panel, text in panels.items():
                await seen.open(panel)
                await seen.page.get_by_text(text).locator("visible=true").first.wait_for()
                self.n += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_over.wait(), LOOK_PERIOD_S)
                    return

    def check(self) -> None:
        """Raise what went wrong so far."""
        if self._task.done():
            self._task.result()

    async def end(self) -> None:
        """Finish the look that is under way."""
        self._is_over.set()
        await self._task


@contextlib.asynccontextmanager
async def _looking(seen: Seen) -> AsyncIterator[_Looks]:
    looks = _Looks(seen)
    try:
        yield looks
    finally:
        await looks.end()


@contextlib.asynccontextmanager
async def _watching(conf: Path, output: Path) -> AsyncIterator[Process]:
    """``mariner status --watch``, until it is interrupted."""
    arguments = "--conf", str(conf), "--watch", "--json", "--interval", str(STATUS_PERIOD_S)
    async with _command("status", *arguments, output=output, code=_EXIT_INTERRUPTED) as process:
        yield process


@contextlib.asynccontextmanager
async def _pinging(running: Gateway, output: Path) -> AsyncIterator[None]:
    """``mariner ping`` of a client that does nothing else."""
    where = "--host", running.host, "--port", str(running.port)
    how = "--name", "app", "--token", "secret", "--interval", str(PING_PERIOD_S)
    async with _command("ping", *where, *how, "--count", "0", "--json", output=output, code=0):
        yield


@contextlib.asynccontextmanager
async def _command(*arguments: str, output: Path, code: int) -> AsyncIterator[Process]:
    """Run ``mariner``, and interrupt it (SIGINT) when it has written something.

    Raises:
        ChildError: it ended before that.
        ViolationError: it ended later by itself, or with another exit code.
    """
    with output.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mariner", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )

    async def probe() -> str | None:
        return tail(output) or None

    try:
        await wait_ready(process, output, probe)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        ended_with = await process.wait()
    if ended_with != code:
        raise ViolationError(f"{arguments[0]}: exit code {ended_with}: {tail(output)}")


def _check_status(output: Path, seconds: float) -> int:
    """Statuses that were told; each has all connections.

    Raises:
        ViolationError: one of them has not, or there are too few.
    """
    statuses = [
        msgspec.json.decode(line, type=GatewayStatus) for line in output.read_bytes().splitlines()
    ]
    for status in statuses:
        n_connections = status.wires["mariner"].connections
        # the console, ping, and the tail of the console are not always there
        if not 0 <= n_connections - N_IDLE - N_ACTIVE <= 3:
            raise ViolationError(f"status tells of {n_connections} connections")
    if len(statuses) < seconds / STATUS_PERIOD_S / 2:
        raise ViolationError(f"{len(statuses)} statuses in {seconds:.0f} s")
    return len(statuses)


def _times(output: Path) -> Times:
    lines: list[dict[str, Any]] = [
        msgspec.json.decode(line) for line in output.read_bytes().splitlines()
    ]
    return Times.of([line["time_ms"] / 1_000 for line in lines if "time_ms" in line])
