"""Rollups in plain Python, from all events."""

import math
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.spark.lake.support import opened
from tests.spark.support import Row

WIDTHS: Final = {"1m": timedelta(minutes=1), "1h": timedelta(hours=1), "1d": timedelta(days=1)}
_MONDAY: Final = datetime(1, 1, 1, tzinfo=UTC)
order_of: Final = itemgetter("timestamp", "server", "session", "instance")


def in_buckets(events: Iterable[Row], width: timedelta) -> list[tuple[str, datetime, list[Row]]]:
    """Events of each type and bucket, in order."""

    def key(event: Row) -> tuple[str, datetime]:
        at = event["timestamp"]
        return event["type_path"], at - (at - _MONDAY) % width

    events = sorted(events, key=order_of)
    return [(*found, [*group]) for found, group in groupby(sorted(events, key=key), key)]


def rollups(events: Iterable[Row]) -> list[Row]:
    """Rows of the table ``rollups`` from rows of the table ``events``."""
    events = list(events)
    return [
        {
            "every": every,
            "type_path": path,
            "bucket": bucket,
            "events": len(members),
            **_of_numbers([i for i in members if i["value"] is not None]),
        }
        for every, width in WIDTHS.items()
        for path, bucket, members in in_buckets(events, width)
    ]


def _of_numbers(members: list[Row]) -> Row:
    numbers = [i["value"] for i in members]
    names = "min", "max", "mean", "first", "first_at", "last", "last_at", "held_mean"
    if not numbers:
        return {"numbers": 0, **dict.fromkeys(names)}
    held = [((j["timestamp"] - i["timestamp"]), i["value"]) for i, j in pairwise(members)]
    return {
        "numbers": len(numbers),
        "min": min(numbers),
        "max": max(numbers),
        "mean": float(sum(map(Fraction, numbers)) / len(numbers)),
        "first": numbers[0],
        "first_at": members[0]["timestamp"],
        "last": numbers[-1],
        "last_at": members[-1]["timestamp"],
        "held_mean": weighted(held),
    }


def weighted(held: Iterable[tuple[timedelta, float]]) -> float | None:
    """Mean of numbers over the times that they hold; None: no time."""
    us = [(i // timedelta(microseconds=1), Fraction(j)) for i, j in held]
    whole = sum(i for i, _ in us)
    return float(sum(i * j for i, j in us) / whole) if whole else None


def check_rollups(root: Path | str) -> None:
    """Compare the rollups of a lake with its events."""
    found = opened(root, "rollups").to_pyarrow_table().to_pylist()
    expected = rollups(opened(root).to_pyarrow_table().to_pylist())
    order = "every", "type_path", "bucket"
    compare(sorted(found, key=lambda i: [i[j] for j in order]),
            sorted(expected, key=lambda i: [i[j] for j in order]))  # fmt: skip


def compare(found: list[Row], expected: list[Row]) -> None:
    """Compare rows; means may be rounded otherwise."""
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        for name, value in row.items():
            assert approximately(name, value, other) == other[name], (name, row, other)


def approximately(name: str, value: Any, row: Row) -> Any:
    """A value; a mean may be a little beside that of ``row``."""
    other = row[name]
    if name.endswith("mean") and value is not None and other is not None:
        size = max(abs(row["min"]), abs(row["max"]))
        assert math.isfinite(value)
        return pytest.approx(value, rel=1e-9, abs=max(size * 1e-9, sys.float_info.min))
    return value


def buckets(events: Iterable[Row], width: timedelta) -> list[Row]:
    """Rows of ``mariner_spark.lake.sql.buckets`` from rows of the table ``events``."""
    found = []
    for path, group in groupby(
        sorted(events, key=itemgetter("type_path")), itemgetter("type_path")
    ):
        everything = list(group)
        numbers = sorted((i for i in everything if i["value"] is not None), key=order_of)
        for _, begin, members in in_buckets(everything, width):
            held = []
            for this, following in pairwise(numbers):
                start, end = this["timestamp"] - begin, following["timestamp"] - begin
                if (length := min(end, width) - max(start, timedelta())) > timedelta():
                    held.append((length, this["value"]))
            row = {
                "type_path": path,
                "bucket": max(begin, _MONDAY),
                "events": len(members),
                **_of_numbers([i for i in members if i["value"] is not None]),
            }
            del row["held_mean"]
            if is_known := row["numbers"] > 0:
                over_time = weighted(held)
                row["time_mean"] = row["mean"] if over_time is None else over_time
            else:
                row["time_mean"] = None
            covered = sum((i for i, _ in held), timedelta()) / width
            row["covered"] = covered if is_known else None
            row["quality"] = row["numbers"] / len(members)
            found.append(row)
    return found
