"""The same as ``edge``, with a pair: one gateway takes over from the other.

The first one, which is preferred, is active, until it is killed or stopped; the second one takes
over, and hands back when the first one returns, or is killed as well. What was answered is stored,
and both have the same in the end. A request is stored once by each gateway that it was sent to, and
each has its own cursors.

The first one may also return with an empty store, or a backup; or it stands still (SIGSTOP), and
goes on. The clock of the second one is behind: what it registers is newer all the same. Both have a
retention rule for everything that others have no rule for.
"""

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from eventer_bridge.backends import rocksdb
from eventer_bridge.model import (
    Event,
    QueryLatestParams,
    QueryServerParams,
    RegisterEvent,
    Status,
)
from mariner.client.client import Client
from tests.support import proxy
from tests.support.gateway import Gateway
from tests.support.pair import StartCb, pair
from tests.support.restoring import restore
from tests.torture.clients import connected
from tests.torture.edge import KILLED, POLL_INTERVAL_S, Clients, in_time, plans
from tests.torture.edge_client import TYPE
from tests.torture.edge_history import FIRST, End, History
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress
from tests.torture.shifted_clock import CLOCK_FILE, write_offset

SECOND: Final = 2

MARK: Final = ("mark",)

BEHIND_S: Final = 30.0
"""How far the clock of the second one is behind."""

RETENTION: Final = [
    {"subscriptions": [[TYPE, "*"]], "max_entries": 10_000_000},
    {"subscriptions": [["*"]], "max_entries": 20},
]

MAX_SILENT_S: Final = 60.0
"""Until the other one is active if the active one stands still: what docs/delivery.md says, and
some seconds for a busy machine."""


