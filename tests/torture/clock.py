"""A clock that jumps back an hour, and forth, while the gateway runs and while it does not."""

import random
import time
from pathlib import Path
from typing import Final

from eventer_bridge.model import Event, EventId, Timestamp
from tests.support.gateway import gateway
from tests.torture.clients import connected, loaded
from tests.torture.ledger import Ledger, ViolationError, read_store
from tests.torture.report import Progress
from tests.torture.shifted_clock import CLOCK_FILE, write_offset

HOUR_S: Final = 3600.0

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
                program="tests.torture.shifted_clock",
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


def _check(stored: list[Event], ahead_s: float) -> None:
    """That the clock was ahead at all, and that no timestamp went back."""
    order: list[tuple[EventId, Timestamp]] = [(i.id, i.timestamp) for i in stored]
    if order != sorted(order, key=lambda i: (i[1], i[0])):
        raise ViolationError("timestamps went back")
    greatest = stored[-1].timestamp
    if greatest.to_float() < time.time() + ahead_s - HOUR_S / 2:
        raise ViolationError(f"the clock was not shifted: {greatest}")
