"""Report ``gaps``: types that were silent for longer than expected."""

from datetime import timedelta
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from mariner_spark import limits
from mariner_spark.reports.events import (
    Span,
    is_of_core,
    moment,
    prepare,
    seconds,
    span_of,
    to_us,
    us,
)

FACTOR: Final = 3.0
"""Medians of the intervals of a type after which it is called silent: twice is a lost event."""


def gaps(
    events: DataFrame,
    *,
    expected: timedelta | None = None,
    factor: float = FACTOR,
    span: Span | None = None,
    with_core: bool = True,
) -> DataFrame:
    """Silences of types.

    A row is a time in which a type had no event although one was expected:

    * ``type_path``
    * ``begin``: its event before; ``end``: its next one, or the last event of all
    * ``silence_s``: seconds between them
    * ``expected_s``: seconds that it usually takes: ``expected``, or the median of the type's
      intervals (those at one moment do not count; types with less than
      ``limits.MIN_INTERVALS`` have none, and no gaps)
    * ``ratio``: ``silence_s`` / ``expected_s``
    * ``is_open``: whether there was no event until the end

    Args:
        events: see ``events``.
        expected: interval that is expected of every type; a longer one is a gap.
        factor: without ``expected``: medians that make a gap.
        span: of the events, where it is known.
        with_core: whether types count by which servers tell of themselves and their clients:
            these come when something happens, and are silent otherwise.

    Returns:
        The ``limits.REPORT_ROWS`` gaps with the largest ratios, the largest first.
    """
    events = prepare(events)
    end = moment((span or span_of(events)).last)
    if not with_core:
        events = events.where(~is_of_core())
    of_type = Window.partitionBy("type_path")
    in_order = of_type.orderBy("timestamp")
    silence = (us("end") - us("begin")).alias("silence_us")
    intervals = (
        events.select(
            "type_path",
            sf.col("timestamp").alias("begin"),
            sf.lead("timestamp").over(in_order).alias("next"),
        )
        .select(
            "type_path",
            "begin",
            sf.coalesce("next", end).alias("end"),
            sf.isnull("next").alias("is_open"),
        )
        .select("*", silence)
        .where("silence_us > 0")
    )
    if expected is not None:
        compared = intervals.select("*", sf.lit(float(to_us(expected))).alias("expected_us"))
        is_gap = sf.col("silence_us") > sf.col("expected_us")
    else:
        closed = sf.when(~sf.col("is_open"), sf.col("silence_us"))
        median = sf.percentile_approx(closed, 0.5, limits.PERCENTILE_ACCURACY)
        enough = sf.count(closed).over(of_type) >= limits.MIN_INTERVALS
        compared = intervals.select(
            "*", sf.when(enough, median.over(of_type)).cast("double").alias("expected_us")
        )
        is_gap = sf.col("silence_us") > sf.col("expected_us") * factor
    return (
        compared.where(is_gap)
        .select("*", (sf.col("silence_us") / sf.col("expected_us")).alias("ratio"))
        .orderBy(sf.desc("ratio"), "begin", "type_path")
        .limit(limits.REPORT_ROWS)
        .select(
            "type_path",
            "begin",
            "end",
            seconds(sf.col("silence_us")).alias("silence_s"),
            seconds(sf.col("expected_us")).alias("expected_s"),
            "ratio",
            "is_open",
        )
    )
