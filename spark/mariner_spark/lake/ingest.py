"""Ingestion of the events of gateways, once or continuously, and of stores: without Spark.

The lake itself has the position of each server, so that every run resumes there, however the
previous one ended. What follows is planned and read as for Spark (``source``), in parts. This
process and others write a part each; then one commit adds them all.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from eventer_bridge.backends import history
from eventer_bridge.backends.history import History
from eventer_bridge.model import EventId, Timestamp
from mariner_spark import limits, schema, times, values
from mariner_spark.errors import LakeError
from mariner_spark.lake import derived, positions
from mariner_spark.lake.compact import compact
from mariner_spark.lake.positions import Position
from mariner_spark.lake.tables import EVENTS, INPUT, Lake
from mariner_spark.lake.writer import Written, append, write_new
from mariner_spark.processes import do_all, processes
from mariner_spark.source import driver_process, offsets, options, store, store_servers
from mariner_spark.source.selection import Selection
from mariner_spark.source.stream import StreamReader
from mariner_spark.times import Interval

_OTHER_STORE: Final = (
    "It is another store than the one that was ingested, or one that was set back: ingest it into"
    " a new lake"
)

_Read = Callable[[Any], Iterable[pa.RecordBatch]]


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


def ingest(
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
        path: the lake.
        source: options of the stream ``mariner`` that name the gateways. All events that the
            client may see are ingested: a lake has all events of each server.
        value_path: path in JSON payloads of the column ``value``; None: as before,
            ``$.value`` for a new lake.
        interval_s: seconds between two looks for new events of a continuous run; None: ingest the
            events that are available now.
        on_progress: called after each look. If it raises, the run ends.

    Raises:
        LakeError: the lake cannot be read or written, its values are from another path, or a
            gateway has another history of a server.
        OptionError: an option is wrong, or a gateway refuses this client.
        SourceError, MarinerError: events were deleted, or a gateway violated the protocol.
    """
    lake, stream = Lake(path), StreamReader(options.parse(source), INPUT)
    with processes() as pool:
        try:
            limit = stream.getDefaultReadLimit()
            if interval_s is None:
                stream.prepareForTriggerAvailableNow()
            offset = _find_start(lake, stream)
            lake.create(EVENTS, value_path)
            updated_s = compacted_s = time.monotonic()
            while True:
                now_s = time.monotonic()
                end = stream.latestOffset(offset, limit)
                if end == offset and interval_s is None:
                    break
                parts = stream.partitions(offset, end)
                _add(lake, stream.read, parts, pool, histories=stream.histories)
                offset = end
                on_progress()
                if now_s - updated_s >= limits.UPDATE_S:
                    derived.update(path)
                    updated_s = now_s
                if interval_s is not None:
                    if now_s - compacted_s >= limits.MAINTENANCE_S:
                        compact(path)
                        compacted_s = now_s
                    time.sleep(max(0.0, now_s + interval_s - time.monotonic()))
        finally:
            stream.stop()
    derived.update(path)


def ingest_store(
    path: str,
    store_path: Path,
    *,
    value_path: str | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Append the events of a store that a lake lacks; creates the lake if there is none.

    Args:
        path: the lake.
        store_path: directory of a store or of a backup, whether a gateway has it open or not.
        value_path: path in JSON payloads of the column ``value``; None: as before, ``$.value`` for
            a new lake.
        on_progress: called with the number of parts done, and of all.

    Raises:
        LakeError: the lake cannot be read or written, its values are from another path, or the
            store has another history of a server.
        OptionError: there is no store, or it cannot be read.
        StorageError: it is damaged.
    """
    driver, store_path = driver_process.of_this_process(), store_path.absolute()
    lake = Lake(path)
    base = positions.find_all(lake.find())
    known = {server: position.session for server, position in base.items()}
    found = store_servers.find(store_path, driver, known)
    lake.create(EVENTS, value_path)
    moments = ((server, str(store_path), i) for server, i in found.timestamps.items())
    _check(lake, base, found.histories, moments)
    first_us = None  # of the events that the lake lacks: timestamps of a server never go back
    if base and found.servers.keys() <= base.keys():
        first_us = min((base[server].timestamp for server in found.servers), default=None)
    selection = Selection(time=Interval(first_us))
    n_parts = 1 + found.events_after(known) // limits.PART_ROWS
    parts = store.plan(store_path, driver, selection, n_parts)
    read = partial(store.read, selection=selection, schema=schema.arrow_schema(INPUT))
    with processes() as pool:
        _add(lake, read, parts, pool, histories=found.histories, on_progress=on_progress)
    derived.update(path)


def _add(
    lake: Lake,
    read: _Read,
    parts: Sequence[InputPartition],
    pool: ProcessPoolExecutor,
    *,
    histories: Mapping[int, History],
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Append the events of some parts.

    Args:
        lake: the lake.
        read: reads a part.
        parts: which have all events after the positions of the lake, up to some id.
        pool: other processes.
        histories: histories of the servers, as far as the source reports them.
        on_progress: as for :func:`ingest_store`.

    Raises:
        LakeError: the lake cannot be read or written, a server has another history than there, or
            a process was killed.
    """
    base = positions.find_all(lake.open())
    _check(lake, base, histories)
    try:
        written = do_all(pool, partial(_write, lake.root, base, read), parts, on_progress)
    except BrokenProcessPool as e:
        reason = "a process of the ingestion was killed, perhaps for lack of memory"
        raise LakeError(f"{reason}; nothing was added: start it again") from e
    append(lake, base, written, {server: i.id for server, i in histories.items()})


def _write(path: str, base: Mapping[int, Position], read: _Read, part: InputPartition) -> Written:
    return write_new(Lake(path), base, read(part))


def _find_start(lake: Lake, stream: StreamReader) -> dict[str, Any]:
    """Offsets in the lake of the servers that a stream reads.

    Servers of other gateways are left out: the stream would report their events as lost.

    Raises:
        LakeError: the lake cannot be read, or the gateways have other events.
        OptionError: as :meth:`StreamReader.initialOffset`.
    """
    stream.initialOffset()  # finds the servers
    base = positions.find_all(lake.find())
    started = {i: j for i, j in base.items() if i in stream.servers}
    moments = [(i, *j) for i in started for j in stream.session_times(i, started[i].session)]
    _check(lake, started, stream.histories, moments)
    return offsets.encode(
        {i: EventId(i, *j.offset) for i, j in started.items()},
        {i: j.history for i, j in started.items() if j.history is not None},
    )


def _check(
    lake: Lake,
    base: Mapping[int, Position],
    histories: Mapping[int, History],
    moments: Iterable[tuple[int, str, Timestamp]] = (),
) -> None:
    """Refuse a source whose events do not continue those in the lake.

    Args:
        lake: the lake.
        base: its positions.
        histories: histories in the source, by server.
        moments: servers, with a name of the source, and the timestamp that the session at the
            position has there.

    Raises:
        LakeError: a server has another history, or another session with the id of its last event.
    """
    for server in base.keys() & histories.keys():
        last = base[server]
        if reason := history.refusal(last.history, histories[server], last.session):
            raise LakeError(f"{lake}: server {server}: {reason}. {_OTHER_STORE}")
    for server, source, moment in moments:
        there, here = times.to_us(moment), base[server].timestamp
        if there != here:
            raise LakeError(
                f"{lake}: {source} has other events of server {server} than the lake: its session"
                f" {base[server].session} is of {times.to_datetime(there).isoformat()}, in the lake"
                f" of {times.to_datetime(here).isoformat()}. {_OTHER_STORE}"
            )
