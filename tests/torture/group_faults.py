"""What fails in a group: its gateways, its database, and what is between them.

Each fault is over, and all is well again but for what follows by itself, when its coroutine ends.
"""

import asyncio
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from tests.support import proxy
from tests.support.postgresql import Node
from tests.support.proxy import PASS
from tests.torture.group_site import GroupSite, Machine
from tests.torture.group_traffic import Traffic

MAX_CLOCK_S: Final = 3_600.0
MAX_CUT_BYTES: Final = 30_000

MAX_EARLY_S: Final = 0.5
"""How soon something is well again after another gateway took over."""


class Rig:
    """A group, its clients, and what was counted and measured in all rounds.

    Attributes:
        now: what fails in this round.
        is_alone: whether one fault is made at a time: only then are times comparable.
        take_overs_s: from ``kill -9`` to the first acknowledgement of another gateway.
        step_downs_s: from SIGTERM to that.
        stops_s: from SIGSTOP to that.
        promotions_s: from the promotion of a standby to the next acknowledgement.
        memory_bytes: of gateways, after each round.
    """

    def __init__(self, chance: random.Random) -> None:
        self.site: GroupSite
        self.traffic: Traffic
        self.chance = chance
        self.is_alone = True
        self.now = ""
        self.take_overs_s: list[float] = []
        self.step_downs_s: list[float] = []
        self.stops_s: list[float] = []
        self.promotions_s: list[float] = []
        self.memory_bytes: list[int] = []
        self._lags_s: list[float] = []
        self._faults: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

    def begin(self, faults: Sequence["Fault"]) -> None:
        """These are made now."""
        self.is_alone = len(faults) == 1
        self.traffic.is_calm = False
        self.now = " and ".join(i.__name__ for i in faults)
        self._faults.update(i.__name__ for i in faults)

    def add(self, its: Traffic, n_rows: int) -> None:
        """Count what was done with one group; its stores are equal in so many rows."""
        self._lags_s += its.lags_s
        self._counts += Counter(
            acknowledged=len(its.ledger.acknowledged),
            sent=len(its.ledger.sent),
            refused=its.n_refused,
            unknown=its.n_unknown,
            repeated=its.n_repeated,
            rows=n_rows,
        )

    def summary(self) -> str:
        """What was done, counted and measured."""
        faults = ", ".join(f"{n} {name}" for name, n in sorted(self._faults.items()))
        its = self._counts
        return (
            f" ({faults}): {its['acknowledged']} events acknowledged, each stored once;"
            f" {its['sent']} requests, {its['refused']} of them refused, {its['unknown']} with an"
            f" unknown outcome, {its['repeated']} sent again under their keys; stores equal in"
            f" {its['rows']} rows. Seconds until another gateway acknowledged: after kill -9"
            f" {spread(self.take_overs_s)}, SIGSTOP {spread(self.stops_s)}, SIGTERM"
            f" {spread(self.step_downs_s)}; after a standby was promoted"
            f" {spread(self.promotions_s)}; lag of followers {spread(self._lags_s)}; memory of a"
            f" gateway {max(self.memory_bytes) >> 20} MiB at most"
        )

    def active(self) -> Machine:
        """The gateway that was active just now."""
        return self.site.machines[self.traffic.last_machine]

    def follower(self) -> Machine:
        """One that is not."""
        active = self.active()
        return self.chance.choice([i for i in self.site.machines.values() if i is not active])

    async def pause(self, at_most_s: float) -> None:
        """Wait for a time by chance."""
        await asyncio.sleep(self.chance.uniform(0, at_most_s))

    async def elsewhere(self, machine: Machine, since_s: float, times_s: list[float]) -> None:
        """Wait until another gateway has acknowledged something, and note how long that took."""
        took_s = await self.traffic.acknowledged(since_s, other_than=machine.name)
        if self.is_alone:
            times_s.append(took_s)


# --- gateways ---------------------------------------------------------------------------------


