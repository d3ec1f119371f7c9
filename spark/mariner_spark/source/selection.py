"""Which events a read gives: what its options ask for, and the filters that it takes over.

Pure functions of values; planning and tasks use them alike. A filter that is taken over is
kept exactly, so that Spark need not look again; the others are left to Spark.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from eventer_bridge.model import EventType
from eventer_bridge.subscription import Subscription
from mariner_spark import limits, schema, times, type_path
from mariner_spark.times import Interval

_Comparison: TypeAlias = EqualTo | EqualNullSafe | In
_Bound: TypeAlias = GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual


class Selection(msgspec.Struct, frozen=True):
    """Conditions, all of which hold for the events of a read.

    Attributes:
        types: query types, any of which matches; None: all.
        paths: type paths; None: all.
        prefixes: what type paths begin with, each of them.
        servers: ids of servers; None: all.
        time: timestamps.
        source: source timestamps.
        has_source: only events with a source timestamp.
    """

    types: tuple[EventType, ...] | None = None
    paths: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()
    servers: frozenset[int] | None = None
    time: Interval = Interval()
    source: Interval = Interval()
    has_source: bool = False

    @property
    def is_nothing(self) -> bool:
        """Whether no event can satisfy it."""
        nowhere = self.time.is_empty or self.source.is_empty
        return nowhere or frozenset() in {self.paths, self.servers}

    @property
    def has_types(self) -> bool:
        """Whether it asks for some types only."""
        return self.types is not None or self.paths is not None or bool(self.prefixes)

    @property
    def has_sources(self) -> bool:
        """Whether it asks for some source timestamps only."""
        return self.has_source or not self.source.is_everything

    def path_matches(self, path: str) -> bool:
        """Whether it asks for this type path; the query types are not looked at."""
        return (self.paths is None or path in self.paths) and all(
            path.startswith(i) for i in self.prefixes
        )

    def select_types(self, event_types: Iterable[tuple[Any, EventType]]) -> list[Any]:
        """Keys of the types that it asks for, out of pairs of key and type."""
        asked = None if self.types is None else Subscription(self.types)
        return [
            key
            for key, event_type in event_types
            if (asked is None or asked.matches(event_type))
            and (not self.paths_matter or self.path_matches(type_path.encode(event_type)))
        ]

    @property
    def paths_matter(self) -> bool:
        """Whether there is any condition on the type path."""
        return self.paths is not None or bool(self.prefixes)

    def query_types(self) -> tuple[EventType, ...] | None:
        """Query types that match at least what it asks for, for a gateway; None: all."""
        asked = Subscription(self.types or (("*",),))
        if self.paths is not None and len(self.paths) <= limits.MAX_PUSHED_TYPES:
            asked = asked.intersection(Subscription(_existing_types(self.paths)))
        for prefix in self.prefixes:
            # the last segment may go on, the ones before it are whole
            try:
                head = type_path.decode(prefix.rpartition("/")[0]) if "/" in prefix else ()
            except ValueError:
                return ()
            if {"?", "*"}.isdisjoint(head):
                asked = asked.intersection(Subscription([(*head, "*")]))
        if asked.is_everything:
            return None
        return asked.query_types if len(asked.query_types) <= limits.MAX_PUSHED_TYPES else None


def push(selection: Selection, filters: Sequence[Filter]) -> tuple[Selection, list[Filter]]:
    """Take over filters.

    Args:
        selection: what is asked for without them.
        filters: filters, all of which have to hold.

    Returns:
        What is asked for with them, and the filters that are left to Spark.
    """
    left: list[Filter] = []
    for item in filters:
        pushed = _push_one(selection, item)
        if pushed is None:
            left.append(item)
        else:
            selection = pushed
    return selection, left


def _push_one(selection: Selection, item: Filter) -> Selection | None:
    """A selection that keeps a filter as well; None: that cannot be said."""
    change = msgspec.structs.replace
    match item:
        case IsNotNull((column,)) if column in schema.NOT_NULL:
            return selection
        case IsNotNull(("source_timestamp",)):
            return change(selection, has_source=True)
        case StringStartsWith(("type_path",), str(prefix)):
            return change(selection, prefixes=(*selection.prefixes, prefix))
        case EqualTo() | EqualNullSafe() | In():
            return _push_equal(selection, item)
        case GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
            return _push_bound(selection, item)
    return None


def _push_equal(selection: Selection, item: _Comparison) -> Selection | None:
    change = msgspec.structs.replace
    # null among others satisfies nothing
    values = [i for i in item.value if i is not None] if isinstance(item, In) else [item.value]
    match item.attribute:
        case ("type_path",) if all(isinstance(i, str) for i in values):
            return change(selection, paths=_both(selection.paths, values))
        case ("server",) if all(isinstance(i, int) for i in values):
            return change(selection, servers=_both(selection.servers, values))
        case ("type",) if not isinstance(item, In) and _is_type(item.value):
            return change(selection, paths=_both(selection.paths, [type_path.encode(item.value)]))
        case ("timestamp" | "source_timestamp" as column,) if isinstance(item, In) is False:
            if isinstance(item.value, datetime):
                us = times.from_datetime(item.value)
                return _bounded(selection, column, Interval(us, us))
    return None


def _push_bound(selection: Selection, item: _Bound) -> Selection | None:
    if len(item.attribute) != 1 or item.attribute[0] not in _INTERVALS:
        return None
    if not isinstance(item.value, datetime):
        return None
    us = times.from_datetime(item.value)
    match item:
        case GreaterThan():
            interval = Interval(first=us + 1)
        case GreaterThanOrEqual():
            interval = Interval(first=us)
        case LessThan():
            interval = Interval(last=us - 1)
        case _:
            interval = Interval(last=us)
    return _bounded(selection, item.attribute[0], interval)


_INTERVALS: Final[Mapping[str, str]] = {"timestamp": "time", "source_timestamp": "source"}


def _bounded(selection: Selection, column: str, interval: Interval) -> Selection:
    name = _INTERVALS[column]
    changes: dict[str, Any] = {name: getattr(selection, name).intersection(interval)}
    if column == "source_timestamp":
        changes["has_source"] = True  # nothing compares with null
    return msgspec.structs.replace(selection, **changes)


def _both(known: frozenset[Any] | None, values: Iterable[Any]) -> frozenset[Any]:
    return frozenset(values) if known is None else known.intersection(values)


def _is_type(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(i, str) for i in value)


def _existing_types(paths: Iterable[str]) -> list[EventType]:
    """Types with these paths; not those that no event has, which mean others in a query."""
    found: list[EventType] = []
    for path in paths:
        try:
            event_type = type_path.decode(path)
        except ValueError:
            continue
        if {"?", "*"}.isdisjoint(event_type):
            found.append(event_type)
    return found
