"""The derived tables ``latest`` and ``values``: kept up to date with the commits to ``events``.

``latest`` has the last event of each type, with the columns of ``events``; ``values`` has type,
time and number of the events with a number. Each has an application transaction: the version of
``events`` that it includes. An update reads the files that later commits added, and commits its
rows together with the new version. Where these files do not tell everything, because the log or a
vacuum no longer has them, or somebody deleted events, it makes the table anew.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Transaction
from pyarrow import fs

from mariner_spark import limits
from mariner_spark.errors import LakeError
from mariner_spark.lake.files import conform, read, write
from mariner_spark.lake.tables import (
    EVENTS,
    LATEST,
    ORDER,
    VALUES,
    Lake,
    arrow_schema,
    log_name,
    paths_of,
)

_APP: Final = "mariner/events"


class _File(msgspec.Struct):
    path: str
    data_change: bool = msgspec.field(name="dataChange")


class _Action(msgspec.Struct):
    """A line of a commit in the log; others do not matter."""

    add: _File | None = None
    remove: _File | None = None


_decode: Final = msgspec.json.Decoder(_Action).decode


def update(path: str) -> None:
    """Bring the derived tables of a lake up to date.

    Raises:
        NoLakeError: there is no lake.
        LakeError: it cannot be read or written.
    """
    _repeat(Lake(path), is_new=False)


def rebuild(path: str) -> None:
    """Make the derived tables of a lake anew from all events.

    Raises:
        NoLakeError, LakeError: as :func:`update`.
    """
    _repeat(Lake(path), is_new=True)


def behind(events: DeltaTable, table: DeltaTable) -> int:
    """Commits to ``events`` that a derived table does not include yet."""
    return max(0, events.version() - _included(table))


def _repeat(lake: Lake, *, is_new: bool) -> None:
    """Update tables until no other commit comes between."""
    lake.open()
    for name in (LATEST, VALUES):
        if not any(_update(lake, name, is_new) for _ in range(limits.COMMIT_TRIES)):
            raise LakeError(f"{lake}: table {name}: {limits.COMMIT_TRIES} commits failed")


def _update(lake: Lake, name: str, is_new: bool) -> bool:
    """Have a derived table include all events.

    Returns:
        Whether it does; false: another commit was faster.
    """
    table = lake.create(name)
    events = lake.open()  # after it: so it has all versions that the table includes
    first, last = _included(table) + 1, events.version()
    if first > last and not is_new:
        return True
    paths = None if is_new or first == 0 else _added(lake, first, last)
    if is_new := paths is None:
        paths = paths_of(events)
    parts: Iterator[pa.Table] = (_numbers(lake, path) for path in paths)
    if name == LATEST and paths:
        old = [] if is_new else [read(lake, LATEST, path) for path in paths_of(table)]
        parts, is_new = _merged(lake, old, paths), True
    files = [file for rows in parts if rows.num_rows for file in write(lake, name, rows)]
    return lake.commit(table, name, files, [Transaction(_APP, last)], replaces_all=is_new)


def _added(lake: Lake, first: int, last: int) -> list[str] | None:
    """Files with the events of some commits; None: they do not tell all that has changed."""
    paths = []
    files = lake.file_system(EVENTS)
    with lake.errors():
        for version in range(first, last + 1):
            try:
                with files.open_input_file(f"_delta_log/{log_name(version)}") as commit:
                    actions = [_decode(line) for line in commit.read().splitlines() if line]
            except FileNotFoundError:
                return None
            if any(i.remove is not None and i.remove.data_change for i in actions):
                return None
            paths += [i.add.path for i in actions if i.add is not None and i.add.data_change]
        found = files.get_file_info(paths)
    return paths if all(i.type == fs.FileType.File for i in found) else None


def _included(table: DeltaTable) -> int:
    found = table.transaction_version(_APP)
    return -1 if found is None else found


def _numbers(lake: Lake, path: str) -> pa.Table:
    """Rows of ``values``, of a file of ``events``."""
    rows = read(lake, EVENTS, path, arrow_schema(VALUES).names)
    return rows.filter(pc.is_valid(rows.column("value")))


def _merged(lake: Lake, old: list[pa.Table], paths: list[str]) -> Iterator[pa.Table]:
    """All rows of ``latest``: of its old ones, and of files of ``events``."""
    found = pa.concat_tables([arrow_schema(LATEST).empty_table(), *old])
    for path in paths:
        found = _last(pa.concat_tables([found, _read_last(lake, path)]))
    yield found


def _read_last(lake: Lake, path: str) -> pa.Table:
    """Rows of ``latest``, of a file of ``events``; reads payloads only where they are."""
    with lake.errors(), pq.ParquetFile(path, filesystem=lake.file_system(EVENTS)) as file:
        keys = conform(EVENTS, file.read(["type_path", *ORDER]))
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        numbers = pa.array(np.repeat(np.arange(len(groups)), groups))
        last = _last(keys.append_column("group", numbers))
        wanted = pc.unique(last.column("group")).to_pylist()
        rows = file.read_row_groups(wanted, arrow_schema(LATEST).names)
    return _last(conform(LATEST, rows))


def _last(events: pa.Table) -> pa.Table:
    """The last event of each type."""
    numbers = pa.array(np.arange(events.num_rows))
    keys = events.select(["type_path", *ORDER]).append_column("row", numbers)
    keys = keys.sort_by([(i, "ascending") for i in ORDER])
    rows = keys.group_by("type_path", use_threads=False).aggregate([("row", "last")])
    return events.take(rows.column("row_last"))
