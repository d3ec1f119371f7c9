"""Runs the scenarios on both sides in turn.

Only one side's server runs at a time, and every measurement has a client of its own
(``sides.do``). Scenarios on an empty store get a new directory each round; those on a
filled store share one that is filled once.
"""

from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from tests.perf import eventer, millions, rsb, spark
from tests.perf.client import Connection, Job
from tests.perf.report import Bound, Measure
from tests.perf.scenarios import NAMES, ON_EMPTY, ON_FILLED, Scenario, Sizes
from tests.perf.sides import (
    OURS,
    SIDES,
    Side,
    do,
    fill,
    in_turn,
    new_directory,
    used_bytes,
)


async def run(
    directory: Path,
    sizes: Sizes,
    names: frozenset[str] = frozenset(NAMES),
    session: SparkSession | None = None,
) -> list[Measure]:
    """Run scenarios on both sides.

    Args:
        directory: empty; stores go there.
        sizes: ``scenarios.FULL`` or ``scenarios.SMALL``.
        names: which, out of ``scenarios.NAMES``.
        session: see ``spark.run``.

    Returns:
        A measure for each scenario, in the order of the tables.

    Raises:
        ChildError: a server or a client failed; an answer was not right.
    """
    empty = [i for i in ON_EMPTY if i.name in names]
    filled = [i for i in ON_FILLED if i.name in names]
    measures = {
        i.name: Measure(
            i.name, i.title, i.unit, i.target, Bound.SPEED_UP if i.target else Bound.NONE
        )
        for i in empty + filled
    }
    measures |= {i.name: i for i in _records(sizes) if i.name in names}

    for number in range(sizes.rounds if empty else 0):
        for side in in_turn(number):
            path = new_directory(directory, side, f"empty-{number}")
            await _run_round(side, path, empty, sizes, measures)
    stores = {side.name: new_directory(directory, side, "filled") for side in SIDES}
    if filled or "disk" in names:
        for side in SIDES:
            await _fill_store(side, stores[side.name], sizes, measures)
    for number in range(sizes.rounds if filled else 0):
        for side in in_turn(number):
            await _run_round(side, stores[side.name], filled, sizes, measures)
    if "memory" in names:
        await _measure_memory(new_directory(directory, OURS, "many"), sizes, measures["memory"])
    if "idle-connection" in names:
        for side in SIDES:
            path = new_directory(directory, side, "idle")
            await _measure_idle(side, path, sizes, measures["idle-connection"])
    if "slow-subscriber" in names:
        path = new_directory(directory, OURS, "slow-subscriber")
        await _measure_slow_subscriber(path, sizes, measures["slow-subscriber"])
    wanted_eventer = {i.name: i for i in eventer.measures(sizes) if i.name in names}
    await eventer.run(directory, sizes, wanted_eventer)
    wanted_millions = {i.name: i for i in millions.measures(sizes) if i.name in names}
    if wanted_millions:
        await millions.run(new_directory(directory, OURS, "millions"), sizes, wanted_millions)
    wanted_rsb = {i.name: i for i in rsb.measures() if i.name in names}
    await rsb.run(directory, sizes, wanted_rsb)
    wanted_spark = {i.name: i for i in spark.measures(sizes) if i.name in names}
    if wanted_spark:
        await spark.run(new_directory(directory, OURS, "spark"), sizes, wanted_spark, session)
    wanted = (measures, wanted_eventer, wanted_millions, wanted_rsb, wanted_spark)
    return [measure for of_kind in wanted for measure in of_kind.values()]


def _records(sizes: Sizes) -> list[Measure]:
    """What is recorded besides the scenarios."""
    return [
        Measure("disk", f"bytes on disk an event, {sizes.stored:,} stored", "B"),
        Measure(
            "memory", f"memory (RSS) with {sizes.many:,} stored events", "MB", 300, Bound.AT_MOST
        ),
        Measure(
            "idle-connection",
            f"memory (RSS) of an idle connection, of {sizes.idle}",
            "kB",
            30,
            Bound.AT_MOST,
        ),
        Measure("slow-subscriber", "register p99: with a deaf subscriber", "x", 2, Bound.AT_MOST),
    ]


async def _run_round(
    side: Side,
    directory: Path,
    scenarios: list[Scenario],
    sizes: Sizes,
    measures: dict[str, Measure],
) -> None:
    async with side.start(directory) as server:
        for scenario in scenarios:
            requests = scenario.counts.of(side.name, sizes.small)
            job = Job(
                server.host,
                server.port_of(scenario.wire),
                scenario.kind,
                requests=requests,
                warm_up=max(1, requests // 20),
                in_flight=scenario.in_flight,
                events_per_request=scenario.events_per_request,
                stored=sizes.stored,
                types=sizes.types,
                wire=scenario.wire,
            )
            outcome = await do(job, sizes)
            value = (
                outcome.median_s * 1_000
                if scenario.unit == "ms"
                else requests * scenario.events_per_request / outcome.seconds
            )
            measures[scenario.name].add(side.name, value)


async def _fill_store(
    side: Side, directory: Path, sizes: Sizes, measures: dict[str, Measure]
) -> None:
    async with side.start(directory) as server:
        await fill(server, sizes, sizes.stored, sizes.types)
    if "disk" in measures:
        measures["disk"].add(side.name, used_bytes(directory, side.store) / sizes.stored)


async def _measure_memory(directory: Path, sizes: Sizes, measure: Measure) -> None:
    """Ours only: hat-event would need some minutes to store as many."""
    async with OURS.start(directory) as server:
        await fill(server, sizes, sizes.many)
        rss_bytes = sum(psutil.Process(pid).memory_info().rss for pid in server.pids)
        measure.add(OURS.name, rss_bytes / 1e6)


async def _measure_idle(side: Side, directory: Path, sizes: Sizes, measure: Measure) -> None:
    async with side.start(directory) as server:
        job = Job(
            server.host,
            server.port,
            "idle",
            requests=sizes.idle,
            warm_up=sizes.idle // 10,
            pids=server.pids,
        )
        measure.add(side.name, (await do(job, sizes)).bytes_per_connection / 1e3)


async def _measure_slow_subscriber(directory: Path, sizes: Sizes, measure: Measure) -> None:
    """Ours only: one in flight, with and without a subscriber that never reads, in turn."""
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
                first += sizes.latencies + 100
                if slow is not None:
                    slow.close()
            measure.add(OURS.name, p99_s[1] / p99_s[0])
