"""Numbers, moments and texts as people read them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mariner_spark import limits
from mariner_spark.reports import formats, views

CASES: list[tuple[Callable[[Any], str], Any, str]] = [
    (formats.count, 1_234_567, "1,234,567"),
    (formats.size, 0, "0 B"),
    (formats.size, 999, "999 B"),
    (formats.size, 1_000, "1 kB"),
    (formats.size, 1_234_567, "1.23 MB"),
    (formats.size, 999_999, "1 MB"),
    (formats.size, 10**19, "10 EB"),
    (formats.duration, 0, "0 s"),
    (formats.duration, 1e-6, "1 µs"),
    (formats.duration, 0.00035, "350 µs"),
    (formats.duration, 0.9999, "1 s"),
    (formats.duration, 1.5, "1.5 s"),
    (formats.duration, 61, "1 min 1 s"),
    (formats.duration, 59.94, "59.9 s"),
    (formats.duration, 59.96, "1 min"),
    (formats.duration, 3_585, "1 h"),
    (formats.duration, 3_600, "1 h"),
    (formats.duration, 7_260, "2 h 1 min"),
    (formats.duration, 36_000 - 31, "9 h 59 min"),
    (formats.duration, 36_000 - 29, "10 h"),
    (formats.duration, 39_540, "11 h"),
    (formats.duration, 86_400 - 1, "1 d"),
    (formats.duration, 90_000, "1 d 1 h"),
    (formats.duration, 86_400 * 10.6, "11 d"),
    (formats.duration, 86_400 * 3_652_058.0, "3,652,058 d"),
    (formats.duration, -0.02, "\N{MINUS SIGN}20 ms"),
    (formats.share, 0, "0 %"),
    (formats.share, 0.00001, "< 0.1 %"),
    (formats.share, 0.1234, "12.3 %"),
    (formats.share, 0.99999, "> 99.9 %"),
    (formats.share, 1, "100 %"),
    (formats.growth, 0.25, "+25 %"),
    (formats.growth, 0.004, "+0 %"),
    (formats.growth, 0.0, "0 %"),
    (formats.growth, -1, "\N{MINUS SIGN}100 %"),
    (formats.number, 0.0, "0"),
    (formats.number, -0.0, "0"),
    (formats.number, 100.0, "100"),
    (formats.number, 1_234.5, "1,234.5"),
    (formats.number, 0.1 + 0.2, "0.3"),
    (formats.number, -123_456_789.25, "\N{MINUS SIGN}123,456,789"),
    (formats.number, 1.5e20, "1.5e+20"),
    (formats.number, float("inf"), formats.NOTHING),
    (formats.ratio, 1.54, "1.5\N{MULTIPLICATION SIGN}"),
    (formats.ratio, 12_345.6, "12,346\N{MULTIPLICATION SIGN}"),
    (formats.moment, datetime(2025, 1, 1, tzinfo=UTC), "2025-01-01 00:00:00"),
    (formats.moment, datetime(1, 1, 1, 0, 0, 0, 250_999, UTC), "0001-01-01 00:00:00.25"),
    (formats.flag, True, "yes"),
    (formats.text, "é/😀", "é/😀"),
    (formats.text, "a\x00\n\u202eb", "a\\x00\\n\\u202eb"),
]


@pytest.mark.parametrize(("shown", "value", "text"), CASES)
def test_values_are_shown(shown: Callable[[Any], str], value: Any, text: str) -> None:
    assert shown(value).replace("\N{NO-BREAK SPACE}", " ") == text


def test_nothing_is_shown_as_nothing() -> None:
    assert {formats.show(kind, None) for kind in formats.FORMATS} == {formats.NOTHING}


def test_labels_are_short_and_different() -> None:
    long = ["begin/" + "x" * 50 + "/end", "begin/" + "x" * 60 + "/end"]
    labels = views.labels({name: name for name in [*long, "short", ""]})
    assert list(labels.values())[2:] == ["short", "(empty)"]
    first, second = (labels[name] for name in long)
    assert first.startswith("begin/x")
    assert first.endswith("x/end")
    assert (len(first), second) == (limits.LABEL_CHARACTERS, f"{first} (2)")


UNITS_S = {"d": 86_400, "h": 3_600, "min": 60, "s": 1, "ms": 1e-3, "µs": 1e-6}


@given(st.floats(1e-6, 4e11) | st.integers(1, 2_000_000) | st.integers(1, 20_000).map((60).__mul__))
def test_durations_are_rounded(seconds: float) -> None:
    parts = formats.duration(seconds).replace(",", "").split()
    told_s = sum(
        float(number) * UNITS_S[unit] for number, unit in zip(parts[::2], parts[1::2], strict=True)
    )
    digits_s = 0.01 * seconds  # the last of three
    for unit_s, smaller_s in ((60, 1), (3_600, 60), (86_400, 3_600)):
        if seconds >= unit_s:
            digits_s = unit_s if seconds >= 10 * unit_s else smaller_s
    assert abs(told_s - seconds) <= digits_s / 2 * (1 + 1e-6)
