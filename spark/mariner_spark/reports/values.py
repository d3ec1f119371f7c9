"""Report ``values``: numbers of payloads by type and time."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from mariner_spark import limits
from mariner_spark.reports import events as shared
from mariner_spark.reports import formats, views
from mariner_spark.reports.events import ORDER, Span, id_order, prepare, to_us, us
from mariner_spark.values import DEFAULT_PATH, parse

_TINY: Final = 2.0**-64
"""Scale that keeps the sum of any number of doubles finite."""


def values(
    events: DataFrame,
    *,
    width: timedelta | None = None,
    span: Span | None = None,
    value_path: str = DEFAULT_PATH,
) -> DataFrame:
    """Numbers by type and time: those of the column ``value``, or at ``value_path``.

    A row is a type and a bucket of time with numbers, of the ``limits.REPORT_VALUE_TYPES`` types
    with most numbers; the number of buckets is bounded unless a ``width`` is given:

    * ``type_path``; ``bucket``: start of the bucket; ``bucket_s``: its length in seconds
    * ``count``: number of numbers; ``min``, ``max``, ``mean``, ``first``, ``last`` of them
    * ``time_mean``: mean weighted by time: a number holds until the type's next one, across
      buckets. The time before the type's first and after its last number does not count; if no
      time is left, it is ``mean``
    * ``unit``: that of the type's last number: ``unit`` in the same JSON object, if that is in the
      first ``limits.REPORT_PAYLOAD_CHARACTERS`` of the payload's text; null: there is none

    Without the ``span`` of the events, it is found by reading them.
    """
    events = prepare(events, value_path)
    width = width or shared.bucket_width(span or shared.span_of(events))
    numbers = events.where("value IS NOT NULL")
    largest = (
        numbers.groupBy("type_path")
        .agg(sf.count("*").alias("all"), sf.max_by("payload", id_order()).alias("payload"))
        .orderBy(sf.desc("all"), "type_path")
        .limit(limits.REPORT_VALUE_TYPES)
        .select("type_path", _unit(value_path).alias("unit"))
    )
    weighted = _weighted(numbers.join(sf.broadcast(largest), on="type_path", how="inner"), width)
    return _by_bucket(weighted).select(
        "type_path",
        "bucket",
        sf.lit(width.total_seconds()).alias("bucket_s"),
        *("count", "min", "max", "mean", "first", "last"),
        sf.coalesce(_within("weighted", "low", "high"), "mean").alias("time_mean"),
        "unit",
    )


def _unit(value_path: str) -> Column:
    """Text of the key ``unit`` beside the number of a payload; null: none, or it is cut."""
    keys = parse(value_path)
    if not keys:
        return sf.lit(None).cast("string")
    path = "".join(f"['{key}']" for key in (*keys[:-1], "unit"))
    return sf.get_json_object("payload", f"${path}")


def _weighted(numbers: DataFrame, width: timedelta) -> DataFrame:
    """Numbers with weights: the parts of the bucket that each and the previous one hold."""
    in_order = Window.partitionBy("type_path").orderBy(*ORDER)
    width_us = to_us(width)
    begin, end = sf.col("bucket_us"), sf.col("bucket_us") + width_us
    held = sf.least(us("next"), end) - us("timestamp")
    before = sf.when(us("previous") < begin, us("timestamp") - begin)
    return (
        numbers.select(
            "type_path",
            "unit",
            "value",
            *ORDER,
            shared.bucket(width).alias("bucket"),
            shared.bucket_us(width).alias("bucket_us"),
        )
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


def _by_bucket(weighted: DataFrame) -> DataFrame:
    # weights are parts of a bucket, so that the sum does not grow with them
    total = sf.sum(
        sf.col("value") * sf.col("held")
        + sf.coalesce(sf.col("previous_value"), sf.lit(0.0)) * sf.col("before")
    )
    weight = sf.sum(sf.col("held") + sf.col("before"))
    taken_over = sf.when(sf.col("before") > 0, sf.col("previous_value"))
    return (
        weighted.groupBy("type_path", "unit", "bucket")
        .agg(
            sf.count("*").alias("count"),
            sf.min("value").alias("min"),
            sf.max("value").alias("max"),
            sf.avg("value").alias("plain_mean"),
            (sf.avg(sf.col("value") * _TINY) / _TINY).alias("safe_mean"),
            sf.min_by("value", id_order()).alias("first"),
            sf.max_by("value", id_order()).alias("last"),
            sf.try_divide(total, weight).alias("weighted"),
            sf.min(sf.least("value", taken_over)).alias("low"),
            sf.max(sf.greatest("value", taken_over)).alias("high"),
        )
        .select("*", _mean().alias("mean"))
        .orderBy("type_path", "bucket")
    )


def _mean() -> Column:
    """Mean of numbers, which is finite even if their sum overflows a double."""
    plain = sf.col("plain_mean")
    is_finite = sf.abs(plain) < float("inf")  # NaN is larger
    return sf.when(is_finite, plain).otherwise(_within("safe_mean", "min", "max"))


def _within(number: str, low: str, high: str) -> Column:
    """A mean, clipped to the bounds of its numbers: rounding may lead beyond them."""
    inside = sf.least(sf.greatest(number, low), high)
    return sf.when(sf.isnotnull(number), inside)


# --- on the page --------------------------------------------------------------------------


def _view(rows: Sequence[views.Row], totals: views.Row, domain: views.Domain) -> views.View:
    by_type: dict[str, list[views.Row]] = {}
    for row in rows:
        by_type.setdefault(row["type_path"], []).append(row)
    finding = (
        f"{views.plural(totals['numbers'], 'number')} of {views.plural(totals['types'], 'type')}:"
        f" means in {views.width_of(rows)}, between the least and the largest."
    )
    if part := views.part_of(len(by_type), totals["types"], "type"):
        finding += f" Shown: {part}, those with most numbers."
    if domain[0] == domain[1]:
        return views.View(finding)
    return views.View(finding, [_band(name, found, domain) for name, found in by_type.items()])


def _band(name: str, rows: Sequence[views.Row], domain: views.Domain) -> views.Chart:
    marks: list[views.Spec] = []
    for run in _without_silence(rows):
        marks += map(_mark, run)
        if len(run) == 1:
            marks[-1] |= {"low": marks[-1]["least"], "high": marks[-1]["largest"]}
        if len(run) == 1 or len(rows) <= 40:
            for mark in marks[-len(run) :]:
                mark["point"] = mark["mean"]
        marks.append({"time": marks[-1]["time"] + 1})  # without numbers: the line breaks
    bounds = [mark[i] for mark in marks if "mean" in mark for i in ("least", "largest")]
    tips = views.tooltip(begin="when", mean="shown", range="range", numbers="count")
    blue = views.PALETTE[0]
    layers: dict[str, tuple[views.Spec, views.Spec]] = {
        "least": ({"type": "area", "opacity": 0.22, "color": blue}, {"field": "largest"}),
        # of a bucket that is alone, whose area has no width
        "low": (
            {"type": "rule", "opacity": 0.3, "strokeWidth": 3, "color": blue},
            {"field": "high"},
        ),
        "mean": ({"type": "line", "strokeWidth": 1.8}, {}),
        "point": ({"type": "point", "filled": True, "size": 18, "color": blue}, {}),
    }
    layer = [
        {
            "mark": mark,
            "encoding": {"y": views.numbers_axis(field, bounds), "tooltip": tips}
            | ({"y2": end} if end else {}),
        }
        for field, (mark, end) in layers.items()
        if any(field in i for i in marks)  # Vega warns of a layer without marks
    ]
    encoding = {"x": views.time_axis("time", domain)}
    spec = views.chart(marks, views.SMALL_PX, encoding=encoding, layer=layer)
    note = f"last {formats.number(rows[-1]['last'])}{_after_number(rows[-1])}"
    return views.Chart(formats.name(name), spec, note=note, is_small=True)


def _mark(row: views.Row) -> views.Spec:
    unit = _after_number(row)
    return {
        "time": views.ms(row["bucket"]) + row["bucket_s"] * 500,  # its middle
        "least": views.drawable(row["min"]),
        "largest": views.drawable(row["max"]),
        "mean": views.drawable(row["mean"]),
        "when": formats.moment(row["bucket"]),
        "shown": formats.number(row["mean"]) + unit,
        "range": f"{formats.number(row['min'])} to {formats.number(row['max'])}{unit}",
        "count": formats.count(row["count"]),
    }


def _after_number(row: views.Row) -> str:
    return "" if row["unit"] is None else f" {formats.label(row['unit'])}"


def _without_silence(rows: Sequence[views.Row]) -> list[list[views.Row]]:
    """Rows of a type, split where a bucket has no numbers."""
    runs = [[rows[0]]]
    for before, row in pairwise(rows):
        # the first bucket of all may be shorter
        is_next = row["bucket"] - before["bucket"] <= timedelta(seconds=row["bucket_s"])
        runs.append([row]) if not is_next else runs[-1].append(row)
    return runs


REPORT: Final = views.Report(
    "values",
    "Values",
    "Numbers in payloads, by type and time.",
    lambda events, i: values(events, span=i.extent.span, value_path=i.value_path),
    _view,
    views.columns(
        type_path="Type: path", bucket="From: moment", count="Numbers: count", min="Least: number",
        max="Largest: number", mean="Mean: number", time_mean="Mean over time: number",
        first="First: number", last="Last: number", unit="Unit: text",
    ),
    # of all types, also of those that are left out
    totals=lambda events, _: events.agg(
        sf.count("value").alias("numbers"),
        sf.count_distinct(sf.when(sf.isnotnull("value"), sf.col("type_path"))).alias("types"),
    ),
)  # fmt: skip
