"""Spark over what a gateway stored: the lake, the store, the network. Ours only.

One gateway is filled; all reads are done by one Spark session with two cores while the gateway
runs. Then it is registered to, with and without a session that reads its store all the time.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.perf.client import Job
from tests.perf.report import Bound, Measure
from tests.perf.scenarios import Sizes
from tests.perf.sides import OURS, Server, client_process, do, fill, finish
from tests.perf.spark_client import SparkJob, SparkOutcome

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
    async with OURS.start(directory) as server:
        await fill(server, sizes.spark)
        job = _job("reads", server, directory, sizes, sizes.spark)
        async with client_process(_CLIENT) as process:
            outcome = await finish(process, SparkOutcome, msgspec.json.encode(job) + b"\n")
        values = _values(outcome.seconds, sizes.spark)
        if "spark-beside" in wanted:
            values["spark-beside"] = await _beside(server, directory, sizes)
    for name, measure in wanted.items():
        measure.add(OURS.name, values[name])
        if name == "spark-path":
            measure.target = min(measure.target, 0.3 * values["spark-lake"])


def _job(kind: str, server: Server, directory: Path, sizes: Sizes, events: int) -> SparkJob:
    return SparkJob(
        kind="loop" if kind == "loop" else "reads",
        host=server.host,
        port=server.port,
        store=str(directory / OURS.store),
        folder=str(directory / "tables"),
        events=events,
        rounds=sizes.rounds,
    )


def _values(seconds: Mapping[str, float], events: int) -> dict[str, float]:
    # what a read costs that finds nothing: planning, starting tasks, opening the store
    nothing = seconds["no-type"]
    rates = {f"spark-{i}": events / seconds[i] for i in _RATES}
    return rates | {
        "spark-lake-share": rates["spark-lake"] / rates["spark-plain"],
        "spark-one-type": (seconds["one-type"] - nothing) / (seconds["path"] - nothing),
    }


async def _beside(server: Server, directory: Path, sizes: Sizes) -> float:
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
    async with client_process(_CLIENT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        job = _job("loop", server, directory, sizes, first)
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        ready = await process.stdout.readline()
        beside = await rate() if ready == b"reading\n" else 0.0
        await finish(process, SparkOutcome, b"")  # its standard input ends
    return beside / statistics.fmean((before, await rate()))
