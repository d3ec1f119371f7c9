"""What reports have in common: prepared events, prefixes, buckets of time."""

from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from mariner_spark import limits, times
from mariner_spark.reports import events
from mariner_spark.reports.events import Span
from mariner_spark.values import with_value
from tests.spark.reports.support import MINUTE, T0, E, S, at, frame, rows

DAY = 24 * 60 * MINUTE


def test_payloads_become_numbers(spark: SparkSession) -> None:
    long = '{"value": 2.5, "a": "' + "é" * 300 + '"}'
    raw = frame(spark, [E("a/b", T0, long, T0 - 1), E("c", T0, b"123"), E("d", T0)])
    prepared = events.prepare(raw)
    assert prepared.columns == [
        *("server", "session", "instance", "type_path", "timestamp", "source_timestamp"),
        *("payload_kind", "payload", "payload_bytes", "value", "value_unread"),
    ]
    assert rows(prepared) == [
        (1, 1, 1, "a/b", at(T0), at(T0 - 1), "json", long[:200], 623, 2.5, False),
        (1, 2, 1, "c", at(T0), None, "binary", None, 3, None, False),
        (1, 3, 1, "d", at(T0), None, None, None, 0, None, False),
    ]
    assert events.prepare(prepared) is prepared
    taken = events.prepare(with_value(raw, "$.nothing"))
    assert [row[-2] for row in rows(taken)] == [None, None, None]
    assert [row[-2] for row in rows(events.prepare(raw, "$.a"))] == [None, None, None]


def test_span(spark: SparkSession) -> None:
    assert events.span_of(frame(spark, [])) == Span(0, 0)
    ends = [E("a", times.MAX_US), E("a", -1), E("a", times.MIN_US)]
    assert events.span_of(frame(spark, ends)) == Span(times.MIN_US, times.MAX_US)


def test_prefixes(spark: SparkSession) -> None:
    paths = ["a/b/c", "a/b", "a", "", "~", "a~1b/c/d", "//x"]
    found = frame(spark, [E(path, T0) for path in paths]).select(events.prefix(2)).collect()
    assert [row[0] for row in found] == ["a/b", "a/b", "a", "", "~", "a~1b/c", "/"]


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


def test_all_of_time_is_cut_into_few_buckets(spark: SparkSession) -> None:
    span = Span(times.MIN_US, times.MAX_US)
    width = events.bucket_width(span)
    assert (span.last - span.first) // events.to_us(width) < limits.REPORT_BUCKETS
    found = frame(spark, [E("a", times.MIN_US), E("a", times.MAX_US)]).select(events.bucket(width))
    first, last = (row["bucket"] for row in found.toDF("bucket").toArrow().to_pylist())
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
    spark: SparkSession, moment: int, width: timedelta, begin: int
) -> None:
    [row] = (
        frame(spark, [E("a", moment)]).select(events.bucket(width)).toDF("b").toArrow().to_pylist()
    )
    assert row["b"] == at(begin)
