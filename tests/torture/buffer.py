"""Store and forward: the application, the gateway and the connection between them are killed."""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from eventer_bridge.model import EventType, JsonPayload, QueryServerParams
from tests.support import proxy
from tests.support.gateway import Gateway, gateway
from tests.support.process import tail
from tests.torture.buffer_writer import DRAIN, NEW, REPEATED, read
from tests.torture.clients import connected
from tests.torture.ledger import SERVER_ID, ViolationError
from tests.torture.report import Progress

MAX_CUT_BYTES: Final = 200_000
"""A connection is cut before so many bytes."""

MAX_WORK_S: Final = 0.4
"""From something acknowledged to the next kill, at most."""

PROGRESS_TIMEOUT_S: Final = 60.0
"""Until an application has begun and something is acknowledged; and until all is stored."""

KILL_WRITER: Final = 0.7
"""How often the application is killed before the gateway is; else it goes on."""


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Kill ``rounds`` gateways, and most times an application before that.

    Raises:
        ViolationError: an event is missing, came twice, or in another order.
    """
    n_writers = port = n_cuts = 0
    async with contextlib.AsyncExitStack() as stack:
        writer: Process | None = None
        for n in range(1, rounds + 1):
            async with gateway(directory, port=port) as running:
                if not port:
                    port = running.port
                    plans = proxy.by_chance(chance, MAX_CUT_BYTES)
                    link = await stack.enter_async_context(proxy.create(port, plans))
                if writer is None:
                    writer = await stack.enter_async_context(_writer(directory, link.port))
                    n_writers += 1
                await _until_acknowledged(directory, writer)
                await asyncio.sleep(chance.uniform(0, MAX_WORK_S))
                if chance.random() < KILL_WRITER:
                    writer.kill()
                    await writer.wait()
                    writer = None
                os.kill(running.pid, signal.SIGKILL)
                await running.process.wait()
            progress(n, rounds)
        if writer is not None:
            writer.kill()
            await writer.wait()
        n_cuts = link.n_cuts
        link.plans = itertools.repeat(proxy.PASS)
        async with gateway(directory, port=port) as running:
            async with _writer(directory, link.port, DRAIN) as draining:
                async with asyncio.timeout(PROGRESS_TIMEOUT_S):
                    await draining.wait()
                if draining.returncode:
                    raise ViolationError(f"it ended: {tail(directory / 'writer.log')}")
            facts = await _check(directory, running)
    return f"{rounds} kills of the gateway, {n_writers} applications, {n_cuts} cuts: {facts}"


@contextlib.asynccontextmanager
async def _writer(directory: Path, port: int, *arguments: str) -> AsyncIterator[Process]:
    with (directory / "writer.log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.torture.buffer_writer"),
            *(str(directory), str(port), *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _until_acknowledged(directory: Path, writer: Process) -> None:
    """Wait until an application got something into its buffer."""
    path = directory / "repeated"
    before = path.stat().st_size if path.exists() else 0
    async with asyncio.timeout(PROGRESS_TIMEOUT_S):
        while not path.exists() or path.stat().st_size == before:
            if writer.returncode is not None:
                raise ViolationError(f"it ended: {tail(directory / 'writer.log')}")
            await asyncio.sleep(0.02)


async def _check(directory: Path, running: Gateway) -> str:
    found: dict[EventType, list[int]] = {REPEATED: [], NEW: []}
    async with connected(running) as client:
        async for event in client.query_all(QueryServerParams(SERVER_ID)):
            if event.type in found:
                assert isinstance(event.payload, JsonPayload)
                found[event.type].append(event.payload.value())
    _, acknowledged = read(directory / "repeated")
    repeated, new = found[REPEATED], found[NEW]
    if repeated != [*range(1, len(repeated) + 1)] or len(repeated) < max(acknowledged):
        raise ViolationError(f"{len(repeated)} stored, {max(acknowledged)} acknowledged, or order")
    begun, acknowledged = read(directory / "new")
    if new != sorted(set(new)):
        raise ViolationError("events came twice, or in another order")
    if not acknowledged <= set(new) <= begun:
        raise ViolationError(f"{len(acknowledged - set(new))} acknowledged events are missing")
    return f"{len(repeated) + len(new)} events stored, each once, in order"