async def kill_active(rig: Rig) -> None:
    """kill -9 of the active gateway."""
    machine = rig.active()
    since_s = await machine.end(signal.SIGKILL)
    await rig.elsewhere(machine, since_s, rig.take_overs_s)
    await machine.start()


async def kill_and_restart(rig: Rig) -> None:
    """kill -9 of the active gateway, which is back before another one takes over."""
    machine = rig.active()
    since_s = await machine.end(signal.SIGKILL)
    await machine.start()
    await rig.traffic.acknowledged(since_s)


async def kill_follower(rig: Rig) -> None:
    """kill -9 of another gateway."""
    machine = rig.follower()
    since_s = await machine.end(signal.SIGKILL)
    await rig.traffic.acknowledged(since_s)
    await machine.start()


async def step_down(rig: Rig) -> None:
    """A clean stop of the active gateway."""
    machine = rig.active()
    if rig.is_alone:  # else it may not be able to
        rig.traffic.note_clean_stop()
    since_s = time.monotonic()
    ending = asyncio.create_task(machine.end(signal.SIGTERM))
    await rig.elsewhere(machine, since_s, rig.step_downs_s)
    await ending
    await machine.start()


async def stop_active(rig: Rig) -> None:
    """The active gateway stands still until another one took over, and comes back."""
    machine = rig.active()
    since_s = time.monotonic()
    machine.signal(signal.SIGSTOP)
    try:
        await rig.elsewhere(machine, since_s, rig.stops_s)
        await rig.pause(MAX_EARLY_S)
    finally:
        machine.signal(signal.SIGCONT)


async def nap(rig: Rig) -> None:
    """The active gateway stands still for about as long as others wait."""
    machine = rig.active()
    since_s = time.monotonic()
    machine.signal(signal.SIGSTOP)
    try:
        await rig.pause(rig.site.takeover_s * 1.5)
    finally:
        machine.signal(signal.SIGCONT)
    await rig.traffic.acknowledged(since_s)


async def cut_active(rig: Rig) -> None:
    """Nothing passes between the active gateway and the database, or in one way only."""
    await _cut(rig, rig.active())


async def cut_follower(rig: Rig) -> None:
    """The same of a follower."""
    await _cut(rig, rig.follower())


async def _cut(rig: Rig, machine: Machine) -> None:
    how = rig.chance.choice(((), (0,), (1,), None))
    since_s = time.monotonic()
    for link in machine.links:
        if how is None:
            link.is_refusing = True
            link.cut()
        else:
            link.hold(*how)
    try:
        await rig.pause(rig.site.takeover_s * 2.5)
    finally:
        for link in machine.links:
            link.is_refusing = False
            link.go_on()
    await rig.traffic.acknowledged(since_s)


async def cut_often(rig: Rig) -> None:
    """All links are cut again and again, at any byte."""
    links = [link for machine in rig.site.machines.values() for link in machine.links]
    for link in links:
        link.plans = proxy.by_chance(rig.chance, MAX_CUT_BYTES)
        link.cut()
    await rig.pause(rig.site.takeover_s)
    for link in links:
        link.plans = itertools.repeat(PASS)
        link.cut()
    await rig.traffic.acknowledged(time.monotonic())


async def shift_clock(rig: Rig) -> None:
    """The clock of a gateway jumps."""
    machine = rig.chance.choice([*rig.site.machines.values()])
    machine.shift(rig.chance.uniform(-MAX_CLOCK_S, MAX_CLOCK_S))
    await rig.traffic.acknowledged(time.monotonic())


# --- the database -----------------------------------------------------------------------------


async def kill_primary(rig: Rig) -> None:
    """The primary dies, and a standby is promoted; the old one is made anew."""
    old = rig.site.cluster.primary
    await asyncio.to_thread(old.kill)
    await rig.pause(MAX_EARLY_S)
    await _fail_over(rig)
    await asyncio.to_thread(old.rejoin, rig.site.cluster.primary)
    await rig.site.until_streaming()


