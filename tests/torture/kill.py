"""``kill -9`` of the gateway at random moments, again and again, on one store."""

import asyncio
import os
import random
import signal
from pathlib import Path

from tests.support.gateway import gateway
from tests.torture.clients import connected, loaded
from tests.torture.ledger import Ledger, ViolationError, read_store
from tests.torture.report import Progress

CHECK_EVERY: int = 20
"""Rounds after which everything that is stored is compared; and after the last one."""

LARGE_EVERY: int = 100
"""Requests, one of which is large: once a round, about."""

MAX_WORK_S: float = 0.15
"""A gateway is killed at a random moment of so long from its first acknowledgement."""


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Kill it ``rounds`` times.

    Raises:
        ViolationError: something acknowledged was lost, or whatever else must not happen.
    """
    ledger = Ledger(large_every=LARGE_EVERY)
    for n in range(1, rounds + 1):
        async with gateway(directory) as running:
            if n % CHECK_EVERY == 1:
                async with connected(running) as client:
                    ledger.check(await read_store(client))
            greatest = ledger.greatest_seen
            acknowledged = set(ledger.acknowledged)
            async with loaded(running, ledger) as load:
                await load.until_acknowledged(1)
                await asyncio.sleep(chance.uniform(0, MAX_WORK_S))
                os.kill(running.pid, signal.SIGKILL)
            await running.process.wait()
        if any(i.session <= greatest for i in ledger.acknowledged.keys() - acknowledged):
            raise ViolationError(f"an id up to {greatest} was given again")
        progress(n, rounds)
    async with gateway(directory) as running, connected(running) as client:
        stored = await read_store(client)
        ledger.check(stored)
    extra = len(stored) - len(ledger.acknowledged)
    return (
        f"{rounds} kills: {len(ledger.acknowledged)} events acknowledged, all of them stored;"
        f" {extra} more stored that were under way, {len(ledger.sent)} requests sent"
    )
