"""Selections as conditions on data frames of events, and on the bounds of their types."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

from eventer_bridge.model import EventType
from mariner_spark import times, type_path
from mariner_spark.source.selection import Selection
from mariner_spark.times import Interval

LAST_PATH: Final = "\U0010ffff" * 3
"""Behind all type paths that occur."""


def conditions(selection: Selection) -> list[Column]:
    """Conditions that an event of a selection must all satisfy."""
    found = _within("timestamp", selection.time)
    if selection.types is not None:
        found.append(matches(selection.types))
    if selection.servers is not None:
        found.append(sf.col("server").isin(sorted(selection.servers)))
    if selection.source is not None:
        found += [sf.isnotnull("source_timestamp"), *_within("source_timestamp", selection.source)]
    return found


def matches(types: Sequence[EventType]) -> Column:
    """Condition: the type of an event matches one of these, with ``?`` and ``*``."""
    return reduce(lambda one, other: one | other, map(_matches, types))


def type_bounds(types: Sequence[EventType] | None) -> Callable[[str, str], bool]:
    """Condition: one of these types may lie from a type path to another one, both included."""
    if types is None:
        return lambda _first, _last: True
    ranges = [_range(i) for i in types]
    return lambda first, last: any(i <= last and first <= j for i, j in ranges)


def _range(pattern: EventType) -> tuple[str, str]:
    """First and last type path that a pattern may match."""
    fixed = next((i for i, name in enumerate(pattern) if name in {"?", "*"}), len(pattern))
    if fixed == 0 and pattern:
        return "", LAST_PATH
    path = type_path.encode(pattern[:fixed])
    return path, path if fixed == len(pattern) else f"{path}/{LAST_PATH}"


def _matches(pattern: EventType) -> Column:
    is_open = pattern[-1:] == ("*",)
    segments = pattern[:-1] if is_open else pattern
    if "?" not in segments and segments:
        # a condition by which Parquet skips row groups
        path = type_path.encode(segments)
        is_same = sf.col("type_path") == path
        return is_same | sf.col("type_path").startswith(f"{path}/") if is_open else is_same
    size = sf.size("type")
    found = size >= len(segments) if is_open else size == len(segments)
    for index, segment in enumerate(segments):
        if segment != "?":
            found = found & (sf.get("type", sf.lit(index)) == segment)
    return found


def _within(name: str, time: Interval) -> list[Column]:
    bounds = []
    if time.first is not None and time.first > times.MIN_US:
        bounds.append(sf.col(name) >= sf.timestamp_micros(sf.lit(time.first)))
    if time.last is not None and time.last < times.MAX_US:
        bounds.append(sf.col(name) <= sf.timestamp_micros(sf.lit(time.last)))
    return bounds
