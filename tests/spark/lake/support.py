"""Lakes of given events, without a gateway or Spark."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import given, settings

from eventer_bridge.model import Event
from mariner_spark import schema
from mariner_spark.lake import writer
from mariner_spark.lake.tables import EVENTS, Lake
from mariner_spark.lake.writer import Position, Written, write_new
from mariner_spark.lake.writer import append as append_files
from mariner_spark.source.rows import Columns, EventRows, make_batch
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


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until something is so; the time limit of the test bounds it."""
    while not condition():
        time.sleep(0.02)


class Batch(NamedTuple):
    """Events in files, and the positions that they were written from."""

    base: dict[int, Position]
    parts: Sequence[Written]


def write(root: Path | str, *parts: Sequence[Event], value_path: str | None = None) -> Batch:
    """Write events, a task for each part; creates the lake."""
    lake = Lake(str(root))
    base = writer.positions_of(lake.create(EVENTS, value_path))
    return Batch(base, [write_new(lake, base, _batches, part) for part in parts])


def _batches(part: Sequence[Event]) -> list[pa.RecordBatch]:
    """Events as a source gives them."""
    arrow_schema = schema.arrow_schema(schema.WITHOUT_TYPE)
    batches = [make_batch(EventRows(part), Columns(arrow_schema))] if part else []
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches, arrow_schema).to_batches(7)
    return found


def commit(root: Path | str, batch: Batch, histories: Mapping[int, str] | None = None) -> int:
    """Commit what was written; returns how many events that added."""
    return append_files(Lake(str(root)), batch.base, batch.parts, histories or {})


def append(root: Path | str, part: Sequence[Event], value_path: str | None = None) -> None:
    """Add events to a lake."""
    commit(root, write(root, part, value_path=value_path))


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
