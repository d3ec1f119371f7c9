"""Many subscribers over Eventer, and a gateway that relays to an Event Server."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from tests.perf import subscribers
from tests.perf.client import Connection, Job
from tests.perf.report import Bound, Measure
from tests.perf.scenarios import FAN_OUTS, FanOut, Sizes
from tests.perf.sides import (
    JOB_TIMEOUT_S,
    OURS,
    Server,
    client_process,
    do,
    finish,
    in_turn,
    new_directory,
)
from tests.perf.workload import WrongAnswerError
from tests.support.gateway import gateway

Hearing: TypeAlias = asyncio.Task[subscribers.Outcome]
"""What subscribers become in the end."""

SUBSCRIBER_PROCESSES: Final = 2
"""Between which the subscribers are divided."""


def measures(sizes: Sizes) -> list[Measure]:
    """Their rows in the table, still without values."""
    return [
        *(
            Measure(i.name, i.title.format(sizes.subscribers), "events/s", 10, Bound.SPEED_UP)
            for i in FAN_OUTS
        ),
        Measure("relay", "relay: register, one in flight, over embedded", "x", 2, Bound.AT_MOST),
    ]


async def run(directory: Path, sizes: Sizes, wanted: dict[str, Measure]) -> None:
    """Measure what is wanted.

    Raises:
        ChildError: a server or a client failed; a subscriber did not hear of every event.
    """
    fan_outs = [i for i in FAN_OUTS if i.name in wanted]
    for number in range(sizes.rounds if fan_outs else 0):
        for side in in_turn(number):
            path = new_directory(directory, side, f"fan-out-{number}")
            async with side.start(path) as server:
                for fan_out in fan_outs:
                    requests = fan_out.counts.of(side.name, sizes.small)
                    value = await _fan_out(server, sizes, fan_out, requests)
                    wanted[fan_out.name].add(side.name, value)
    if "relay" in wanted:
        await _measure_relay(directory, sizes, wanted["relay"])


async def _fan_out(server: Server, sizes: Sizes, fan_out: FanOut, requests: int) -> float:
    """Events delivered to all subscribers together, a second."""
    events = requests * fan_out.events_per_request
    async with contextlib.AsyncExitStack() as stack:
        port = server.eventer_port
        each = sizes.subscribers // SUBSCRIBER_PROCESSES
        job = subscribers.Job(server.host, port, "eventer", each, events)
        subscribed = _subscribed_here if sizes.small else subscribed_process
        heard = [
            await stack.enter_async_context(subscribed(job)) for _ in range(SUBSCRIBER_PROCESSES)
        ]
        publisher = Job(
            server.host,
            port,
            "register",
            requests=requests,
            in_flight=fan_out.in_flight,
            events_per_request=fan_out.events_per_request,
            wire="eventer",
        )
        outcomes = asyncio.gather(*heard)
        published, _ = await asyncio.gather(do(publisher, sizes), outcomes)
    ended_at = max(i.ended_at for i in outcomes.result())
    return events * each * SUBSCRIBER_PROCESSES / (ended_at - published.begun_at)


async def _measure_relay(directory: Path, sizes: Sizes, measure: Measure) -> None:
    """Ours only: a client of a gateway in front of an Event Server, and of that server itself.

    Both are Mariner clients, and the Event Server is the embedded core with its store.
    """
    path = new_directory(directory, OURS, "relay")
    relay_path = new_directory(directory, OURS, "relay-gateway")
    async with OURS.start(path) as embedded:
        remote = {"host": embedded.host, "port": embedded.eventer_port, "token": None}
        async with gateway(relay_path, remote=remote) as relay:
            await _wait_operational(relay.host, relay.port)
            for _ in range(sizes.rounds):
                medians_s = []
                for port in (embedded.port, relay.port):
                    job = Job(
                        embedded.host, port, "register", requests=sizes.latencies, warm_up=100
                    )
                    outcome = await do(job, sizes)
                    medians_s.append(outcome.median_s)
                measure.add(OURS.name, medians_s[1] / medians_s[0])


async def _wait_operational(host: str, port: int) -> None:
    while True:
        try:
            Connection(host, port).close()
        except WrongAnswerError:
            await asyncio.sleep(0.02)
        else:
            return


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
    async with client_process("tests.perf.subscribers") as process:
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
