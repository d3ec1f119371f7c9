"""Modules that raise whatever there is, and modules that end the gateway."""

import contextlib
import random
import time
from pathlib import Path
from typing import Final

from eventer_bridge.model import RegisterEvent
from mariner.errors import ConnectionLostError, RegisterError
from tests.support.gateway import Gateway, gateway
from tests.support.process import ChildError
from tests.torture.clients import connected, loaded
from tests.torture.ledger import Ledger, ViolationError, read_store
from tests.torture.raising import ENDS_A_TASK, NEVER_GIVES_WAY, RAISED
from tests.torture.report import Progress

MODULES: Final = [{"module": "tests.torture.raising"}]

ENDS: Final = {ENDS_A_TASK: 1, NEVER_GIVES_WAY: 3}
"""What ends the gateway, and its exit code: what never gives way is left behind."""

MAX_END_S: Final = 45.0
"""Until it has ended: a module has 10 s, and a process that is to stop 25 s."""


async def run_raising(
    directory: Path, rounds: int, chance: random.Random, progress: Progress
) -> str:
    """Let a module raise ``rounds`` times, beside clients that register through it.

    Raises:
        ViolationError: somebody else was refused, or whatever else must not happen.
    """
    ledger = Ledger()
    async with gateway(directory, modules=MODULES) as running:
        async with loaded(running, ledger) as load:
            for n in range(1, rounds + 1):
                await _refused(running, [*RAISED][n % len(RAISED)])
                await load.until_acknowledged(1)
                progress(n, rounds)
        async with connected(running) as client:
            ledger.check(await read_store(client))
    if load.refusals:
        raise ViolationError(f"others were refused: {set(load.refusals)}")
    return (
        f"raised {rounds} times, {len(RAISED)} kinds, each told to who asked:"
        f" {len(ledger.acknowledged)} events of others acknowledged, all of them stored, none"
        " refused"
    )


async def run_ending(
    directory: Path, rounds: int, chance: random.Random, progress: Progress
) -> str:
    """Let a module end the gateway ``rounds`` times.

    Raises:
        ViolationError: it did not end, or whatever else must not happen.
    """
    ledger = Ledger()
    slowest_s = 0.0
    for n in range(1, rounds + 1):
        fault = [*ENDS][(n - 1) % len(ENDS)]
        slowest_s = max(slowest_s, await _ended(directory, fault, ledger))
        progress(n, rounds)
    async with gateway(directory, modules=MODULES) as running, connected(running) as client:
        ledger.check(await read_store(client))
    return (
        f"ended {rounds} times with a code that says so, {slowest_s:.1f} s at the most:"
        f" {len(ledger.acknowledged)} events acknowledged, all of them stored"
    )


async def _refused(running: Gateway, fault: str) -> None:
    async with connected(running) as client:
        try:
            await client.register([RegisterEvent(("fault", fault), None, None)])
        except RegisterError as e:
            if fault not in str(e):
                raise ViolationError(f"{fault} is told as {e}") from None
        else:
            raise ViolationError(f"a registration was not refused: {fault}")


async def _ended(directory: Path, fault: str, ledger: Ledger) -> float:
    """Seconds until the gateway had ended."""
    try:
        async with (
            gateway(directory, modules=MODULES) as running,
            loaded(running, ledger) as load,
        ):
            await load.until_acknowledged(1)
            took_s = await _end(running, fault)
    except ChildError as e:
        if f"exit code {ENDS[fault]}\n" not in str(e):
            raise ViolationError(f"{fault}: {e}") from None
    return took_s


async def _end(running: Gateway, fault: str) -> float:
    began = time.perf_counter()
    async with connected(running) as client:
        with contextlib.suppress(RegisterError, ConnectionLostError):
            await client.register([RegisterEvent(("fault", fault), None, None)])
        await running.process.wait()
    took_s = time.perf_counter() - began
    if took_s > MAX_END_S:
        raise ViolationError(f"{fault}: ended after {took_s:.0f} s")
    return took_s
