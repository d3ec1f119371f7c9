"""A clock that jumps back an hour, and forth, while the gateway runs and while it does not; and
one that jumps ten years ahead and back, with the way back of README."""

import random
import time
from pathlib import Path
from typing import Final

from eventer_bridge.model import Event, EventId, RegisterEvent, Timestamp
from tests.support import process as processes
from tests.support.gateway import gateway
from tests.torture.clients import connected, loaded
from tests.torture.ledger import Ledger, ViolationError, read_store
from tests.torture.report import Progress
from tests.torture.shifted_clock import CLOCK_FILE, write_offset

HOUR_S: Final = 3600.0
YEARS_S: Final = 10 * 365 * 24 * HOUR_S

_PROGRAM: Final = "tests.torture.shifted_clock"

_EVENTS: Final = 150
"""Acknowledged between two jumps."""


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Jump back twice in each round, once with a restart.

    Raises:
        ViolationError: a timestamp went back, or ids and timestamps are in another order.
    """
    ledger = Ledger()
    file = directory / "clock"
    n_jumps, ahead_s = 0, HOUR_S
    for n in range(1, rounds + 1):
        for shift_s in ahead_s, ahead_s - HOUR_S:
            write_offset(file, shift_s)
            async with gateway(
                directory,
                program=_PROGRAM,
                environment={CLOCK_FILE: str(file)},
            ) as running:
                async with loaded(running, ledger) as load:
                    await load.until_acknowledged(_EVENTS)
                    write_offset(file, shift_s - HOUR_S)
                    await load.until_acknowledged(_EVENTS)
                async with connected(running) as client:
                    stored = await read_store(client)
                ledger.check(stored)
            _check(stored, ahead_s)
            n_jumps += 2
        ahead_s += chance.uniform(0, HOUR_S)
        progress(n, rounds)
    return f"{n_jumps} jumps of an hour back: {len(stored)} events, timestamps and ids in one order"


async def run_years(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Jump ten years ahead and back, and restore the store as of the moment before.

    Raises:
        ViolationError: what came before is not there, or the clock is still ahead.
    """
    file = directory / "clock"
    environment = {CLOCK_FILE: str(file)}
    n_kept = n_later = n_refused = 0
    for n in range(1, rounds + 1):
        here = directory / str(n)
        here.mkdir()
        ledger, later = Ledger(), Ledger()
        write_offset(file, 0)
        async with gateway(here, program=_PROGRAM, environment=environment) as running:
            async with loaded(running, ledger) as load:
                await load.until_acknowledged(chance.randint(1, _EVENTS))
            until = Timestamp.now()
            write_offset(file, YEARS_S + chance.uniform(0, HOUR_S))
            async with loaded(running, later) as load:
                await load.until_acknowledged(_EVENTS)
                write_offset(file, 0)
                await load.until(lambda: bool(load.refusals))
                n_refused += len(load.refusals)
            if "are ahead of the clock of this machine" not in load.refusals[0]:
                raise ViolationError(f"refused for another reason: {load.refusals[0]}")
            n_later += len(later.acknowledged)
        restored = here / "restored"
        await _restore(until, here / "events", restored)
        async with (
            gateway(here, store=restored, program=_PROGRAM, environment=environment) as running,
            connected(running) as client,
        ):
            ledger.check(await read_store(client))
            [after] = await client.register([RegisterEvent(("after",), None, None)])
        n_kept += len(ledger.acknowledged)
        if after.timestamp > Timestamp.now():
            raise ViolationError(f"the clock is still ahead: {after.timestamp}")
        progress(n, rounds)
    return (
        f"{rounds} jumps of ten years: {n_kept} events acknowledged before, {n_later}"
        f" left out that came with wrong timestamps, {n_refused} refusals"
    )


async def _restore(until: Timestamp, store: Path, restored: Path) -> None:
    arguments = ("restore", "--until", until.to_iso(), str(store), str(restored))
    output = store.parent / "restore.txt"
    async with processes.child("mariner", *arguments, output=output) as process:
        if await process.wait() != 0:
            raise ViolationError(f"not restored: {processes.tail(output)}")


def _check(stored: list[Event], ahead_s: float) -> None:
    """That the clock was ahead at all, and that no timestamp went back."""
    order: list[tuple[EventId, Timestamp]] = [(i.id, i.timestamp) for i in stored]
    if order != sorted(order, key=lambda i: (i[1], i[0])):
        raise ViolationError("timestamps went back")
    greatest = stored[-1].timestamp
    if greatest.to_float() < time.time() + ahead_s - HOUR_S / 2:
        raise ViolationError(f"the clock was not shifted: {greatest}")
