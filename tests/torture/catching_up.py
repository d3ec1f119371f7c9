"""A gateway catches up with another one, and its own clients register meanwhile."""

import asyncio
import contextlib
import itertools
import random
import statistics
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

from eventer_bridge.model import INT64_MAX, EventId, JsonPayload, QueryServerParams, RegisterEvent
from mariner.client.client import Client
from tests.support.gateway import Gateway, gateway
from tests.torture.clients import connected
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress

N_EVENTS: int = 300_000
"""Events to catch up with: some seconds of it."""

MAX_P99_S: float | None = 0.020
"""What the honest client's registrations may take meanwhile, or twice what they took before: on a
machine that is busy, that is more. None: it is not judged."""

BASELINE_FACTOR: Final = 2

SESSION_EVENTS: Final = (1, 1, 1, 10, 100)
"""Events of the sessions to catch up with, in turn."""

IN_FLIGHT: Final = 256
"""Sessions that are registered at a time, before."""

PERIOD_S: Final = 0.002
"""Between two registrations of the honest client."""

BASELINE_S: Final = 1.0
"""How long it registers before."""

LOOK_PERIOD_S: Final = 0.1
"""Between two looks at how far it is."""


class Times(NamedTuple):
    """How long registrations took, in milliseconds."""

    median_ms: float
    p99_ms: float
    most_ms: float
    n: int

    def __str__(self) -> str:
        return f"{self.median_ms:.1f}/{self.p99_ms:.1f}/{self.most_ms:.0f} ms of {self.n}"


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Have ``rounds`` new gateways catch up, one after the other.

    Raises:
        ViolationError: a registration failed, took too long, or not all was caught up with.
    """
    listen = {"host": "127.0.0.1", "port": 0}
    facts: list[str] = []

    async with gateway(directory / "source", core={"eventer_server": listen}) as source:
        last = await _fill(source)
        for n in range(1, rounds + 1):
            facts.append(await _catch_up(directory / f"replica{n}", source, last))
            progress(n, rounds)
    return f"{N_EVENTS} events caught up with {rounds} times: " + "; ".join(facts)


async def _fill(source: Gateway) -> EventId:
    """Register what there is to catch up with; the last event."""
    sizes = itertools.cycle(SESSION_EVENTS)
    n_left = N_EVENTS
    last = EventId(0, 0, 0)

    async def register(client: Client) -> None:
        nonlocal n_left, last
        while n_left > 0:
            size = min(next(sizes), n_left)
            n_left -= size
            events = [
                RegisterEvent(("far", str(i)), None, JsonPayload.of({"value": i}))
                for i in range(size)
            ]
            last = max(last, (await client.register(events))[-1].id)

    async with connected(source) as client, asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(register(client))
    return last


async def _catch_up(path: Path, source: Gateway, last: EventId) -> str:
    remote = {"server_id": 1, "host": "127.0.0.1", "port": source.eventer_port}
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        replica = await stack.enter_async_context(gateway(path, core={"server_id": 2}))
        honest = await stack.enter_async_context(connected(replica))
        async with _registering(honest) as baseline_s:
            await asyncio.sleep(BASELINE_S)
    async with contextlib.AsyncExitStack() as stack:
        core = {"server_id": 2, "replication": [remote]}
        replica = await stack.enter_async_context(gateway(path, core=core))
        began_s = loop.time()
        honest = await stack.enter_async_context(connected(replica))
        reader = await stack.enter_async_context(connected(replica))
        async with _registering(honest) as times_s:
            while not await has(reader, last):
                await asyncio.sleep(LOOK_PERIOD_S)
            took_s = loop.time() - began_s
    times, before = _times(times_s), _times(baseline_s)
    if MAX_P99_S is not None:
        allowed_ms = max(1_000 * MAX_P99_S, BASELINE_FACTOR * before.p99_ms)
        if times.p99_ms > allowed_ms:
            raise ViolationError(
                f"registrations take {times} meanwhile, at most {allowed_ms:.0f} ms at p99"
                f" (before: {before})"
            )
    return (
        f"{N_EVENTS / took_s:,.0f} events/s, registrations meanwhile {times} (median/p99/most;"
        f" before {before})"
    )


@contextlib.asynccontextmanager
async def _registering(client: Client) -> AsyncIterator[list[float]]:
    """Register one event after the other; gives what each takes, in seconds."""
    loop = asyncio.get_running_loop()
    times_s: list[float] = []
    is_stopping = False

    async def register() -> None:
        while not is_stopping:
            began_s = loop.time()
            await client.register([RegisterEvent(("near",), None, JsonPayload.of(len(times_s)))])
            times_s.append(loop.time() - began_s)
            await asyncio.sleep(PERIOD_S)

    async with asyncio.TaskGroup() as group:
        group.create_task(register())
        yield times_s
        is_stopping = True


async def has(client: Client, event_id: EventId) -> bool:
    """Whether an event of another server, or a later one, is kept."""
    before = EventId(event_id.server, event_id.session - 1, INT64_MAX)
    params = QueryServerParams(event_id.server, max_results=1, last_event_id=before)
    return bool((await client.query(params)).events)


def _times(times_s: list[float]) -> Times:
    ordered_ms = sorted(1_000 * i for i in times_s)
    p99_ms = ordered_ms[int(0.99 * (len(ordered_ms) - 1))]
    return Times(statistics.median(ordered_ms), p99_ms, ordered_ms[-1], len(ordered_ms))
