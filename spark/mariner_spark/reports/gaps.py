"""Report ``gaps``: types that were silent for longer than expected."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from mariner_spark import limits
from mariner_spark.reports import formats, links, views
from mariner_spark.reports.events import IS_OF_CORE, prepare, seconds, span_of, to_us
from mariner_spark.reports.relations import R, query

FACTOR: Final = 3.0
"""A silence of more than so many median intervals is a gap: twice is a single lost event."""


def find_gaps(
    events: R,
    *,
    expected: timedelta | None = None,
    factor: float = FACTOR,
    end_us: int | None = None,
    with_core: bool = True,
) -> R:
    """Gaps of types: times without events.

    A row is a time in which a type had no event although one was expected; :func:`gaps` returns the
    ``limits.REPORT_ROWS`` with the largest ratios, the largest first:

    * ``type_path``
    * ``begin``: its last event before the gap; ``end``: its next event, or the end
    * ``silence_s``: seconds between them
    * ``expected_s``: expected interval in seconds: ``expected``, or the median of the type's
      intervals (the lesser of two in the middle; zero intervals do not count; types with fewer than
      ``limits.MIN_INTERVALS`` have no gaps), of which more than ``factor`` are a gap
    * ``ratio``: ``silence_s`` / ``expected_s``
    * ``is_open``: whether it lasted until the end, which is ``end_us`` (the timestamp of the last
      event of any type, in microseconds) or, without it, that of the last one of ``events``

    Without ``with_core`` the core's own types do not count, which are about servers and their
    clients: their events are not periodic.
    """
    events = prepare(events)
    end_us = span_of(events).last if end_us is None else end_us
    # the median is that of the intervals that have ended, which come first
    by_length = "OVER (PARTITION BY type_path ORDER BY is_open, silence_us)"
    median = "max(CASE WHEN 2 * place IN (number, number + 1) THEN silence_us END)"
    enough, usual = f"number >= {limits.MIN_INTERVALS}", f"{median} OVER (PARTITION BY type_path)"
    if expected is not None:
        enough, usual, factor = "TRUE", f"{to_us(expected)}", 1.0
    sql = f"""
        WITH moments AS (
            SELECT type_path, unix_micros(timestamp) AS begin_us FROM {{events}}
            WHERE {"TRUE" if with_core else f"NOT {IS_OF_CORE}"}
        ), intervals AS (
            SELECT type_path, begin_us,
                lead(begin_us) OVER (PARTITION BY type_path ORDER BY begin_us) AS next_us
            FROM moments
        ), silences AS (
            SELECT type_path, begin_us, coalesce(next_us, {end_us}) AS end_us,
                coalesce(next_us, {end_us}) - begin_us AS silence_us, next_us IS NULL AS is_open
            FROM intervals WHERE coalesce(next_us, {end_us}) > begin_us
        ), placed AS (
            SELECT *, row_number() {by_length} AS place,
                count(CASE WHEN NOT is_open THEN 1 END) OVER (PARTITION BY type_path) AS number
            FROM silences
        ), compared AS (
            SELECT type_path, begin_us, end_us, silence_us, is_open, number,
                CAST({usual} AS DOUBLE) AS usual_us
            FROM placed
        )
        SELECT type_path, timestamp_micros(begin_us) AS begin, timestamp_micros(end_us) AS end,
            {seconds("silence_us")} AS silence_s, {seconds("usual_us")} AS expected_s,
            silence_us / usual_us AS ratio, is_open
        FROM compared WHERE {enough} AND silence_us > usual_us * {factor}
    """
    return query(sql, events=events)


_TOTALS: Final = """
    SELECT * FROM (
        SELECT count(*) AS rows, count(DISTINCT type_path) AS types,
            count(CASE WHEN is_open THEN 1 END) AS open
        FROM {found}
    ) LEFT JOIN (
        SELECT type_path AS longest, silence_s AS longest_s FROM {found} AS gap
        ORDER BY silence_s DESC, gap.begin DESC, type_path DESC LIMIT 1
    ) ON TRUE
"""
"""``longest``: type of the longest gap, of ``longest_s``."""

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
            **views.linked(row),
        }
        for row in rows
        if row["type_path"] in shown
    ]
    tips = views.tooltip(type="name", silent="shown", expected="expected", from_to="when")
    finding = (
        f"{views.plural(totals['rows'], 'gap')} of {views.plural(totals['types'], 'type')};"
        f" the longest is of {formats.name(totals['longest'])},"
        f" for {formats.duration(totals['longest_s'])}."
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
    " of their intervals.",
    lambda events, i: find_gaps(events, end_us=i.end_us, with_core=i.with_core),
    _view,
    views.columns(
        type_path="Type: path", begin="Silent from: moment", end="Until: moment",
        silence_s="Silence: duration", expected_s="Expected: duration", ratio="Ratio: ratio",
        is_open="Until the end: flag",
    ),
    first=lambda found: query(
        "SELECT * FROM {found} AS gap ORDER BY ratio DESC, gap.begin, type_path"
        f" LIMIT {limits.REPORT_ROWS}", found=found,
    ),
    first_are="those with the largest ratios",
    totals=lambda _, found: query(_TOTALS, found=found),
    needs=("type_path", "timestamp"),
    figures=views.columns(
        rows="Gaps: count", types="Types: count", open="Until the end: count",
        longest_s="Longest: duration",
    ),
    behind=lambda row: links.of_type(row["type_path"], row["begin"], row["end"]),
)  # fmt: skip

gaps: Final = views.first_of(find_gaps, REPORT)
