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
    columns = ", ".join(
        f"{seconds(f'min(CASE WHEN part = {part} THEN latency_us END)')} AS {name}"
        for name, part in _PERCENTILES.items()
    )
    parts = ", ".join(f"({i})" for i in _PERCENTILES.values())
    # in order are only classes of latencies, and those of the classes that have a percentile
    sql = f"""
        WITH latencies AS (
            SELECT {prefix(depth)} AS prefix,
                unix_micros(timestamp) - unix_micros(source_timestamp) AS latency_us
            FROM {{events}}
        ), classes AS (
            SELECT prefix, {_class_of("latency_us")} AS class, count(*) AS number
            FROM latencies WHERE latency_us >= 0 GROUP BY 1, 2
        ), reached AS (
            SELECT prefix, class, number, sum(number) OVER (PARTITION BY prefix) AS total,
                sum(number) OVER (PARTITION BY prefix ORDER BY class) AS upto
            FROM classes
        ), chosen AS (
            SELECT prefix AS chosen_of, class, total, upto - number AS before, part
            FROM reached JOIN (SELECT * FROM (VALUES {parts}) AS parts(part)) AS parts
                ON 100 * upto >= part * total AND 100 * (upto - number) < part * total
        ), near AS (
            SELECT /*+ BROADCAST(chosen) */ prefix, part, total, before, latency_us,
                count(*) AS number
            FROM latencies JOIN chosen
                ON prefix = chosen_of AND {_class_of("latency_us")} = class
            WHERE latency_us >= 0 GROUP BY prefix, part, total, before, latency_us
        ), placed AS (
            SELECT prefix, part, total, latency_us,
                before + sum(number) OVER (PARTITION BY prefix, part ORDER BY latency_us) AS place
            FROM near
        ), percentiles AS (
            SELECT prefix AS percentile_of, {columns}
            FROM placed WHERE 100 * place >= part * total GROUP BY prefix
        ), found AS (
            SELECT prefix, count(*) AS events, count(latency_us) AS with_source,
                count(CASE WHEN latency_us > {to_us(late)} THEN 1 END) AS late,
                count(CASE WHEN latency_us < 0 THEN 1 END) AS future,
                {seconds("min(latency_us)")} AS min_s, {seconds("max(latency_us)")} AS max_s
            FROM latencies GROUP BY prefix
        )
        SELECT prefix, events, with_source, late, future, min_s, {", ".join(_PERCENTILES)}, max_s
        FROM found LEFT JOIN percentiles ON prefix = percentile_of
    """
    return query(sql, events=prepare(events))


def _class_of(us: str) -> str:
    """Class of a latency in microseconds, which rises with it: its first three digits."""
    cases = (
        f"WHEN {us} < {1_000 * 10**power} THEN {1_000 * power} + floor({us} / {10**power})"
        for power in range(16)
    )
    return f"CAST(CASE {' '.join(cases)} END AS BIGINT)"


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
