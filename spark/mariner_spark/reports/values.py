"""Report ``values``: numbers of payloads by type and time."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Final

from mariner_spark import limits
from mariner_spark.lake import sql
from mariner_spark.reports import events as shared
from mariner_spark.reports import formats, links, relations, views
from mariner_spark.reports.events import ID, LATEST_FIRST, Span, prepare, to_us
from mariner_spark.reports.relations import R, query, text
from mariner_spark.values import DEFAULT_PATH, find_unit

_TINY: Final = 2.0**-64
"""Scale that keeps the sum of any number of doubles finite."""

_MAX: Final = "1.7976931348623157e308"
"""The largest double; infinity and NaN are larger."""


def values(
    events: R,
    *,
    width: timedelta | None = None,
    span: Span | None = None,
    value_path: str = DEFAULT_PATH,
    origin_us: int = shared.ORIGIN_US,
    rollups: R | None = None,
) -> R:
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

    Finds the types and their units by reading the events; their ``span``, too, unless it is given.
    ``origin_us``: where any bucket begins. ``rollups``: those of a lake that have the numbers of
    exactly these events in such buckets, or parts of them (``lake.maintenance.find_rollups``).
    """
    events = prepare(events, value_path)
    width = width or shared.bucket_width(span or shared.span_of(events), origin_us)
    source = events if rollups is None else rollups
    most = relations.rows(query(_largest(is_rolled=rollups is not None), source=source))
    last = ", ".join(f"({text(events, i['shown'])}, {i['last_us']})" for i in most)
    nothing = f"({text(events, None)}, 0)"
    shown = relations.rows(query(_last_payloads(last or nothing), events=events))
    units = {row["type_path"]: find_unit(row["payload"], value_path) for row in shown}
    types = [i["shown"] for i in most]
    largest = ", ".join(f"({text(events, i)}, {text(events, units[i])})" for i in types)
    none = f"({text(events, None)}, {text(events, None)})"
    if rollups is None:
        return query(_by_bucket(largest or none, width, origin_us), events=events)
    return query(_of_rollups(largest or none, width, origin_us), rollups=rollups)


def _largest(*, is_rolled: bool) -> str:
    """The types with most numbers, and the moment of the last one of each."""
    number, last = "count(value)", "max(timestamp)"
    if is_rolled:
        number, last = "CAST(sum(numbers) AS BIGINT)", "max(last_at)"
    return f"""
        SELECT type_path AS shown, {number} AS number, unix_micros({last}) AS last_us
        FROM {{source}} WHERE {"numbers > 0" if is_rolled else "value IS NOT NULL"}
        GROUP BY type_path ORDER BY number DESC, type_path LIMIT {limits.REPORT_VALUE_TYPES}
    """


def _last_payloads(last: str) -> str:
    """The payload of the last number of types, rows ``(type_path, last_us)``."""
    return f"""
        WITH latest AS (
            SELECT /*+ BROADCAST(largest) */ type_path, payload,
                row_number() OVER (PARTITION BY type_path ORDER BY {LATEST_FIRST}) AS place
            FROM {{events}} JOIN (SELECT * FROM (VALUES {last}) AS types(shown, last_us)) AS largest
                ON type_path = shown AND timestamp = timestamp_micros(last_us)
            WHERE value IS NOT NULL
        )
        SELECT type_path, payload FROM latest WHERE place = 1
    """


def _of_rollups(largest: str, width: timedelta, origin_us: int) -> str:
    """As :func:`_by_bucket`, from rollups."""
    source = f"""
        (SELECT {{rollups}}.* FROM {{rollups}}
            JOIN (SELECT * FROM (VALUES {largest}) AS types(shown, unit)) AS largest
                ON type_path = shown
            WHERE numbers > 0)
    """
    # DuckDB's connection has Spark's functions
    buckets = sql.buckets(source, to_us(width), sql.DIALECTS["spark"], origin_us)
    return f"""
        SELECT type_path, bucket, {shared.width_s(width)} AS bucket_s, numbers AS count, min, max,
            mean, first, last, time_mean, unit
        FROM ({buckets}) AS found
            JOIN (SELECT * FROM (VALUES {largest}) AS types(shown, unit)) AS largest
                ON type_path = shown
        ORDER BY type_path, bucket
    """


