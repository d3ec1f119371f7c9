"""Moments: the calendar of Spark is shorter than that of events."""

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given

from eventer_bridge.model import INT64_MAX, INT64_MIN, Timestamp
from mariner_spark import times
from mariner_spark.times import Interval
from tests.spark.support import moment, timestamps


@given(timestamps)
def test_a_timestamp_is_the_same_moment_or_the_nearest(timestamp: Timestamp) -> None:
    us = times.to_us(timestamp)
    assert us == times.from_datetime(moment(timestamp))
    s = np.array([timestamp.s], np.int64)
    assert times.all_to_us(s, np.array([timestamp.us], ">u4")).tolist() == [us]


@given(timestamps, timestamps, timestamps)
def test_an_interval_finds_timestamps_by_what_spark_shows_of_them(
    first: Timestamp, last: Timestamp, timestamp: Timestamp
) -> None:
    interval = Interval(times.to_us(first), times.to_us(last))
    low, high = interval.timestamps()
    is_found = (low is None or low <= timestamp) and (high is None or timestamp <= high)
    assert is_found == (moment(first) <= moment(timestamp) <= moment(last))
    assert interval.is_empty == (moment(first) > moment(last))
    assert interval.contains(times.to_us(timestamp)) == is_found


def test_extremes() -> None:
    assert times.to_us(Timestamp(INT64_MIN, 0)) == times.MIN_US
    assert times.to_us(Timestamp(INT64_MAX, 999_999)) == times.MAX_US
    assert Interval(times.MIN_US, times.MAX_US).is_everything
    assert not Interval(times.MIN_US + 1).is_everything
    assert Interval(first=times.MAX_US + 1).is_empty
    assert Interval(last=times.MIN_US - 1).is_empty


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("20240501", datetime(2024, 5, 1), datetime(2024, 5, 1, 23, 59, 59, 999_999)),
        ("2024-05-01T12:00+02:00", datetime(2024, 5, 1, 10), datetime(2024, 5, 1, 10)),
        ("-1.5", *[datetime(1969, 12, 31, 23, 59, 58, 500_000)] * 2),
        ("9999-12-31", datetime(9999, 12, 31), datetime.max),
        # beyond what Spark has
        ("1e15", datetime.max, datetime.max),
        ("-1e15", datetime.min, datetime.min),
    ],
)
def test_moments_as_people_write_them(text: str, first: datetime, last: datetime) -> None:
    for parse, expected in ((times.parse, first), (times.parse_last, last)):
        assert parse(text) == times.from_datetime(expected.replace(tzinfo=UTC))


@pytest.mark.parametrize("text", ["", "yesterday", "nan", "inf", "1e300", "2024-13-01"])
def test_other_moments_are_refused(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        times.parse(text)
