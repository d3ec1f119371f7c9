"""Summary of a lake, from the logs of its tables alone."""

import time

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from mariner_spark import limits, times
from mariner_spark.lake import derived, positions
from mariner_spark.lake.positions import Position
from mariner_spark.lake.tables import EVENTS, TABLES, Lake, value_path_of


class TableInfo(msgspec.Struct, frozen=True):
    """A table.

    Attributes:
        version: number of its last commit.
        rows: number of rows.
        files: number of files.
        bytes: size of the files.
        behind: commits of rows to ``events`` that it does not include yet.
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


class LakeInfo(msgspec.Struct, frozen=True):
    """Summary of a lake; printed by ``mariner lake info --json``.

    Attributes:
        tables: by name.
        first: timestamp of the first event, microseconds since 1970; None: there is none. After a
            compaction the log has it in milliseconds.
        last: timestamp of the last event.
        value_path: path of the column ``value``.
        positions: server to its last event.
        lag_s: server to the age of that event in seconds, by the clock of this machine; of a server
            that registers nothing, it grows, although the lake lacks nothing.
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
    known, now_s = positions.find_all(events), time.time()
    tables = {}
    with lake.errors():
        for name in TABLES:
            if (table := lake.find(name)) is None:
                continue
            unused = lake.files(name).get_file_info(lake.vacuum(name, grace_hours, is_dry=True))
            size = sum(i.size or 0 for i in unused)
            behind = 0 if name == EVENTS else derived.behind(lake, events, table)
            tables[name] = TableInfo(table.version(), *_totals(table), behind, len(unused), size)
        files = pa.table(events.get_add_actions(flatten=True)).to_pylist()
    edges = "min.timestamp", "max.timestamp"
    moments = [times.from_datetime(i[j]) for i in files for j in edges if i.get(j)]
    return LakeInfo(
        tables=tables,
        first=min(moments, default=None),
        last=max(moments, default=None),
        value_path=value_path_of(events),
        positions=known,
        lag_s={server: now_s - i.timestamp / 1e6 for server, i in known.items()},
    )


def count(path: str) -> tuple[int, int]:
    """Number of events and of their files in a lake; none if there is no lake.

    Raises:
        LakeError: it cannot be read.
    """
    lake = Lake(path)
    events = lake.find()
    with lake.errors():
        return (0, 0) if events is None else _totals(events)[:2]


def _totals(table: DeltaTable) -> tuple[int, int, int]:
    """Rows, files and bytes of a table."""
    files = pa.table(table.get_add_actions())
    n_rows, n_bytes = (pc.sum(files.column(i)).as_py() or 0 for i in ("num_records", "size_bytes"))
    return n_rows, files.num_rows, n_bytes
