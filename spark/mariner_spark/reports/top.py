"""Report ``top``: the largest event types."""

from collections.abc import Sequence
from typing import Final

from mariner_spark import limits
from mariner_spark.reports import formats, links, views
from mariner_spark.reports.events import Extent, extent_of, prepare
from mariner_spark.reports.relations import R, query


def find_top(events: R, *, extent: Extent | None = None) -> R:
    """The largest types.

    A row is a type:

    * ``type_path``
    * ``events``: number of events; ``bytes``: total size of their payloads (a store compresses
      them)
    * ``events_share``, ``bytes_share``: divided by those of all events (null: these are 0)
    * ``first``, ``last``: timestamps of its first and its last event
    * ``growth``: events in the later half of the span divided by those in the earlier half, minus
      1; null: there are none in the earlier half, or the span is one moment

    :func:`top` has the ``limits.REPORT_TOP_TYPES`` with the largest share of events or of bytes.
    Without the extent of the events, it is found by reading them.
    """
    events = prepare(events)
    (first, last), n_events, payload_bytes = extent or extent_of(events)
    has_growth = "TRUE" if first < last else "FALSE"
    sql = f"""
        WITH types AS (
            SELECT type_path, count(*) AS events, CAST(sum(payload_bytes) AS BIGINT) AS bytes,
                min(timestamp) AS first, max(timestamp) AS last,
                count(CASE WHEN unix_micros(timestamp) > {(first + last) // 2} THEN 1 END) AS later
            FROM {{events}} GROUP BY type_path
        )
        SELECT type_path, events, bytes, events / nullif({n_events}, 0) AS events_share,
            bytes / nullif({payload_bytes}, 0) AS bytes_share, first, last,
            CASE WHEN {has_growth} THEN later / nullif(events - later, 0) - 1 END AS growth
        FROM types
    """
    return query(sql, events=events)


# --- on the page --------------------------------------------------------------------------


def _view(rows: Sequence[views.Row], totals: views.Row, _domain: views.Domain) -> views.View:
    finding = (
        f"{formats.name(rows[0]['type_path'])} is the largest:"
        f" {views.plural(rows[0]['events'], 'event')}"
        f" ({formats.show('share', rows[0]['events_share'])}),"
        f" {formats.size(rows[0]['bytes'])} of payload"
        f" ({formats.show('share', rows[0]['bytes_share'])})."
    )
    if len(rows) == 1:
        return views.View(finding)
    kinds = (("events", "Events", "count"), ("bytes", "Bytes of payload", "size"))
    found = [_largest(rows, field, title, kind) for field, title, kind in kinds]
    note = views.part_of(min(len(rows), views.N_BARS), totals["rows"], "type")
    return views.View(finding, [chart._replace(note=note) for chart in found])


def _largest(rows: Sequence[views.Row], field: str, title: str, kind: str) -> views.Chart:
    largest = sorted(rows, key=lambda row: (-row[field], row["type_path"]))[: views.N_BARS]
    names = views.labels_of("type_path", largest)
    marks = [
        {
            "name": names[row["type_path"]],
            "value": row[field],
            "shown": formats.show(kind, row[field]),
            "share": formats.show("share", row[f"{field}_share"]),
            **views.linked(row),
        }
        for row in largest
    ]
    tips = views.tooltip(type="name", size="shown", share="share")
    return views.Chart(title, views.bars(marks, list(names.values()), tips), is_small=True)


REPORT: Final = views.Report(
    "top",
    "Largest types",
    "The types with most events or bytes. Growth: events in the later half of the time,"
    " compared with the earlier half.",
    lambda events, i: find_top(events, extent=i.extent),
    _view,
    views.columns(
        type_path="Type: path", events="Events: count", events_share="of all: share",
        bytes="Payload: size", bytes_share="of all: share", growth="Growth: growth",
        first="First: moment", last="Last: moment",
    ),
    first=lambda found: query(
        "SELECT * FROM {found} ORDER BY greatest(events_share, coalesce(bytes_share, 0)) DESC,"
        f" type_path LIMIT {limits.REPORT_TOP_TYPES}", found=found,
    ),
    first_are="those with the largest shares",
    totals=lambda _, found: query("SELECT count(*) AS rows FROM {found}", found=found),
    needs=("type_path", "timestamp", "payload_bytes"),
    figures=views.columns(rows="Types: count"),
    behind=lambda row: links.of_type(row["type_path"], row["first"], row["last"]),
)  # fmt: skip

top: Final = views.first_of(find_top, REPORT)
