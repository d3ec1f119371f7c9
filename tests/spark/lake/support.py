"""Streams with given events, without a gateway, and lakes made of them without Spark."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from hypothesis import given, settings
from pyspark.sql import DataFrame, SparkSession

from eventer_bridge.model import Event
from mariner_spark import schema
from mariner_spark.lake.tables import EVENTS, INPUT, Lake
from mariner_spark.lake.writer import Written, write_new
from mariner_spark.lake.writer import append as commit
from mariner_spark.source.columns import make_batch
from mariner_spark.source.event_rows import EventRows
from tests.spark.support import COLUMNS, Row, in_order, many_events


def draw_events() -> list[Event]:
    """Many odd events, as they may stand in a store; other ones each time."""
    drawn: list[Event] = []

    @given(many_events)
    @settings(max_examples=1, deadline=None, database=None)
    def draw(found: list[Event]) -> None:
        drawn[:] = found

    draw()
    assert len(drawn) >= 20
    return drawn


def table(given_events: Sequence[Event]) -> pa.Table:
    """Events as the stream gives them."""
    arrow_schema = schema.arrow_schema(schema.SCHEMA)
    batches = [make_batch(EventRows(given_events), arrow_schema)] if given_events else []
    return pa.Table.from_batches(batches, arrow_schema)


class Feed:
    """A stream whose batches are given one by one, in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        folder.mkdir(exist_ok=True)

    def give(self, batch: Sequence[Event]) -> None:
        """Make the next batch."""
        self._count += 1
        path = self._folder / f"{self._count:05}.parquet"
        pq.write_table(table(batch), path)
        os.utime(path, (1e9 + self._count, 1e9 + self._count))  # Spark goes by it

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(schema.SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._folder))


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until something is so; the time limit of the test bounds it."""
    while not condition():
        time.sleep(0.02)


def write(root: Path | str, part: Sequence[Event], value_path: str | None = None) -> Written:
    """Write events as a task does; creates the lake."""
    lake = Lake(str(root))
    lake.create(EVENTS, value_path)
    return write_new(lake, table(part).select(INPUT.names).to_batches(max_chunksize=7))


def append(root: Path | str, part: Sequence[Event], value_path: str | None = None) -> None:
    """Add events to a lake as a stream does."""
    commit(Lake(str(root)), [write(root, part, value_path)])


def opened(root: Path | str, name: str = EVENTS) -> DeltaTable:
    """A table of a lake, as others open it."""
    return DeltaTable(f"{root}/{name}")


def stored(root: Path | str) -> list[Row]:
    """All events of a lake, by id."""
    return in_order(opened(root).to_pyarrow_table(columns=list(COLUMNS)).to_pylist())


def parquet_files(root: Path, name: str = EVENTS) -> set[str]:
    """Every file in the folder of a table."""
    return {str(i.relative_to(root / name)) for i in (root / name).rglob("*.parquet")}


def named(root: Path, name: str = EVENTS) -> set[str]:
    """The files of a table."""
    return set(pa.table(opened(root, name).get_add_actions()).column("path").to_pylist())
