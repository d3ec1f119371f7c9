"""The scenarios, in rounds of all sides in turn.

Only one side's server runs at a time, and every measurement has a client of its own
(``sides.do``). Scenarios on an empty store get a new directory each round; those on a
filled store share one that is filled once.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.perf import workload
from tests.perf.client import Job
from tests.perf.report import Bound, Measure, Sample
from tests.perf.scenarios import CONNECTIONS, ON_EMPTY, ON_FILLED, Scenario, Sizes
from tests.perf.sides import (
    HAT,
    OURS,
    SIDES,
    Server,
    Side,
    do,
    fill,
    in_turn,
    new_directory,
    sample_of,
    used_bytes,
)
from tests.perf.wires import MARINER

WRITE: Final = "write"
"""The side of a bare synced write."""


def measures(sizes: Sizes) -> list[Measure]:
    """The rows, without values."""
    rows = [_row(i) for i in (*ON_EMPTY, *CONNECTIONS, *ON_FILLED)]
    disk = f"disk space of an event of {sizes.stored:,}"
    return [*rows, Measure("disk", disk, "B", sides=(OURS.name, HAT.name))]


def _row(scenario: Scenario) -> Measure:
    bound = Bound.SPEED_UP if scenario.target else Bound.NONE
    sides = (*scenario.requests, *((WRITE,) if scenario.name == "register-latency" else ()))
    return Measure(
        scenario.name, scenario.title, scenario.unit, scenario.target, bound, sides=sides
    )


async def run(directory: Path, sizes: Sizes, wanted: Mapping[str, Measure]) -> None:
    """Measure, and add a value of each round to each of the wanted rows.

    Raises:
        ChildError: a server or a client failed; an answer was not right.
    """
    empty = {
        name: [i for i in scenarios if i.name in wanted]
        for name, scenarios in (("empty", ON_EMPTY), ("connections", CONNECTIONS))
    }
    filled = [i for i in ON_FILLED if i.name in wanted]
    stores = {side.name: new_directory(directory, side, "filled") for side in (OURS, HAT)}
    if filled or "disk" in wanted:
        for side in (OURS, HAT):
            async with side.start(stores[side.name]) as server:
                await fill(server, sizes, sizes.stored, sizes.types)
            if "disk" in wanted:
                wanted["disk"].add(side.name, used_bytes(stores[side.name]) / sizes.stored)
    for number in range(sizes.rounds):
        for side in in_turn(number, SIDES):
            for name, scenarios in empty.items():
                here = [i for i in scenarios if side.name in i.requests]
                if here and side.is_there:
                    path = new_directory(directory, side, f"{name}-{number}")
                    await _run_round(side, path, here, sizes, wanted)
        for side in in_turn(number):
            if filled:
                await _run_round(side, stores[side.name], filled, sizes, wanted)


async def _run_round(
    side: Side,
    directory: Path,
    scenarios: Sequence[Scenario],
    sizes: Sizes,
    wanted: Mapping[str, Measure],
) -> None:
    n_events = 0
    async with side.start(directory) as server:
        for scenario in scenarios:
            job = _job(side, server, scenario, sizes, n_events)
            n_events += job.n_events  # whose source timestamps go on from one to the next
            measure = wanted[scenario.name]
            measure.add(side.name, sample_of(job, await do(job, sizes), measure.unit))
            if side is OURS and WRITE in measure.sides:
                write_s = await asyncio.to_thread(synced_write_s, directory, sizes.writes)
                measure.add(WRITE, Sample(write_s * 1_000))


def _job(side: Side, server: Server, scenario: Scenario, sizes: Sizes, first: int) -> Job:
    requests = scenario.small if sizes.small else scenario.requests[side.name]
    wire = side.wire or scenario.wire
    return Job(
        server.host,
        server.port_of(wire),
        scenario.kind,
        requests=requests,
        warm_up=max(scenario.connections, requests // 20),
        in_flight=scenario.in_flight,
        connections=scenario.connections,
        events_per_request=scenario.events_per_request,
        has_keys=side.has_keys,
        is_backwards=side.is_backwards,
        first=first,
        stored=sizes.stored,
        types=sizes.types,
        wire=wire,
        ca=server.ca,
        pids=server.pids,
    )


def synced_write_s(directory: Path, count: int) -> float:
    """Median time to append as many bytes to a file as a registration of one event has, and sync.

    Args:
        directory: where the file is, beside a store.
        count: of how many.
    """
    [request] = workload.register_requests(0, 1, 1)
    data = MARINER.encode(request)
    times_s = []
    file = os.open(directory / "written", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for _ in range(count):
            begin = time.perf_counter()
            os.write(file, data)
            os.fdatasync(file)
            times_s.append(time.perf_counter() - begin)
    finally:
        os.close(file)
    return statistics.median(times_s)
