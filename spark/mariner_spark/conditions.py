"""Selections as conditions in SQL, which Spark and DuckDB read alike (``reports.relations``)."""

import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TypeAlias

from eventer_bridge.model import EventType
from mariner_spark import times, type_path
from mariner_spark.source.options import Selection
from mariner_spark.times import Interval

Quote: TypeAlias = Callable[[str], str]
"""Makes a literal of a text."""


def spark_text(value: str) -> str:
    """A text in a query of Spark."""
    return f"CAST(X'{to_hex(value)}' AS STRING)"


def to_hex(value: str) -> str:
    """Digits of a text in UTF-8."""
    return value.encode("utf-8", "replace").hex()


def of_selection(selection: Selection, quote: Quote = spark_text) -> list[str]:
    """Conditions that an event of a selection must all satisfy."""
    found = within("timestamp", selection.time)
    if selection.types is not None:
        found.append(matches(selection.types, quote))
    if selection.servers is not None:
        servers = ", ".join(map(str, sorted(selection.servers)))
        found.append(f"server IN ({servers})" if servers else "FALSE")
    if selection.source is not None:
        found += ["source_timestamp IS NOT NULL", *within("source_timestamp", selection.source)]
    return found


def within(column: str, time: Interval) -> list[str]:
    """Conditions: the moment of a column is in a time."""
    bounds = []
    if time.first is not None and time.first > times.MIN_US:
        bounds.append(f"{column} >= timestamp_micros({time.first})")
    if time.last is not None and time.last < times.MAX_US:
        bounds.append(f"{column} <= timestamp_micros({time.last})")
    return bounds


def matches(types: Sequence[EventType], quote: Quote = spark_text) -> str:
    """Condition: the type of a row matches one of these, with ``?`` and ``*``."""
    exact, found = set[str](), []
    for pattern in types:
        is_open = pattern[-1:] == ("*",)
        segments = pattern[:-1] if is_open else pattern
        if "?" in segments:
            found.append(_like(segments, quote, is_open=is_open))
            continue
        if is_open and not segments:
            return "TRUE"
        path = type_path.encode(segments)
        exact.add(path)
        if is_open:  # the character after / is 0
            found.append(f"type_path >= {quote(path + '/')} AND type_path < {quote(path + '0')}")
    if exact:
        found.append(f"type_path IN ({', '.join(map(quote, sorted(exact)))})")
    return " OR ".join(found) or "FALSE"


def _like(segments: Sequence[str], quote: Quote, *, is_open: bool) -> str:
    """Condition: the type has these segments, of which some are ``?``."""
    parts = ("[^/]*" if i == "?" else re.escape(type_path.encode((i,))) for i in segments)
    expression = r"\A" + "/".join(parts) + (r"(/|\z)" if is_open else r"\z")
    has_segments = f"type_path <> '{type_path.encode(())}'"
    return f"{has_segments} AND regexp_like(type_path, {quote(expression)})"


def type_bounds(types: Sequence[EventType] | None) -> Callable[[str, str], bool]:
    """Condition: one of these types may lie from a type path to another one, both included."""
    if types is None:
        return lambda _first, _last: True
    ranges = [_range(i) for i in types]
    return lambda first, last: any(i <= last and first <= j for i, j in ranges)


def _range(pattern: EventType) -> tuple[str, str]:
    """First and last type path that a pattern may match."""
    fixed = tuple(takewhile(lambda i: i not in {"?", "*"}, pattern))
    if pattern and not fixed:
        return "", type_path.LAST
    path = type_path.encode(fixed)
    return path, path if fixed == pattern else f"{path}/{type_path.LAST}"
