"""``kill -9`` of a streaming driver and its Java at random moments, again and again.

Events are registered all the time. In the end the batches, each of which may have been made
more than once, have every stored event exactly once.
"""

import asyncio
import random
from asyncio.subprocess import Process
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.support.gateway import gateway
from tests.torture.clients import connected
from tests.torture.drivers import (
    compare,
    driver,
    registering,
    wait_end,
    wait_until,
)
from tests.torture.ledger import Ledger, read_store
from tests.torture.report import Progress

MAX_WORK_S: float = 1.5
"""A driver is killed at a random moment of so long from its first batch."""

MAX_EVENTS: Final = 500
"""Events of a batch: enough that the stream keeps up, few enough for many batches."""


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
    ledger, sink = Ledger(), directory / "sink"
    sink.mkdir()
    async with gateway(directory) as running, connected(running) as client:
        options = {
            "host": running.host,
            "port": str(running.port),
            "client_name": "app",
            "token": "secret",
            "types": "torture/*",
            "maxEventsPerBatch": str(MAX_EVENTS),
        }
        async with registering(client, ledger):
            for n in range(1, rounds + 1):
                before = _count(sink)
                async with _driver(directory, options) as process:
                    await wait_until(partial(_has_more, sink, before), directory, process)
                    await asyncio.sleep(chance.uniform(0, MAX_WORK_S))
                progress(n, rounds)
        async with _driver(directory, options, "--rest") as process:
            await wait_end(directory, process)
        stored = await read_store(client)
    ledger.check(stored)
    rows = [row for path in sink.glob("batch-*.json") for row in _rows(path)]
    compare(rows, stored)
    n_batches = len(list(sink.glob("batch-*.json")))
    return f"{rounds} kills: {len(rows)} events in {n_batches} batches, each of them once"


def _count(sink: Path) -> int:
    return len(list(sink.glob("batch-*")))


def _has_more(sink: Path, n_batches: int) -> bool:
    return _count(sink) > n_batches


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = msgspec.json.decode(path.read_bytes())
    return rows


def _driver(
    directory: Path, options: dict[str, str], *rest: str
) -> AbstractAsyncContextManager[Process]:
    return driver(
        directory,
        "tests.torture.stream_driver",
        msgspec.json.encode(options).decode(),
        str(directory / "checkpoint"),
        str(directory / "sink"),
        *rest,
    )
