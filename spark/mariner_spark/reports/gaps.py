"""Report ``gaps``: types that were silent for longer than expected."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from mariner_spark import limits
from mariner_spark.reports import formats, views
from mariner_spark.reports.events import (
    is_of_core,
    moment,
    prepare,
    rank_error,
    seconds,
    span_of,
    to_us,
    us,
)

FACTOR: Final = 3.0
"""A silence of more than so many median intervals is a gap: twice is a single lost event."""


def find_gaps(
    events: DataFrame,
    *,
    expected: timedelta | None = None,
    factor: float = FACTOR,
    end_us: int | None = None,
    with_core: bool = True,
) -> DataFrame:
    """Gaps of types: times without events.

    A row is a time in which a type had no event although one was expected; :func:`gaps` returns the
    ``limits.REPORT_ROWS`` with the largest ratios, the largest first:

    * ``type_path``
    * ``begin``: its last event before the gap; ``end``: its next event, or the end
    * ``silence_s``: seconds between them
    * ``expected_s``: expected interval in seconds: ``expected``, or the median of the type's
      intervals (zero intervals do not count; types with fewer than ``limits.MIN_INTERVALS`` have
      no gaps), of which more than ``factor`` are a gap
    * ``rank_error``: how many ranks the median may be off, because there are many intervals; 0:
      ``expected_s`` is exact
    * ``ratio``: ``silence_s`` / ``expected_s``
    * ``is_open``: whether it lasted until the end, which is ``end_us`` (the timestamp of the last
      event of any type, in microseconds) or, without it, that of the last one of ``events``

    Without ``with_core`` the core's own types do not count, which are about servers and their
    clients: their events are not periodic.
    """
    events = prepare(events)
    end = moment(span_of(events).last if end_us is None else end_us)
    if not with_core:
        events = events.where(~is_of_core())
    in_order = Window.partitionBy("type_path").orderBy("timestamp")
    silence = (us("end") - us("begin")).alias("silence_us")
    intervals = (
        events.select(
            "type_path",
            sf.col("timestamp").alias("begin"),
            sf.lead("timestamp").over(in_order).alias("next"),
        )
        .select("*", sf.coalesce("next", end).alias("end"), sf.isnull("next").alias("is_open"))
        .select("*", silence)
        .where("silence_us > 0")
    )
    usual, error = _usual() if expected is None else (sf.lit(float(to_us(expected))), sf.lit(0))
    n_usual = factor if expected is None else 1.0
    return (
        intervals.select("*", usual.alias("expected_us"), error.cast("long").alias("rank_error"))
        .where(sf.col("silence_us") > sf.col("expected_us") * n_usual)
        .select("*", (sf.col("silence_us") / sf.col("expected_us")).alias("ratio"))
        .select(
            "type_path",
            "begin",
            "end",
            seconds(sf.col("silence_us")).alias("silence_s"),
            seconds(sf.col("expected_us")).alias("expected_s"),
            "ratio",
            "is_open",
            "rank_error",
        )
    )


def _usual() -> tuple[Column, Column]:
    """Median of a type's intervals in microseconds, and how many ranks it may be off."""
    of_type = Window.partitionBy("type_path")
    closed = sf.when(~sf.col("is_open"), sf.col("silence_us"))
    number = sf.count(closed).over(of_type)
    median = sf.percentile_approx(closed, 0.5, limits.PERCENTILE_ACCURACY).over(of_type)
    enough = sf.when(number >= limits.MIN_INTERVALS, median)
    return enough.cast("double"), rank_error(number)


# --- on the page --------------------------------------------------------------------------


def _view(rows: Sequence[views.Row], totals: views.Row, domain: views.Domain) -> views.View:
    names = views.labels_of("type_path", rows)
    shown = dict(list(names.items())[: views.N_BARS])
    colours = {"until the end": "#ff725c", "until the next event": "#e8a33d"}
    ended = {True: "until the end", False: "until the next event"}
    marks = [
        {
            "name": shown[row["type_path"]],
            "begin": views.ms(row["begin"]),
            "end": views.ms(row["end"]),
            "state": ended[row["is_open"]],
            "when": f"{formats.moment(row['begin'])} to {formats.moment(row['end'])}",
            "shown": formats.duration(row["silence_s"]),
            "expected": formats.duration(row["expected_s"]),
        }
        for row in rows
        if row["type_path"] in shown
    ]
    tips = views.tooltip(type="name", silent="shown", expected="expected", from_to="when")
    longest = totals["longest"]
    finding = (
        f"{views.plural(totals['rows'], 'gap')} of {views.plural(totals['types'], 'type')};"
        f" the longest is of {formats.name(longest['type_path'])},"
        f" for {formats.duration(longest['silence_s'])}."
        f" Silent until the end: {formats.count(totals['open'])}."
    )
    note = views.part_of(len(shown), totals["types"], "type")
    return views.View(
        finding,
        views.timeline(
            "Silences", marks, names=shown, colours=colours, tips=tips, domain=domain, note=note
        ),
    )


REPORT: Final = views.Report(
    "gaps",
    "Gaps",
    "Types that were silent for longer than expected: for more than three times the median"
    f" of their intervals, which is {views.ACCURACY}.",
    lambda events, i: find_gaps(events, end_us=i.end_us, with_core=i.with_core),
    _view,
    views.columns(
        type_path="Type: path", begin="Silent from: moment", end="Until: moment",
        silence_s="Silence: duration", expected_s="Expected: duration", ratio="Ratio: ratio",
        is_open="Until the end: flag", rank_error="Ranks off: count",
    ),
    first=lambda found: found.orderBy(
        sf.desc("ratio"), "begin", "type_path"
    ).limit(limits.REPORT_ROWS),
    first_are="those with the largest ratios",
    totals=lambda _, found: found.agg(
        sf.count("*").alias("rows"),
        sf.count_distinct("type_path").alias("types"),
        sf.count_if("is_open").alias("open"),
        sf.max_by(
            sf.struct("type_path", "silence_s"), sf.struct("silence_s", "begin", "type_path")
        ).alias("longest"),
    ),
)  # fmt: skip

gaps: Final = views.first_of(find_gaps, REPORT)