def _by_bucket(largest: str, width: timedelta, origin_us: int) -> str:
    """Numbers of the largest types, rows ``(type_path, unit)``, in each bucket.

    Weights are parts of a bucket, so that the sum does not grow with them: a number holds for
    ``held`` of its bucket, and the one before it until then, if that is of an earlier bucket.
    """
    n_us = to_us(width)
    return f"""
        WITH numbers AS (
            SELECT /*+ BROADCAST(largest) */ type_path, unit, value, unix_micros(timestamp) AS us,
                {shared.bucket_us("unix_micros(timestamp)", width, origin_us)} AS bucket_us,
                {", ".join(ID)}
            FROM {{events}} JOIN (SELECT * FROM (VALUES {largest}) AS types(shown, unit)) AS largest
                ON type_path = shown
            WHERE value IS NOT NULL
        ), ordered AS (
            SELECT type_path, unit, value, us, bucket_us, row_number() OVER in_order AS number,
                lead(us) OVER in_order AS next_us, lag(us) OVER in_order AS previous_us,
                lag(value) OVER in_order AS previous_value
            FROM numbers
            WINDOW in_order AS (PARTITION BY type_path ORDER BY us, {", ".join(ID)})
        ), weighted AS (
            SELECT type_path, unit, value, bucket_us, number,
                CASE WHEN next_us IS NULL THEN 0e0
                    ELSE (least(next_us, bucket_us + {n_us}) - us) / {n_us} END AS held,
                CASE WHEN previous_us < bucket_us
                    THEN (us - bucket_us) / {n_us} ELSE 0e0 END AS held_before,
                CASE WHEN previous_us < bucket_us AND us > bucket_us
                    THEN previous_value END AS value_before
            FROM ordered
        ), summed AS (
            SELECT type_path, unit, bucket_us, count(*) AS count, min(value) AS min,
                max(value) AS max, avg(value) AS plain_mean, avg(value * {_TINY}) AS tiny_mean,
                min_by(value, number) AS first, max_by(value, number) AS last,
                sum(value * held + coalesce(value_before, 0e0) * held_before) AS total,
                sum(held + held_before) AS weight, min(least(value, value_before)) AS low,
                max(greatest(value, value_before)) AS high
            FROM weighted GROUP BY type_path, unit, bucket_us
        ), means AS (
            SELECT *, CASE WHEN abs(plain_mean) <= {_MAX} THEN plain_mean
                ELSE {_within(f"tiny_mean / {_TINY}", "min", "max")} END AS mean
            FROM summed
        )
        SELECT type_path, {shared.moment_of_bucket("bucket_us")} AS bucket,
            {shared.width_s(width)} AS bucket_s, count, min, max, mean, first, last,
            CASE WHEN weight > 0 THEN {_within("total / weight", "low", "high")}
                ELSE mean END AS time_mean,
            unit
        FROM means ORDER BY type_path, bucket_us
    """


def _within(number: str, low: str, high: str) -> str:
    """A mean, clipped to the bounds of its numbers: rounding may lead beyond them."""
    return f"least(greatest({number}, {low}), {high})"


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
        elif views.LINK in run[0]:  # a line has only one link, points have theirs
            for mark in marks[-len(run) :]:
                mark["unseen"] = mark["mean"]
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
        "unseen": ({"type": "point", "filled": True, "size": 60, "opacity": 0}, {}),
    }
    layer = [
        {
            "mark": mark,
            "encoding": {"y": views.numbers_axis(field, bounds), "tooltip": tips}
            | ({"y2": end} if end else {})
            | (views.href(marks) if mark["type"] == "point" else {}),
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
        **views.linked(row),
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
    lambda events, i: values(
        events, span=i.extent.span, value_path=i.value_path, origin_us=i.origin_us,
        rollups=i.rollups,
    ),
    _view,
    views.columns(
        type_path="Type: path", bucket="From: moment", count="Numbers: count", min="Least: number",
        max="Largest: number", mean="Mean: number", time_mean="Mean over time: number",
        first="First: number", last="Last: number", unit="Unit: text",
    ),
    # of all types, also of those that are left out
    totals=lambda events, _: query(
        "SELECT count(value) AS numbers,"
        " count(DISTINCT CASE WHEN value IS NOT NULL THEN type_path END) AS types"
        " FROM {events}", events=events,
    ),
    needs=("type_path", "timestamp", *ID, "payload", "value"),
    figures=views.columns(numbers="Numbers: count", types="Types: count"),
    behind=lambda row: links.of_type(
        row["type_path"], row["bucket"],
        row["bucket"] + timedelta(seconds=row["bucket_s"], microseconds=-1),
    ),
)  # fmt: skip
