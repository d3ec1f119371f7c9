"""Reads what a gateway stored, by Spark, in a process of its own (``python -m``).

A :class:`SparkJob` comes on standard input, one line of JSON; a :class:`SparkOutcome` goes to
standard output, as a line. With another line, the number of events that there are by then, it reads
the store again and again, says so by a line when the first time is over, and ends when standard
input does.

Every read is counted in the same pass that is timed, and has to give what was registered.
"""

import resource
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf

import mariner_spark
from mariner_spark.lake.ingest import ingest, ingest_store
from mariner_spark.reader import read_events as read_lake
from mariner_spark.reports.activity import activity
from tests.perf.workload import ASKED_TYPE, EVENT_TYPES, WrongAnswerError
from tests.spark.support import fill, plain_events

OWN_TYPES: Final = "perf/*"
"""Without what the engine registered."""

OWN_EVENTS: Final = "type_path LIKE 'perf/%'"
"""The same, for a table."""

CORES: Final = 2


class SparkJob(msgspec.Struct, frozen=True):
    """What to do.

    Attributes:
        host, port: of the gateway.
        store: directory of its store.
        folder: where tables can be made.
        events: registered with the types ``OWN_TYPES``.
        rounds: of which the median counts.
        is_short: start quickly and compile little.
    """

    host: str
    port: int
    store: str
    folder: str
    events: int
    rounds: int
    is_short: bool


class SparkOutcome(msgspec.Struct, frozen=True):
    """Seconds of each read."""

    seconds: dict[str, float]


def from_store(spark: SparkSession, job: SparkJob) -> DataFrame:
    """The events of the store."""
    return mariner_spark.read(spark, store=job.store, types=OWN_TYPES)


def from_gateway(spark: SparkSession, job: SparkJob) -> DataFrame:
    """The events over the network, by two tasks."""
    return mariner_spark.read(
        spark,
        gateway=f"{job.host}:{job.port}",
        client_name="app",
        token="secret",
        types=OWN_TYPES,
        partitions=CORES,
    )


def stream_seconds(spark: SparkSession, job: SparkJob, types: str, share: int = 1) -> float:
    """Stream the events of some types over the network, one of ``share``, as one batch."""
    source = spark.readStream.format("mariner").options(**source_of(job), types=types)
    with tempfile.TemporaryDirectory(dir=job.folder) as checkpoint:
        sink = source.load().writeStream.format("noop").trigger(availableNow=True)
        begin = time.perf_counter()
        query = sink.option("checkpointLocation", checkpoint).start()
        query.awaitTermination()
        seconds = time.perf_counter() - begin
    seen = sum(i.numInputRows for i in query.recentProgress)
    if seen != job.events // share:
        raise WrongAnswerError(f"{seen} events of a stream, expected {job.events // share}")
    return seconds


def source_of(job: SparkJob) -> dict[str, str]:
    """Options to read from the gateway."""
    return {"host": job.host, "port": str(job.port), "client_name": "app", "token": "secret"}


def of_one_type(spark: SparkSession, job: SparkJob) -> DataFrame:
    """A hundredth of the events."""
    return mariner_spark.read(spark, store=job.store, types=f"perf/{ASKED_TYPE}")


def of_no_type(spark: SparkSession, job: SparkJob) -> DataFrame:
    """Nothing."""
    return mariner_spark.read(spark, store=job.store, types="perf/nothing")


def from_lake(spark: SparkSession, job: SparkJob) -> DataFrame:
    """The report ``activity`` of the lake."""
    return activity(read_lake(spark, f"{job.folder}/lake").where(OWN_EVENTS))


def from_plain_table(spark: SparkSession, job: SparkJob) -> DataFrame:
    """The same of a table that Spark itself wrote."""
    return activity(spark.read.parquet(f"{job.folder}/plain").where(OWN_EVENTS))


class Read(NamedTuple):
    """A read.

    Attributes:
        load: what is read.
        counted: how many events it gives.
        share: the read gives one of so many events that there are; 0: none.
    """

    load: Callable[[SparkSession, SparkJob], DataFrame]
    counted: Column
    share: int = 1

    def seconds(self, spark: SparkSession, job: SparkJob) -> float:
        """Read all columns of all rows."""
        seen = Observation()
        expected = job.events // self.share if self.share else 0
        begin = time.perf_counter()
        frame = self.load(spark, job).observe(seen, self.counted.alias("events"))
        frame.write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - begin
        if seen.get["events"] != expected:
            raise WrongAnswerError(f"{seen.get['events']} events, expected {expected}")
        return seconds


