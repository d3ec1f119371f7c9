"""Report ``latest``: the last event of each type."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from mariner_spark import limits
from mariner_spark.reports import formats, views
from mariner_spark.reports.events import ID, id_order, prepare

_SHOWN: Final = (
    *("timestamp", "source_timestamp", "value", "payload_kind", "payload", "payload_bytes"),
    *ID,
)


def find_latest(events: DataFrame) -> DataFrame:
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
    last = sf.max_by(sf.struct(*_SHOWN), id_order()).alias("last")
    found = prepare(events).groupBy("type_path").agg(last, sf.count("*").alias("events"))
    return found.select("type_path", "last.*", "events")


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
    first=lambda found: found.orderBy(sf.desc("timestamp"), "type_path").limit(limits.REPORT_ROWS),
    first_are="those heard of last",
    totals=lambda _, found: found.agg(sf.count("*").alias("rows")),
)  # fmt: skip

latest: Final = views.first_of(find_latest, REPORT)
