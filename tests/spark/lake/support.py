"""Streams with given events, without a gateway, and lakes made of them without Spark."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from eventer_bridge.model import Event, EventId
from mariner_spark import schema
from mariner_spark.lake import manifest, segments
from mariner_spark.lake.files import Files
from mariner_spark.source.columns import make_batch
from mariner_spark.source.event_rows import EventRows
from tests.spark.support import COLUMNS, Row, events, in_order


def draw_events() -> list[Event]:
    """Many odd events, as they may stand in a store; other ones each time."""
    drawn: list[Event] = []

    @given(st.lists(events, min_size=20, max_size=20))
    @settings(max_examples=1, deadline=None, database=None)
    def draw(parts: list[list[Event]]) -> None:
        drawn[:] = [
            replace(i, id=EventId(i.id.server, 1_000 * n + i.id.session, i.id.instance))
            for n, part in enumerate(parts)
            for i in part
        ]

    draw()
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


def with_no_value(part: pa.Table) -> pa.Table:
    return part.append_column(
        segments.arrow_schema().field("value"), pa.nulls(len(part), pa.float64())
    )


def append(root: Path, part: Sequence[Event]) -> None:
    """Add events to a lake as a stream does, without values."""
    files = Files(str(root))
    made = segments.write(files, with_no_value(table(part)))
    manifest.update(files, lambda old: old.changed(added=tuple(made)))


def stored(root: Path) -> list[Row]:
    """All events of a lake, by id, as pyarrow reads what the manifest names."""
    found = manifest.load(Files(str(root)))
    tables = [pq.ParquetFile(root / i.path).read(columns=list(COLUMNS)) for i in found.segments]
    return in_order([row for part in tables for row in part.to_pylist()])


def parquet_files(root: Path) -> set[str]:
    """Every file that could be taken for a segment."""
    return {str(i.relative_to(root)) for i in root.glob("date=*/*")}


def named(root: Path) -> set[str]:
    """The segments of a lake."""
    return {i.path for i in manifest.load(Files(str(root))).segments}
