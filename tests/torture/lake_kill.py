"""``kill -9`` of ``mariner lake ingest``, again and again.

Of all its processes, at random moments or when it has written files that are not committed yet; and
of the one that works beside it: then it has to say so, and end. Events are registered all the time,
and the lake is compacted after every kill. In the end the lake has every stored event exactly once,
and so have its derived tables.
"""

import asyncio
import random
from asyncio.subprocess import Process
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from mariner_spark import limits
from mariner_spark.lake.maintenance import compact
from mariner_spark.lake.tables import LATEST, Lake
from tests.spark.lake.oracle import check_rollups
from tests.support.gateway import gateway
from tests.support.process import tail
from tests.torture.clients import connected
from tests.torture.drivers import (
    START_TIMEOUT_S,
    compare,
    driver,
    registering,
    wait_end,
    wait_until,
)
from tests.torture.ledger import Ledger, ViolationError, read_store
from tests.torture.report import Progress

MAX_WORK_S: float = 1.5
"""It is killed at a random moment of so long from its first batch."""

START_S: Final = 0.3
"""The process beside it is killed within so long from its start: it cannot be done by then."""

BACKLOG_SESSIONS: Final = 3 * limits.SLICE_SESSIONS
"""Enough for two processes."""


async def run(
    directory: Path,
    rounds: int,
    chance: random.Random,
    progress: Progress,
) -> str:
    """Kill it ``rounds`` times.

    Args:
        directory: empty; everything goes there.
        rounds: how often.
        chance: when.
        progress: told of each.

    Raises:
        ViolationError: an event was lost, or came twice, or is another one.
    """
    ledger, lake, n_told = Ledger(), directory / "lake", 0
    async with gateway(directory) as running, connected(running) as client:
        address = ("--host", running.host, "--port", str(running.port), "--name", "app")
        command = ("mariner", "lake", "ingest", str(lake), *address)
        start = partial(driver, directory, *command)
        async with registering(client, ledger):
            for n in range(1, rounds + 1):
                if n % 3 == 0:
                    for events in await asyncio.gather(
                        *(client.register(ledger.request()) for _ in range(BACKLOG_SESSIONS))
                    ):
                        ledger.acknowledge(events)
                before = _version(lake)
                follow = ("--follow", "--interval", "0.1")
                async with start(*follow, MARINER_TOKEN="secret") as process:
                    if n % 3 == 0:
                        await _kill_other(directory, process, chance)
                        n_told += 1
                    elif n % 3 == 1:
                        await wait_until(partial(_is_changed, lake, before), directory, process)
                        await asyncio.sleep(chance.uniform(0, MAX_WORK_S))
                    else:
                        await wait_until(partial(_has_orphan, lake), directory, process)
                compact(str(lake))
                progress(n, rounds)
        stored = await read_store(client)
        async with start(MARINER_TOKEN="secret") as process:
            await wait_end(directory, process)
    ledger.check(stored)
    events = Lake(str(lake)).open().to_pyarrow_table()
    compare(
        [row for row in events.to_pylist() if row["type"][:1] == ["torture"]],
        stored,
    )
    check_rollups(lake)
    n_types = len(pc.unique(events.column("type_path")))
    assert Lake(str(lake)).open(LATEST).count() == n_types
    n_commits = _version(lake)
    return (
        f"{rounds} kills, {n_told} of them of one of two processes: {len(events)} events in a lake"
        f" of {n_commits} commits, each once"
    )


async def _kill_other(directory: Path, process: Process, chance: random.Random) -> None:
    """Kill the process beside a driver, while it works; wait until the driver has told and ended.

    Raises:
        ViolationError: it has not told.
    """
    others: list[psutil.Process] = []

    def find() -> bool:
        others[:] = [
            i
            for i in psutil.Process(process.pid).children()
            if any("spawn_main" in argument for argument in i.cmdline())
        ]
        return bool(others)

    await wait_until(find, directory, process)
    await asyncio.sleep(chance.uniform(0, START_S))
    for other in others:
        other.kill()
    async with asyncio.timeout(START_TIMEOUT_S):
        code = await process.wait()
    if code != 1 or "one of the processes was killed" not in tail(directory / "driver.log"):
        raise ViolationError(f"exit code {code}: {tail(directory / 'driver.log')}")


def _has_orphan(lake: Path) -> bool:
    """Is there a whole file that is not part of the table?"""
    stored = {str(i.relative_to(lake / "events")) for i in lake.glob("events/date=*/*")}
    table = Lake(str(lake)).open()
    return bool(stored - set(pa.table(table.get_add_actions()).column("path").to_pylist()))


def _version(lake: Path) -> int:
    found = Lake(str(lake)).find()
    return 0 if found is None else found.version()


def _is_changed(lake: Path, version: int) -> bool:
    return _version(lake) > version
