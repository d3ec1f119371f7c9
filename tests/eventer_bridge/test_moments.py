"""Moments as people write them."""

import pytest

from eventer_bridge import moments
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import Timestamp

NOON = Timestamp(1_714_564_800, 0)
MIDNIGHT = Timestamp(1_714_521_600, 0)
END_OF_DAY = Timestamp(1_714_607_999, 999_999)

EXPECTED = (
    r"expected ISO 8601 \(2024-05-01T12:00:00Z\) or seconds since 1970-01-01, not a year alone"
)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("2024-05-01T12:00:00Z", NOON, NOON),
        ("2024-05-01T12:00", NOON, NOON),
        ("20240501T120000Z", NOON, NOON),
        ("2024-05-01 14:00:00.000001+02:00", Timestamp(NOON.s, 1), Timestamp(NOON.s, 1)),
        ("2024-05-01T00:00", MIDNIGHT, MIDNIGHT),
        ("1969-12-31T23:59:59.999999Z", Timestamp(-1, 999_999), Timestamp(-1, 999_999)),
        # dates
        ("2024-05-01", MIDNIGHT, END_OF_DAY),
        ("20240501", MIDNIGHT, END_OF_DAY),
        ("2024-W18-3", MIDNIGHT, END_OF_DAY),
        ("9999-12-31", Timestamp(253_402_214_400, 0), Timestamp(253_402_300_799, 999_999)),
        # seconds
        ("1714564800", NOON, NOON),
        ("1714564800.123456", Timestamp(NOON.s, 123_456), Timestamp(NOON.s, 123_456)),
        ("-0.5", Timestamp(-1, 500_000), Timestamp(-1, 500_000)),
        ("2024.0", Timestamp(2_024, 0), Timestamp(2_024, 0)),
        ("20240501.0", Timestamp(20_240_501, 0), Timestamp(20_240_501, 0)),
        ("-20240501", Timestamp(-20_240_501, 0), Timestamp(-20_240_501, 0)),
        # "20240501", any separator, "23" is a moment to `datetime.fromisoformat`
        ("20240501123", Timestamp(20_240_501_123, 0), Timestamp(20_240_501_123, 0)),
    ],
)
def test_moments(text: str, first: Timestamp, last: Timestamp) -> None:
    assert (moments.parse(text), moments.parse_last(text)) == (first, last)


@pytest.mark.parametrize("text", ["", "noon", "2024", "2024-13-01", "20241301", "nan", "inf"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    for parse in (moments.parse, moments.parse_last):
        with pytest.raises(InvalidEventError, match=EXPECTED):
            parse(text)


NOW = Timestamp(1_714_564_800, 7)


@pytest.mark.parametrize(
    ("text", "ago_s"),
    [
        ("now", 0),
        ("-0s", 0),
        ("-90s", 90),
        ("-30m", 1_800),
        ("-1h", 3_600),
        ("-2d", 172_800),
        ("-1w", 604_800),
        ("-999999999w", 604_799_999_395_200),
    ],
)
def test_how_long_ago(text: str, ago_s: int) -> None:
    expected = Timestamp(NOW.s - ago_s, NOW.us)
    assert (moments.parse(text, now=NOW), moments.parse_last(text, now=NOW)) == (expected, expected)
    with pytest.raises(InvalidEventError, match=EXPECTED):  # it may not be relative
        moments.parse(text)


@pytest.mark.parametrize("text", ["-1", "2024-05-01", "1714564800"])
def test_what_is_not_relative_is_the_same_at_any_time(text: str) -> None:
    assert moments.parse(text, now=NOW) == moments.parse(text)
    assert moments.parse_last(text, now=NOW) == moments.parse_last(text)


@pytest.mark.parametrize("text", ["noon", "2024", "1h", "+1h", "-1h30m", "-1.5h", "-h", "-1M"])
def test_what_is_neither_a_moment_nor_how_long_ago(text: str) -> None:
    for parse in (moments.parse, moments.parse_last):
        with pytest.raises(InvalidEventError) as e:
            parse(text, now=NOW)
        assert str(e.value) == (
            f"{text!r}: expected now, how long ago (-30m, -1h, -2d), ISO 8601"
            " (2024-05-01T12:00:00Z) or seconds since 1970-01-01, not a year alone"
        )


def test_out_of_range() -> None:
    with pytest.raises(InvalidEventError, match="timestamp out of range"):
        moments.parse("1e300")