async def stop_primary(rig: Rig) -> None:
    """The primary stands still, a standby is promoted; the old one goes on, as the primary."""
    old = rig.site.cluster.primary
    await asyncio.to_thread(old.pause)
    try:
        await _fail_over(rig)
        await rig.pause(MAX_EARLY_S)
    finally:
        await asyncio.to_thread(old.resume)
    await rig.pause(2 * MAX_EARLY_S)
    await asyncio.to_thread(old.rejoin, rig.site.cluster.primary)
    await rig.site.until_streaming()


async def _fail_over(rig: Rig) -> None:
    await asyncio.to_thread(rig.site.cluster.fail_over)
    since_s = time.monotonic()
    took_s = await rig.traffic.acknowledged(since_s)
    if rig.is_alone:
        rig.promotions_s.append(took_s)


async def restart_primary(rig: Rig) -> None:
    """The primary dies, and comes back as itself."""
    primary = rig.site.cluster.primary
    await asyncio.to_thread(primary.kill)
    await rig.pause(rig.site.takeover_s)
    await asyncio.to_thread(primary.start)
    await rig.traffic.acknowledged(time.monotonic())
    await rig.site.until_streaming()


async def nap_primary(rig: Rig) -> None:
    """The primary stands still for about as long as gateways wait."""
    await _stop_for_a_time(rig, rig.site.cluster.primary)


async def stop_standby(rig: Rig) -> None:
    """A standby stands still: the other one is enough."""
    since_s = time.monotonic()
    standby = rig.chance.choice(_standbys(rig))
    await asyncio.to_thread(standby.pause)
    try:
        await rig.traffic.acknowledged(since_s)
    finally:
        await asyncio.to_thread(standby.resume)


async def kill_standby(rig: Rig) -> None:
    """A standby dies."""
    standby = rig.chance.choice(_standbys(rig))
    await asyncio.to_thread(standby.kill)
    await rig.traffic.acknowledged(time.monotonic())
    await asyncio.to_thread(standby.start)
    await rig.site.until_streaming()


async def lose_quorum(rig: Rig) -> None:
    """All standbys stand still: nothing is acknowledged meanwhile."""
    await _stop_for_a_time(rig, *_standbys(rig))


async def _stop_for_a_time(rig: Rig, *nodes: Node) -> None:
    for node in nodes:
        await asyncio.to_thread(node.pause)
    since_s = time.monotonic()
    try:
        await rig.pause(rig.site.takeover_s * 1.5)
        rig.traffic.check_silent(since_s, time.monotonic())
    finally:
        for node in nodes:
            await asyncio.to_thread(node.resume)
    await rig.traffic.acknowledged(since_s)


def _standbys(rig: Rig) -> list[Node]:
    cluster = rig.site.cluster
    return [i for i in cluster.nodes if i is not cluster.primary]


Fault: TypeAlias = Callable[[Rig], Awaitable[None]]

OF_GATEWAYS: Final[Mapping[Fault, float]] = {
    kill_active: 3,
    kill_and_restart: 1,
    kill_follower: 1,
    step_down: 1,
    stop_active: 2,
    nap: 1,
    cut_active: 2,
    cut_follower: 1,
    cut_often: 1,
    shift_clock: 1,
}
"""What fails of the gateways, and how often."""

OF_DATABASE: Final[Mapping[Fault, float]] = {
    kill_primary: 2,
    stop_primary: 2,
    restart_primary: 1,
    nap_primary: 1,
    stop_standby: 1,
    kill_standby: 1,
    lose_quorum: 1,
}
"""Of the database."""


def spread(times_s: Sequence[float]) -> str:
    """Median, 99th percentile and maximum, and of how many."""
    if not times_s:
        return "-"
    ordered = sorted(times_s)
    p50, p99 = (ordered[min(int(len(ordered) * q), len(ordered) - 1)] for q in (0.5, 0.99))
    return f"p50 {p50:.2f}, p99 {p99:.2f}, max {ordered[-1]:.2f} ({len(ordered)})"
