"""What the rounds have in common that kill a driver of a stream and its Java."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from eventer_bridge.model import Event, JsonPayload
from mariner.client.client import Client
from tests.support.process import tail
from tests.torture.ledger import Ledger, ViolationError

START_TIMEOUT_S: Final = 120.0
"""Until a driver has made a batch; the rest, too, is read in this time."""

REGISTER_PERIOD_S: Final = 0.02


@contextlib.asynccontextmanager
async def registering(client: Client, ledger: Ledger) -> AsyncIterator[None]:
    """Register events all the time."""

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
async def driver(directory: Path, *module: str, **variables: str) -> AsyncIterator[Process]:
    """A driver; on the way out it is killed, together with its Java.

    Args:
        directory: where its log is.
        module: which it is, and its arguments.
        variables: more environment.
    """
    with (directory / "driver.log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *module),
            env={**os.environ, **variables},
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


async def wait_until(condition: Callable[[], bool], directory: Path, process: Process) -> None:
    """Wait until a driver has done something.

    Raises:
        ViolationError: it ended.
    """
    async with asyncio.timeout(START_TIMEOUT_S):
        while not condition():
            if process.returncode is not None:
                raise ViolationError(f"the driver ended: {tail(directory / 'driver.log')}")
            await asyncio.sleep(0.02)


async def wait_end(directory: Path, process: Process) -> None:
    """Wait until a driver has read the rest.

    Raises:
        ViolationError: it failed.
    """
    async with asyncio.timeout(START_TIMEOUT_S):
        if await process.wait():
            raise ViolationError(f"the driver failed: {tail(directory / 'driver.log')}")


def compare(rows: Sequence[Mapping[str, Any]], stored: Sequence[Event]) -> None:
    """Check that what came out is what is stored, each event once.

    Raises:
        ViolationError: it is not.
    """
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
