"""Prepared events, and the parts of queries that reports share.

A report takes a relation (``relations``) with the columns of ``schema.SCHEMA``, of a lake, or of
:func:`prepare`; it needs only some of them. Events are ordered by :data:`ORDER`: by timestamp, then
by id. All moments are UTC, in microseconds.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from mariner_spark import limits, schema, times
from mariner_spark.reports import relations
from mariner_spark.reports.relations import R, Relation, query
from mariner_spark.values import DEFAULT_PATH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ID: Final = ("server", "session", "instance")
ORDER: Final = ("timestamp", *ID)
LATEST_FIRST: Final = ", ".join(f"{i} DESC" for i in ORDER)
"""Order, the last event first."""

_PREPARED: Final = {
    "payload": f"substring(payload_json, 1, {limits.REPORT_PAYLOAD_CHARACTERS})",
    "payload_bytes": (
        "CAST(coalesce(bit_length(payload_json) / 8, octet_length(payload_binary), 0) AS BIGINT)"
    ),
}
_RAW: Final = frozenset(("type", "payload_json", "payload_type", "payload_binary"))


def prepare(events: R, value_path: str = DEFAULT_PATH) -> R:
    """Replace the payloads of events by figures about them.

    ``payload`` is the begin of a JSON payload, ``payload_bytes`` the size of any, ``value`` its
    number or null, ``value_unread`` whether the number could not be read. The columns ``value`` and
    ``value_unread`` are kept where they are; a data frame without gets them, from ``value_path``.
    The other columns are the id, the type path, the timestamps and the kind of payload. Prepared
    events, and those that were read without payloads, stay as they are.
    """
    if "payload_json" not in events.columns:
        return events
    if "value" not in events.columns:
        from mariner_spark.reader import with_value  # noqa: PLC0415  # of Spark's data frames only

        events = cast("R", with_value(cast("DataFrame", events), value_path))
    names = [i for i in events.columns if i in schema.KNOWN.names and i not in _RAW]
    found = ", ".join((*names, *(f"{j} AS {i}" for i, j in _PREPARED.items())))
    return query(f"SELECT {found} FROM {{events}}", events=events)


class Span(NamedTuple):
    """First and last timestamp of events, in microseconds since 1970-01-01 UTC."""

    first: int = 0
    last: int = 0


def span_of(events: Relation) -> Span:
    """Span of events, by reading them; of no events, ``Span()``."""
    sql = (
        "SELECT unix_micros(min(timestamp)) AS first, unix_micros(max(timestamp)) AS last"
        " FROM {events}"
    )
    found = relations.row(query(sql, events=events))
    return Span() if found["first"] is None else Span(**found)


class Extent(NamedTuple):
    """How many events there are, from when to when; ``payload_bytes``: size of their payloads."""

    span: Span
    events: int
    payload_bytes: int


def extent_of(events: Relation) -> Extent:
    """Extent of prepared events, by reading them."""
    sql = (
        "SELECT count(*) AS events, CAST(coalesce(sum(payload_bytes), 0) AS BIGINT) AS bytes"
        " FROM {events}"
    )
    found = relations.row(query(sql, events=events))
    return Extent(span_of(events), found["events"], found["bytes"])


_N_SEPARATORS: Final = "(length(type_path) - length(replace(type_path, '/', '')))"
_SEGMENT: Final = [f"split_part(type_path, '/', {i})" for i in range(1, 5)]

IS_OF_CLIENT: Final = (
    f"({_SEGMENT[0]} = 'event' AND {_SEGMENT[2]} IN ('eventer', 'mariner')"
    f" AND {_SEGMENT[3]} <> '' AND {_N_SEPARATORS} = 3)"
)
"""Condition: the type is ``event/<server>/eventer/<client>``, or with ``mariner``."""

IS_OF_CORE: Final = (
    "(type_path IN ('event/communication/connected', 'event/communication/disconnected')"
    f" OR ({_SEGMENT[0]} = 'event' AND {_SEGMENT[1]} <> '' AND ({IS_OF_CLIENT}"
    f" OR ({_SEGMENT[2]} IN ('engine', 'history') AND {_N_SEPARATORS} = 2))))"
)
"""Condition: an event is one of the core's own: about servers and their clients."""


def prefix(depth: int) -> str:
    """Path of the first ``depth`` segments of the type, or of all segments."""
    return f"substring_index(type_path, '/', {depth})"


def seconds(us: str) -> str:
    """Seconds (double) of microseconds."""
    return f"({us}) / 1e6"


# --- buckets ------------------------------------------------------------------------------

_DAY: Final = timedelta(days=1)
_WIDTHS: Final = (
    *(timedelta(milliseconds=i) for i in (1, 10, 100)),
    *(timedelta(seconds=i) for i in (1, 2, 5, 10, 15, 30)),
    *(timedelta(minutes=i) for i in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=i) for i in (1, 2, 3, 6, 12)),
    *(i * _DAY for i in (1, 2, 7, 14, 28, 91, 364, 3_640, 36_400, 72_800)),
)
ORIGIN_US: Final = 4 * _DAY // timedelta(microseconds=1)
"""Begin of a bucket of any width, UTC: buckets of weeks begin on Mondays; of days, at midnight."""


def bucket_width(span: Span, origin_us: int = ORIGIN_US) -> timedelta:
    """The narrowest width that splits a span into at most ``limits.REPORT_BUCKETS`` buckets."""
    for width in _WIDTHS:
        width_us = to_us(width)
        first, last = ((i - origin_us) // width_us for i in span)
        if last - first < limits.REPORT_BUCKETS:
            return width
    raise AssertionError("a span of more than 10,000 years")


def span_of_buckets(span: Span, origin_us: int = ORIGIN_US) -> Span:
    """From the first bucket of a span to the end of its last one; one moment stays one."""
    width_us = to_us(bucket_width(span, origin_us))
    first, last = ((i - origin_us) // width_us * width_us + origin_us for i in span)
    end = min(last + width_us, times.MAX_US)
    return span if span.first == span.last else Span(max(first, times.MIN_US), end)


def bucket_us(us: str, width: timedelta, origin_us: int = ORIGIN_US) -> str:
    """Start of the bucket of a moment in microseconds, even if it is before the first moment."""
    n_us = to_us(width)
    return f"({us} - (({us} - {origin_us}) % {n_us} + {n_us}) % {n_us})"


def moment_of_bucket(us: str) -> str:
    """Start of a bucket as a timestamp: the first that Python has, if it is before that."""
    return f"timestamp_micros(greatest({us}, {times.MIN_US}))"


def width_s(width: timedelta) -> str:
    """Seconds (double) of a bucket."""
    return f"CAST({width.total_seconds()} AS DOUBLE)"


def to_us(delta: timedelta) -> int:
    """Microseconds of a duration."""
    return delta // timedelta(microseconds=1)
