"""Report ``values``: what the numbers of the payloads did."""

from datetime import timedelta

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from mariner_spark import limits
from mariner_spark.reports.events import (
    ORDER,
    Span,
    bucket,
    bucket_width,
    id_order,
    prepare,
    span_of,
    to_us,
    us,
)


def values(
    events: DataFrame, *, width: timedelta | None = None, span: Span | None = None
) -> DataFrame:
    """Numbers by type and time.

    A row is a type in a bucket of time that it has numbers in:

    * ``type_path``; ``bucket``: its first moment; ``bucket_s``: its length in seconds
    * ``count``: number of numbers; ``min``, ``max``, ``mean``, ``first``, ``last`` of them
    * ``time_mean``: mean over the time of the bucket: a number holds until the type's next
      one, also from a bucket before. What was before its first and is after its last number
      of all is not known and does not count; where no time is left, it is ``mean``

    Args:
        events: see ``events``. Without a column ``value``, the number is at ``$.value``.
        width: length of a bucket; chosen from the span, unless told.
        span: of the events, where it is known.

    Returns:
        Rows by type and time, of the ``limits.REPORT_VALUE_TYPES`` types with most numbers;
        bounded unless a width is given.
    """
    events = prepare(events)
    width = width or bucket_width(span or span_of(events))
    numbers = events.where("value IS NOT NULL")
    largest = (
        numbers.groupBy("type_path")
        .agg(sf.count("*").alias("all"))
        .orderBy(sf.desc("all"), "type_path")
        .limit(limits.REPORT_VALUE_TYPES)
        .select("type_path")
    )
    in_order = Window.partitionBy("type_path").orderBy(*ORDER)
    width_us = to_us(width)
    # weights are parts of a bucket, so that what is added up does not grow with them
    begin, end = us("bucket"), us("bucket") + width_us
    held = sf.least(us("next"), end) - us("timestamp")
    before = sf.when(us("previous") < begin, us("timestamp") - begin)
    weighted = (
        numbers.join(sf.broadcast(largest), on="type_path", how="left_semi")
        .select("type_path", "value", *ORDER, bucket(width).alias("bucket"))
        .select(
            "*",
            sf.lead("timestamp").over(in_order).alias("next"),
            sf.lag("timestamp").over(in_order).alias("previous"),
            sf.lag("value").over(in_order).alias("previous_value"),
        )
        .select(
            "*",
            sf.coalesce(sf.when(sf.isnotnull("next"), held) / width_us, sf.lit(0.0)).alias("held"),
            sf.coalesce(before / width_us, sf.lit(0.0)).alias("before"),
        )
    )
    total = sf.sum(
        sf.col("value") * sf.col("held")
        + sf.coalesce(sf.col("previous_value"), sf.lit(0.0)) * sf.col("before")
    )
    weight = sf.sum(sf.col("held") + sf.col("before"))
    return (
        weighted.groupBy("type_path", "bucket")
        .agg(
            sf.count("*").alias("count"),
            sf.min("value").alias("min"),
            sf.max("value").alias("max"),
            sf.avg("value").alias("mean"),
            sf.min_by("value", id_order()).alias("first"),
            sf.max_by("value", id_order()).alias("last"),
            sf.try_divide(total, weight).alias("weighted"),
        )
        .orderBy("type_path", "bucket")
        .select(
            "type_path",
            "bucket",
            sf.lit(width.total_seconds()).alias("bucket_s"),
            "count",
            "min",
            "max",
            "mean",
            "first",
            "last",
            sf.coalesce("weighted", "mean").alias("time_mean"),
        )
    )
