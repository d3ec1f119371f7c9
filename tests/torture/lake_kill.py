"""``kill -9`` of ``mariner lake ingest`` and its Java, again and again.

At random moments, and each second time when it has written files and cannot commit them yet.
Events are registered all the time, and the lake is compacted after every kill. In the end what
its manifest names has every stored event exactly once.
"""

import asyncio
import contextlib
import random
from functools import partial
from pathlib import Path

from mariner_spark.lake import compact, manifest, segments
from mariner_spark.lake.files import Files
from mariner_spark.lake.lock import locked
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
    files = Files(str(lake))
    async with gateway(directory) as running, connected(running) as client:
        address = ("--host", running.host, "--port", str(running.port), "--name", "app")
        command = ("mariner", "lake", "ingest", str(lake), *address)
        start = partial(driver, directory, *command)
        async with registering(client, ledger):
            for n in range(1, rounds + 1):
                before = _version(files)
                follow = ("--follow", "--interval", "0.1")
                with contextlib.ExitStack() as until_killed:
                    async with start(*follow, MARINER_TOKEN="secret") as process:
                        await wait_until(partial(_is_changed, files, before), directory, process)
                        if n % 2:
                            await asyncio.sleep(chance.uniform(0, MAX_WORK_S))
                        else:
                            until_killed.enter_context(locked(files))  # nobody can commit
                            await wait_until(partial(_has_orphan, lake, files), directory, process)
                compact.compact(str(lake), grace_s=0)
                progress(n, rounds)
        stored = await read_store(client)
        async with start(MARINER_TOKEN="secret") as process:
            await wait_end(directory, process)
    ledger.check(stored)
    found = manifest.load(files)
    rows = segments.read(files, list(found.segments)).to_pylist()
    compare([row for row in rows if row["type"][:1] == ["torture"]], stored)
    return f"{rounds} kills: {len(rows)} events in a lake changed {found.version} times, each once"


def _has_orphan(lake: Path, files: Files) -> bool:
    """Is there a whole segment that the manifest does not name?"""
    named = {i.path for i in manifest.load(files).segments}
    found = {str(i.relative_to(lake)) for i in lake.glob("date=*/*") if "_tmp-" not in i.name}
    return bool(found - named)


def _version(files: Files) -> int:
    found = manifest.find(files)
    return 0 if found is None else found.version


def _is_changed(files: Files, version: int) -> bool:
    return _version(files) > version
