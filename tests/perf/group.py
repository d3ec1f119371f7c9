"""A group of two gateways on a PostgreSQL with two standbys, beside a single store.

Everything is on the same cores: three PostgreSQL, the active gateway, a follower, the client.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import asyncpg

from eventer_bridge.group.dsn import PostgresqlConfig
from eventer_bridge.group.postgresql import create_group
from eventer_bridge.model import EventId, Status
from mariner import client
from tests.perf.client import Job
from tests.perf.report import Bound, Measure, Sample
from tests.perf.scenarios import Sizes
from tests.perf.sides import OURS, Server, do, new_directory, sample_of
from tests.support.gateway import Gateway, gateway
from tests.support.hat_peers import HOST
from tests.support.postgresql import Cluster, cluster

CONNECTIONS: Final = (1, 8, 64)
REQUESTS: Final = 1_280
BATCH: Final = 100

GROUP: Final = "group"
INSERT: Final = "insert"
"""Sides: a group; a bare commit of as many bytes, which waits for the same quorum."""

LATENCY: Final = "group-latency"
LAG: Final = "group-lag"


def measures(_: Sizes) -> list[Measure]:
    """The rows, without values."""
    title = f"register: {BATCH} events, 64 in flight, connections: {{}}"
    sides = GROUP, OURS.name
    rates = (Measure(_rate(n), title.format(n), "events/s", sides=sides) for n in CONNECTIONS)
    latency = "register: 1 event, one in flight"
    lag = "group: p99 of how far the follower is behind, at full load"
    return [
        *rates,
        Measure(LATENCY, latency, "ms", sides=(GROUP, INSERT)),
        Measure(LAG, lag, "s", 1, Bound.AT_MOST),
    ]


def _rate(connections: int) -> str:
    return f"group-connections-{connections}"


async def run(directory: Path, sizes: Sizes, wanted: Mapping[str, Measure]) -> None:
    """Measure, and add a value of each round to each of the wanted rows.

    Raises:
        ChildError: a server or a client failed; an answer was not right.
    """
    with cluster() as servers:
        for number in range(sizes.rounds):
            path = directory / f"{GROUP}-{number}"
            path.mkdir()
            for side in (GROUP, OURS.name)[:: 1 if number % 2 else -1]:
                if side == GROUP:
                    await _measure_group(servers, path, sizes, wanted)
                else:
                    here = new_directory(directory, OURS, str(number))
                    async with OURS.start(here) as server:
                        await _measure_rates(server, OURS.name, sizes, wanted)


async def _measure_group(
    servers: Cluster, directory: Path, sizes: Sizes, wanted: Mapping[str, Measure]
) -> None:
    config = PostgresqlConfig(servers.dsn())
    await create_group(config, directory.name, 1, 10.0, unreplicated=False)
    async with (
        _member(servers, directory, "a") as active,
        _member(servers, directory, "b") as follower,
    ):
        async with await _connect(active) as connection:
            await connection.wait_status(Status.OPERATIONAL)
        server = Server(active.host, active.port, 0, [active.pid, follower.pid])
        await _measure_rates(server, GROUP, sizes, wanted)
        if LAG in wanted:
            wanted[LAG].add(OURS.name, await _lag_s(server, follower, sizes))
        if LATENCY in wanted:
            job = Job(server.host, server.port, "register", sizes.latencies, warm_up=20)
            wanted[LATENCY].add(GROUP, sample_of(job, await do(job, sizes), "ms"))
            insert_s = await _insert_s(servers, directory.name, sizes.latencies)
            wanted[LATENCY].add(INSERT, Sample(insert_s * 1_000))


@contextlib.asynccontextmanager
async def _member(servers: Cluster, directory: Path, name: str) -> AsyncIterator[Gateway]:
    log = {"type": "postgresql", "dsn": servers.dsn()}
    its = {"group": {"log": log, "name": directory.name, "member": name}}
    path = directory / name
    path.mkdir()
    async with gateway(path, core=its) as running:
        yield running


async def _connect(server: Server | Gateway, *subscription: str) -> client.Client:
    return await client.connect(
        HOST,
        server.port,
        client_name="app",
        client_token="secret",
        subscriptions=[subscription] if subscription else (),
        persisted=True,
    )


async def _measure_rates(
    server: Server, side: str, sizes: Sizes, wanted: Mapping[str, Measure]
) -> None:
    for connections in CONNECTIONS:
        if measure := wanted.get(_rate(connections)):
            job = _job(server, connections, sizes)
            measure.add(side, sample_of(job, await do(job, sizes), measure.unit))


def _job(server: Server, connections: int, sizes: Sizes) -> Job:
    return Job(
        server.host,
        server.port,
        "register",
        requests=connections if sizes.small else REQUESTS,
        warm_up=connections,
        in_flight=64,
        connections=connections,
        events_per_request=BATCH,
        pids=server.pids,
    )


async def _lag_s(server: Server, follower: Gateway, sizes: Sizes) -> float:
    """From when the active gateway notifies of a stored event until the follower does; p99.

    Of one type of many, so that this process has little to do.
    """
    told: list[dict[EventId, float]] = [{}, {}]
    heard = asyncio.Event()

    async def hear(connection: client.Client, at: dict[EventId, float]) -> None:
        async for events in connection.events():
            at.update(dict.fromkeys((i.id for i in events), time.monotonic()))
            heard.set()

    async with (
        await _connect(server, "perf", "0") as first,
        await _connect(follower, "perf", "0") as second,
    ):
        hearing = [
            asyncio.create_task(hear(i, at)) for i, at in zip((first, second), told, strict=True)
        ]
        await do(_job(server, 8, sizes), sizes)
        await first.ping()
        while not told[0].keys() <= told[1].keys():
            heard.clear()
            await heard.wait()
    await asyncio.gather(*hearing)
    lags_s = sorted(told[1][i] - at_s for i, at_s in told[0].items())
    return max(0.0, lags_s[int(len(lags_s) * 0.99)])


async def _insert_s(servers: Cluster, group: str, count: int) -> float:
    """Median time of a bare commit of as many bytes as the record of a registration has."""
    connection = await asyncpg.connect(servers.primary.dsn())
    try:
        await connection.execute("CREATE TABLE IF NOT EXISTS perf (data bytea)")
        n_bytes = await connection.fetchval(
            "SELECT n_bytes FROM mariner.records WHERE name = $1 ORDER BY position DESC LIMIT 1",
            group,
        )
        times_s = []
        for _ in range(count):
            begin_s = time.perf_counter()
            await connection.execute("INSERT INTO perf VALUES ($1)", bytes(n_bytes))
            times_s.append(time.perf_counter() - begin_s)
        return statistics.median(times_s)
    finally:
        await connection.close()
