"""The derived tables ``latest`` and ``values``: kept up to date with the commits to ``events``.

``latest`` has the last event of each type, with the columns of ``events``; ``values`` has type,
time and number of the events with a number. Each has an application transaction: the version of
``events`` that it includes. An update reads the files that later commits added, and commits its
rows together with the new version. Where these files do not tell everything, because the log or a
vacuum no longer has them, or somebody deleted events, it makes the table anew.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction

from mariner_spark import limits
from mariner_spark.errors import LakeError
from mariner_spark.lake.files import paths_of, read, write
from mariner_spark.lake.tables import EVENTS, LATEST, ORDER, VALUES, Lake, arrow_schema, log_path

_APP: Final = "mariner/events"


class _File(msgspec.Struct):
    path: str
    data_change: bool = msgspec.field(name="dataChange")


class _Action(msgspec.Struct):
    """A line of a commit in the log; others do not matter."""

    add: _File | None = None
    remove: _File | None = None


_decode: Final = msgspec.json.Decoder(_Action).decode


def update(path: str, *, is_new: bool = False) -> None:
    """Bring the derived tables of a lake up to date.

    Args:
        path: the lake.
        is_new: make them anew from all events.

    Raises:
        NoLakeError: there is no lake.
        LakeError: it cannot be read or written.
    """
    lake = Lake(path)
    lake.open()

    def bring(name: str) -> None:
        # until no other commit comes between
        if not any(_update(lake, name, is_new) for _ in range(limits.COMMIT_TRIES)):
            raise LakeError(f"{lake}: table {name}: {limits.COMMIT_TRIES} commits failed")

    with ThreadPoolExecutor() as pool:
        list(pool.map(bring, (LATEST, VALUES)))


def behind(lake: Lake, events: DeltaTable, table: DeltaTable) -> int:
    """Commits of rows to ``events`` that a derived table does not include yet.

    Raises:
        LakeError: the log cannot be read.
    """
    first = _included(table) + 1
    changes = _changes(lake, first, events.version())
    return events.version() + 1 - first if changes is None else sum(map(bool, changes))


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
    if name == LATEST and paths:
        old = [] if is_new else [read(lake, LATEST, path) for path in paths_of(table)]
        rows = pa.concat_tables([arrow_schema(LATEST).empty_table(), *old])
        for path in sorted(paths, reverse=True):  # by time: the others seldom have later events
            rows = _with_later(lake, rows, path)
        parts, is_new = iter([rows]), True
    else:
        columns, is_number = arrow_schema(VALUES).names, pc.field("value").is_valid()
        parts = (read(lake, EVENTS, path, columns).filter(is_number) for path in paths)
    files = [file for rows in parts if rows.num_rows for file in write(lake, name, rows)]
    return lake.commit(table, name, files, [Transaction(_APP, last)], replaces_all=is_new)


def _added(lake: Lake, first: int, last: int) -> list[str] | None:
    """Files with the events of some commits; None: they do not tell all that has changed."""
    changes = _changes(lake, first, last)
    if changes is None or any(i.remove for commit in changes for i in commit):
        return None
    paths = [i.add.path for commit in changes for i in commit if i.add]
    with lake.errors():
        found = lake.files(EVENTS).get_file_info(paths)
    return paths if all(i.is_file for i in found) else None


def _changes(lake: Lake, first: int, last: int) -> list[list[_Action]] | None:
    """What each of some commits to ``events`` changed, without compactions; None: unknown."""
    files = lake.files(EVENTS)
    with lake.errors():
        try:
            logs = [files.open_input_file(log_path(i)).read() for i in range(first, last + 1)]
        except FileNotFoundError:  # it is kept for a time
            return None
        commits = [[_decode(line) for line in log.splitlines() if line] for log in logs]
    return [[i for i in j if (file := i.add or i.remove) and file.data_change] for j in commits]


def _included(table: DeltaTable) -> int:
    """The version of ``events`` that a derived table includes; -1: none."""
    found = table.transaction_version(_APP)
    return -1 if found is None else found


def _with_later(lake: Lake, rows: pa.Table, path: str) -> pa.Table:
    """Rows of ``latest`` with those of a file of ``events``, read in full only if it has some."""
    keys = read(lake, EVENTS, path, ["type_path", *ORDER])
    keys = pa.concat_tables([rows.select(keys.schema.names), keys])
    keys = keys.append_column("row", [np.arange(keys.num_rows)])
    keys = keys.sort_by([(i, "ascending") for i in ORDER])
    last = keys.group_by("type_path", use_threads=False).aggregate([("row", "last")])["row_last"]
    if last.to_numpy().max(initial=-1) < rows.num_rows:
        return rows
    return pa.concat_tables([rows, read(lake, EVENTS, path)]).take(last)
