"""Data frames of events written by hand, reports as rows of Python, and the command."""

import json
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet
from click.testing import CliRunner, Result
from duckdb import DuckDBPyConnection
from pyspark.sql import SparkSession

from mariner.cli import main
from mariner_spark.reports import relations
from mariner_spark.reports.relations import Relation
from mariner_spark.schema import SCHEMA, arrow_schema
from mariner_spark.times import to_datetime
from mariner_spark.values import DEFAULT_PATH, find_numbers

S: Final = 1_000_000
MINUTE: Final = 60 * S
HOUR: Final = 60 * MINUTE
T0: Final = 1_735_689_600 * S
"""2025-01-01 00:00 UTC, in microseconds."""


COLUMNS: Final = {
    "activity": "prefix string, bucket timestamp, bucket_s double, events bigint, bytes bigint",
    "latest": "type_path string, timestamp timestamp, source_timestamp timestamp, value double,"
    " payload_kind string, payload string, payload_bytes bigint, server bigint, session bigint,"
    " instance bigint, events bigint",
    "values": "type_path string, bucket timestamp, bucket_s double, count bigint, min double,"
    " max double, mean double, first double, last double, time_mean double,"
    " unit string",
    "gaps": "type_path string, begin timestamp, end timestamp, silence_s double,"
    " expected_s double, ratio double, is_open boolean",
    "latency": "prefix string, events bigint, with_source bigint, late bigint, future bigint,"
    " min_s double, p50_s double, p95_s double, p99_s double, max_s double",
    "availability": "server bigint, kind string, name string, runs bigint, killed bigint,"
    " first timestamp, last timestamp, up_s double, down_s double, share double,"
    " longest_down_s double, is_up boolean",
    "runs": "server bigint, kind string, name string, begin timestamp, end timestamp, up_s double,"
    " is_begin_seen boolean, ended_by string",
    "top": "type_path string, events bigint, bytes bigint, events_share double,"
    " bytes_share double, first timestamp, last timestamp, growth double",
}
"""Columns of each report."""


_NAMES: Final = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.timestamp("us", "UTC"): "timestamp",
}


def shape(schema: pa.Schema) -> str:
    """A schema as :data:`COLUMNS` has it."""
    return ", ".join(f"{field.name} {_NAMES[field.type]}" for field in schema)


class E(NamedTuple):
    """An event; moments in microseconds since 1970."""

    type: str
    at: int
    payload: str | bytes | None = None
    source: int | None = None
    server: int = 1
    session: int | None = None
    instance: int = 1


def frame(engine: SparkSession | DuckDBPyConnection, events: Iterable[E]) -> Any:
    """Relation of events; sessions that are not given rise by one an event.

    Spark's has the columns of the source, DuckDB's those of a lake.
    """
    rows = []
    for number, event in enumerate(events, 1):
        payload = event.payload
        kind = None if payload is None else "json" if isinstance(payload, str) else "binary"
        rows.append(
            {
                "server": event.server,
                "session": number if event.session is None else event.session,
                "instance": event.instance,
                "type": event.type.split("/"),
                "type_path": event.type,
                "timestamp": at(event.at),
                "source_timestamp": None if event.source is None else at(event.source),
                "payload_kind": kind,
                "payload_json": payload if kind == "json" else None,
                "payload_type": "bytes" if kind == "binary" else None,
                "payload_binary": payload if kind == "binary" else None,
            }
        )
    if isinstance(engine, SparkSession):
        return engine.createDataFrame(rows, SCHEMA).coalesce(1)
    table = pa.Table.from_pylist(rows, arrow_schema(SCHEMA))
    numbers = find_numbers(table.column("payload_json").combine_chunks(), DEFAULT_PATH)
    return engine.from_arrow(table.append_column("value", numbers))


def at(us: int) -> datetime:
    return to_datetime(us)


def rows(report: Relation) -> list[tuple[Any, ...]]:
    """Rows of a report, in its order."""
    return [tuple(row.values()) for row in relations.rows(report)]


class Reported(NamedTuple):
    """What the command made of a store with ``plain_events(N_EVENTS)``."""

    store: Path
    folder: Path
    result: Result


N_EVENTS: Final = 300


def run_report(*arguments: str | Path, **variables: str) -> Result:
    """Run the command in the tests' own session."""
    environment = {"MARINER_NAME": None, "MARINER_TOKEN": None, **variables}
    return CliRunner().invoke(main, ["report", *map(str, arguments)], env=environment)


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    """Rows of a report of the command."""
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(folder / f"{name}.parquet").to_pylist()
    return rows


def charts_of(text: str) -> dict[str, Any]:
    """Specifications of the charts of a page, by name."""
    [found] = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', text)
    charts: dict[str, Any] = json.loads(found)
    return charts
