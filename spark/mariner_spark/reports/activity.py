"""Report ``activity``: number and size of events by type prefix and time."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from mariner_spark import limits
from mariner_spark.reports import formats, links, views
from mariner_spark.reports.events import (
    ORIGIN_US,
    Span,
    bucket_us,
    bucket_width,
    moment_of_bucket,
    prefix,
    prepare,
    span_of,
    width_s,
)
from mariner_spark.reports.relations import R, query


def activity(
    events: R,
    *,
    depth: int = 2,
    width: timedelta | None = None,
    span: Span | None = None,
    origin_us: int = ORIGIN_US,
) -> R:
    """Events by type prefix and time.

    A row is a type prefix and a bucket of time with events; there are at most
    ``limits.REPORT_PREFIXES`` prefixes:

    * ``prefix``: path of the first ``depth`` segments of the types; null: all but the largest
    * ``bucket``: start of the bucket; ``bucket_s``: its length in seconds
    * ``events``: number of events; ``bytes``: total size of their payloads

    Without a ``width``, there are at most ``limits.REPORT_BUCKETS`` buckets. Without the ``span``
    of the events, it is found by reading them. ``origin_us``: where any bucket begins.
    """
    events = prepare(events)
    width = width or bucket_width(span or span_of(events), origin_us)
    sql = f"""
        WITH counted AS (
            SELECT prefix, bucket_us, count(*) AS events, sum(payload_bytes) AS bytes
            FROM (
                SELECT {prefix(depth)} AS prefix,
                    {bucket_us("unix_micros(timestamp)", width, origin_us)} AS bucket_us,
                    payload_bytes
                FROM {{events}}
            )
            GROUP BY prefix, bucket_us
        ), largest AS (
            SELECT prefix AS kept FROM counted
            GROUP BY prefix
            ORDER BY sum(events) DESC, prefix
            LIMIT {limits.REPORT_PREFIXES}
        )
        SELECT /*+ BROADCAST(largest) */ kept AS prefix, {moment_of_bucket("bucket_us")} AS bucket,
            {width_s(width)} AS bucket_s, CAST(sum(events) AS BIGINT) AS events,
            CAST(sum(bytes) AS BIGINT) AS bytes
        FROM counted LEFT JOIN largest ON prefix = kept
        GROUP BY kept, bucket_us
        ORDER BY kept ASC NULLS LAST, bucket_us
    """
    return query(sql, events=events)


# --- on the page --------------------------------------------------------------------------


def _view(rows: Sequence[views.Row], _totals: views.Row, domain: views.Domain) -> views.View:
    others = "all others"
    prefixes = views.labels_of("prefix", rows)
    colours = dict(zip(prefixes.values(), views.PALETTE, strict=False))
    if any(row["prefix"] is None for row in rows):
        colours[others] = views.OTHERS
    width_ms = rows[0]["bucket_s"] * 1_000
    totals: dict[Any, int] = {}
    marks = []
    for row in rows:
        begin = views.ms(row["bucket"])
        totals[row["bucket"]] = totals.get(row["bucket"], 0) + row["events"]
        marks.append(
            {
                "begin": begin,
                "end": begin + width_ms,
                "events": row["events"],
                "name": others if row["prefix"] is None else prefixes[row["prefix"]],
                "when": formats.moment(row["bucket"]),
                "shown": formats.count(row["events"]),
                "bytes": formats.size(row["bytes"]),
                **views.linked(row),
            }
        )
    shade = views.colour("name", colours)
    encoding = {
        "x": views.time_axis("begin", domain),
        "x2": {"field": "end"},
        "y": views.counts_axis("events", max(totals.values())) | {"stack": "zero"},
        "color": shade,
        "stroke": shade,
        "order": {"field": "name", "type": "nominal", "sort": list(colours)},
        "tooltip": views.tooltip(type="name", begin="when", events="shown", payload="bytes"),
        **views.href(marks),
    }
    # the stroke shows bars that are too narrow: of events of one moment, in the time of servers
    is_narrow = width_ms * 300 < domain[1] - domain[0]
    mark = {"type": "bar", "orient": "vertical", "binSpacing": 1, "strokeWidth": int(is_narrow)}
    peak = max(totals, key=lambda bucket: (totals[bucket], bucket))
    finding = (
        f"Busiest {views.width_of(rows)}: {views.plural(totals[peak], 'event')} from"
        f" {formats.moment(peak)} on."
    )
    if domain[0] == domain[1]:
        return views.View(finding)
    spec = views.chart(marks, views.CHART_PX, mark=mark, encoding=encoding)
    return views.View(
        finding,
        [views.Chart(f"Events in {views.width_of(rows)}", spec, legend=tuple(colours.items()))],
    )


REPORT: Final = views.Report(
    "activity",
    "Activity",
    "How many events were registered when, by type prefix.",
    lambda events, i: activity(
        events, depth=i.depth, span=i.extent.span, origin_us=i.origin_us
    ),
    _view,
    views.columns(
        prefix="Type prefix: path", bucket="From: moment", events="Events: count",
        bytes="Payload: size",
    ),
    totals=lambda _, found: query(
        "SELECT count(*) AS rows, CAST(coalesce(sum(events), 0) AS BIGINT) AS events,"
        " CAST(coalesce(sum(bytes), 0) AS BIGINT) AS bytes FROM {found}", found=found,
    ),
    needs=("type_path", "timestamp", "payload_bytes"),
    figures=views.columns(events="Events: count", bytes="Payload: size"),
    behind=lambda row: None if row["prefix"] is None else links.of_prefix(
        row["prefix"], row["bucket"],
        row["bucket"] + timedelta(seconds=row["bucket_s"], microseconds=-1),
    ),
)  # fmt: skip
