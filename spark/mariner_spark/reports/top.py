"""Report ``top``: the largest event types."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from mariner_spark import limits
from mariner_spark.reports.events import Extent, extent_of, prepare, us


def top(events: DataFrame, *, extent: Extent | None = None) -> DataFrame:
    """The largest types.

    A row is a type:

    * ``type_path``
    * ``events``: number of events; ``bytes``: total size of their payloads (a store compresses
      them)
    * ``events_share``, ``bytes_share``: divided by those of all events (null: these are 0)
    * ``first``, ``last``: timestamps of its first and its last event
    * ``growth``: events in the later half of the span divided by those in the earlier half, minus
      1; null: there are none in the earlier half, or the span is one moment

    Args:
        events: see ``events``.
        extent: extent of the events; None: found by reading them.

    Returns:
        The ``limits.REPORT_TOP_TYPES`` types with the largest share of events or of bytes.
    """
    return first_top(find_top(events, extent=extent))


def find_top(events: DataFrame, *, extent: Extent | None = None) -> DataFrame:
    """All rows of :func:`top`, in any order."""
    events = prepare(events)
    (first, last), n_events, payload_bytes = extent or extent_of(events)
    is_later = us("timestamp") > (first + last) // 2
    earlier = sf.col("events") - sf.col("later")
    return (
        events.groupBy("type_path")
        .agg(
            sf.count("*").alias("events"),
            sf.sum("payload_bytes").alias("bytes"),
            sf.min("timestamp").alias("first"),
            sf.max("timestamp").alias("last"),
            sf.count_if(is_later).alias("later"),
        )
        .select(
            "type_path",
            "events",
            "bytes",
            sf.try_divide("events", sf.lit(n_events)).alias("events_share"),
            sf.try_divide("bytes", sf.lit(payload_bytes)).alias("bytes_share"),
            "first",
            "last",
            sf.when(sf.lit(first < last), sf.try_divide("later", earlier) - 1).alias("growth"),
        )
    )


def first_top(found: DataFrame) -> DataFrame:
    """The rows of :func:`find_top` that :func:`top` returns."""
    largest = sf.desc(sf.greatest("events_share", "bytes_share"))
    return found.orderBy(largest, "type_path").limit(limits.REPORT_TOP_TYPES)


def totals(found: DataFrame) -> DataFrame:
    """Totals of :func:`find_top`: a row."""
    return found.agg(sf.count("*").alias("rows"))
