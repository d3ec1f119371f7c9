"""What reports have in common: prepared events, prefixes, buckets of time."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from duckdb import DuckDBPyConnection
from pyspark.sql import SparkSession

import mariner_spark
from eventer_bridge.model import BinaryPayload, Event, EventId, JsonPayload, Timestamp
from mariner_spark import limits, times
from mariner_spark.errors import OptionError
from mariner_spark.reader import with_value
from mariner_spark.reports import events, relations
from mariner_spark.reports.events import Span
from tests.spark.reports.support import MINUTE, T0, E, S, at, frame, rows
from tests.spark.support import fill

DAY = 24 * 60 * MINUTE


LONG = '{"value": 2.5, "a": "' + "é" * 300 + '"}'
EVENTS = [E("a/b", T0, LONG, T0 - 1), E("c", T0, b"123"), E("d", T0)]
FIGURES = [("json", LONG[:200], 623, 2.5), ("binary", None, 3, None), (None, None, 0, None)]


def test_payloads_become_numbers(spark: SparkSession) -> None:
    raw = frame(spark, EVENTS)
    prepared = events.prepare(raw)
    assert prepared.columns == [
        *("server", "session", "instance", "type_path", "timestamp", "source_timestamp"),
        *("payload_kind", "value", "value_unread", "payload", "payload_bytes"),
    ]
    assert rows(prepared) == [
        (1, 1, 1, "a/b", at(T0), at(T0 - 1), "json", 2.5, False, LONG[:200], 623),
        (1, 2, 1, "c", at(T0), None, "binary", None, False, None, 3),
        (1, 3, 1, "d", at(T0), None, None, None, False, None, 0),
    ]
    assert events.prepare(prepared) is prepared
    taken = relations.rows(events.prepare(with_value(raw, "$.nothing")))
    assert [row["value"] for row in taken] == [None, None, None]
    found = relations.rows(events.prepare(raw, "$.a"))
    assert [row["value"] for row in found] == [None, None, None]


def test_a_lake_has_the_numbers(duck: DuckDBPyConnection) -> None:
    prepared = relations.rows(events.prepare(frame(duck, EVENTS)))
    names = ("payload_kind", "payload", "payload_bytes", "value")
    assert [tuple(row[i] for i in names) for row in prepared] == FIGURES
    assert "payload_json" not in prepared[0]


def test_the_source_has_the_same_figures(spark: SparkSession, tmp_path: Path) -> None:
    """From a store: they are found where the payloads are."""
    payloads = [
        json_payload(LONG),
        BinaryPayload("é", b"123"),
        None,
        json_payload('{"a": 7}'),
        json_payload("1e999"),
    ]
    at_first, sources = Timestamp(0, 0), (None, Timestamp(1, 2))
    fill(
        tmp_path / "events",
        [
            Event(EventId(1, 1, i), (str(i),), at_first, sources[i % 2], payload)
            for i, payload in enumerate(payloads, 1)
        ],
    )
    names = ("payload_kind", "payload", "payload_bytes", "value", "value_unread")
    columns = ("instance", *names)
    found = mariner_spark.read(spark, store=tmp_path / "events", columns=columns, value_path="$.a")
    table = sorted(relations.rows(found), key=lambda row: row["instance"])
    assert [tuple(row.values())[1:] for row in table] == [
        (*FIGURES[0][:3], None, False),
        (*FIGURES[1], False),
        (*FIGURES[2], False),
        ("json", '{"a": 7}', 8, 7.0, False),
        ("json", "1e999", 5, None, True),
    ]
    with pytest.raises(OptionError, match=r"^value_path: 'a': expected a path as \$\.value"):
        mariner_spark.read(spark, store=tmp_path / "events", value_path="a")


def json_payload(text: str) -> JsonPayload:
    return JsonPayload(msgspec.Raw(text.encode()))


def test_span(duck: DuckDBPyConnection) -> None:
    assert events.span_of(frame(duck, [])) == Span(0, 0)
    ends = [E("a", times.MAX_US), E("a", -1), E("a", times.MIN_US)]
    assert events.span_of(frame(duck, ends)) == Span(times.MIN_US, times.MAX_US)


def test_prefixes(duck: DuckDBPyConnection) -> None:
    paths = ["a/b/c", "a/b", "a", "", "~", "a~1b/c/d", "//x"]
    found = computed(duck, events.prefix(2), [E(path, T0) for path in paths])
    assert found == ["a/b", "a/b", "a", "", "~", "a~1b/c", "/"]


def computed(duck: DuckDBPyConnection, column: str, of: list[E]) -> list[Any]:
    """What a part of a query is of each event."""
    sql = f"SELECT {column} FROM {{events}}"  # noqa: S608  # ours
    found = relations.query(sql, events=frame(duck, of))
    return [value for (value,) in rows(found)]


@pytest.mark.parametrize(
    ("length_us", "width"),
    [
        (0, timedelta(milliseconds=1)),
        (99_000, timedelta(milliseconds=1)),
        (100_000, timedelta(milliseconds=10)),
        (99 * S, timedelta(seconds=1)),
        (100 * S, timedelta(seconds=2)),
        (99 * MINUTE, timedelta(minutes=1)),
        (30 * DAY, timedelta(hours=12)),
        (99 * DAY, timedelta(days=1)),
        (365 * DAY, timedelta(days=7)),
    ],
)
def test_a_span_is_cut_into_few_buckets(length_us: int, width: timedelta) -> None:
    monday = 4 * DAY
    assert events.bucket_width(Span(monday, monday + length_us)) == width


def test_the_time_of_a_page_ends_with_all_time() -> None:
    span = Span(times.MAX_US - 10 * S, times.MAX_US)
    first, last = events.span_of_buckets(span)
    assert (first <= span.first, last) == (True, times.MAX_US)
    assert events.span_of_buckets(Span(T0, T0 + 99 * S)) == Span(T0, T0 + 100 * S)


def bucket(width: timedelta) -> str:
    return events.moment_of_bucket(events.bucket_us("unix_micros(timestamp)", width))


def test_all_of_time_is_cut_into_few_buckets(duck: DuckDBPyConnection) -> None:
    span = Span(times.MIN_US, times.MAX_US)
    width = events.bucket_width(span)
    assert (span.last - span.first) // events.to_us(width) < limits.REPORT_BUCKETS
    ends = [E("a", times.MIN_US), E("a", times.MAX_US)]
    first, last = computed(duck, bucket(width), ends)
    assert first == at(times.MIN_US)
    assert at(times.MAX_US) - width < last <= at(times.MAX_US)


@pytest.mark.parametrize(
    ("moment", "width", "begin"),
    [
        (T0 + 59 * S + 999_999, timedelta(minutes=1), T0),
        (T0 + 60 * S, timedelta(minutes=1), T0 + MINUTE),
        (-1, timedelta(minutes=1), -MINUTE),
        (-MINUTE, timedelta(minutes=1), -MINUTE),
        (-1, timedelta(hours=12), -DAY // 2),
        (0, timedelta(days=7), -3 * DAY),  # 1970-01-01 was a Thursday
        (4 * DAY, timedelta(days=7), 4 * DAY),
    ],
)
def test_buckets_begin_on_the_clock(
    duck: DuckDBPyConnection, moment: int, width: timedelta, begin: int
) -> None:
    assert computed(duck, bucket(width), [E("a", moment)]) == [at(begin)]
