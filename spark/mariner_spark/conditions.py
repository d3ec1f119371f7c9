"""Selections as conditions in SQL, which Spark and DuckDB read alike (``reports.relations``)."""

import re
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby, takewhile
from operator import itemgetter
from typing import TypeAlias

from eventer_bridge.model import EventType
from mariner_spark import limits, times, type_path
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
    if not types or ("*",) in types:
        return "TRUE" if types else "FALSE"
    exact = {type_path.encode(i) for i in types if i[-1:] != ("*",) and "?" not in i}
    found = [f"type_path IN ({', '.join(map(quote, sorted(exact)))})"] if exact else []
    # a few regular expressions are faster than one for each pattern
    patterns = sorted({_expression(i) for i in types if i[-1:] == ("*",) or "?" in i})
    lengths = accumulate(len(i) + 1 for i in patterns)
    numbered = zip((i // limits.EXPRESSION_CHARACTERS for i in lengths), patterns, strict=True)
    for _, group in groupby(numbered, itemgetter(0)):
        expression = rf"\A(?:{'|'.join(i for _, i in group)})"
        found.append(f"(type_path <> '~' AND regexp_like(type_path, {quote(expression)}))")
    # bounds by which Parquet skips row groups
    firsts, ends = zip(*map(_range, types), strict=True)
    bounds = [f"type_path >= {quote(min(firsts))}"]
    if None not in ends:
        bounds.append(f"type_path < {quote(max(filter(None, ends)))}")
    return " AND ".join((*bounds, f"({' OR '.join(found)})"))


def _expression(pattern: EventType) -> str:
    """Regular expression of the type paths that match a pattern."""
    is_open = pattern[-1:] == ("*",)
    segments = pattern[:-1] if is_open else pattern
    parts = ("[^/]*" if i == "?" else re.escape(type_path.encode((i,))) for i in segments)
    return "/".join(parts) + (r"(?:/|\z)" if is_open else r"\z")


def type_bounds(types: Sequence[EventType] | None) -> Callable[[str, str | None], bool]:
    """Condition: one of these types may lie from a type path to another one, both included.

    The latter may be unknown.
    """
    if types is None:
        return lambda _first, _last: True
    ranges = [_range(i) for i in types]
    return lambda first, last: any(
        (last is None or begin <= last) and (end is None or first < end) for begin, end in ranges
    )


def _range(pattern: EventType) -> tuple[str, str | None]:
    """First type path that a pattern may match, and an end after them all; None: there is none."""
    fixed = tuple(takewhile(lambda i: i not in {"?", "*"}, pattern))
    if pattern and not fixed:
        return "", None
    path = type_path.encode(fixed)
    return path, path + ("\0" if fixed == pattern else "0")  # the character after / is 0
