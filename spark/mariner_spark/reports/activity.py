"""Report ``activity``: number and size of events by type prefix and time."""

from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from mariner_spark import limits
from mariner_spark.reports.events import Span, bucket, bucket_width, prefix, prepare, span_of


def activity(
    events: DataFrame,
    *,
    depth: int = 2,
    width: timedelta | None = None,
    span: Span | None = None,
) -> DataFrame:
    """Events by type prefix and time.

    A row is a type prefix and a bucket of time with events:

    * ``prefix``: path of the first segments of the types; null: all but the largest prefixes
    * ``bucket``: start of the bucket; ``bucket_s``: its length in seconds
    * ``events``: number of events; ``bytes``: total size of their payloads

    Args:
        events: see ``events``.
        depth: number of segments of a prefix.
        width: length of a bucket; None: chosen from the span.
        span: span of the events; None: found by reading them.

    Returns:
        Rows by prefix and time; bounded by ``limits.REPORT_PREFIXES`` and, unless a width is
        given, ``REPORT_BUCKETS``.
    """
    events = prepare(events)
    width = width or bucket_width(span or span_of(events))
    counted = events.groupBy(prefix(depth).alias("prefix"), bucket(width).alias("bucket")).agg(
        sf.count("*").alias("events"), sf.sum("payload_bytes").alias("bytes")
    )
    largest = (
        counted.groupBy(sf.col("prefix").alias("kept"))
        .agg(sf.sum("events").alias("all"))
        .orderBy(sf.desc("all"), "kept")
        .limit(limits.REPORT_PREFIXES)
    )
    return (
        counted.join(sf.broadcast(largest), on=sf.col("prefix") == sf.col("kept"), how="left")
        .groupBy("kept", "bucket")
        .agg(sf.sum("events").alias("events"), sf.sum("bytes").alias("bytes"))
        .orderBy(sf.asc_nulls_last("kept"), "bucket")
        .select(
            sf.col("kept").alias("prefix"),
            "bucket",
            sf.lit(width.total_seconds()).alias("bucket_s"),
            "events",
            "bytes",
        )
    )
