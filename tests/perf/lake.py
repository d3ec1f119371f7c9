"""``python -m tests.perf.lake``: reading a lake against Spark's own Parquet table of the same rows.

Both are read by one session, in turns, with the query of the report ``activity``: events per
type and hour. Then the same of a lake of many small files, before and after its compaction.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import mariner_spark
from mariner_spark.lake.compact import compact
from mariner_spark.lake.files import write
from mariner_spark.lake.read import read_events
from mariner_spark.lake.tables import EVENTS, Lake, arrow_schema

TYPES: Final = [("plant", f"area{i // 10}", f"device{i}", "power") for i in range(100)]
_WEEK_US: Final = 7 * 86_400_000_000
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
    plain, small = str(directory / "plain"), str(directory / "small")
    read_events(spark, str(directory / "lake")).write.parquet(plain)

    def compare(readers: dict[str, Callable[[], DataFrame]]) -> dict[str, float]:
        best = dict.fromkeys(readers, float("inf"))
        for _ in range(rounds):
            for name, reader in readers.items():
                started = time.monotonic()
                rows = activity(reader()).agg({"count": "sum"}).first()
                best[name] = min(best[name], time.monotonic() - started)
                assert rows is not None
                assert rows[0] == n_events
        return best

    best = compare(
        {
            "table": lambda: spark.read.parquet(plain),
            "lake": lambda: read_events(spark, str(directory / "lake")),
            "small files": lambda: read_events(spark, small),
        }
    )
    for name, seconds in best.items():
        yield f"activity, {name}: {seconds:.2f} s"
    yield f"lake to table: {best['table'] / best['lake']:.2f} (at least 0.95)"
    started = time.monotonic()
    done = compact(small)
    yield f"compact: {done.replaced} to {done.written} files, {time.monotonic() - started:.1f} s"
    yield f"activity, compacted: {compare({'': lambda: read_events(spark, small)})['']:.2f} s"
    for name in ("plain", "lake", "small"):
        sizes = [i.stat().st_size for i in (directory / name).rglob("*.parquet")]
        yield f"{name}: {sum(sizes) / 1e6:.1f} MB"


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
