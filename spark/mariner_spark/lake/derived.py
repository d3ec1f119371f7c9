"""The derived tables ``latest`` and ``values``: kept up to date with the commits to ``events``.

``latest`` has the last event of each type, with the columns of ``events``; ``values`` has type,
time and number of the events with a number. Each has an application transaction: the version of
``events`` that it includes. An update reads the files that later commits added, and commits its
rows together with the new version; an update that another one has overtaken changes nothing.
"""

import contextlib
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Transaction

from mariner_spark.errors import LakeError
from mariner_spark.lake.files import write
from mariner_spark.lake.tables import (
    EVENTS,
    LATEST,
    ORDER,
    VALUES,
    Lake,
    arrow_schema,
    log_name,
)

_APP: Final = "mariner/events"
_REBUILD: Final = "rebuild the tables (mariner lake rebuild)"


class _Add(msgspec.Struct):
    path: str
    data_change: bool = msgspec.field(name="dataChange")


class _Action(msgspec.Struct):
    """A line of a commit in the log; others than ``add`` do not matter."""

    add: _Add | None = None


_decode: Final = msgspec.json.Decoder(_Action).decode


def update(path: str) -> None:
    """Bring the derived tables of a lake up to date.

    Raises:
        NoLakeError: there is no lake.
        LakeError: it cannot be read or written, or its log no longer has the commits.
    """
    lake = Lake(path)
    events = lake.open()
    for name in (LATEST, VALUES):
        table = lake.create(name)
        first, last = _included(table) + 1, events.version()
        if first <= last:
            _commit(lake, name, table, last, _added(lake, first, last))


def rebuild(path: str) -> None:
    """Make the derived tables of a lake anew from all events.

    Raises:
        NoLakeError: there is no lake.
        LakeError: it cannot be read or written, or something else writes the tables.
    """
    lake = Lake(path)
    events = lake.open()
    with lake.errors():
        paths = pa.table(events.get_add_actions()).column("path").to_pylist()
    for name in (LATEST, VALUES):
        table = lake.create(name)
        if not _commit(lake, name, table, events.version(), paths, is_new=True):
            raise LakeError(f"{lake}: table {name} was changed meanwhile: rebuild it again")


def behind(events: DeltaTable, table: DeltaTable) -> int:
    """Commits to ``events`` that a derived table does not include yet."""
    return max(0, events.version() - _included(table))


def _included(table: DeltaTable) -> int:
    found = table.transaction_version(_APP)
    return -1 if found is None else found


def _added(lake: Lake, first: int, last: int) -> list[str]:
    """Files with the events of some commits, included."""
    paths = []
    files = lake.file_system(EVENTS)
    for version in range(first, last + 1):
        with lake.errors():
            try:
                with files.open_input_file(f"_delta_log/{log_name(version)}") as commit:
                    actions = [_decode(line) for line in commit.read().splitlines() if line]
            except FileNotFoundError:
                reason = f"commit {version} is no longer in the log: {_REBUILD}"
                raise LakeError(f"{lake}: {reason}") from None
        paths += [i.add.path for i in actions if i.add is not None and i.add.data_change]
    return paths


def _commit(
    lake: Lake,
    name: str,
    table: DeltaTable,
    version: int,
    paths: list[str],
    *,
    is_new: bool = False,
) -> bool:
    """Have a derived table include the events of some files, and so a version of ``events``.

    Returns:
        Whether it was done; false: another update was faster.
    """
    done = [Transaction(_APP, version)]
    if not paths and not is_new:
        return lake.commit(table, name, [], done)
    if name == VALUES:
        numbers = (_numbers(lake, path) for path in paths)
        files = [file for rows in numbers if rows.num_rows for file in write(lake, name, rows)]
        return lake.commit(table, name, files, done, replaces_all=is_new)
    found = arrow_schema(LATEST).empty_table()
    if not is_new:
        found = table.to_pyarrow_table().cast(arrow_schema(LATEST))
    for path in paths:
        found = _last(pa.concat_tables([found, _read_last(lake, path)]))
    files = write(lake, name, found) if found.num_rows else []
    return lake.commit(table, name, files, done, replaces_all=True)


def _numbers(lake: Lake, path: str) -> pa.Table:
    """Rows of ``values``, of a file of ``events``."""
    with _file(lake, path) as file:
        rows = file.read(arrow_schema(VALUES).names)
    return rows.filter(pc.is_valid(rows.column("value")))


def _read_last(lake: Lake, path: str) -> pa.Table:
    """Rows of ``latest``, of a file of ``events``; reads payloads only where they are."""
    columns = arrow_schema(LATEST)
    with _file(lake, path) as file:
        keys = file.read(["type_path", *ORDER])
        groups = [
            pa.repeat(pa.scalar(i), file.metadata.row_group(i).num_rows)
            for i in range(file.metadata.num_row_groups)
        ]
        last = _last(keys.append_column("group", pa.chunked_array(groups, pa.int64())))
        wanted = pc.unique(last.column("group")).to_pylist()
        rows = file.read_row_groups(wanted, columns.names).select(columns.names).cast(columns)
    return _last(rows)


def _last(events: pa.Table) -> pa.Table:
    """The last event of each type."""
    numbers = pa.array(np.arange(events.num_rows))
    keys = events.select(["type_path", *ORDER]).append_column("row", numbers)
    keys = keys.sort_by([(i, "ascending") for i in ORDER])
    rows = keys.group_by("type_path", use_threads=False).aggregate([("row", "last")])
    return events.take(rows.column("row_last"))


@contextlib.contextmanager
def _file(lake: Lake, path: str) -> Iterator[pq.ParquetFile]:
    """A file of ``events``."""
    with lake.errors():
        try:
            yield pq.ParquetFile(path, filesystem=lake.file_system(EVENTS))
        except FileNotFoundError as e:
            raise LakeError(f"{lake}: {path} is deleted: {_REBUILD}") from e
