"""``python -m tests.perf.lake``: reading a lake against Spark's own Parquet table of the same rows.

Both are read by one session, in turns, with the query of the report ``activity``: events per
type and hour. Then the same of a lake of many small files, before and after its compaction; numbers
from rollups, from the column ``value`` and from payloads; and what a read of one day, and of one
type, opens.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import mariner_spark
from mariner_spark.lake import maintenance
from mariner_spark.lake.maintenance import compact
from mariner_spark.lake.parquet import files_of
from mariner_spark.lake.parquet import write_rows as write
from mariner_spark.lake.tables import EVENTS, Lake, arrow_schema
from mariner_spark.reader import read_events, with_value

TYPES: Final = [("plant", f"area{i // 10}", f"device{i}", "power") for i in range(100)]
_DAY_US: Final = 86_400_000_000
_WEEK_US: Final = 7 * _DAY_US
_BEGIN_US: Final = 1_735_689_600_000_000


def make_events(n_events: int) -> pa.Table:
    """Events of a week and 100 types, with JSON payloads of four fields."""
    schema = arrow_schema(EVENTS)
    random = np.random.default_rng(1)
    numbers = np.arange(n_events)
    which = pa.array(random.integers(0, len(TYPES), n_events))
    times = _BEGIN_US + np.sort(random.integers(0, _WEEK_US, n_events))
    values = np.round(random.normal(50, 10, n_events), 3)
    payloads = [f'{{"value":{v},"good":true,"unit":"kW","n":{i}}}' for i, v in enumerate(values)]
    columns = {
        "server": np.ones(n_events, np.int64),
        "session": 1 + numbers // 10,
        "instance": 1 + numbers % 10,
        "type": pa.array([list(i) for i in TYPES], schema.field("type").type).take(which),
        "type_path": pa.array(["/".join(i) for i in TYPES]).take(which),
        "timestamp": pa.array(times).cast(schema.field("timestamp").type),
        "source_timestamp": pa.array(times - 1_000).cast(schema.field("timestamp").type),
        "payload_kind": ["json"] * n_events,
        "payload_json": payloads,
        "payload_type": pa.nulls(n_events, pa.string()),
        "payload_binary": pa.nulls(n_events, pa.binary()),
        "value": values,
    }
    return pa.table(columns, schema=schema)


def fill(root: Path, events: pa.Table, size: int) -> None:
    """Make a lake of events, so many at once."""
    lake = Lake(str(root))
    made = [
        file
        for begin in range(0, len(events), size)
        for file in write(lake, EVENTS, events.slice(begin, size))
    ]
    assert lake.commit(lake.create(EVENTS), EVENTS, made, [])


def activity(events: DataFrame) -> DataFrame:
    """Events per type and hour."""
    return events.selectExpr("type_path", "date_trunc('hour', timestamp) AS hour").groupBy(
        "type_path", "hour"
    ).count()  # fmt: skip


def measure(
    spark: SparkSession, directory: Path, n_events: int, n_small: int, rounds: int
) -> Iterator[str]:
    """Lines of figures; all are of one run.

    Args:
        spark: a session.
        directory: an empty one.
        n_events: how many.
        n_small: about how many small files they are put into.
        rounds: of which the best counts.
    """
    events = make_events(n_events)
    fill(directory / "lake", events, 1_000_000)
    fill(directory / "small", events, n_events // n_small)
    plain, small, lake = (str(directory / i) for i in ("plain", "small", "lake"))
    read_events(spark, lake).write.parquet(plain)
    count = partial(_best, rounds, n_events)
    best = count(
        {
            "table": lambda: activity(spark.read.parquet(plain)),
            "lake": lambda: activity(read_events(spark, lake)),
            "small files": lambda: activity(read_events(spark, small)),
        }
    )
    for name, seconds in best.items():
        yield f"activity, {name}: {seconds:.2f} s"
    yield f"lake to table: {best['table'] / best['lake']:.2f} (at least 0.95)"
    started = time.monotonic()
    done = compact(small)
    yield f"compact: {done.replaced} to {done.written} files, {time.monotonic() - started:.1f} s"
    best = count(  # the table once more, in turns: the machine may do other work by now
        {
            "table": lambda: activity(spark.read.parquet(plain)),
            "compacted": lambda: activity(read_events(spark, small)),
        }
    )
    share = best["table"] / best["compacted"]
    yield f"activity, compacted: {best['compacted']:.2f} s, to table: {share:.2f}"
    yield from _numbers(spark, lake, count)
    days = opened_files(spark, directory / "days", events)
    yield f"files of a day of a hundred: {days:.1%} (at most 3 %)"
    yield f"bytes of one type of {len(TYPES)}: {bytes_of_type(lake):.1%}"
    started = time.monotonic()
    compact(lake, is_by_type=True)
    share = bytes_of_type(lake)
    yield (
        f"    the same, sorted by type: {share:.1%} (at most 10 %),"
        f" {time.monotonic() - started:.1f} s"
    )
    for name in ("plain", "small/events", "lake/events", "lake/rollups"):
        sizes = [i.stat().st_size for i in (directory / name).rglob("*.parquet")]
        yield f"{name}, all files: {sum(sizes) / 1e6:.1f} MB"


def _best(
    rounds: int, n_events: int, readers: dict[str, Callable[[], DataFrame]]
) -> dict[str, float]:
    """Least seconds of each, in turns; each has a column ``count``."""
    best = dict.fromkeys(readers, float("inf"))
    for _ in range(rounds):
        for name, reader in readers.items():
            started = time.monotonic()
            rows = reader().agg({"count": "sum"}).first()
            best[name] = min(best[name], time.monotonic() - started)
            assert rows is not None
            assert rows[0] == n_events
    return best


def _numbers(
    spark: SparkSession,
    lake: str,
    count: Callable[[dict[str, Callable[[], DataFrame]]], dict[str, float]],
) -> Iterator[str]:
    """The mean of each type and hour, from payloads, from numbers, and from rollups."""
    started = time.monotonic()
    maintenance.update(lake)
    yield f"latest and rollups: {time.monotonic() - started:.1f} s"

    def means(events: DataFrame) -> DataFrame:
        hour = "date_trunc('hour', timestamp) AS hour"
        means = "avg(value)", "count(value) AS count"
        return (
            events.selectExpr("type_path", hour, "value")
            .groupBy("type_path", "hour")
            .agg(*map(sf.expr, means))
        )

    best = count(
        {
            "payloads": lambda: means(with_value(read_events(spark, lake).drop("value"))),
            "numbers": lambda: means(read_events(spark, lake)),
            "rollups": lambda: mariner_spark.read(spark, lake=lake, every="1h").selectExpr(
                "mean", "numbers AS count"
            ),
        }
    )
    for name, seconds in best.items():
        yield f"values, {name}: {seconds:.2f} s"
    for name in ("payloads", "numbers"):
        yield f"    {name} to rollups: {best[name] / best['rollups']:.1f}"


def opened_files(spark: SparkSession, root: Path, events: pa.Table) -> float:
    """Share of the files that a read of one day opens, of events of a hundred days."""
    schema = arrow_schema(EVENTS)
    first = events.slice(0, 10_000)
    moments = _BEGIN_US + np.linspace(0, 100 * _DAY_US - 1, len(first)).astype(np.int64)
    column = pa.array(moments).cast(schema.field("timestamp").type)
    index = schema.get_field_index("timestamp")
    fill(root, first.set_column(index, schema.field("timestamp"), column), 1_000_000)
    day = mariner_spark.read(spark, lake=root, from_="2025-02-01", to="2025-02-01")
    n_files = len(mariner_spark.read(spark, lake=root).inputFiles())
    return len(day.inputFiles()) / n_files


def bytes_of_type(root: str) -> float:
    """Share of the bytes in row groups that may have a type, of a hundred."""
    lake = Lake(root)
    path = "/".join(TYPES[len(TYPES) // 2])
    chosen = everything = 0
    for file in files_of(lake.open(), EVENTS):
        metadata = pq.ParquetFile(file.path, filesystem=lake.files(EVENTS)).metadata
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            columns = [group.column(i) for i in range(group.num_columns)]
            n_bytes = sum(i.total_compressed_size for i in columns)
            [bounds] = [i.statistics for i in columns if i.path_in_schema == "type_path"]
            everything += n_bytes
            chosen += n_bytes if bounds.min <= path <= bounds.max else 0
    return chosen / everything


@click.command()
@click.option("--events", default=2_000_000, show_default=True)
@click.option("--small-files", default=1_000, show_default=True)
@click.option("--rounds", default=5, show_default=True)
def main(events: int, small_files: int, rounds: int) -> None:
    """Measure reading a lake against Spark's own Parquet table of the same rows."""
    spark = mariner_spark.get_session(master="local[2]")
    try:
        with tempfile.TemporaryDirectory() as directory:
            for line in measure(spark, Path(directory), events, small_files, rounds):
                click.echo(line)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(prog_name="python -m tests.perf.lake")
