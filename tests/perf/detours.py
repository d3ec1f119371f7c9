"""What slows a registration down: a subscriber that never reads, a relay. Ours only."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from tests.perf.client import Connection, Job
from tests.perf.report import Bound, Measure
from tests.perf.scenarios import Sizes
from tests.perf.sides import OURS, do, new_directory
from tests.perf.workload import WrongAnswerError
from tests.support.gateway import gateway


def measures(_: Sizes) -> list[Measure]:
    """The rows, without values."""
    return [
        Measure("slow-subscriber", "register p99: with a deaf subscriber", "x", 2, Bound.AT_MOST),
        Measure("relay", "relay: register, one in flight, over embedded", "x", 2, Bound.AT_MOST),
    ]


async def run(directory: Path, sizes: Sizes, wanted: Mapping[str, Measure]) -> None:
    """Measure, and add a value of each round to each of the wanted rows.

    Raises:
        ChildError: a server or a client failed; an answer was not right.
    """
    if "slow-subscriber" in wanted:
        path = new_directory(directory, OURS, "slow-subscriber")
        await _measure_slow_subscriber(path, sizes, wanted["slow-subscriber"])
    if "relay" in wanted:
        await _measure_relay(directory, sizes, wanted["relay"])


async def _measure_slow_subscriber(directory: Path, sizes: Sizes, measure: Measure) -> None:
    """One in flight, with and without a subscriber that never reads, in turn."""
    async with OURS.start(directory) as server:
        first = 0
        for _ in range(sizes.rounds):
            p99_s = []
            for is_beside_one in (False, True):
                slow = Connection(server.host, server.port, [["*"]]) if is_beside_one else None
                job = Job(
                    server.host,
                    server.port,
                    "register",
                    requests=sizes.latencies,
                    warm_up=100,
                    first=first,
                )
                p99_s.append((await do(job, sizes)).p99_s)
                first += job.n_events
                if slow is not None:
                    slow.close()
            measure.add(OURS.name, p99_s[1] / p99_s[0])


async def _measure_relay(directory: Path, sizes: Sizes, measure: Measure) -> None:
    """A client of a gateway in front of an Event Server, and of that server itself.

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
                    medians_s.append((await do(job, sizes)).median_s)
                measure.add(OURS.name, medians_s[1] / medians_s[0])


async def _wait_operational(host: str, port: int) -> None:
    while True:
        try:
            Connection(host, port).close()
        except WrongAnswerError:
            await asyncio.sleep(0.02)
        else:
            return
