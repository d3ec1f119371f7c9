"""Ingestion of a store, or of a backup of one, into a lake: without Spark.

The events after the positions of the lake are split by time; processes write a part each, and one
commit adds them all.
"""

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Final

from mariner_spark import limits, schema
from mariner_spark.errors import LakeError
from mariner_spark.lake import derived, positions
from mariner_spark.lake.ingest import check_server
from mariner_spark.lake.positions import Position
from mariner_spark.lake.tables import EVENTS, INPUT, Lake
from mariner_spark.lake.writer import Written, append, write_new
from mariner_spark.source import driver_process, store, store_servers
from mariner_spark.source.selection import Selection
from mariner_spark.source.store import StorePartition
from mariner_spark.source.store_servers import StoreServers
from mariner_spark.times import Interval

_FEW_ROWS: Final = 100_000
"""Events that are not worth another process."""


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
    for server, last in base.items():
        check_server(
            lake,
            str(store_path),
            server=server,
            last=last,
            current=found.histories.get(server),
            moment=found.timestamps.get(server),
        )
    n_events = found.events_after(known)
    n_processes = min(os.cpu_count() or 1, 1 + n_events // _FEW_ROWS)
    per_process = -(-2 * n_events // (limits.FILE_ROWS * n_processes))
    selection = Selection(time=Interval(_first_us(found, base)))
    parts = store.plan(store_path, driver, selection, n_processes * max(per_process, 1))
    work = partial(_write, path, selection)
    append(lake, _map(work, parts, n_processes, on_progress))
    derived.update(path)


def _map(
    work: Callable[[StorePartition], Written],
    parts: Sequence[StorePartition],
    n_processes: int,
    on_progress: Callable[[int, int], None],
) -> list[Written]:
    """Do work for each part, in this process and others: they take a second to start."""
    if n_processes == 1:
        return [work(part) for part in parts]
    written: list[Written] = []
    # not by fork: deltalake has threads
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(n_processes - 1, context) as pool:
            todo, running = [*parts], set[Future[Written]]()
            while todo or running:
                # no more: a future that is cancelled breaks a pool that breaks (Python 3.11)
                while len(todo) > 1 and len(running) < 2 * n_processes - 2:
                    running.add(pool.submit(work, todo.pop()))
                new = [work(todo.pop())] if todo else []
                done, running = wait(running, 0 if todo else None, FIRST_COMPLETED)
                for result in [*new, *(i.result() for i in done)]:
                    written.append(result)
                    on_progress(len(written), len(parts))
    except BrokenProcessPool as e:
        reason = "a process of the ingestion was killed, perhaps for lack of memory"
        raise LakeError(f"{reason}; nothing was added: start it again") from e
    return written


def _first_us(found: StoreServers, base: Mapping[int, Position]) -> int | None:
    """First timestamp of the events that the lake lacks; None: no bound.

    Timestamps of a server never go back.
    """
    if not base or not found.servers.keys() <= base.keys():
        return None
    return min((base[server].timestamp for server in found.servers), default=None)


def _write(path: str, selection: Selection, part: StorePartition) -> Written:
    batches = store.read(part, selection, schema.arrow_schema(INPUT))
    return write_new(Lake(path), batches)
