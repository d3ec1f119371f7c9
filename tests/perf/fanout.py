"""Subscribers that hear of the same events: one over Mariner, many over Eventer."""

import asyncio
import contextlib
import functools
import itertools
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from tests.perf import client, subscribers
from tests.perf.client import Job
from tests.perf.report import Bound, Measure, Sample
from tests.perf.scenarios import Sizes
from tests.perf.sides import (
    HAT,
    JOB_TIMEOUT_S,
    OURS,
    Server,
    do,
    finish,
    in_turn,
    new_directory,
    running,
)
from tests.perf.wires import WireName

Hearing: TypeAlias = asyncio.Task[subscribers.Outcome]
"""What subscribers become in the end."""

SUBSCRIBER_PROCESSES: Final = 2
"""Between which the subscribers are divided."""


class FanOut(NamedTuple):
    """Events to subscribers; ``scenarios.Scenario`` explains the names that are not explained here.

    Attributes:
        subscribers: how many; None: as many as the sizes say.
    """

    name: str
    title: str
    requests: Mapping[str, int]
    small: int
    events_per_request: int
    wire: WireName = "eventer"
    subscribers: int | None = None

    def n_subscribers(self, sizes: Sizes) -> int:
        """How many subscribers there are."""
        return sizes.subscribers if self.subscribers is None else self.subscribers


FAN_OUTS: Final = (
    FanOut(
        "heard-100",
        "100 events to {} subscriber, 64 in flight",
        {"ours": 2_500, "hat": 250},
        16,
        100,
        wire="mariner",
        subscribers=1,
    ),
    FanOut(
        "fan-out-single", "Eventer: 1 event to {} subscribers", {"ours": 4_000, "hat": 300}, 50, 1
    ),
    FanOut(
        "fan-out-100", "Eventer: 100 events to {} subscribers", {"ours": 200, "hat": 20}, 5, 100
    ),
)


def measures(sizes: Sizes) -> list[Measure]:
    """The rows, without values."""
    sides = (OURS.name, HAT.name)
    return [
        Measure(
            i.name,
            i.title.format(i.n_subscribers(sizes)),
            "events/s",
            10,
            Bound.SPEED_UP,
            sides=sides,
        )
        for i in FAN_OUTS
    ]


async def run(directory: Path, sizes: Sizes, wanted: Mapping[str, Measure]) -> None:
    """Measure, and add a value of each round to each of the wanted rows.

    Raises:
        ChildError: a server or a client failed; a subscriber did not hear of every event.
    """
    for number in range(sizes.rounds):
        for side, fan_out in itertools.product(in_turn(number), FAN_OUTS):
            if fan_out.name in wanted:
                path = new_directory(directory, side, f"{fan_out.name}-{number}")
                async with side.start(path) as server:
                    requests = fan_out.small if sizes.small else fan_out.requests[side.name]
                    sample = await _fan_out(server, sizes, fan_out, requests)
                    wanted[fan_out.name].add(side.name, sample)


async def _fan_out(server: Server, sizes: Sizes, fan_out: FanOut, requests: int) -> Sample:
    """Events delivered to all subscribers together, a second, and the CPU of each."""
    events = requests * fan_out.events_per_request
    async with contextlib.AsyncExitStack() as stack:
        port = server.port_of(fan_out.wire)
        n_subscribers = fan_out.n_subscribers(sizes)
        n_processes = min(n_subscribers, SUBSCRIBER_PROCESSES)
        each = n_subscribers // n_processes
        job = subscribers.Job(server.host, port, fan_out.wire, each, events)
        subscribed = _subscribed_here if sizes.small else subscribed_process
        heard = [await stack.enter_async_context(subscribed(job)) for _ in range(n_processes)]
        publisher = Job(
            server.host,
            port,
            "register",
            requests=requests,
            in_flight=64,
            events_per_request=fan_out.events_per_request,
            wire=fan_out.wire,
        )
        outcomes = asyncio.gather(*heard)
        cpu_s = client.cpu_s(server.pids)
        published, _ = await asyncio.gather(do(publisher, sizes), outcomes)
        cpu_s = client.cpu_s(server.pids) - cpu_s
    seconds = max(i.ended_at for i in outcomes.result()) - published.begun_at
    delivered = events * each * n_processes
    return Sample(delivered / seconds, cpu_s / delivered * 1e6)


@contextlib.asynccontextmanager
async def _subscribed_here(job: subscribers.Job) -> AsyncIterator[Hearing]:
    """As :func:`subscribed_process`, in a thread, which ends when the server does."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    on_ready = functools.partial(loop.call_soon_threadsafe, ready.set)
    hearing = asyncio.create_task(asyncio.to_thread(subscribers.run, job, on_ready))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([hearing, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        yield hearing
    finally:
        hearing.cancel()


@contextlib.asynccontextmanager
async def subscribed_process(job: subscribers.Job) -> AsyncIterator[Hearing]:
    """A process of subscribers, all of them subscribed; gives what they become in the end."""
    async with running(sys.executable, "-m", "tests.perf.subscribers") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        async with asyncio.timeout(JOB_TIMEOUT_S):
            if await process.stdout.readline() != b"ready\n":
                await finish(process, subscribers.Outcome)  # tells why
        hearing = asyncio.create_task(finish(process, subscribers.Outcome))
        try:
            yield hearing
        finally:  # where something else failed
            hearing.cancel()
            await asyncio.wait([hearing])