class Pair:
    """Two gateways, one of which is active.

    Attributes:
        ends: of the active one.
        n_kills: how many gateways were killed.
        n_take_overs: how often another one became the active one.
        n_lost: how often a store was lost.
        silent_s: how long nobody was active when one stood still.
    """

    def __init__(self, directory: Path, start: StartCb) -> None:
        self.ends: list[End] = []
        self.n_kills = 0
        self.n_take_overs = 0
        self.n_lost = 0
        self.silent_s: list[float] = []
        self.store = directory / str(FIRST) / "events"
        self.backup = directory / "backup"
        self._directory = directory
        self.running: dict[int, Gateway] = {}
        self._start = start
        self._ports = {FIRST: 0, SECOND: 0}

    async def start(self, server: int) -> None:
        """Start one."""
        clock = self._directory / f"clock{server}"
        write_offset(clock, -BEHIND_S if server == SECOND else 0.0)
        path = str(self._directory / str(server) / "events")
        gateway = await self._start(
            server,
            port=self._ports[server],
            how={"program": "tests.torture.shifted_clock", "environment": {CLOCK_FILE: str(clock)}},
            backend={"type": "rocksdb", "path": path, "retention": RETENTION},
        )
        self.running[server] = gateway
        self._ports[server] = gateway.port

    async def end(self, server: int, number: signal.Signals, *, is_lost: bool = False) -> None:
        """Kill the active one, or have it end; its store may be lost then."""
        since_s = time.monotonic()
        gateway = self.running.pop(server)
        os.kill(gateway.pid, number)
        await gateway.process.wait()
        is_kill = number is signal.SIGKILL
        self.n_kills += is_kill
        self.ends.append(End(since_s, time.monotonic(), is_kill, server, is_lost))

    async def took_over(self, server: int) -> None:
        """Wait until a server is active."""
        async with (
            in_time("the other gateway does not take over"),
            connected(self.running[server]) as connection,
        ):
            await connection.wait_status(Status.OPERATIONAL)
            self.n_take_overs += 1
            (mark,) = await connection.register([RegisterEvent(MARK, None, None)])
            if (await connection.query(QueryLatestParams([MARK]))).events != [mark]:
                raise ViolationError("an older event counts as newer than one that came later")

    async def hand_back(self) -> None:
        """Start the first one, and wait until it is active."""
        since_s = time.monotonic()
        await self.start(FIRST)
        await self.took_over(FIRST)
        self.ends.append(End(since_s, time.monotonic(), is_kill=False, gateway=SECOND))

    async def stand_still(self) -> None:
        """Stop the first one, until the second one is active."""
        since_s = time.monotonic()
        os.kill(self.running[FIRST].pid, signal.SIGSTOP)
        await self.took_over(SECOND)
        self.silent_s.append(time.monotonic() - since_s)
        if self.silent_s[-1] > MAX_SILENT_S:
            raise ViolationError(f"nobody was active for {self.silent_s[-1]:.0f} s")
        self.ends.append(End(since_s, time.monotonic(), is_kill=True))

    async def go_on(self) -> None:
        """Have the first one go on, and wait until it is the active one, as it is preferred."""
        since_s = time.monotonic()
        os.kill(self.running[FIRST].pid, signal.SIGCONT)
        async with in_time("the second one stays active"), connected(self.running[SECOND]) as at:
            await at.wait_status(Status.STANDBY)
        await self.took_over(FIRST)
        self.ends.append(End(since_s, time.monotonic(), is_kill=False, gateway=SECOND))

    async def catch_up(self) -> None:
        """Wait until the second one has what the first one has by now."""
        async with (
            in_time("the standby does not catch up"),
            connected(self.running[FIRST]) as first,
            connected(self.running[SECOND]) as second,
        ):
            await first.wait_status(Status.OPERATIONAL)
            (mark,) = await first.register([RegisterEvent(MARK, None, None)])
            while mark not in (await second.query(QueryLatestParams([MARK]))).events:
                await asyncio.sleep(POLL_INTERVAL_S)


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Have something happen to a pair ``rounds`` times.

    Raises:
        ViolationError: an event is missing, stored too often, or was read in another way.
    """
    for name in ("monitor1", "monitor2", "1", "2"):
        (directory / name).mkdir()
    async with pair(directory) as (start, _):
        gateways = Pair(directory, start)
        await gateways.start(FIRST)
        await gateways.start(SECOND)
        ports = [gateways.running[i].port for i in (FIRST, SECOND)]
        first, second = (proxy.create(port, plans(chance)) for port in ports)
        async with first, second:
            clients = Clients(directory, [first.port, second.port], chance)
            try:
                for n in range(1, rounds + 1):
                    await _round(gateways, clients, chance)
                    progress(n, rounds)
            finally:
                await clients.kill()
            await gateways.catch_up()
            finishing = Clients(directory, ports, chance)
            await finishing.write_rest()
            stored = await _stored(gateways)
            await finishing.finish(stored)
            n_cuts = first.n_cuts + second.n_cuts
    history = History(directory, stored, gateways.ends)
    n_again = history.check_writers()
    n_cursors = history.check_readers()
    silent = ", ".join(f"{i:.0f} s" for i in gateways.silent_s)
    return (
        f"{rounds} rounds, {gateways.n_take_overs} take-overs, {gateways.n_kills} kills of"
        f" gateways, {gateways.n_lost} stores lost or set back, {len(gateways.silent_s)} times one"
        f" stood still (until the other one was active: {silent or '-'}), {clients.n_kills} kills"
        f" of writers and readers, {n_cuts} connections cut;"
        f" {history.n_events} events; {n_again} requests sent again, {history.n_twice} of them"
        f" stored by both gateways; each event read in order with {n_cursors} cursors, which never"
        f" went back at a gateway, but for what was acknowledged {history.lost_s:.2f} s or less"
        f" before a kill; {history.n_read_again} events read again"
    )


async def _round(gateways: Pair, clients: Clients, chance: random.Random) -> None:
    await clients.run()
    await clients.work()
    await clients.kill(KILLED)
    await gateways.catch_up()
    await asyncio.sleep(chance.uniform(0, 0.1))
    [fault] = chance.choices([*FAULTS], [*FAULTS.values()])
    await fault(gateways, clients, chance)


async def _kill_first(gateways: Pair, clients: Clients, chance: random.Random) -> None:
    await gateways.end(FIRST, signal.SIGKILL)
    await gateways.took_over(SECOND)
    await _work(clients)
    await gateways.hand_back()


async def _stop_first(gateways: Pair, clients: Clients, chance: random.Random) -> None:
    await gateways.end(FIRST, signal.SIGTERM)
    await gateways.took_over(SECOND)
    await _work(clients)
    await gateways.hand_back()


async def _kill_both(gateways: Pair, clients: Clients, chance: random.Random) -> None:
    await gateways.end(FIRST, signal.SIGKILL)
    await gateways.took_over(SECOND)
    await _work(clients)
    await gateways.end(SECOND, signal.SIGKILL)
    await gateways.start(FIRST)
    await gateways.took_over(FIRST)
    await gateways.start(SECOND)


async def _kill_second(gateways: Pair, clients: Clients, chance: random.Random) -> None:
    os.kill(gateways.running[SECOND].pid, signal.SIGKILL)
    await gateways.running[SECOND].process.wait()
    gateways.n_kills += 1
    await gateways.start(SECOND)


async def _lose_store(gateways: Pair, clients: Clients, chance: random.Random) -> None:
    """The first one returns with an empty store, or with a backup."""
    store, backup = gateways.store, gateways.backup
    await asyncio.to_thread(rocksdb.checkpoint, store, backup)
    await _work(clients)
    await clients.kill()
    await gateways.catch_up()  # what the second one does not have would be lost
    await gateways.end(FIRST, signal.SIGKILL, is_lost=True)
    await gateways.took_over(SECOND)
    await _work(clients)
    shutil.rmtree(store)
    what = chance.randrange(3)
    if what == 1:
        shutil.copytree(backup, store)
    elif what == 2:
        await asyncio.to_thread(restore, backup, store)
    shutil.rmtree(backup)
    gateways.n_lost += 1
    await gateways.hand_back()


async def _stand_still(gateways: Pair, clients: Clients, chance: random.Random) -> None:
    await clients.kill()
    await gateways.stand_still()
    await _work(clients)
    await gateways.go_on()


async def _work(clients: Clients) -> None:
    await clients.run()
    await clients.work()
    await clients.kill(KILLED)


FAULTS: Final[dict[Callable[[Pair, Clients, random.Random], Awaitable[None]], float]] = {
    _kill_first: 0.4,
    _stop_first: 0.15,
    _kill_both: 0.15,
    _kill_second: 0.15,
    _lose_store: 0.12,
    _stand_still: 0.03,
}
"""What happens, and how often."""


async def _stored(gateways: Pair) -> list[Event]:
    """What both have, as soon as they have the same."""
    async with (
        in_time("the gateways do not have the same events"),
        connected(gateways.running[FIRST]) as first,
        connected(gateways.running[SECOND]) as second,
    ):
        while (events := await _all(first)) != await _all(second):
            await asyncio.sleep(POLL_INTERVAL_S)
        return events


async def _all(connection: Client) -> list[Event]:
    return [
        event
        for server in (FIRST, SECOND)
        async for event in connection.query_all(QueryServerParams(server, persisted=True))
        if event.type[0] == "edge"
    ]
