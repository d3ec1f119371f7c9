"""Report ``latency``: from the source timestamp of events into the store."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from mariner_spark import limits
from mariner_spark.reports import formats, views
from mariner_spark.reports.events import prefix, prepare, rank_error, seconds, to_us, us

LATE: Final = timedelta(minutes=1)

_PERCENTILES: Final = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}


def find_latencies(events: DataFrame, *, depth: int = 2, late: timedelta = LATE) -> DataFrame:
    """Latencies by type prefix: timestamp less source timestamp.

    A row is a type prefix; :func:`latency` has ``limits.REPORT_ROWS``, those with most source
    timestamps first. For RSB events it is the bridge's prefix and the first segments of their
    scope, and the source timestamp is RSB's create time.

    * ``prefix``: path of the first ``depth`` segments of the types
    * ``events``: number of events; ``with_source``: of those with a source timestamp, which the
      other columns are about
    * ``late``: number of events with a latency above the argument ``late``
    * ``future``: number of events with a source timestamp after the timestamp (a wrong clock)
    * ``min_s``, ``max_s``: least and largest latency in seconds; negative for future events
    * ``p50_s``, ``p95_s``, ``p99_s``: percentiles of the latency in seconds, without future events
    * ``rank_error``: how many ranks these may be off, because there are many events; 0: exact
    """
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
            *("prefix", "events", "with_source", "late", "future", "min_s"),
            *(
                seconds(sf.get("percentiles", sf.lit(i))).alias(name)
                for i, name in enumerate(_PERCENTILES)
            ),
            "max_s",
            rank_error(sf.col("with_source") - sf.col("future")).alias("rank_error"),
        )
    )


# --- on the page --------------------------------------------------------------------------


def _view(rows: Sequence[views.Row], totals: views.Row, _domain: views.Domain) -> views.View:
    measured = [row for row in rows if row["p50_s"] is not None]
    with_source, late, future = (
        formats.count(totals[name]) for name in ("with_source", "late", "future")
    )
    finding = (
        f"{with_source} of {views.plural(totals['events'], 'event')}"
        f" {'has' if totals['with_source'] == 1 else 'have'} a source timestamp."
        f" Late: {late}. From the future: {future}."
    )
    if not measured:
        return views.View(finding)
    names = views.labels_of("prefix", measured[: views.N_BARS])
    colours = {"p50": "#3fb9a3", "p95": "#e8a33d", "p99": "#ff725c"}
    marks = [
        {
            "name": names[row["prefix"]],
            "percentile": percentile,
            "value": max(row[f"{percentile}_s"], 1e-6),  # a logarithm has no zero
            "shown": formats.duration(row[f"{percentile}_s"]),
            "events": formats.count(row["with_source"]),
        }
        for row in measured[: views.N_BARS]
        for percentile in reversed(colours)  # the larger point is below the smaller one
    ]
    y = views.names_axis(list(names.values()))
    tips = views.tooltip(type="name", percentile="percentile", latency="shown", events="events")
    line = {"type": "line", "strokeWidth": 2, "opacity": 0.5}
    point = {"type": "point", "filled": True, "opacity": 1}
    size = {
        "field": "percentile",
        "type": "ordinal",
        "sort": list(colours),
        "scale": {"domain": list(colours), "range": [30, 110, 250]},
        "legend": None,
    }
    x = views.durations_axis("value", [mark["value"] for mark in marks])
    layer: list[views.Spec] = [
        {"mark": line, "encoding": {"detail": {"field": "name"}, "color": {"value": "#9498a0"}}},
        {
            "mark": point,
            "encoding": {
                "color": views.colour("percentile", colours),
                "size": size,
                "tooltip": tips,
            },
        },
    ]
    spec = views.chart(
        marks, views.ROW_PX * len(names) + views.AXIS_PX, encoding={"y": y, "x": x}, layer=layer
    )
    note = views.part_of(len(names), totals["rows"], "row")
    legend = tuple(colours.items())
    return views.View(
        finding, [views.Chart("Latency (logarithmic)", spec, note=note, legend=legend)]
    )


REPORT: Final = views.Report(
    "latency",
    "Latency",
    "How long events took from their source timestamp into the store, by type prefix. Late:"
    " more than a minute. From the future: the source's clock was ahead. A percentile (p50, p95,"
    f" p99) of events is {views.ACCURACY}.",
    lambda events, i: find_latencies(events, depth=i.depth),
    _view,
    views.columns(
        prefix="Type prefix: path", p50_s="p50: duration", p95_s="p95: duration",
        p99_s="p99: duration", rank_error="Ranks off: count", min_s="Least: duration",
        max_s="Most: duration", late="Late: count",
        future="Future: count", with_source="With source: count", events="Events: count",
    ),
    first=lambda found: found.orderBy(sf.desc("with_source"), "prefix").limit(limits.REPORT_ROWS),
    first_are="those with most source timestamps",
    totals=lambda _, found: found.agg(
        sf.count("*").alias("rows"),
        *(sf.sum(name).alias(name) for name in ("events", "with_source", "late", "future")),
    ),
)  # fmt: skip

latency: Final = views.first_of(find_latencies, REPORT)
