"""Ingestion of the events of gateways into a lake, once or continuously.

The lake itself has the position of each server, so that every run resumes there, however the
previous one ended. Spark's checkpoint only lasts as long as a run.
"""

import datetime
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from eventer_bridge.backends.history import History
from eventer_bridge.model import EventId, Timestamp
from mariner_spark import limits, times, values
from mariner_spark.errors import LakeError
from mariner_spark.lake import derived, positions
from mariner_spark.lake.compact import compact
from mariner_spark.lake.positions import Position
from mariner_spark.lake.tables import EVENTS, INPUT, Lake
from mariner_spark.lake.writer import (
    FORMAT,
    OTHER_STORE,
    LakeSink,
    check_histories,
)
from mariner_spark.source import histories, offsets, options
from mariner_spark.source.gateway import GatewayClient
from mariner_spark.source.gateways import GatewayPool
from mariner_spark.source.options import Options
from mariner_spark.source.server_events import ANY_TYPE, find_servers, session_time


def ingest(
    spark: SparkSession,
    path: str,
    source: Mapping[str, str],
    *,
    value_path: str | None = None,
    interval_s: float | None = None,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Append the events of gateways that a lake lacks; creates the lake if there is none.

    Also updates the derived tables, and compacts the lake now and then in a continuous run.

    Args:
        spark: the session.
        path: the lake.
        source: options of the stream ``mariner`` that name the gateways. All events that the
            client may see are ingested: a lake has all events of each server.
        value_path: path in JSON payloads of the column ``value``; None: as before,
            ``$.value`` for a new lake.
        interval_s: seconds between two batches of a continuous run; None: ingest the events
            that are available now.
        on_progress: called every second. If it raises, the run ends.

    Raises:
        LakeError: the lake cannot be read or written, its values are from another path, or a
            gateway has another history of a server.
        OptionError: an option is wrong, or a gateway refuses this client.
        StreamingQueryException: the stream failed; its text says why.
    """
    reader = spark.readStream.format("mariner").schema(INPUT).options(**source)
    if starting := _find_start(Lake(path), options.parse(source)):
        reader = reader.option("startingOffsets", msgspec.json.encode(starting).decode())
    with tempfile.TemporaryDirectory(prefix="mariner-lake-") as checkpoint:
        query = start(
            reader.load(), path, Path(checkpoint), value_path=value_path, interval_s=interval_s
        )
        updated_s = compacted_s = time.monotonic()
        try:
            while not query.awaitTermination(limits.PROGRESS_S):
                on_progress()
                now_s = time.monotonic()
                if now_s - updated_s >= limits.UPDATE_S:
                    derived.update(path)
                    updated_s = time.monotonic()
                if interval_s is not None and now_s - compacted_s >= limits.MAINTENANCE_S:
                    compact(path)
                    compacted_s = time.monotonic()
        finally:
            query.stop()
    derived.update(path)


def check(path: str, value_path: str | None) -> None:
    """Check arguments of :func:`ingest`, before anything is started.

    Raises:
        LakeError: the lake cannot be read, its values are from another path, or it would be in a
            store.
        OptionError: the value path is invalid.
    """
    if value_path is not None:
        values.parse(value_path)
    Lake(path).check(value_path)


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
        events: a stream of events with the columns :data:`tables.INPUT`, see ``writer``.
        path: the lake.
        checkpoint: folder of this machine for Spark's checkpoint.
        value_path: as for :func:`ingest`.
        interval_s: as for :func:`ingest`.

    Raises:
        LakeError, OptionError: as :func:`ingest`.
    """
    Lake(path).create(EVENTS, value_path)
    rows = events.select(*INPUT.names)
    rows.sparkSession.dataSource.register(LakeSink)
    _activate(rows.sparkSession)
    writer = rows.writeStream.format(FORMAT).option("path", path)
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


def _find_start(lake: Lake, parsed: Options) -> dict[str, Any]:
    """Offsets in the lake of the servers that the stream reads.

    Servers of other gateways are left out: the stream would report their events as lost.

    Raises:
        LakeError: the lake cannot be read, or the gateways have other events.
    """
    base = positions.find_all(lake.find())
    if not base:
        return {}

    def find(gateway: GatewayClient) -> set[int]:
        servers = parsed.selection.servers or find_servers(gateway, event_types=[ANY_TYPE])
        current = histories.find(gateway)
        known = servers & base.keys()
        for server in known:
            last = base[server]
            check_server(
                lake,
                repr(gateway),
                server=server,
                last=last,
                current=current.get(server),
                moment=session_time(gateway, server, last.session),
            )
        return set(known)

    gateways = GatewayPool(parsed.gateways)
    try:
        servers = {server for known in gateways.query_each(find) for server in known}
    finally:
        gateways.close()
    servers |= parsed.selection.servers or set()  # even if a gateway is unavailable
    started = {i: j for i, j in base.items() if i in servers}
    return offsets.encode(
        {i: EventId(i, *j.offset) for i, j in started.items()},
        {i: j.history for i, j in started.items() if j.history is not None},
    )


def check_server(
    lake: Lake,
    source: str,
    *,
    server: int,
    last: Position,
    current: History | None,
    moment: Timestamp | None,
) -> None:
    """Refuse a store that was replaced or restored.

    Args:
        lake: the lake.
        source: gateway or store, for the text of the error.
        server: the server.
        last: the last event of the server in the lake.
        current: history that the source has of the server.
        moment: timestamp of the session of that event in the source; None: it is not there.

    Raises:
        LakeError: it has another history, or another session with the id of that event.
    """
    if current is not None:
        check_histories(lake, {server: last}, {server: current}, source)
    if moment is None or times.to_us(moment) == last.timestamp:
        return
    raise LakeError(
        f"{lake}: {source} has other events of server {server} than the lake: its session"
        f" {last.session} is of {_text(times.to_us(moment))}, in the lake of"
        f" {_text(last.timestamp)}. {OTHER_STORE}"
    )


def _text(us: int) -> str:
    return (times.EPOCH + datetime.timedelta(microseconds=us)).isoformat()
