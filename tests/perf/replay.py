"""Everything that is stored, to one client, and what that costs another one. Ours only."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec

from mariner import client
from tests.perf import replay_client
from tests.perf.client import Outcome
from tests.perf.replay_client import ReplayJob
from tests.perf.report import Bound, Measure, Sample
from tests.perf.scenarios import Sizes
from tests.perf.sides import CLIENT_BUSY, OURS, Server, fill, finish, new_directory, running

PING_PERIOD_S = 0.002


def measures(sizes: Sizes) -> list[Measure]:
    """The rows, without values."""
    events = f"{sizes.replayed:,} events"
    return [
        Measure("replay", f"replay of {events} to one client", "events/s", 200_000, Bound.AT_LEAST),
        Measure("replay-ping", "pings of another client meanwhile, p99", "ms", 50, Bound.AT_MOST),
    ]


async def run(directory: Path, sizes: Sizes, wanted: Mapping[str, Measure]) -> None:
    """Measure, and add a value of each round to each of the wanted rows.

    Raises:
        ChildError: a server or a client failed; an answer was not right.
    """
    async with OURS.start(new_directory(directory, OURS, "replay")) as server:
        await fill(server, sizes, sizes.replayed)
        for _ in range(sizes.rounds):
            job = ReplayJob(server.host, server.port, sizes.replayed, server.pids)
            async with _pinging(server) as times_s:
                outcome = await _replay(job, sizes)
            if "replay" in wanted:
                wanted["replay"].add(OURS.name, _sample(job, outcome))
            if "replay-ping" in wanted:
                p99_s = sorted(times_s)[len(times_s) * 99 // 100]
                wanted["replay-ping"].add(OURS.name, p99_s * 1_000)


async def _replay(job: ReplayJob, sizes: Sizes) -> Outcome:
    if sizes.small:
        return await replay_client.run(job)
    async with running(sys.executable, "-m", replay_client.__name__) as process:
        return await finish(process, Outcome, msgspec.json.encode(job))


def _sample(job: ReplayJob, outcome: Outcome) -> Sample:
    return Sample(
        job.events / outcome.seconds,
        outcome.server_cpu_s / job.events * 1e6,
        is_client_busy=outcome.client_cpu_s > CLIENT_BUSY * outcome.seconds,
    )


@contextlib.asynccontextmanager
async def _pinging(server: Server) -> AsyncIterator[list[float]]:
    """Another client pings meanwhile; how long each ping takes, in seconds."""
    times_s: list[float] = []

    async def ping(connection: client.Client) -> None:
        while True:
            times_s.append(await connection.ping())
            await asyncio.sleep(PING_PERIOD_S)

    async with await client.connect(
        server.host, server.port, client_name="app", client_token="secret"
    ) as connection:
        times_s.append(await connection.ping())  # one at least
        pinging = asyncio.create_task(ping(connection))
        try:
            yield times_s
        finally:
            pinging.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pinging