def reads() -> dict[str, Read]:
    """The reads by name; needs a session, because columns do."""
    return {
        "plain": Read(from_plain_table, sf.sum("events")),
        "lake": Read(from_lake, sf.sum("events")),
        "path": Read(from_store, sf.count("*")),
        "one-type": Read(of_one_type, sf.count("*"), EVENT_TYPES),
        "no-type": Read(of_no_type, sf.count("*"), 0),
        "network": Read(from_gateway, sf.count("*")),
    }


def measure(spark: SparkSession, job: SparkJob) -> SparkOutcome:
    """All reads in turn, ``rounds`` times, after a time that does not count."""
    lake, plain = f"{job.folder}/lake", f"{job.folder}/plain"
    begin = time.perf_counter()
    ingest(lake, source_of(job))
    ingested_s = time.perf_counter() - begin
    begin = time.perf_counter()
    ingest_store(f"{job.folder}/lake-of-store", Path(job.store))
    ingested_store_s = time.perf_counter() - begin
    read_lake(spark, lake).write.parquet(plain)

    seconds = defaultdict[str, list[float]](list)
    warm_up = 0 if job.is_short else 1
    for _ in range(warm_up + job.rounds):
        for name, each in reads().items():
            seconds[name].append(each.seconds(spark, job))
        seconds["stream"].append(stream_seconds(spark, job, OWN_TYPES))
        one = stream_seconds(spark, job, f"perf/{ASKED_TYPE}", EVENT_TYPES)
        seconds["stream-one-type"].append(one)
    medians = {name: statistics.median(i[warm_up:]) for name, i in seconds.items()}
    ingested = {"ingest": ingested_s, "ingest-store": ingested_store_s}
    return SparkOutcome({**medians, **ingested, **report_seconds(job)})


SMALL_EVENTS: Final = 12
"""Of the store of a small report."""


def report_seconds(job: SparkJob) -> dict[str, float]:
    """Seconds of ``mariner report``, which chooses its engine: CPU, and of a small store elapsed.

    Of a small store the second time counts.
    """
    few = Path(job.folder, "few")
    fill(few, plain_events(SMALL_EVENTS))
    for _ in range(1 if job.is_short else 2):
        elapsed_s, _ = _report(job, "all", "--store", few)
    return {
        "report-store": _report(job, "activity", "--store", job.store)[1],
        "report-lake": _report(job, "all", "--lake", f"{job.folder}/lake-of-store")[1],
        "report-small": elapsed_s,
    }


def _report(job: SparkJob, *arguments: str | Path) -> tuple[float, float]:
    """Seconds that the command takes, and those of CPU."""
    command = (sys.executable, "-m", "mariner", "report", *arguments)
    cpu_s, begin = _cpu_of_children_s(), time.perf_counter()
    subprocess.run([*command, "--out", f"{job.folder}/report"], check=True, capture_output=True)
    return time.perf_counter() - begin, _cpu_of_children_s() - cpu_s


def _cpu_of_children_s() -> float:
    """Of those that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def loop(
    spark: SparkSession, job: SparkJob, begun: Callable[[], object], is_over: Callable[[], bool]
) -> None:
    """Read the store, as it was at first, until it is over; ``begun`` after the first time."""
    frame = from_store(spark, job)
    again = Read(lambda *_: frame, sf.count("*"))
    again.seconds(spark, job)
    begun()
    while not is_over():
        again.seconds(spark, job)


def main() -> None:
    """Run."""
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=SparkJob)
    spark = mariner_spark.get_session(master=f"local[{CORES}]", is_short=job.is_short)
    print(msgspec.json.encode(measure(spark, job)).decode(), flush=True)
    if n_events := sys.stdin.buffer.readline():
        loop(
            spark,
            msgspec.structs.replace(job, events=int(n_events)),
            lambda: print("reading", flush=True),
            lambda: bool(select.select([sys.stdin], [], [], 0)[0]),
        )
    spark.stop()


if __name__ == "__main__":
    main()
