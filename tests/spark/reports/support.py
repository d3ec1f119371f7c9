"""Data frames of events written by hand, and reports as rows of Python."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from mariner_spark.reports.events import to_datetime
from mariner_spark.schema import SCHEMA

S: Final = 1_000_000
MINUTE: Final = 60 * S
HOUR: Final = 60 * MINUTE
T0: Final = 1_735_689_600 * S
"""2025-01-01 00:00 UTC, in microseconds."""


class E(NamedTuple):
    """An event; moments in microseconds since 1970."""

    type: str
    at: int
    payload: str | bytes | None = None
    source: int | None = None
    server: int = 1
    session: int | None = None
    instance: int = 1


def frame(spark: SparkSession, events: Iterable[E]) -> DataFrame:
    """Data frame of events; sessions that are not given rise by one an event."""
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
    return spark.createDataFrame(rows, SCHEMA).coalesce(1)


def at(us: int) -> datetime:
    return to_datetime(us)


def rows(report: DataFrame) -> list[tuple[Any, ...]]:
    """Rows of a report, in its order."""
    return [tuple(row.values()) for row in report.toArrow().to_pylist()]
