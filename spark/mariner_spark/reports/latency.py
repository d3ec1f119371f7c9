"""Report ``latency``: from the source timestamp of events into the store."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from mariner_spark import limits
from mariner_spark.reports import formats, links, views
from mariner_spark.reports.events import prefix, prepare, seconds, to_us
from mariner_spark.reports.relations import R, query

LATE: Final = timedelta(minutes=1)

_PERCENTILES: Final = {"p50_s": 50, "p95_s": 95, "p99_s": 99}


def find_latencies(events: R, *, depth: int = 2, late: timedelta = LATE) -> R:
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
    * ``p50_s``, ``p95_s``, ``p99_s``: percentiles of the latency in seconds, without future events:
      the least one that so many percent do not exceed
    """
    percentiles = ", ".join(
        f"{seconds(f'min(CASE WHEN 100 * place >= {part} * total THEN latency_us END)')} AS {name}"
        for name, part in _PERCENTILES.items()
    )
    # counted first, so that few are put in order
    sql = f"""
        WITH latencies AS (
            SELECT {prefix(depth)} AS prefix,
                unix_micros(timestamp) - unix_micros(source_timestamp) AS latency_us
            FROM {{events}}
        ), counted AS (
            SELECT prefix, latency_us, count(*) AS number
            FROM latencies GROUP BY prefix, latency_us
        ), placed AS (
            SELECT prefix AS percentile_of, latency_us,
                sum(number) OVER (PARTITION BY prefix) AS total,
                sum(number) OVER (
                    PARTITION BY prefix ORDER BY latency_us ROWS UNBOUNDED PRECEDING
                ) AS place
            FROM counted WHERE latency_us >= 0
        ), percentiles AS (
            SELECT percentile_of, {percentiles} FROM placed GROUP BY percentile_of
        ), found AS (
            SELECT prefix, CAST(sum(number) AS BIGINT) AS events,
                {_count("latency_us IS NOT NULL")} AS with_source,
                {_count(f"latency_us > {to_us(late)}")} AS late,
                {_count("latency_us < 0")} AS future,
                {seconds("min(latency_us)")} AS min_s, {seconds("max(latency_us)")} AS max_s
            FROM counted GROUP BY prefix
        )
        SELECT prefix, events, with_source, late, future, min_s, {", ".join(_PERCENTILES)}, max_s
        FROM found LEFT JOIN percentiles ON prefix = percentile_of
    """
    return query(sql, events=prepare(events))


def _count(condition: str) -> str:
    return f"CAST(sum(CASE WHEN {condition} THEN number ELSE 0 END) AS BIGINT)"


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
            **views.linked(row),
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
                **views.href(marks),
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
    " more than a minute. From the future: the source's clock was ahead; percentiles (p50, p95,"
    " p99) are without these.",
    lambda events, i: find_latencies(events, depth=i.depth),
    _view,
    views.columns(
        prefix="Type prefix: path", p50_s="p50: duration", p95_s="p95: duration",
        p99_s="p99: duration", min_s="Least: duration", max_s="Most: duration",
        late="Late: count", future="Future: count", with_source="With source: count",
        events="Events: count",
    ),
    first=lambda found: query(
        "SELECT * FROM {found} ORDER BY with_source DESC, prefix"
        f" LIMIT {limits.REPORT_ROWS}", found=found,
    ),
    first_are="those with most source timestamps",
    totals=lambda _, found: query(
        "SELECT count(*) AS rows, max(p99_s) AS p99_s, max(max_s) AS max_s,"
        + ",".join(f" CAST(coalesce(sum({i}), 0) AS BIGINT) AS {i}"
                   for i in ("events", "with_source", "late", "future"))
        + " FROM {found}", found=found,
    ),
    needs=("type_path", "timestamp", "source_timestamp"),
    figures=views.columns(
        late="Late: count", future="From the future: count", with_source="With source: count",
        p99_s="Largest p99: duration", max_s="Most: duration",
    ),
    behind=lambda row: links.of_prefix(row["prefix"]),
)  # fmt: skip

latency: Final = views.first_of(find_latencies, REPORT)
