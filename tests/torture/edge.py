"""Exactly once, from writers to readers, whatever is killed and cut.

Writers and readers are processes of their own (``edge_client``), which journal what they do. Each
writer sends a request again, under its key, until it is answered. Each reader has a cursor; one
cursor has two, who take it from each other. In a round some of them are killed (``kill -9``), and
so is the gateway, or it is stopped; connections are cut at any byte all the time, while retention
deletes what others write beside. In the end ``edge_history`` compares.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final

from eventer_bridge.model import Event, QueryServerParams, RegisterEvent
from mariner.errors import ClosedError, OutcomeUnknownError, RegisterError
from tests.support import proxy
from tests.support.gateway import Gateway, gateway
from tests.torture.clients import connected
from tests.torture.edge_client import TYPE, Reader, Writer
from tests.torture.edge_history import End, History
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress

N_WRITERS: Final = 3
READERS: Final = ("reader-0", "reader-1", "reader-2", "reader-2.rival")

KILLED: Final = 0.15
"""How often each of them is killed in a round."""

ROUNDS_OF_A_GATEWAY: Final = 4
"""Rounds, the last of which ends it."""

MAX_WORK_S: Final = 0.3
"""How long a round works, after something was journaled, before something happens."""

MAX_CUT_BYTES: Final = 100_000
"""Connections are cut after so many bytes at the most; but for every fifth one, which passes a page
of a replay to those who are far behind."""

TIMEOUT_S: Final = 120.0
"""Until something has been written and read; and in the end, until all has."""

POLL_INTERVAL_S: Final = 0.02

RETENTION: Final = [{"subscriptions": [["noise"]], "max_entries": 50}]


def plans(chance: random.Random) -> Iterator[proxy.Plan]:
    """What is done to connections."""
    for number, plan in enumerate(proxy.by_chance(chance, MAX_CUT_BYTES), 1):
        yield plan if number % 5 else proxy.PASS


class Clients:
    """The processes of writers and readers.

    Args:
        directory: where their journals are.
        ports: of the gateways.
        chance: whom it hits.

    Attributes:
        n_kills: how many were killed.
    """

    def __init__(self, directory: Path, ports: Sequence[int], chance: random.Random) -> None:
        self.n_kills = 0
        self._directory = directory
        self._ports = ports
        self._chance = chance
        self._running: dict[str, Process] = {}

    async def run(self) -> None:
        """Start those that are not running."""
        names = (*(f"writer-{i}" for i in range(N_WRITERS)), *READERS)
        for name in names:
            if name not in self._running:
                self._running[name] = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.torture.edge_client", str(self._directory)),
                    *(name, *map(str, self._ports)),
                    stdin=asyncio.subprocess.DEVNULL,
                )

    async def kill(self, share: float = 1.0) -> None:
        """Kill some of them, or all."""
        for name in [*self._running]:
            if self._chance.random() < share:
                process = self._running.pop(name)
                if process.returncode is not None:
                    raise ViolationError(f"{name} ended by itself: {process.returncode}")
                process.kill()
                await process.wait()
                self.n_kills += 1

    async def work(self) -> None:
        """Let them write and read something."""
        begun = self._journaled()
        async with in_time("nobody writes, or nobody reads"):
            while any(len(i) <= 1 for i in self._grown(begun)):
                await asyncio.sleep(POLL_INTERVAL_S)
        await asyncio.sleep(self._chance.uniform(0, MAX_WORK_S))

    def _journaled(self) -> dict[Path, int]:
        return {i: i.stat().st_size for i in self._directory.glob("*er-*")}

    def _grown(self, begun: dict[Path, int]) -> tuple[list[Path], list[Path]]:
        """Of writers and of readers, those whose journals grew, and one more."""
        grown = [i for i, size in self._journaled().items() if size > begun.get(i, 0)]
        return tuple(  # type: ignore[return-value]
            [Path(), *(i for i in grown if i.name.startswith(role))]
            for role in ("writer", "reader")
        )

    async def finish(self, events: Sequence[Event]) -> None:
        """Have what is there be read; nobody is cut any more."""
        ids = [event.id for event in events if event.type[0] == TYPE]
        async with in_time("not all events come to all readers"):
            for name in READERS[:-1]:
                await Reader(self._directory, name).run(self._ports, ids)

    async def write_rest(self) -> None:
        """Have what was begun be answered."""
        async with in_time("not all requests are answered"):
            for i in range(N_WRITERS):
                await Writer(self._directory, i).run(self._ports, is_last=True)


@contextlib.asynccontextmanager
async def in_time(problem: str) -> AsyncIterator[None]:
    """Raises ViolationError with this problem if it takes too long."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield
    except TimeoutError:
        raise ViolationError(f"{problem}, within {TIMEOUT_S:g} s") from None


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Have something happen ``rounds`` times.

    Raises:
        ViolationError: an event is missing, stored twice, or was read in another way.
    """
    core = {
        "backend": {"type": "rocksdb", "path": str(directory / "store"), "retention": RETENTION}
    }
    ends: list[End] = []
    n_done = port = 0
    async with contextlib.AsyncExitStack() as stack:
        while n_done < rounds:
            async with gateway(directory, core=core, port=port) as running, _noise(running):
                if not port:
                    port = running.port
                    link = proxy.create(port, plans(chance))
                    await stack.enter_async_context(link)
                    clients = Clients(directory, [link.port], chance)
                    stack.push_async_callback(clients.kill)
                for _ in range(min(ROUNDS_OF_A_GATEWAY, rounds - n_done)):
                    await clients.run()
                    await clients.work()
                    await clients.kill(KILLED)
                    n_done += 1
                    progress(n_done, rounds)
                since_s = time.monotonic()
                if is_kill := chance.random() < 0.7:
                    os.kill(running.pid, signal.SIGKILL)
                    await running.process.wait()
            ends.append(End(since_s, time.monotonic(), is_kill))
        await clients.kill()
        async with gateway(directory, core=core, port=port) as running:
            finishing = Clients(directory, [port], chance)
            await finishing.write_rest()
            async with connected(running) as connection:
                params = QueryServerParams(1, persisted=True)
                stored = [event async for event in connection.query_all(params)]
            await finishing.finish(stored)
    return _facts(rounds, ends, link.n_cuts, clients.n_kills, History(directory, stored, ends))


def _facts(rounds: int, ends: Sequence[End], n_cuts: int, n_kills: int, history: History) -> str:
    n_again = history.check_writers()
    n_cursors = history.check_readers()
    return (
        f"{rounds} rounds, {sum(i.is_kill for i in ends)} kills of the gateway, {n_kills} of"
        f" writers and readers, {n_cuts} connections cut; {history.n_events} events, each stored"
        f" once; {n_again} requests sent again; each read in order with {n_cursors} cursors, which"
        f" never went back, but for what was acknowledged {history.lost_s:.2f} s or less before a"
        f" kill; {history.n_read_again} events read again"
    )


@contextlib.asynccontextmanager
async def _noise(running: Gateway) -> AsyncIterator[None]:
    """Events that retention deletes."""

    async def register() -> None:
        with contextlib.suppress(ClosedError, RegisterError, OutcomeUnknownError):
            async with connected(running) as connection:
                while True:
                    await connection.register([RegisterEvent(("noise",), None, None)] * 20)

    task = asyncio.create_task(register())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
