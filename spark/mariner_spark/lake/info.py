"""Summary of a lake, from the logs of its tables alone."""

import time
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from mariner_spark import limits
from mariner_spark.lake import derived, positions
from mariner_spark.lake.positions import Position
from mariner_spark.lake.read import list_files
from mariner_spark.lake.tables import EVENTS, TABLES, Lake, value_path_of


class TableInfo(msgspec.Struct, frozen=True):
    """A table.

    Attributes:
        version: number of its last commit.
        rows: number of rows.
        files: number of files.
        bytes: size of the files.
        behind: commits to ``events`` that it does not include yet.
        unused_files: number of files that a vacuum would delete.
        unused_bytes: their size.
    """

    version: int
    rows: int
    files: int
    bytes: int
    behind: int
    unused_files: int
    unused_bytes: int


class Count(NamedTuple):
    """Number of events and of their files."""

    rows: int
    files: int


class LakeInfo(msgspec.Struct, frozen=True):
    """Summary of a lake; printed by ``mariner lake info --json``.

    Attributes:
        tables: by name.
        first: timestamp of the first event, microseconds since 1970; None: there is none. After a
            compaction the log has it in milliseconds.
        last: timestamp of the last event.
        value_path: path of the column ``value``.
        positions: server to its last event.
        lag_s: server to the age of that event in seconds, by the clock of this machine.
    """

    tables: dict[str, TableInfo]
    first: int | None
    last: int | None
    value_path: str
    positions: dict[int, Position]
    lag_s: dict[int, float]


def info(path: str, *, grace_hours: int = limits.GRACE_HOURS) -> LakeInfo:
    """Summarise a lake.

    Args:
        path: the lake.
        grace_hours: as for ``compact``.

    Raises:
        NoLakeError: there is no lake.
        LakeError: it cannot be read.
    """
    lake = Lake(path)
    events = lake.open()
    found = {name: events if name == EVENTS else lake.find(name) for name in TABLES}
    with lake.errors():
        tables = {
            name: _describe(lake, name, table, events, grace_hours)
            for name, table in found.items()
            if table is not None
        }
        spans = [file.time for file in list_files(events)]
    known = positions.find_all(events)
    now_s = time.time()
    return LakeInfo(
        tables=tables,
        first=min((i.first for i in spans if i.first is not None), default=None),
        last=max((i.last for i in spans if i.last is not None), default=None),
        value_path=value_path_of(events),
        positions=known,
        lag_s={server: now_s - i.timestamp / 1e6 for server, i in known.items()},
    )


def count(path: str) -> Count:
    """Count the events of a lake; none if there is no lake.

    Raises:
        LakeError: it cannot be read.
    """
    lake = Lake(path)
    events = lake.find()
    if events is None:
        return Count(0, 0)
    with lake.errors():
        files = pa.table(events.get_add_actions())
    return Count(pc.sum(files.column("num_records")).as_py() or 0, files.num_rows)


def _describe(
    lake: Lake, name: str, table: DeltaTable, events: DeltaTable, grace_hours: int
) -> TableInfo:
    files = pa.table(table.get_add_actions())
    unused = lake.vacuum(name, grace_hours, is_dry=True)
    sizes = [i.size or 0 for i in lake.file_system(name).get_file_info(unused)]
    return TableInfo(
        version=table.version(),
        rows=pc.sum(files.column("num_records")).as_py() or 0,
        files=files.num_rows,
        bytes=pc.sum(files.column("size_bytes")).as_py() or 0,
        behind=0 if name == EVENTS else derived.behind(events, table),
        unused_files=len(unused),
        unused_bytes=sum(sizes),
    )
