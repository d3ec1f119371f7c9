"""Report ``latest``: the last event of each type."""

from collections.abc import Sequence
from typing import Final

from mariner_spark import limits
from mariner_spark.reports import formats, links, views
from mariner_spark.reports.events import ID, LATEST_FIRST, prepare
from mariner_spark.reports.relations import R, query

_SHOWN: Final = (
    *("timestamp", "source_timestamp", "value", "payload_kind", "payload", "payload_bytes"),
    *ID,
)


def find_latest(events: R) -> R:
    """The last event of each type.

    A row is a type and its last event by timestamp, then id:

    * ``type_path``
    * ``timestamp``, ``source_timestamp`` (may be null)
    * ``value``: the number of its payload, or null
    * ``payload_kind``: ``json``, ``binary`` or null (none); ``payload``: the begin of a JSON
      payload; ``payload_bytes``: size of the payload
    * ``server``, ``session``, ``instance``: its id
    * ``events``: number of events of the type

    :func:`latest` has the ``limits.REPORT_ROWS`` types with the latest events, the latest first.
    """
    sql = f"""
        WITH types AS (
            SELECT type_path, max(timestamp) AS last, count(*) AS events
            FROM {{events}} GROUP BY type_path
        ), numbered AS (
            SELECT event.*, types.events,
                row_number() OVER (
                    PARTITION BY event.type_path ORDER BY {LATEST_FIRST}
                ) AS number
            FROM {{events}} AS event JOIN types
                ON event.type_path = types.type_path AND event.timestamp = types.last
        )
        SELECT type_path, {", ".join(_SHOWN)}, events FROM numbered WHERE number = 1
    """
    return query(sql, events=prepare(events))


# --- on the page --------------------------------------------------------------------------


def _view(rows: Sequence[views.Row], totals: views.Row, _domain: views.Domain) -> views.View:
    """No charts: the table is enough."""
    last = rows[0]
    n_types = views.plural(totals["rows"], "type")
    return views.View(
        f"{n_types}; the last event is of {formats.name(last['type_path'])}, at"
        f" {formats.moment(last['timestamp'])}."
    )


REPORT: Final = views.Report(
    "latest",
    "Latest",
    "The last event of each type.",
    lambda events, _: find_latest(events),
    _view,
    views.columns(
        type_path="Type: path", value="Value: number", timestamp="Timestamp: moment",
        source_timestamp="Source timestamp: moment", payload="Payload: text",
        payload_bytes="Size: size", events="Events: count",
    ),
    first=lambda found: query(
        "SELECT * FROM {found} ORDER BY timestamp DESC, type_path"
        f" LIMIT {limits.REPORT_ROWS}", found=found,
    ),
    first_are="those heard of last",
    totals=lambda _, found: query("SELECT count(*) AS rows FROM {found}", found=found),
    needs=("type_path", *_SHOWN),
    figures=views.columns(rows="Types: count"),
    behind=lambda row: links.of_type(row["type_path"], row["timestamp"], row["timestamp"]),
)  # fmt: skip

latest: Final = views.first_of(find_latest, REPORT)
