"""Ingestion of the events of gateways into a lake, once or continuously.

The lake itself stores the offset of each server, so that every run resumes there, however the
previous one ended. Spark's checkpoint only lasts as long as the run.
"""

import datetime
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from eventer_bridge.backends import history
from eventer_bridge.backends.history import History
from eventer_bridge.model import EventId
from mariner_spark import limits, times, values
from mariner_spark.errors import LakeError
from mariner_spark.lake import manifest, segments
from mariner_spark.lake.files import Files
from mariner_spark.lake.manifest import Manifest, Position
from mariner_spark.lake.writer import FORMAT, OTHER_STORE, LakeSink
from mariner_spark.source import histories, offsets, options
from mariner_spark.source.gateway import GatewayClient
from mariner_spark.source.gateways import GatewayPool
from mariner_spark.source.options import Options
from mariner_spark.source.server_events import ANY_TYPE, find_servers, session_time
from mariner_spark.values import DEFAULT_PATH, with_value


def ingest(
    spark: SparkSession,
    path: str,
    source: Mapping[str, str],
    *,
    value_path: str | None = None,
    interval_s: float | None = None,
    on_progress: Callable[[int], None] = lambda _rows: None,
) -> int:
    """Append the events of gateways that a lake lacks; creates the lake if there is none.

    Args:
        spark: the session.
        path: the lake.
        source: options of the stream ``mariner`` that name the gateways. All events that the
            client may see are ingested: a lake has all events of each server.
        value_path: path in JSON payloads of the column ``value``; None: as before,
            ``$.value`` for a new lake.
        interval_s: seconds between two batches of a continuous run; None: ingest the events
            that are available now.
        on_progress: called every second with the number of events added so far. If it raises,
            the run ends.

    Returns:
        Number of events added.

    Raises:
        LakeError: the lake cannot be read or written, its values are from another path, or a
            gateway has another history of a server.
        OptionError: an option is wrong, or a gateway refuses this client.
        StreamingQueryException: the stream failed; its text says why.
    """
    files = Files(path)
    before = _rows(files)
    reader = spark.readStream.format("mariner").options(**source)
    if starting := _find_start(files, options.parse(source)):
        reader = reader.option("startingOffsets", msgspec.json.encode(starting).decode())
    with tempfile.TemporaryDirectory(prefix="mariner-lake-") as checkpoint:
        query = start(
            reader.load(), path, Path(checkpoint), value_path=value_path, interval_s=interval_s
        )
        try:
            while not query.awaitTermination(limits.PROGRESS_S):
                on_progress(_rows(files) - before)
        finally:
            query.stop()
    if manifest.find(files) is None:  # there were no events
        manifest.update(
            files, lambda old: manifest.with_values(files, old, value_path or DEFAULT_PATH)
        )
    return _rows(files) - before


def check(path: str, source: Mapping[str, str], value_path: str | None) -> None:
    """Check the arguments of :func:`ingest`, before anything is started.

    Raises:
        LakeError: the lake cannot be read, its values are from another path, or it would be in a
            store.
        OptionError: an option is wrong.
    """
    options.parse(source)
    files = Files(path)
    manifest.check_location(files)
    found = manifest.find(files)
    if value_path is not None:
        values.parse(value_path)
        manifest.with_values(files, found or Manifest(), value_path)


def start(
    events: DataFrame,
    path: str,
    checkpoint: Path,
    *,
    value_path: str | None = None,
    interval_s: float | None = None,
) -> StreamingQuery:
    """Start a stream into a lake.

    Args:
        events: a stream of events with the columns of the data source, see ``writer``.
        path: the lake.
        checkpoint: folder of this machine for Spark's checkpoint.
        value_path: as for :func:`ingest`.
        interval_s: as for :func:`ingest`.

    Raises:
        LakeError, OptionError: as :func:`ingest`.
    """
    files = Files(path)
    found = manifest.find(files)
    chosen = value_path or (DEFAULT_PATH if found is None else found.value_path)
    manifest.with_values(files, found or Manifest(), chosen)  # fails early
    rows = with_value(events, chosen).select(*segments.SCHEMA.names)
    rows.sparkSession.dataSource.register(LakeSink)
    _activate(rows.sparkSession)
    writer = rows.writeStream.format(FORMAT).options(path=path, value_path=chosen)
    writer = writer.option("checkpointLocation", checkpoint.as_uri())
    if interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(interval_s * 1000)} milliseconds").start()


def _activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread, where Spark looks for the sink.

    In a thread other than the one that created the session, another one is active, or none.
    """
    if not is_remote():
        assert spark._jvm is not None
        java_class = SparkSession._get_j_spark_session_class(spark._jvm)
        java_class.setActiveSession(spark._jsparkSession)


def _find_start(files: Files, parsed: Options) -> dict[str, Any]:
    """Offsets in the lake of the servers that the stream reads.

    Servers of other gateways are left out: the stream would report their events as lost.

    Raises:
        LakeError: the lake cannot be read, or the gateways have other events.
    """
    found = manifest.find(files)
    if found is None or not found.positions:
        return {}

    def find(gateway: GatewayClient) -> set[int]:
        servers = parsed.selection.servers or find_servers(gateway, event_types=[ANY_TYPE])
        known = servers & found.positions.keys()
        current = histories.find(gateway)
        for server in known:
            last = found.positions[server]
            _check_history(files, gateway, server, last, current.get(server))
        return set(known)

    gateways = GatewayPool(parsed.gateways)
    try:
        servers = {server for known in gateways.query_each(find) for server in known}
    finally:
        gateways.close()
    servers |= parsed.selection.servers or set()  # even if a gateway is unavailable
    started = {i: j for i, j in found.positions.items() if i in servers}
    return offsets.encode(
        {i: EventId(i, *j.offset) for i, j in started.items()},
        {i: j.history.id for i, j in started.items() if j.history is not None},
    )


def _check_history(
    files: Files, gateway: GatewayClient, server: int, last: Position, current: History | None
) -> None:
    """Refuse a store that was replaced or restored.

    Args:
        files: the lake.
        gateway: gateway of the store.
        server: the server.
        last: the last event of the server in the lake.
        current: history that the gateway reports.

    Raises:
        LakeError: it has another history, or another session with the id of that event.
    """
    reason = None if current is None else history.refusal(last.history_id, current, last.session)
    if reason is not None:
        raise LakeError(f"{files}: {gateway}: server {server}: {reason}. {OTHER_STORE}")
    moment = session_time(gateway, server, last.session)
    if moment is None or last.timestamp is None or times.to_us(moment) == last.timestamp:
        return
    raise LakeError(
        f"{files}: {gateway} has other events of server {server} than the lake: its session"
        f" {last.session} is of {_text(times.to_us(moment))}, in the lake of"
        f" {_text(last.timestamp)}. {OTHER_STORE}"
    )


def _text(us: int) -> str:
    return (times.EPOCH + datetime.timedelta(microseconds=us)).isoformat()


def _rows(files: Files) -> int:
    found = manifest.find(files)
    return 0 if found is None else sum(i.rows for i in found.segments)
