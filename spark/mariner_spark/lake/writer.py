"""Adding events to a lake: tasks write files (:func:`write_new`), one commit adds them all.

The position of a server in a lake is its last event there. Events may come again: those up to the
position are left out. Positions are application transactions of the table ``events``, which Delta
keeps for ever, and commits together with files. A transaction is a name and an integer, so a
position has several, named ``mariner/SERVER/FIELD``: ``session``, ``instance`` and ``timestamp`` of
the event, and, where the server reports its history, both halves of that UUID.
``mariner/servers/N`` are the ids of the servers, from N = 0.
"""

import json
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction

from eventer_bridge.backends import history
from mariner_spark import limits
from mariner_spark.errors import LakeError
from mariner_spark.lake.parquet import paths_of, write_events
from mariner_spark.lake.tables import EVENTS, Lake

_APP: Final = "mariner"
_FIELDS: Final = ("session", "instance", "timestamp", "history-high", "history-low")
_UUID: Final = struct.Struct(">qq")


class Position(msgspec.Struct, frozen=True, order=True):
    """The last event of a server in a lake; of a server, later ones are greater.

    Its ``timestamp`` (microseconds since 1970) reveals another store of a server with the same id;
    ``history`` is the UUID of the history that it belongs to, if the server reported one.
    """

    session: int
    instance: int
    timestamp: int
    history: str | None = None


Positions: TypeAlias = Mapping[int, Position]
"""By id of the server."""


def servers_of(events: DeltaTable) -> list[int]:
    """Ids of the servers with events in a lake, in order of their first commit."""
    found: list[int] = []
    while (server := _get(events, f"servers/{len(found)}")) is not None:
        found.append(server)
    return found


def position_of(events: DeltaTable, server: int) -> Position | None:
    """Position of a server; None: the lake has no events of it."""
    session, instance, timestamp, *halves = (_get(events, f"{server}/{i}") for i in _FIELDS)
    if session is None or instance is None or timestamp is None:
        return None
    history = None if None in halves else str(uuid.UUID(bytes=_UUID.pack(*halves)))
    return Position(session, instance, timestamp, history)


def positions_of(events: DeltaTable | None) -> dict[int, Position]:
    """Positions of all servers; none without a table."""
    if events is None:
        return {}
    found = {server: position_of(events, server) for server in servers_of(events)}
    return {server: position for server, position in found.items() if position is not None}


def transactions(events: DeltaTable, reached: Positions) -> list[Transaction]:
    """Transactions that move servers; they conflict with a commit that changed a position."""
    known = servers_of(events)
    servers = [*known, *(i for i in reached if i not in known)]
    numbers = {f"servers/{i}": servers[i] for i in range(len(known), len(servers))}
    for server, position in reached.items():
        history = position.history
        halves = () if history is None else _UUID.unpack(uuid.UUID(history).bytes)
        fields = (position.session, position.instance, position.timestamp, *halves)
        numbers |= {f"{server}/{i}": j for i, j in zip(_FIELDS, fields, strict=False)}
    return [Transaction(f"{_APP}/{name}", number) for name, number in numbers.items()]


def _get(events: DeltaTable, name: str) -> int | None:
    return events.transaction_version(f"{_APP}/{name}")


# --- files and commits --------------------------------------------------------------------

ReadPart: TypeAlias = Callable[[Any], Iterable[pa.RecordBatch]]
"""Gives batches of a part with the columns ``schema.WITHOUT_TYPE``, in any order."""


@dataclass
class Written:
    """Files that a task wrote, and the last event in them, by server; without histories."""

    files: list[AddAction]
    reached: dict[int, Position]


def write_new(lake: Lake, base: Positions, read: ReadPart, part: Any) -> Written:
    """Write the events of a part that come after the positions ``base`` of a lake."""
    reached: dict[int, Position] = {}
    new = _new_events(read(part), base, reached)
    return Written(write_events(lake, lake.open(), new), reached)


def append(
    lake: Lake, base: Positions, written: Sequence[Written], histories: Mapping[int, str]
) -> int:
    """Commit the files of all tasks: all events after the positions ``base``, up to some id.

    Returns the number of events that this added, whatever others add meanwhile. ``histories`` are
    the names of the histories of the servers, as far as known. Raises LakeError, with the lake
    unchanged, if another writer added events of the same servers, or a file is gone.
    """
    files = [file for part in written for file in part.files]
    if not files:
        return 0
    n_events = sum(int(json.loads(file.stats)["numRecords"]) for file in files)
    with lake.errors():  # a vacuum may have been faster
        found = lake.files(EVENTS).get_file_info([i.path for i in files])
    for file, info in zip(files, found, strict=True):
        if info.size != file.size:
            raise LakeError(f"{lake}: {file.path}: is gone or changed since it was written")
    reached: dict[int, Position] = {}
    for server, position in ((i, j) for part in written for i, j in part.reached.items()):
        last = max(reached.get(server, position), position)
        name = histories.get(server)
        if name is None or not history.is_own_id(name):
            name = base[server].history if server in base else None
        reached[server] = msgspec.structs.replace(last, history=name)
    for _ in range(limits.COMMIT_TRIES):
        table = lake.open()
        current = {i: position_of(table, i) for i in reached}
        if current == reached:  # done: by this, and the answer was lost, or by another ingestion
            return n_events if files[0].path in paths_of(table) else 0
        for server, found_position in current.items():
            if found_position != base.get(server):
                raise LakeError(
                    f"{lake}: another ingestion added events of server {server} meanwhile: one at"
                    " a time; start this one again"
                )
        if lake.commit(table, EVENTS, files, transactions(table, reached)):
            return n_events
    raise LakeError(f"{lake}: {limits.COMMIT_TRIES} commits failed: too many writers")


def _new_events(
    batches: Iterable[pa.RecordBatch], base: Positions, reached: dict[int, Position]
) -> Iterator[pa.RecordBatch]:
    """The events after the positions of their servers; ``reached`` gets the last of each."""
    for batch in batches:
        servers, sessions, instances, moments = (
            batch.column(i).cast(pa.int64()).to_numpy()
            for i in ("server", "session", "instance", "timestamp")
        )
        is_new = np.zeros(batch.num_rows, dtype=bool)
        for server in np.unique(servers).tolist():
            rows = servers == server
            if known := base.get(server):
                is_later = (sessions == known.session) & (instances > known.instance)
                rows &= (sessions > known.session) | is_later
            is_new |= rows
            if rows.any():
                [last] = np.nonzero(rows & (sessions == sessions[rows].max()))
                row = last[instances[last].argmax()]
                found = Position(int(sessions[row]), int(instances[row]), int(moments[row]))
                reached[server] = max(reached.get(server, found), found)
        yield batch if is_new.all() else batch.filter(pa.array(is_new))
