"""Whether we slow down: ten million events of ten thousand types, fed over the socket.

Ours only: hat-event would need some hours. 100 events a request, 64 in flight, all the
time; the rate of the first requests is compared with that of the last, which come right
behind others. The same for a query of 100 rows by type, each time another type. Then the
gateway is killed and started twice: once it has a log to replay, once it was closed well.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from tests.perf import workload
from tests.perf.client import Connection, Job
from tests.perf.report import Bound, Measure, Sample
from tests.perf.scenarios import Sizes
from tests.perf.sides import OURS, Server, do, sample_of, used_bytes

REQUEST_EVENTS: Final = 100

IN_FLIGHT: Final = 64


def measures(sizes: Sizes) -> list[Measure]:
    """The rows, without values."""
    few, events = f"{10 * sizes.millions_types:,}", f"{sizes.millions:,}"
    first, query = "register, 100 a request", "timeseries, newest 100"
    return [
        Measure("millions-first", f"{first}: above {few}", "events/s"),
        Measure("millions-last", f"{first}: up to {events}", "events/s"),
        Measure("millions-slow-down", "    the latter to the former", "x", 0.6, Bound.AT_LEAST),
        Measure("millions-query-first", f"{query}: {few} events", "ms"),
        Measure("millions-query", f"{query}: {events} events", "ms"),
        Measure("millions-query-slow-down", "    the latter to the former", "x", 2, Bound.AT_MOST),
        Measure("millions-memory", f"memory (RSS): {events} events", "MB", 1_000, Bound.AT_MOST),
        Measure("millions-disk", f"bytes on disk an event: {events} events", "B"),
        Measure("millions-start-up", f"start: {events} events", "s", 5, Bound.AT_MOST),
        Measure(
            "millions-recovery", f"start after kill -9: {events} events", "s", 5, Bound.AT_MOST
        ),
    ]


async def run(directory: Path, sizes: Sizes, wanted: Mapping[str, Measure]) -> None:
    """Measure, and add a value to each of the wanted rows.

    Args:
        directory: empty; the store goes there.
        sizes: how much.
        wanted: rows by name, out of :func:`measures`.

    Raises:
        ChildError: the gateway or a client failed; an answer was not right.
    """
    few, step = 10 * sizes.millions_types, sizes.millions_requests * REQUEST_EVENTS
    first = few + step // 2
    async with OURS.start(directory) as server:
        await _register(server, sizes, 0, few)
        first_ms = await _query_ms(server, sizes, few)
        first_rate = last_rate = await _register(server, sizes, few, first)
        for stop in reversed(range(sizes.millions, first, -step)):
            last_rate = await _register(server, sizes, first, stop, warm_up=(stop - first) // 2)
            first = stop
        last_ms = await _query_ms(server, sizes, sizes.millions)
        [process] = [psutil.Process(pid) for pid in server.pids]
        rss_bytes = process.memory_info().rss
        process.kill()
    recovery_s = await _start_s(directory, sizes)
    disk_bytes = used_bytes(directory)
    values: dict[str, Sample | float] = {
        "millions-first": first_rate,
        "millions-last": last_rate,
        "millions-slow-down": last_rate.value / first_rate.value,
        "millions-query-first": first_ms,
        "millions-query": last_ms,
        "millions-query-slow-down": last_ms.value / first_ms.value,
        "millions-memory": rss_bytes / 1e6,
        "millions-disk": disk_bytes / sizes.millions,
        "millions-recovery": recovery_s,
        "millions-start-up": await _start_s(directory, sizes),
    }
    for name, measure in wanted.items():
        measure.add(OURS.name, values[name])


async def _register(
    server: Server, sizes: Sizes, first: int, stop: int, *, warm_up: int = 0
) -> Sample:
    """Register the events from ``first`` to ``stop``; the rate of all but ``warm_up`` of them."""
    assert (stop - first) % REQUEST_EVENTS == warm_up % REQUEST_EVENTS == 0
    job = Job(
        server.host,
        server.port,
        "register",
        requests=(stop - first - warm_up) // REQUEST_EVENTS,
        warm_up=warm_up // REQUEST_EVENTS,
        in_flight=IN_FLIGHT,
        events_per_request=REQUEST_EVENTS,
        first=first,
        types=sizes.millions_types,
        pids=server.pids,
    )
    return sample_of(job, await do(job, sizes), "events/s")


async def _query_ms(server: Server, sizes: Sizes, stored: int) -> Sample:
    job = Job(
        server.host,
        server.port,
        "spread",
        requests=sizes.millions_queries,
        warm_up=sizes.millions_queries // 20,
        stored=stored,
        types=sizes.millions_types,
        pids=server.pids,
    )
    return sample_of(job, await do(job, sizes), "ms")


async def _start_s(directory: Path, sizes: Sizes) -> float:
    """Seconds from the start of the process until a query was answered; then it is stopped."""
    query = workload.query_requests("spread", 1, sizes.millions, sizes.millions_types)
    begin = time.perf_counter()
    async with OURS.start(directory) as server:
        connection = Connection(server.host, server.port)
        answers = connection.ask(query)
        seconds = time.perf_counter() - begin
        connection.close()
    workload.check_queried(answers, "spread", sizes.millions, sizes.millions_types)
    return seconds
