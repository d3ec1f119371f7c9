"""``kill -9`` of a streaming driver and its Java at random moments, again and again.

Events are registered all the time. In the end the batches, each of which may have been made
more than once, have every stored event exactly once.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec

from eventer_bridge.model import Event, JsonPayload
from mariner.client.client import Client
from tests.support.gateway import gateway
from tests.support.process import tail
from tests.torture.clients import connected
from tests.torture.ledger import Ledger, ViolationError, read_store
from tests.torture.report import Progress

MAX_WORK_S: float = 1.5
"""A driver is killed at a random moment of so long from its first batch."""

START_TIMEOUT_S: Final = 120.0
"""Until a driver has made a batch; the rest, too, is read in this time."""

REGISTER_PERIOD_S: Final = 0.02

MAX_EVENTS: Final = 500
"""Events of a batch: enough that the stream keeps up, few enough for many batches."""


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Kill it ``rounds`` times.

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
        async with _registering(client, ledger):
            for n in range(1, rounds + 1):
                n_batches = len(list(sink.glob("batch-*")))
                async with _driver(directory, options) as process:
                    await _more_than(n_batches, directory, process)
                    await asyncio.sleep(chance.uniform(0, MAX_WORK_S))
                progress(n, rounds)
        async with _driver(directory, options, "--rest") as process:
            async with asyncio.timeout(START_TIMEOUT_S):
                if await process.wait():
                    raise ViolationError(f"the driver failed: {tail(directory / 'driver.log')}")
        stored = await read_store(client)
    ledger.check(stored)
    rows = [row for path in sink.glob("batch-*.json") for row in _rows(path)]
    _compare(rows, stored)
    n_batches = len(list(sink.glob("batch-*.json")))
    return f"{rounds} kills: {len(rows)} events in {n_batches} batches, each of them once"


@contextlib.asynccontextmanager
async def _registering(client: Client, ledger: Ledger) -> AsyncIterator[None]:
    async def register() -> None:
        while True:
            ledger.acknowledge(await client.register(ledger.request()))
            await asyncio.sleep(REGISTER_PERIOD_S)

    task = asyncio.create_task(register())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def _driver(directory: Path, options: dict[str, str], *rest: str) -> AsyncIterator[Process]:
    """A driver; on the way out it is killed, together with its Java."""
    with (directory / "driver.log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.torture.stream_driver"),
            msgspec.json.encode(options).decode(),
            str(directory / "checkpoint"),
            str(directory / "sink"),
            *rest,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # its group is the driver and its Java
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _more_than(n_batches: int, directory: Path, process: Process) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while len(list((directory / "sink").glob("batch-*"))) <= n_batches:
            if process.returncode is not None:
                raise ViolationError(f"the driver ended: {tail(directory / 'driver.log')}")
            await asyncio.sleep(0.02)


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = msgspec.json.decode(path.read_bytes())
    return rows


def _compare(rows: list[dict[str, Any]], stored: list[Event]) -> None:
    found = sorted((i["session"], i["instance"], i["type"], i["payload_json"]) for i in rows)
    wanted = sorted((i.id.session, i.id.instance, list(i.type), _text(i)) for i in stored)
    if found != wanted:
        both = {i[:2] for i in found} & {i[:2] for i in wanted}
        raise ViolationError(
            f"{len(found)} events came out, {len(wanted)} are stored, {len(both)} are in both"
        )


def _text(event: Event) -> str:
    assert isinstance(event.payload, JsonPayload)
    return bytes(event.payload.data).decode()
