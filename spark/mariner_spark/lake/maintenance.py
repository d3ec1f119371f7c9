"""Maintenance of a lake: compaction, the derived tables, and a summary.

``latest`` has the last event of each type, with the columns of ``events``; ``rollups`` what the
events of a type were in each minute, hour and day (``rollups``). Each has an application
transaction: the version of ``events`` that it includes. An update reads the files that later
commits added, and commits its rows together with the new version. Where these files do not tell
everything, because the log or a vacuum no longer has them, or somebody deleted events, it makes the
table anew.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from mariner_spark import limits, times
from mariner_spark.errors import LakeError
from mariner_spark.lake import parquet, rollups, tables
from mariner_spark.lake.parquet import TableFile
from mariner_spark.lake.rollups import Renewed
from mariner_spark.lake.sql import WIDTHS_US
from mariner_spark.lake.tables import (
    EVENTS,
    LATEST,
    ORDER,
    ROLLUPS,
    TABLES,
    Lake,
)
from mariner_spark.lake.writer import Position, positions_of
from mariner_spark.times import Interval

# --- compaction ---------------------------------------------------------------------------


class Compacted(msgspec.Struct, frozen=True):
    """Numbers of files in all tables that were replaced by those written, and deleted."""

    replaced: int
    written: int
    deleted: int


def compact(
    path: str, *, grace_hours: int = limits.GRACE_HOURS, is_by_type: bool = False
) -> Compacted:
    """Merge small files of a day, and delete files that belong to no table.

    It needs no Spark, and may run beside writers, readers and other compactions. ``vacuum`` of
    deltalake deletes. Merging is done here rather than by its ``optimize`` (1.6): of two of those
    at once both succeed, so that rows are there twice, and its z-order compares only the first
    bytes of texts, so that types with a common beginning stay mixed.

    Files that belong to no table (any more) are kept for ``grace_hours``: longer than the longest
    query and batch of an ingestion. ``is_by_type`` sorts the rows of each day by type and time,
    rather than by time: every file of ``events`` is written anew. Raises LakeError.
    """
    lake = Lake(path)
    lake.open()
    replaced = written = deleted = 0
    for name in TABLES:
        if (table := lake.find(name)) is None:
            continue
        is_sorted_anew = is_by_type and name == EVENTS
        for group in _groups(table, name, is_sorted_anew) if name != LATEST else ():
            n_new = _merge(lake, name, group, is_sorted_anew)
            replaced += len(group) if n_new else 0
            written += n_new
        deleted += len(lake.vacuum(name, grace_hours))
    return Compacted(replaced, written, deleted)


def _groups(table: DeltaTable, name: str, is_by_type: bool) -> Iterator[list[TableFile]]:
    """Files to be merged into one each: of a partition, in order of time, as far as they fit."""
    # other tools may write files without statistics: they stay as they are
    files = [i for i in parquet.files_of(table, name) if i.rows and i.time.first is not None]
    files.sort(key=lambda i: (i.partition, i.time))
    for _, of_partition in groupby(files, attrgetter("partition")):
        group: list[TableFile] = []
        rows = n_bytes = 0
        for file in of_partition:
            is_large = file.rows >= limits.FILE_ROWS // 2 or file.bytes >= limits.MERGED_BYTES // 2
            if is_large and not is_by_type:  # two such files do not fit into one
                continue
            rows, n_bytes = rows + file.rows, n_bytes + file.bytes
            if group and (rows > limits.FILE_ROWS or n_bytes > limits.MERGED_BYTES):
                yield group
                group, rows, n_bytes = [], file.rows, file.bytes
            group.append(file)
        yield group


def _merge(lake: Lake, name: str, files: list[TableFile], is_by_type: bool) -> int:
    """Replace files of a partition by one, unless it is one, or another compaction was faster.

    Returns the number of files that replace them.
    """
    if len(files) < (1 if is_by_type else 2):
        return 0
    paths = [i.path for i in files]
    try:
        rows = pa.concat_tables(parquet.read_rows(lake, name, i) for i in paths)
    except LakeError as e:
        if isinstance(e.__cause__, FileNotFoundError):
            return 0  # and a vacuum followed it
        raise
    if name == ROLLUPS:
        new = [parquet.write_rollups(lake, files[0].partition, rows)]
    else:
        new = parquet.write_rows(lake, name, rows, is_by_type=is_by_type)
    values, now_ms = dict(new[0].partition_values), int(time.time() * 1000)
    old = [RemoveAction(i, False, now_ms, None, values) for i in paths]
    added = [dataclasses.replace(i, data_change=False) for i in new]
    for _ in range(limits.COMMIT_TRIES):
        table = lake.open(name)
        if not set(parquet.paths_of(table)).issuperset(paths):
            break
        if lake.commit(table, name, [*old, *added]):
            return len(added)
    return 0


# --- derived tables -----------------------------------------------------------------------

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
    """Bring the derived tables of a lake up to date, or make them anew from all events.

    Raises LakeError, as :func:`compact`.
    """
    lake = Lake(path)
    lake.open()
    for name in (LATEST, ROLLUPS):
        if is_new:
            _remake(lake, name)
        _until_committed(lake, name, partial(_update, lake, name))


def _until_committed(lake: Lake, name: str, commit: Callable[[], bool]) -> None:
    """Try until no other commit comes between; raises LakeError if that does not help."""
    if not any(commit() for _ in range(limits.COMMIT_TRIES)):
        raise LakeError(f"{lake}: table {name}: {limits.COMMIT_TRIES} commits failed")


def behind(lake: Lake, version: int, table: DeltaTable) -> int:
    """Commits of rows to ``events``, up to a version, that a derived table does not include yet."""
    first = _included(table) + 1
    changes = _changes(lake, first, version)
    return version + 1 - first if changes is None else sum(map(bool, changes))


def find_rollups(
    lake: Lake, version: int, width_us: int, origin_us: int, time: Interval
) -> rollups.RollupFiles | None:
    """Rollups that say of events of a time what they are in buckets of a width.

    ``version``: of ``events``; ``origin_us``: where some bucket begins. None: the lake has none of
    exactly these events, or the buckets or the time begin or end within one. Raises LakeError.
    """
    table = lake.find(ROLLUPS)
    if table is None:
        return None
    first, last = sorted((_included(table), version))
    changes = _changes(lake, first + 1, last)
    if changes is None or any(changes):
        return None
    edges = [time.first or 0, 0 if time.last is None else time.last + 1]
    for us in sorted(WIDTHS_US.values(), reverse=True):
        if all(i % us == 0 for i in (width_us, origin_us, *edges)):
            return rollups.find(table, us, time)
    return None


def _update(lake: Lake, name: str) -> bool:
    """Have a derived table include all events; false: there is more to be done."""
    table = lake.create(name)
    events = lake.open()  # after it: so it has all versions that the table includes
    before, last = _included(table), events.version()
    if before >= last:
        return True
    paths = None if before < 0 else _added(lake, before + 1, last)
    if paths is None:
        _remake(lake, name)
        return False
    if name == ROLLUPS:
        done = rollups.renew(lake, events, table, paths)
    elif paths:
        done = Renewed(_latest(lake, parquet.paths_of(table), paths), [])
    else:  # compactions only
        done = Renewed([], [])
    now_ms = int(time.time() * 1000)
    gone = [RemoveAction(i.path, True, now_ms, None, {"every": i.partition}) for i in done.replaced]
    transactions, replaces_all = [Transaction(_APP, last)], name == LATEST and bool(paths)
    return lake.commit(table, name, [*gone, *done.added], transactions, replaces_all=replaces_all)


def _remake(lake: Lake, name: str) -> None:
    """Make a derived table anew from the events that there are now.

    What others commit to it meanwhile is replaced: the table then includes no later events.
    """
    lake.create(name)
    events = lake.open()
    paths = parquet.paths_of(events)
    if name == LATEST:
        added = _latest(lake, [], paths)
    else:
        added = rollups.renew(lake, events, None, paths).added
    done = [Transaction(_APP, events.version())]
    _until_committed(
        lake,
        name,
        lambda: lake.commit(lake.open(name), name, added, done, replaces_all=True),
    )


def _latest(lake: Lake, known: list[str], paths: list[str]) -> list[AddAction]:
    """Files with the rows of ``latest`` that follow from those in some files and from events."""
    old = [parquet.read_rows(lake, LATEST, path) for path in known]
    rows = pa.concat_tables([lake.schema(LATEST).empty_table(), *old])
    for path in sorted(paths, reverse=True):  # by time: the others seldom have later events
        rows = _with_later(lake, rows, path)
    return parquet.write_rows(lake, LATEST, rows) if rows.num_rows else []


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
            paths = map(tables.log_path, range(first, last + 1))
            logs = [files.open_input_file(path).read() for path in paths]
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
    keys = parquet.read_rows(lake, EVENTS, path, ["type_path", *ORDER])
    keys = pa.concat_tables([rows.select(keys.schema.names), keys])
    keys = keys.append_column("row", [np.arange(keys.num_rows)])
    keys = keys.sort_by([(i, "ascending") for i in ORDER])
    last = keys.group_by("type_path", use_threads=False).aggregate([("row", "last")])["row_last"]
    if last.to_numpy().max(initial=-1) < rows.num_rows:
        return rows
    return pa.concat_tables([rows, parquet.read_rows(lake, EVENTS, path)]).take(last)


# --- summary ------------------------------------------------------------------------------


class TableInfo(msgspec.Struct, frozen=True):
    """A table; ``bytes`` is the size of its files, ``unused_files`` would be deleted by a vacuum.

    ``behind`` are commits of rows to ``events`` that it lacks.
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

    ``first`` and ``last``: timestamps of events, microseconds since 1970, None without events;
    after a compaction the log has them in milliseconds. ``columns``: the named ones.
    ``positions``: the last event of each server; ``lag_s``: its age by the clock of this machine,
    which grows if the server registers nothing.
    """

    tables: dict[str, TableInfo]
    first: int | None
    last: int | None
    value_path: str
    columns: list[str]
    positions: dict[int, Position]
    lag_s: dict[int, float]


def info(path: str, *, grace_hours: int = limits.GRACE_HOURS) -> LakeInfo:
    """Summarise a lake, from the logs of its tables alone; ``grace_hours`` as for :func:`compact`.

    Raises LakeError, as :func:`compact`.
    """
    lake = Lake(path)
    events = lake.open()
    known, now_s = positions_of(events), time.time()
    shown = {}
    with lake.errors():
        for name in TABLES:
            if (table := lake.find(name)) is None:
                continue
            unused = lake.files(name).get_file_info(lake.vacuum(name, grace_hours, is_dry=True))
            size = sum(i.size or 0 for i in unused)
            n_behind = 0 if name == EVENTS else behind(lake, events.version(), table)
            shown[name] = TableInfo(table.version(), *_totals(table), n_behind, len(unused), size)
        files = pa.table(events.get_add_actions(flatten=True)).to_pylist()
    edges = "min.timestamp", "max.timestamp"
    moments = [times.from_datetime(i[j]) for i in files for j in edges if i.get(j)]
    return LakeInfo(
        tables=shown,
        first=min(moments, default=None),
        last=max(moments, default=None),
        value_path=tables.value_path_of(events),
        columns=[*map(str, tables.columns_of(events))],
        positions=known,
        lag_s={server: now_s - i.timestamp / 1e6 for server, i in known.items()},
    )


def count(path: str) -> tuple[int, int]:
    """Number of events and of their files in a lake; 0 if there is none."""
    lake = Lake(path)
    events = lake.find()
    with lake.errors():
        return (0, 0) if events is None else _totals(events)[:2]


def _totals(table: DeltaTable) -> tuple[int, int, int]:
    files = pa.table(table.get_add_actions())
    n_rows, n_bytes = (pc.sum(files.column(i)).as_py() or 0 for i in ("num_records", "size_bytes"))
    return n_rows, files.num_rows, n_bytes
