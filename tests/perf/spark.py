"""Spark and reports over what a gateway stored: the lake, the store, the network. Ours only.

One gateway is filled; all reads are done by one Spark session with two cores while the gateway
runs. Then it is registered to, with and without a session that reads its store all the time.
"""

import asyncio
import contextlib
import statistics
import sys
import threading
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
from pyspark.sql import SparkSession

from tests.perf import spark_client
from tests.perf.client import Job
from tests.perf.report import Bound, Measure
from tests.perf.scenarios import Sizes
from tests.perf.sides import (
    JOB_TIMEOUT_S,
    OURS,
    Server,
    do,
    fill,
    output_of,
    running,
)
from tests.perf.spark_client import SparkJob, SparkOutcome
from tests.spark.jumps import fill_with_jumps, sizes_of_slices
from tests.support.process import ChildError

REQUEST_EVENTS: Final = 100

_CLIENT: Final = "tests.perf.spark_client"

_RATES: Final = (
    "plain", "lake", "path", "ingest", "ingest-store", "network", "stream", "stream-one-type"
)  # fmt: skip


def measures(sizes: Sizes) -> list[Measure]:
    """The rows, without values."""
    n = f"{sizes.spark:,}"
    return [
        Measure("spark-plain", f"Spark, activity: plain Parquet, {n}", "rows/s"),
        Measure("spark-lake", f"Spark, activity: lake, {n}", "rows/s"),
        Measure("spark-lake-share", "    the latter to the former", "x", 0.95, Bound.AT_LEAST),
        # the target is lower where the lake is slow: see run
        Measure("spark-path", f"Spark, all columns: store, {n}", "rows/s", 3e5, Bound.AT_LEAST),
        Measure(
            "spark-one-type",
            "    one type of 100, of that, both without an empty read",
            "x",
            0.05,
            Bound.AT_MOST,
        ),
        Measure("spark-ingest", f"gateway to lake, {n}", "rows/s", 1e5, Bound.AT_LEAST),
        Measure("spark-ingest-store", f"store to lake, {n}", "rows/s", 5e5, Bound.AT_LEAST),
        Measure(
            "spark-network", f"Spark, all columns: gateway, {n}", "rows/s", 1e5, Bound.AT_LEAST
        ),
        Measure("spark-stream", f"Spark, stream: gateway, {n}", "rows/s"),
        Measure("spark-stream-one-type", "    one type of 100, of so many", "rows/s"),
        Measure("report-store", f"report activity, store, {n}: CPU", "s", 25, Bound.AT_MOST),
        Measure("report-lake", f"all reports, lake, {n}: CPU", "s", 45, Bound.AT_MOST),
        Measure("report-small", "all reports, a dozen events", "s", 6, Bound.AT_MOST),
        Measure(
            "spark-slices", "store whose ids jumped, largest slice to mean", "x", 2, Bound.AT_MOST
        ),
        Measure(
            "spark-beside", "register, 100 a request: beside a reader", "x", 0.8, Bound.AT_LEAST
        ),
    ]


async def run(
    directory: Path,
    sizes: Sizes,
    wanted: Mapping[str, Measure],
    spark: SparkSession | None = None,
) -> None:
    """Measure, and add a value to each of the wanted rows.

    Args:
        directory: empty; the store and tables go there.
        sizes: how much.
        wanted: rows by name, out of :func:`measures`.
        spark: reads; None: a session in a process of its own, as it has to be for figures.

    Raises:
        ChildError: the gateway, Spark or a client failed; rows were missing.
    """
    async with OURS.start(directory) as server:
        await fill(server, sizes, sizes.spark)
        job = _job(server, directory, sizes)
        async with _reader(job) if spark is None else _reader_here(spark, job) as reader:
            outcome = await reader.measure()
            values = _values(outcome.seconds, sizes.spark)
            values["spark-slices"] = _largest_slice(directory / "jumped")
            if "spark-beside" in wanted:
                values["spark-beside"] = await _beside(server, reader, sizes)
    for name, measure in wanted.items():
        measure.add(OURS.name, values[name])
        if name == "spark-path":
            measure.target = min(measure.target, 0.3 * values["spark-lake"])


