"""Report ``latency``: from the source timestamp of events into the store."""

from datetime import timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from mariner_spark import limits
from mariner_spark.reports.events import prefix, prepare, seconds, to_us, us

LATE: Final = timedelta(minutes=1)

_PERCENTILES: Final = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}


def latency(events: DataFrame, *, depth: int = 2, late: timedelta = LATE) -> DataFrame:
    """Latencies by type prefix: timestamp less source timestamp.

    A row is a type prefix. For RSB events it is the bridge's prefix and the first segments of their
    scope, and the source timestamp is RSB's create time.

    * ``prefix``: path of the first segments of the types
    * ``events``: number of events; ``with_source``: of those with a source timestamp, which the
      other columns are about
    * ``late``: number of events with a latency above the argument ``late``
    * ``future``: number of events with a source timestamp after the timestamp (a wrong clock)
    * ``min_s``, ``max_s``: least and largest latency in seconds; negative for future events
    * ``p50_s``, ``p95_s``, ``p99_s``: percentiles of the latency in seconds, without future events

    Args:
        events: see ``events``.
        depth: number of segments of a prefix.
        late: latency above which an event is late.

    Returns:
        The ``limits.REPORT_ROWS`` prefixes with most source timestamps, the largest first.
    """
    return first_latencies(find_latencies(events, depth=depth, late=late))


def find_latencies(events: DataFrame, *, depth: int = 2, late: timedelta = LATE) -> DataFrame:
    """All rows of :func:`latency`, in any order."""
    found = sf.col("latency_us")
    past = sf.when(found >= 0, found)
    percentiles = sf.percentile_approx(
        past, list(_PERCENTILES.values()), limits.PERCENTILE_ACCURACY
    )
    return (
        prepare(events)
        .select(
            prefix(depth).alias("prefix"),
            (us("timestamp") - us("source_timestamp")).alias("latency_us"),
        )
        .groupBy("prefix")
        .agg(
            sf.count("*").alias("events"),
            sf.count(found).alias("with_source"),
            sf.count_if(found > to_us(late)).alias("late"),
            sf.count_if(found < 0).alias("future"),
            seconds(sf.min(found)).alias("min_s"),
            percentiles.alias("percentiles"),
            seconds(sf.max(found)).alias("max_s"),
        )
        .select(
            "prefix",
            "events",
            "with_source",
            "late",
            "future",
            "min_s",
            *(
                seconds(sf.get("percentiles", sf.lit(i))).alias(name)
                for i, name in enumerate(_PERCENTILES)
            ),
            "max_s",
        )
    )


def first_latencies(found: DataFrame) -> DataFrame:
    """The rows of :func:`find_latencies` that :func:`latency` returns."""
    return found.orderBy(sf.desc("with_source"), "prefix").limit(limits.REPORT_ROWS)


def totals(found: DataFrame) -> DataFrame:
    """Totals of :func:`find_latencies`: a row."""
    counted = (sf.sum(name).alias(name) for name in ("events", "with_source", "late", "future"))
    return found.agg(sf.count("*").alias("rows"), *counted)
