"""Ingestion of the events of gateways, once or continuously, and of stores: without Spark.

The lake itself has the position of each server, so that every run resumes there, however the
previous one ended. What follows is planned and read as for Spark (``source``), in parts. This
process and others write a part each; then one commit adds them all.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark.sql.datasource import InputPartition

from eventer_bridge.backends import history
from eventer_bridge.model import EventId, Timestamp
from mariner_spark import limits, schema, times
from mariner_spark.errors import LakeError, ProcessKilledError
from mariner_spark.lake.columns import NamedColumn
from mariner_spark.lake.maintenance import compact, update
from mariner_spark.lake.tables import EVENTS, Lake
from mariner_spark.lake.writer import Positions, ReadPart, append, positions_of, write_new
from mariner_spark.source import kinds, options, snapshots, store
from mariner_spark.source.offsets import encode_offsets
from mariner_spark.source.options import Selection
from mariner_spark.source.rows import Columns
from mariner_spark.source.stream import StreamReader

P = TypeVar("P")
R = TypeVar("R")

_N_OTHERS = max((os.cpu_count() or 1) - 1, 1)

_OTHER_STORE: Final = (
    "It is another store than the one ingested before, or was set back: ingest it into a new lake"
)


def ingest(
    path: str,
    source: Mapping[str, str],
    *,
    value_path: str | None = None,
    columns: Sequence[NamedColumn] = (),
    interval_s: float | None = None,
    on_progress: Callable[[], None] = lambda: None,
) -> int:
    """Append the events of gateways that a lake lacks; creates the lake if there is none.

    Returns how many it added. Also updates the derived tables, and compacts the lake now and then
    in a continuous run.

    Args:
        path: the lake.
        source: options of the stream ``mariner`` that name the gateways. All events that the
            client may see are ingested: a lake has all events of each server.
        value_path: path in JSON payloads of the column ``value``; None: as before,
            ``$.value`` for a new lake.
        columns: named columns of a new lake; none: as before.
        interval_s: seconds between two looks of a continuous run; None: what is available now.
        on_progress: called after each look. If it raises, the run ends.

    Raises:
        LakeError: the lake cannot be read or written, its values or columns are others, or a
            gateway has another history of a server.
        MarinerSparkError: it would be in a store.
        OptionError: an option is wrong, or a gateway refuses this client.
        SourceError, MarinerError: events were deleted, or a gateway violated the protocol.
    """
    lake, given = Lake(path), options.parse({**source, "source_out_of_range": kinds.CLIP})
    stream = StreamReader(given, schema.WITHOUT_TYPE)
    lake.check(value_path, columns)
    is_endless = interval_s is not None
    try:
        if not is_endless:
            stream.prepareForTriggerAvailableNow()
        start = _find_start(lake, stream)
        lake.create(EVENTS, value_path, columns)
        n_added, updated_s = 0, time.monotonic()
        compacted_s = updated_s
        with processes() as pool:
            for parts in stream.batches(start, ends=not is_endless):
                n_added += _add(lake, stream.read, parts, pool, histories=stream.histories)
                on_progress()
                if (now_s := time.monotonic()) - updated_s >= limits.UPDATE_S:
                    update(path)
                    updated_s = now_s
                if is_endless and now_s - compacted_s >= limits.MAINTENANCE_S:
                    compact(path)
                    compacted_s = now_s
                time.sleep(interval_s or 0)
    finally:
        stream.stop()
    update(path)
    return n_added


def ingest_store(
    path: str,
    store_path: Path,
    *,
    value_path: str | None = None,
    columns: Sequence[NamedColumn] = (),
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> int:
    """Append the events of a store, or of a backup, that a lake lacks, as :func:`ingest` does.

    ``on_progress`` is called with the number of parts done, and of all. Raises LakeError as there;
    OptionError if there is no store, or it cannot be read; StorageError if it is damaged.
    """
    lake, driver, store_path = Lake(path), snapshots.this_driver(), store_path.absolute()
    base = positions_of(lake.check(value_path, columns))
    known = {server: position.session for server, position in base.items()}
    found = store.find_servers(store_path, driver, known)
    lake.create(EVENTS, value_path, columns)
    moments = ((server, str(store_path), i) for server, i in found.timestamps.items())
    _check(lake, base, found.histories, moments)
    selection = Selection(time=found.time_after({i: j.timestamp for i, j in base.items()}))
    n_parts = 1 + found.events_after(known) // limits.PART_ROWS
    parts = store.plan(store_path, driver, selection, n_parts)
    all_columns = Columns(schema.arrow_schema(schema.WITHOUT_TYPE))
    read = partial(store.read, selection=selection, columns=all_columns)
    with processes() as pool:
        n_added = _add(lake, read, parts, pool, histories=found.histories, on_progress=on_progress)
    update(path)
    return n_added


def _add(
    lake: Lake,
    read: ReadPart,
    parts: Sequence[InputPartition],
    pool: ProcessPoolExecutor,
    *,
    histories: Mapping[int, history.History],
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> int:
    """Append the events of parts, which have all events after the positions, up to some id.

    Returns how many it added.
    """
    base = positions_of(lake.open())
    _check(lake, base, histories)
    written = do_all(pool, partial(write_new, lake, base, read), parts, on_progress)
    return append(lake, base, written, {server: i.id for server, i in histories.items()})


def _find_start(lake: Lake, stream: StreamReader) -> dict[str, Any]:
    """Offsets in the lake of the servers that a stream reads.

    Servers of other gateways are left out: the stream would report their events as lost.
    """
    stream.initialOffset()  # finds the servers
    known = positions_of(lake.find())
    started = {i: j for i, j in known.items() if i in stream.servers}
    moments = [(i, *j) for i in started for j in stream.session_times(i, started[i].session)]
    _check(lake, started, stream.histories, moments)
    return encode_offsets(
        {i: EventId(i, j.session, j.instance) for i, j in started.items()},
        {i: j.history for i, j in started.items() if j.history is not None},
    )


def _check(
    lake: Lake,
    base: Positions,
    histories: Mapping[int, history.History],
    moments: Iterable[tuple[int, str, Timestamp]] = (),
) -> None:
    """Refuse a source whose events do not continue those in the lake after the positions ``base``.

    ``moments``: servers, a name of the source, and the timestamp of the position's session there.
    """
    for server in base.keys() & histories.keys():
        last = base[server]
        if reason := history.refusal(last.history, histories[server], last.session):
            raise LakeError(f"{lake}: server {server}: {reason}. {_OTHER_STORE}")
    for server, source, moment in moments:
        there, here = times.to_us(moment), base[server].timestamp
        if there != here:
            one, other = (times.to_datetime(i).isoformat() for i in (there, here))
            raise LakeError(
                f"{lake}: {source} has other events of server {server} than the lake: its session"
                f" {base[server].session} is of {one}, in the lake of {other}. {_OTHER_STORE}"
            )


# --- work in parts, by this process and by others beside it -------------------------------


@contextlib.contextmanager
def processes() -> Iterator[ProcessPoolExecutor]:
    """Processes beside this one, started on demand, each with its own Python.

    They end with the block, or when this process is killed, whatever they do.
    """
    # not by fork: deltalake has threads
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    with reader, ProcessPoolExecutor(_N_OTHERS, context, _end_with, (reader,)) as pool, writer:
        yield pool


def do_all(
    pool: ProcessPoolExecutor,
    work: Callable[[P], R],
    parts: Sequence[P],
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[R]:
    """Do picklable work for each part, here and in other processes: one part starts none.

    Returns the results, in any order. ``on_progress`` is called with the number of parts done, and
    of all. Raises ProcessKilledError if one of the processes was killed.
    """
    results: list[R] = []

    def add(result: R) -> None:
        results.append(result)
        on_progress(len(results), len(parts))

    todo, running = [*parts], set[Future[R]]()
    try:
        while todo or running:
            # no more: a future that is cancelled breaks a pool that breaks (Python 3.11)
            while len(todo) > 1 and len(running) < 2 * _N_OTHERS:
                running.add(pool.submit(work, todo.pop()))
            if todo:
                add(work(todo.pop()))
            done, running = wait(running, 0 if todo else None, FIRST_COMPLETED)
            for future in done:
                add(future.result())
    except BrokenProcessPool as e:
        reason = "one of the processes was killed, perhaps for lack of memory"
        raise ProcessKilledError(f"{reason}; nothing was added: start again") from e
    return results


def _end_with(other: Connection) -> None:
    """Have this process end when the other end of a connection is closed, and only then."""

    def wait_for_end() -> None:
        with contextlib.suppress(EOFError):
            other.recv_bytes()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=wait_for_end, daemon=True).start()
