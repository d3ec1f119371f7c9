"""``kill -9`` of a streaming driver and its Java at random moments, again and again.

Events are registered all the time. In the end the batches, each of which may have been made
more than once, have every stored event exactly once. The tasks read pages, or have the gateway
replay few events among many.
"""

import asyncio
import contextlib
import random
import re
from asyncio.subprocess import Process
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from eventer_bridge.model import RegisterEvent
from mariner.client.client import Client
from tests.support.gateway import Gateway, gateway
from tests.support.inprocess import metrics_text_of
from tests.torture.clients import connected
from tests.torture.drivers import (
    compare,
    driver,
    registering,
    wait_end,
    wait_until,
)
from tests.torture.ledger import Ledger, ViolationError, read_store
from tests.torture.report import Progress

MAX_WORK_S: float = 1.5
"""A driver is killed at a random moment of so long from its first batch."""

MAX_EVENTS: Final = 500
"""Events of a batch: enough that the stream keeps up, few enough for many batches."""

OTHER_EVENTS: Final = 5_000
"""Events of other types in a request: more than a page, so that the rest is replayed."""

OTHERS_PERIOD_S: Final = 1.0


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
    async with gateway(directory) as running, connected(running) as client:
        options = {**_options(running), "maxEventsPerBatch": str(MAX_EVENTS)}
        return await _kill(
            directory, options, client, rounds=rounds, chance=chance, progress=progress
        )


async def run_replaying(
    directory: Path, rounds: int, chance: random.Random, progress: Progress
) -> str:
    """As :func:`run`; the events are few among others."""
    async with (
        gateway(directory, http=True) as running,
        connected(running) as client,
        connected(running) as other,
    ):
        task = asyncio.create_task(_register_others(other))
        options = _options(running)
        facts = await _kill(
            directory, options, client, rounds=rounds, chance=chance, progress=progress
        )
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        metrics = await metrics_text_of(running.http_port)
    found = re.search(
        r'^mariner_events_notified_total\{wire="mariner"\} (\S+)', metrics, re.MULTILINE
    )
    if found is None or not float(found[1]):
        raise ViolationError("nothing was replayed")
    return f"{facts}; {float(found[1]):.0f} events replayed"


async def _kill(
    directory: Path,
    options: dict[str, str],
    client: Client,
    *,
    rounds: int,
    chance: random.Random,
    progress: Progress,
) -> str:
    ledger, sink = Ledger(), directory / "sink"
    sink.mkdir()
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


async def _register_others(client: Client) -> None:
    events = [RegisterEvent(("other",), None, None)] * OTHER_EVENTS
    while True:
        await client.register(events)
        await asyncio.sleep(OTHERS_PERIOD_S)


def _options(running: Gateway) -> dict[str, str]:
    return {
        "host": running.host,
        "port": str(running.port),
        "client_name": "app",
        "token": "secret",
        "types": "torture/*",
    }


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
