"""``kill -9`` of ``mariner lake ingest`` and its Java, again and again.

At random moments, and each second time when it has written files that are not committed yet. Events
are registered all the time, and the lake is compacted after every kill. In the end the lake has
every stored event exactly once, and so have its derived tables.
"""

import asyncio
import random
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from mariner_spark.lake.compact import compact
from mariner_spark.lake.tables import LATEST, VALUES, Lake
from tests.support.gateway import gateway
from tests.torture.clients import connected
from tests.torture.drivers import compare, driver, registering, wait_end, wait_until
from tests.torture.ledger import Ledger, read_store
from tests.torture.report import Progress

MAX_WORK_S: float = 1.5
"""It is killed at a random moment of so long from its first batch."""


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
    ledger, lake = Ledger(), directory / "lake"
    async with gateway(directory) as running, connected(running) as client:
        address = ("--host", running.host, "--port", str(running.port), "--name", "app")
        command = ("mariner", "lake", "ingest", str(lake), *address)
        start = partial(driver, directory, *command)
        async with registering(client, ledger):
            for n in range(1, rounds + 1):
                before = _version(lake)
                follow = ("--follow", "--interval", "0.1")
                async with start(*follow, MARINER_TOKEN="secret") as process:
                    await wait_until(partial(_is_changed, lake, before), directory, process)
                    if n % 2:
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
    numbers = Lake(str(lake)).open(VALUES).count()
    assert numbers == pc.count(events.column("value")).as_py()
    n_types = len(pc.unique(events.column("type_path")))
    assert Lake(str(lake)).open(LATEST).count() == n_types
    n_commits = _version(lake)
    return f"{rounds} kills: {len(events)} events in a lake of {n_commits} commits, each once"


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
