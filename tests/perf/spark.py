"""Spark over what a gateway stored: the lake, the store, the network. Ours only.

One gateway is filled; all reads are done by one Spark session with two cores while the gateway
runs. Then it is registered to, with and without a session that reads its store all the time.
"""

import asyncio
import statistics
from asyncio.subprocess import Process
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.perf.client import Job
from tests.perf.report import Bound, Measure
from tests.perf.scenarios import Sizes
from tests.perf.sides import (
    JOB_TIMEOUT_S,
    OURS,
    Server,
    client_process,
    do,
    fill,
    output_of,
)
from tests.perf.spark_client import SparkJob, SparkOutcome
from tests.support.process import ChildError

REQUEST_EVENTS: Final = 100

_CLIENT: Final = "tests.perf.spark_client"

_RATES: Final = ("plain", "lake", "path", "ingest", "network")


def measures(sizes: Sizes) -> list[Measure]:
    """The rows, without values."""
    n = f"{sizes.spark:,}"
    return [
        Measure("spark-plain", f"Spark, activity: plain Parquet, {n}", "rows/s"),
        Measure("spark-lake", f"Spark, activity: lake, {n}", "rows/s"),
        Measure("spark-lake-share", "    the latter to the former", "x", 0.8, Bound.AT_LEAST),
        # the target is lower where the lake is slow: see run
        Measure("spark-path", f"Spark, all columns: store, {n}", "rows/s", 3e5, Bound.AT_LEAST),
        Measure(
            "spark-one-type",
            "    one type of 100, of that, both without an empty read",
            "x",
            0.05,
            Bound.AT_MOST,
        ),
        Measure("spark-ingest", f"Spark: gateway to lake, {n}", "rows/s"),
        Measure(
            "spark-network", f"Spark, all columns: gateway, {n}", "rows/s", 1e5, Bound.AT_LEAST
        ),
        Measure(
            "spark-beside", "register, 100 a request: beside a reader", "x", 0.8, Bound.AT_LEAST
        ),
    ]


async def run(directory: Path, sizes: Sizes, wanted: Mapping[str, Measure]) -> None:
    """Measure, and add a value to each of the wanted rows.

    Args:
        directory: empty; the store and tables go there.
        sizes: how much.
        wanted: rows by name, out of :func:`measures`.

    Raises:
        ChildError: the gateway, Spark or a client failed; rows were missing.
    """
    async with OURS.start(directory) as server, client_process(_CLIENT) as process:
        await fill(server, sizes.spark)
        job = _job(server, directory, sizes)
        answer = await _ask(process, msgspec.json.encode(job))
        outcome = msgspec.json.decode(answer, type=SparkOutcome)
        values = _values(outcome.seconds, sizes.spark)
        if "spark-beside" in wanted:
            values["spark-beside"] = await _beside(server, process, sizes)
        else:
            await output_of(process, b"")
    for name, measure in wanted.items():
        measure.add(OURS.name, values[name])
        if name == "spark-path":
            measure.target = min(measure.target, 0.3 * values["spark-lake"])


def _job(server: Server, directory: Path, sizes: Sizes) -> SparkJob:
    return SparkJob(
        host=server.host,
        port=server.port,
        store=str(directory / OURS.store),
        folder=str(directory / "tables"),
        events=sizes.spark,
        rounds=sizes.rounds,
        is_short=sizes.small,
    )


async def _ask(process: Process, line: bytes) -> bytes:
    """The client's answer to a line.

    Raises:
        ChildError: it ended.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + b"\n")
    async with asyncio.timeout(JOB_TIMEOUT_S):
        answer = await process.stdout.readline()
    if not answer:
        await output_of(process, b"")
        raise ChildError("the client ended without an answer")
    return answer


def _values(seconds: Mapping[str, float], events: int) -> dict[str, float]:
    # what a read costs that finds nothing: planning, starting tasks, opening the store
    nothing = seconds["no-type"]
    rates = {f"spark-{i}": events / seconds[i] for i in _RATES}
    return rates | {
        "spark-lake-share": rates["spark-lake"] / rates["spark-plain"],
        "spark-one-type": (seconds["one-type"] - nothing) / (seconds["path"] - nothing),
    }


async def _beside(server: Server, process: Process, sizes: Sizes) -> float:
    """Rate of registration beside a reader, of the mean of that before and after."""
    first = sizes.spark
    warm_up = sizes.spark_requests // 20

    async def rate() -> float:
        nonlocal first
        job = Job(
            server.host,
            server.port,
            "register",
            requests=sizes.spark_requests,
            warm_up=warm_up,
            in_flight=64,
            events_per_request=REQUEST_EVENTS,
            first=first,
        )
        first += (sizes.spark_requests + warm_up) * REQUEST_EVENTS
        return job.requests * REQUEST_EVENTS / (await do(job)).seconds

    before = await rate()
    assert await _ask(process, b"%d" % first) == b"reading\n"
    beside = await rate()
    await output_of(process, b"")  # its standard input ends
    return beside / statistics.fmean((before, await rate()))
