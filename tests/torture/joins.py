"""The seam between what is persisted and what is new: joins beside registrations at full speed."""

import asyncio
import random
from pathlib import Path
from typing import Final

from eventer_bridge.model import Event, EventId, RegisterEvent
from mariner import client
from tests.support.gateway import Gateway, gateway
from tests.torture.clients import connected
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress

IN_FLIGHT: Final = 64
JOINERS: Final = 4

MISSED_EVENTS: Final = 1_500
"""Events that a client missed, when it joins."""

LIVE_EVENTS: Final = 100
"""Events that it waits for, when it is up to date."""


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Join ``rounds`` times.

    Raises:
        ViolationError: an event was missed, or came twice.
    """
    stored: list[EventId] = []
    joined: list[tuple[int, list[EventId]]] = []
    is_enough, is_over = asyncio.Event(), asyncio.Event()

    async def write(connection: client.Client) -> None:
        while not is_over.is_set():
            request = [RegisterEvent(("joins",), None, None)] * chance.randint(1, 3)
            stored.extend(event.id for event in await connection.register(request))
            if len(stored) > MISSED_EVENTS:
                is_enough.set()

    async def join(running: Gateway) -> None:
        while len(joined) < rounds:
            begin = len(stored) - MISSED_EVENTS
            joined.append((begin, await _read(running, stored[begin - 1])))
            progress(min(len(joined), rounds), rounds)

    async with gateway(directory) as running, connected(running) as connection:
        writing = [asyncio.create_task(write(connection)) for _ in range(IN_FLIGHT)]
        await is_enough.wait()
        await asyncio.gather(*(join(running) for _ in range(JOINERS)))
        is_over.set()
        await asyncio.gather(*writing)
    order = sorted(stored)
    for begin, ids in joined:
        first = order.index(stored[begin - 1], max(0, begin - IN_FLIGHT * 3)) + 1
        if ids != order[first : first + len(ids)]:
            raise ViolationError("a client that joined missed an event, or got one twice")
    n_read = sum(len(ids) for _, ids in joined)
    return (
        f"{len(joined)} joins beside {len(stored)} registered events; {n_read} events were read,"
        " without a gap or a double"
    )


async def _read(running: Gateway, last: EventId) -> list[EventId]:
    """Read behind an event, until so many events came that were not there when it joined."""
    events: list[Event] = []
    n_live = 0
    async with await client.connect(
        running.host,
        running.port,
        client_name="app",
        client_token="secret",
        subscriptions=[("joins",)],
        start=[last],
    ) as connection:
        async for batch in connection.replay():
            events += batch.events
            n_live += len(batch.events) if batch.is_live else 0
            if n_live >= LIVE_EVENTS:
                break
    return [event.id for event in events]
