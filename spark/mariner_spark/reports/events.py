"""Prepared events, and the columns and expressions that reports share.

A report takes a data frame with the columns of ``schema.SCHEMA``, or of :func:`prepare`. Events are
ordered by :data:`ORDER`: by timestamp, then by id. All moments are UTC, in microseconds.
"""

from datetime import timedelta
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from mariner_spark import limits, times
from mariner_spark.values import DEFAULT_PATH, with_value

ID: Final = ("server", "session", "instance")
ORDER: Final = ("timestamp", *ID)
SECOND_US: Final = 1_000_000

_CORE_TYPE: Final = (
    r"^event/(communication/(connected|disconnected)"
    r"|[^/]+/(engine|history|(eventer|mariner)/[^/]+))\z"
)


def prepare(events: DataFrame, value_path: str = DEFAULT_PATH) -> DataFrame:
    """Select the columns that reports need, with payloads replaced by figures about them.

    Existing columns ``value`` and ``value_unread`` are kept; ``value_path`` is for events without.
    A row per event has its id, type path, timestamps and kind of payload; ``payload`` is the begin
    of a JSON payload, ``payload_bytes`` the size of any, ``value`` its number or null,
    ``value_unread`` whether the number could not be read. Prepared events stay as they are.
    """
    if "payload_bytes" in events.columns:
        return events
    if "value" not in events.columns:
        events = with_value(events, value_path)
    elif "value_unread" not in events.columns:
        events = events.withColumn("value_unread", sf.lit(False))
    size = sf.coalesce(sf.octet_length("payload_json"), sf.octet_length("payload_binary"))
    return events.select(
        *ID,
        "type_path",
        "timestamp",
        "source_timestamp",
        "payload_kind",
        sf.substring("payload_json", 1, limits.REPORT_PAYLOAD_CHARACTERS).alias("payload"),
        sf.coalesce(size, sf.lit(0)).cast("long").alias("payload_bytes"),
        "value",
        "value_unread",
    )


class Span(NamedTuple):
    """First and last timestamp of events, in microseconds since 1970-01-01 UTC."""

    first: int = 0
    last: int = 0


def span_of(events: DataFrame) -> Span:
    """Span of events, by reading them; of no events, ``Span()``."""
    row = events.agg(
        sf.unix_micros(sf.min("timestamp")), sf.unix_micros(sf.max("timestamp"))
    ).first()
    return Span() if row is None or row[0] is None else Span(row[0], row[1])


class Extent(NamedTuple):
    """How many events there are, from when to when; ``payload_bytes``: size of their payloads."""

    span: Span
    events: int
    payload_bytes: int


def extent_of(events: DataFrame) -> Extent:
    """Extent of prepared events, by reading them."""
    [row] = events.agg(
        sf.unix_micros(sf.min("timestamp")),
        sf.unix_micros(sf.max("timestamp")),
        sf.count("*"),
        sf.sum("payload_bytes"),
    ).collect()
    return Extent(Span(row[0] or 0, row[1] or 0), row[2], row[3] or 0)


def is_of_core() -> Column:
    """Whether an event is one of the core's own: about servers and their clients."""
    return sf.col("type_path").rlike(_CORE_TYPE)


def prefix(depth: int) -> Column:
    """Path of the first ``depth`` segments of the type, or of all segments."""
    return sf.substring_index("type_path", "/", depth)


def id_order() -> Column:
    """Sort key by :data:`ORDER`: largest for the last event."""
    return sf.struct(*ORDER)


def us(column: str) -> Column:
    """Microseconds of a timestamp."""
    return sf.unix_micros(sf.col(column))


def seconds(us: Column) -> Column:
    """Seconds (double) of microseconds."""
    return us / sf.lit(float(SECOND_US))


def rank_error(n_rows: Column) -> Column:
    """How many ranks an approximate percentile of so many rows may be off; 0: it is exact."""
    n_off = sf.ceil(n_rows / limits.PERCENTILE_ACCURACY)
    return sf.when(n_rows < limits.PERCENTILE_EXACT_ROWS, sf.lit(0)).otherwise(n_off).cast("long")


def moment(us: int) -> Column:
    """A moment given in microseconds."""
    return sf.timestamp_micros(sf.lit(us))


# --- buckets ------------------------------------------------------------------------------

_DAY: Final = timedelta(days=1)
_WIDTHS: Final = (
    *(timedelta(milliseconds=i) for i in (1, 10, 100)),
    *(timedelta(seconds=i) for i in (1, 2, 5, 10, 15, 30)),
    *(timedelta(minutes=i) for i in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=i) for i in (1, 2, 3, 6, 12)),
    *(i * _DAY for i in (1, 2, 7, 14, 28, 91, 364, 3_640, 36_400, 72_800)),
)
# buckets of weeks begin on Mondays; those of a day and less, at midnight
_ORIGIN_US: Final = 4 * _DAY // timedelta(microseconds=1)


def bucket_width(span: Span) -> timedelta:
    """The narrowest width that splits a span into at most ``limits.REPORT_BUCKETS`` buckets."""
    for width in _WIDTHS:
        width_us = to_us(width)
        first, last = ((i - _ORIGIN_US) // width_us for i in span)
        if last - first < limits.REPORT_BUCKETS:
            return width
    raise AssertionError("a span of more than 10,000 years")


def span_of_buckets(span: Span) -> Span:
    """From the first bucket of a span to the end of its last one; one moment stays one."""
    width_us = to_us(bucket_width(span))
    first, last = ((i - _ORIGIN_US) // width_us * width_us + _ORIGIN_US for i in span)
    return span if span.first == span.last else Span(max(first, times.MIN_US), last + width_us)


def bucket(width: timedelta) -> Column:
    """Start of the bucket of the timestamp."""
    # a bucket may start before the first moment that Python has
    return sf.timestamp_micros(sf.greatest(bucket_us(width), sf.lit(times.MIN_US)))


def bucket_us(width: timedelta) -> Column:
    """Start of the bucket in microseconds, even if it is before the first moment."""
    width_us = sf.lit(to_us(width))
    return us("timestamp") - sf.pmod(us("timestamp") - _ORIGIN_US, width_us)


def to_us(delta: timedelta) -> int:
    """Microseconds of a duration."""
    return delta // timedelta(microseconds=1)