def _largest_slice(path: Path) -> float:
    """The largest of several slices to their mean, in events."""
    moments = fill_with_jumps(path)
    sizes = (sizes_of_slices(path, moments, n) for n in (6, 30))
    return max(max(i) / statistics.mean(i) for i in sizes)


def _job(server: Server, directory: Path, sizes: Sizes) -> SparkJob:
    return SparkJob(
        host=server.host,
        port=server.port,
        store=str(directory / "events"),
        folder=str(directory / "tables"),
        events=sizes.spark,
        rounds=sizes.rounds,
        is_short=sizes.small,
    )


class Reader(Protocol):
    """A Spark session that does a job."""

    async def measure(self) -> SparkOutcome:
        """All reads."""

    async def begin_reading(self, events: int) -> None:
        """Read the store, which has so many events, again and again; returns when it does."""

    async def end_reading(self) -> None:
        """Stop that, and raise what was wrong."""


class _ReaderProcess:
    def __init__(self, process: Process, job: SparkJob) -> None:
        self._process = process
        self._job = job

    async def measure(self) -> SparkOutcome:
        answer = await self._ask(msgspec.json.encode(self._job))
        return msgspec.json.decode(answer, type=SparkOutcome)

    async def begin_reading(self, events: int) -> None:
        assert await self._ask(b"%d" % events) == b"reading\n"

    async def end_reading(self) -> None:
        await output_of(self._process, b"")  # its standard input ends

    async def _ask(self, line: bytes) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + b"\n")
        async with asyncio.timeout(JOB_TIMEOUT_S):
            answer = await self._process.stdout.readline()
        if not answer:
            await output_of(self._process, b"")
            raise ChildError("the client ended without an answer")
        return answer


@contextlib.asynccontextmanager
async def _reader(job: SparkJob) -> AsyncIterator[Reader]:
    async with running(sys.executable, "-m", _CLIENT) as process:
        yield _ReaderProcess(process, job)


class _ReaderHere:
    def __init__(self, spark: SparkSession, job: SparkJob) -> None:
        self._spark = spark
        self._job = job
        self._is_over = threading.Event()
        self._reading: asyncio.Future[None] | None = None

    async def measure(self) -> SparkOutcome:
        return await asyncio.to_thread(spark_client.measure, self._spark, self._job)

    async def begin_reading(self, events: int) -> None:
        job = msgspec.structs.replace(self._job, events=events)
        begun = threading.Event()
        read = partial(spark_client.loop, self._spark, job, begun.set, self._is_over.is_set)
        self._reading = asyncio.ensure_future(asyncio.to_thread(read))
        while not begun.is_set() and not self._reading.done():
            await asyncio.sleep(0.01)

    async def end_reading(self) -> None:
        self._is_over.set()
        if self._reading is not None:
            await self._reading


@contextlib.asynccontextmanager
async def _reader_here(spark: SparkSession, job: SparkJob) -> AsyncIterator[Reader]:
    reader = _ReaderHere(spark, job)
    try:
        yield reader
    finally:
        await reader.end_reading()


def _values(seconds: Mapping[str, float], events: int) -> dict[str, float]:
    # what a read costs that finds nothing: planning, starting tasks, opening the store
    nothing = seconds["no-type"]
    rates = {f"spark-{i}": events / seconds[i] for i in _RATES}
    reports = {name: i for name, i in seconds.items() if name.startswith("report-")}
    return (
        rates
        | reports
        | {
            "spark-lake-share": rates["spark-lake"] / rates["spark-plain"],
            "spark-one-type": (seconds["one-type"] - nothing) / (seconds["path"] - nothing),
        }
    )


async def _beside(server: Server, reader: Reader, sizes: Sizes) -> float:
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
        return job.requests * REQUEST_EVENTS / (await do(job, sizes)).seconds

    before = await rate()
    await reader.begin_reading(first)
    beside = await rate()
    await reader.end_reading()
    return beside / statistics.fmean((before, await rate()))
