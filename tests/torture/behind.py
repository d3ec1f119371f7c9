"""Readers that fall behind, while retention deletes: each event comes, or a gap is told."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from eventer_bridge.model import EventId, JsonPayload, QueryTimeseriesParams, RegisterEvent
from mariner import client
from mariner.client.client import Client
from mariner.errors import GapError
from tests.support.gateway import Gateway, gateway
from tests.torture.clients import connected
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress

IN_FLIGHT: Final = 16
READERS: Final = 4

KEPT_EVENTS: Final = 100
"""Of each type: far fewer than what is registered in a pause."""

PAYLOAD: Final = JsonPayload.of("x" * 100_000)
"""So large that what is buffered between the gateway and a reader is less than what is kept."""

READ_EVENTS = 1_200
"""That each reader reads."""

MISSED_EVENTS: Final = (0, 500, 1_000)
"""That are registered in a pause, one of these: more than what is kept and buffered, or none."""

LEAST_GAPS = 0
"""That each reader is to be told of."""

PAUSE_EVENTS = 200
"""Between two of these pauses."""

REQUEST_EVENTS: Final = 4
"""At most."""

TYPES: Final = ("behind", "beside")
"""One has more events, and loses the others at another time."""


Pause: TypeAlias = Callable[[], Awaitable[None]]


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Have ``rounds`` readers fall behind, some of them with a cursor.

    Raises:
        ViolationError: an event was missed without a gap, or came twice; or there was no gap.
    """
    stored: dict[EventId, str] = {}
    read: list[list[EventId | None]] = []
    is_over = asyncio.Event()

    async def write(connection: client.Client) -> None:
        while not is_over.is_set():
            types = chance.choices(TYPES, (4, 1), k=chance.randint(1, REQUEST_EVENTS))
            request = [RegisterEvent((i,), None, PAYLOAD) for i in types]
            events = await connection.register(request)
            stored.update((event.id, event.type[0]) for event in events)

    async def pause() -> None:
        n_before, n_missed = len(stored), chance.choice(MISSED_EVENTS)
        while len(stored) < n_before + n_missed:
            await asyncio.sleep(0.01)
        if n_missed:
            await _deleted(writer, [*stored][n_before - 1])

    async def read_some(running: Gateway) -> None:
        while len(read) < rounds:
            of_reader: list[EventId | None] = []
            read.append(of_reader)
            cursor = f"c{len(read)}" if len(read) % 2 else None
            await _read(running, of_reader, cursor, pause)
            progress(len(read), rounds)

    rule: dict[str, Any] = {"type": "rocksdb", "path": str(directory / "store")}
    rule["retention"] = [{"subscriptions": [[i]], "max_entries": KEPT_EVENTS} for i in TYPES]
    async with gateway(directory, core={"backend": rule}) as running, connected(running) as writer:
        writing = [asyncio.create_task(write(writer)) for _ in range(IN_FLIGHT)]
        try:
            await asyncio.gather(*(read_some(running) for _ in range(min(READERS, rounds))))
        finally:
            is_over.set()
            await asyncio.gather(*writing)
    n_gaps = sum(_check(i, stored) for i in read)
    if not n_gaps:
        raise ViolationError("no reader fell behind")
    n_read = sum(len(i) for i in read) - n_gaps
    return (
        f"{len(read)} readers read {n_read} of {len(stored)} events, and were told of {n_gaps}"
        " gaps: nothing else was missed"
    )


async def _deleted(writer: Client, event_id: EventId) -> None:
    """Wait until retention deleted an event."""
    params = QueryTimeseriesParams(ids=[event_id])
    while (await writer.query(params)).events:
        await asyncio.sleep(0.1)


async def _read(
    running: Gateway, read: list[EventId | None], cursor: str | None, pause: Pause
) -> None:
    """Read, with pauses; None: a gap."""
    async with await client.connect(
        running.host,
        running.port,
        client_name="app",
        client_token="secret",
        subscriptions=[(i,) for i in TYPES],
        start="earliest",
        cursor=cursor,
    ) as connection:
        while not _is_enough(read):
            try:
                await _read_to_gap(connection, read, pause)
            except GapError:
                read.append(None)


async def _read_to_gap(connection: Client, read: list[EventId | None], pause: Pause) -> None:
    async for batch in connection.replay():
        n_before = len(read)
        read += [event.id for event in batch.events]
        if len(read) // PAUSE_EVENTS > n_before // PAUSE_EVENTS:
            await pause()
        if _is_enough(read):
            return


def _is_enough(read: Sequence[EventId | None]) -> bool:
    is_behind_gap = bool(read) and read[-1] is not None
    return len(read) >= READ_EVENTS and read.count(None) >= LEAST_GAPS and is_behind_gap


def _check(read: Sequence[EventId | None], stored: Mapping[EventId, str]) -> int:
    """Compare what a reader read with what was stored; returns how many gaps it was told of.

    Behind a gap, the next event of each type may not follow the one that came before.
    """
    numbers: dict[EventId, int] = {}  # of each type
    n_of_types: Counter[str] = Counter()
    for event_id in sorted(stored):
        numbers[event_id] = n_of_types[stored[event_id]]
        n_of_types[stored[event_id]] += 1
    came = [i for i in read if i is not None]
    if came != sorted(came):
        raise ViolationError("events came in another order")
    expected: dict[str, int] = {}
    told, n_gaps = {*TYPES}, 0  # where it begins, retention says
    for next_id in read:
        if next_id is None:
            told = {*TYPES}
            n_gaps += 1
            continue
        of_type, number = stored[next_id], numbers[next_id]
        n_missed = number - expected.get(of_type, 0)
        if n_missed < 0 or (n_missed and of_type not in told):
            raise ViolationError(f"{next_id} came, {n_missed} events behind the one before")
        expected[of_type] = number + 1
        told.discard(of_type)
    return n_gaps
