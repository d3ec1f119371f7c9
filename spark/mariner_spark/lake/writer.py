"""Adding events to a lake: tasks write files (:func:`write_new`), one commit adds them all.

Events may come again: those up to the position of their server in the lake are left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from deltalake.transaction import AddAction

from eventer_bridge.backends import history
from mariner_spark import limits
from mariner_spark.errors import LakeError
from mariner_spark.lake import positions
from mariner_spark.lake.files import write_events
from mariner_spark.lake.positions import Position, Positions
from mariner_spark.lake.tables import EVENTS, Lake, value_path_of

ReadPart: TypeAlias = Callable[[Any], Iterable[pa.RecordBatch]]
"""Gives batches of a part with the columns ``schema.WITHOUT_TYPE``, in any order."""


@dataclass
class Written:
    """Events that a task wrote.

    Args:
        files: files with the events.
        reached: the last of these events, by server; without histories.
    """

    files: list[AddAction]
    reached: dict[int, Position]


def write_new(lake: Lake, base: Positions, read: ReadPart, part: Any) -> Written:
    """Write the events of a part that a lake lacks.

    Args:
        lake: the lake.
        base: its positions.
        read: reads a part.
        part: the part.

    Raises:
        LakeError: the lake cannot be read or written.
    """
    reached: dict[int, Position] = {}
    new = _new_events(read(part), base, reached)
    return Written(write_events(lake, value_path_of(lake.open()), new), reached)


def append(
    lake: Lake, base: Positions, written: Sequence[Written], histories: Mapping[int, str]
) -> None:
    """Commit the files of all tasks, which have all events after the positions up to some id.

    Args:
        lake: the lake.
        base: the positions that the tasks wrote from.
        written: what they wrote.
        histories: names of the histories of the servers, as far as known.

    Raises:
        LakeError: another writer added events of the same servers meanwhile, or a file is gone; the
            lake is unchanged.
    """
    files = [file for part in written for file in part.files]
    if not files:
        return
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
        current = {i: positions.find(table, i) for i in reached}
        if current == reached:  # done, but the answer was lost
            return
        for server, found_position in current.items():
            if found_position != base.get(server):
                raise LakeError(
                    f"{lake}: another ingestion added events of server {server} meanwhile: one at"
                    " a time; start this one again"
                )
        if lake.commit(table, EVENTS, files, positions.transactions(table, reached)):
            return
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
