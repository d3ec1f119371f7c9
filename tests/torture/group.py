"""A group of gateways: whatever dies, stands still, or is cut off, loses nothing acknowledged.

Real gateways, a PostgreSQL primary with two standbys and quorum replication, and clients that
register, read and watch all the time. In each round something fails, or two things do: of the
gateways, of the database, or of both. Then all that is stored is compared with what anybody was
told, and the stores of all gateways with each other.
"""

import asyncio
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from eventer_bridge.model import Event, QueryServerParams, QueryTimeseriesParams, RegisterEvent
from mariner.client.client import Client
from tests.support.postgresql import Cluster, cluster
from tests.torture.group_faults import OF_DATABASE, OF_GATEWAYS, Fault, Rig, spread
from tests.torture.group_site import KEPT_MARKS, MARK, group_site
from tests.torture.group_traffic import first_of, place_of, traffic
from tests.torture.ledger import OURS, SERVER_ID, ViolationError, read_store
from tests.torture.report import Progress

TAKEOVER_S: float = 2.0
N_MACHINES: int = 3

ROUNDS: Final = 10
"""With one group; the next ones have another, with empty stores: all is compared each time."""

MIN_EVENTS: Final = 50
"""Acknowledged before something fails."""

MAX_WORK_S: Final = 0.5
"""It fails at a random moment of so long from then on."""

N_KEYS: Final = 20
"""Requests that are sent again after each round."""

AWAY_S: float = 60.0
BACK_S: float = 2.0


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Have something fail ``rounds`` times.

    Raises:
        ViolationError: something acknowledged was lost, or whatever else must not happen.
    """
    rig = Rig(chance)
    plan = [_faults(chance) for _ in range(rounds)]
    with cluster() as servers:
        for begin in range(0, rounds, ROUNDS):
            its = dict(enumerate(plan[begin : begin + ROUNDS], begin + 1))
            here = directory / f"group {begin}"
            await _rounds(here, servers, rig, its, lambda n: progress(n, rounds))
            shutil.rmtree(here)
    return f"{rounds} rounds{rig.summary()}"


def _faults(chance: random.Random) -> list[Fault]:
    """What fails in a round."""
    kinds = (OF_GATEWAYS,), (OF_DATABASE,), (OF_GATEWAYS, OF_DATABASE)
    [of] = chance.choices(kinds, (4, 3, 3))
    return [chance.choices([*i], [*i.values()])[0] for i in of]


async def _rounds(
    directory: Path,
    servers: Cluster,
    rig: Rig,
    rounds: Mapping[int, Sequence[Fault]],
    on_done: Callable[[int], None],
) -> None:
    """Rounds of one group."""
    async with (
        group_site(servers, directory, N_MACHINES, TAKEOVER_S) as rig.site,
        traffic(rig.site, rig.chance) as rig.traffic,
    ):
        n_rows = 0
        for n, faults in rounds.items():
            rig.traffic.resume()
            try:
                await _fail(rig, faults)
                n_rows = await _check(rig, is_last=n == max(rounds))
            except* (TimeoutError, ViolationError) as e:
                first = first_of(e)
                text = f"round {n}, {rig.now}: {first!r} in {place_of(first)}"
                raise ViolationError(text) from e
            on_done(n)
        rig.add(rig.traffic, n_rows)


async def _fail(rig: Rig, faults: Sequence[Fault]) -> None:
    ledger = rig.traffic.ledger
    target = len(ledger.acknowledged) + MIN_EVENTS
    while len(ledger.acknowledged) < target:
        await rig.traffic.acknowledged(time.monotonic())
    await rig.pause(MAX_WORK_S)
    rig.begin(faults)
    async with asyncio.TaskGroup() as tasks:
        for fault in faults:
            tasks.create_task(_later(rig, fault))
    await rig.traffic.acknowledged(time.monotonic())


async def _later(rig: Rig, fault: Fault) -> None:
    if not rig.is_alone:
        await rig.pause(TAKEOVER_S / 2)
    await fault(rig)


async def _check(rig: Rig, *, is_last: bool) -> int:
    """Compare everything; how many rows each store has."""
    its, site = rig.traffic, rig.site
    await its.pause()
    active = await its.at_active()
    await its.settle(active)
    stored = await _stored(active)
    its.ledger.check(stored)
    its.check(stored)
    await its.check_keys(N_KEYS)
    await _check_retention(active)
    await site.check_epochs()
    rig.memory_bytes += [i.memory_bytes for i in site.machines.values()]
    if is_last:
        await read_store(active)
    return await site.check_equal()


async def _stored(connection: Client) -> list[Event]:
    params = QueryServerParams(SERVER_ID, persisted=True)
    return [i async for i in connection.query_all(params) if i.type[0] == OURS[0]]


async def _check_retention(active: Client) -> None:
    """Check that the active gateway goes on to delete."""
    for _ in range(KEPT_MARKS):
        await active.register([RegisterEvent(MARK, None, None)])
    async with asyncio.timeout(30.0):
        params = QueryTimeseriesParams([MARK])
        while len([i async for i in active.query_all(params)]) > KEPT_MARKS:
            await asyncio.sleep(0.1)


async def run_away(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Have the database away for :data:`AWAY_S`, ``rounds`` times.

    Raises:
        ViolationError: something was acknowledged meanwhile, a client was not told, no query was
            answered; or it took longer than :data:`BACK_S` until the next acknowledgement.
    """
    rig = Rig(chance)
    told_s: list[float] = []
    back_s: list[float] = []
    with cluster() as servers:
        async with (
            group_site(servers, directory / "group", N_MACHINES, TAKEOVER_S) as rig.site,
            traffic(rig.site, chance) as rig.traffic,
        ):
            for n in range(1, rounds + 1):
                rig.traffic.resume()
                await rig.traffic.acknowledged(time.monotonic())
                since_s = time.monotonic()
                await asyncio.to_thread(servers.primary.kill)
                gone_s = time.monotonic()
                told_s.append(await rig.traffic.all_told(since_s))
                await asyncio.sleep(max(0.0, since_s + AWAY_S - time.monotonic()))
                for connection in rig.traffic.at.values():
                    assert connection is not None
                    await connection.query(QueryTimeseriesParams([OURS], max_results=1))
                rig.traffic.check_silent(gone_s, time.monotonic())
                await asyncio.to_thread(servers.primary.start)
                back_s.append(await rig.traffic.acknowledged(time.monotonic()))
                if back_s[-1] > BACK_S:
                    raise ViolationError(
                        f"nothing was acknowledged for {back_s[-1]:.1f} s after it"
                    )
                await rig.site.until_streaming()
                await _check(rig, is_last=n == rounds)
                progress(n, rounds)
    return (
        f"{rounds} times the database was away for {AWAY_S:.0f} s: nothing was acknowledged"
        f" meanwhile; seconds until all clients were told {spread(told_s)}, and until the next"
        f" acknowledgement after it {spread(back_s)}"
    )
