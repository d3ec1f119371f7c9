"""Report ``latest``: the last event of each type."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from mariner_spark import limits
from mariner_spark.reports.events import id_order, prepare


def latest(events: DataFrame) -> DataFrame:
    """The last event of each type.

    A row is a type and its last event by timestamp, then id:

    * ``type_path``
    * ``timestamp``, ``source_timestamp`` (may be null)
    * ``value``: the number of its payload, or null
    * ``payload_kind``: ``json``, ``binary`` or null (none); ``payload``: the begin of a JSON
      payload; ``payload_bytes``: size of the payload
    * ``server``, ``session``, ``instance``: its id
    * ``events``: number of events of the type

    Args:
        events: see ``events``.

    Returns:
        The ``limits.REPORT_ROWS`` types with the latest events, the latest first.
    """
    return first_latest(find_latest(events))


def find_latest(events: DataFrame) -> DataFrame:
    """All rows of :func:`latest`, in any order."""
    events = prepare(events)
    columns = [name for name in events.columns if name != "type_path"]
    return (
        events.groupBy("type_path")
        .agg(
            sf.max_by(sf.struct(*columns), id_order()).alias("last"),
            sf.count("*").alias("events"),
        )
        .select("type_path", "events", "last.*")
        .select(
            "type_path",
            "timestamp",
            "source_timestamp",
            "value",
            "payload_kind",
            "payload",
            "payload_bytes",
            "server",
            "session",
            "instance",
            "events",
        )
    )


def first_latest(found: DataFrame) -> DataFrame:
    """The rows of :func:`find_latest` that :func:`latest` returns."""
    return found.orderBy(sf.desc("timestamp"), "type_path").limit(limits.REPORT_ROWS)


def totals(found: DataFrame) -> DataFrame:
    """Totals of :func:`find_latest`: a row."""
    return found.agg(sf.count("*").alias("rows"))
