"""Compaction: merges small files of a day, and deletes files of no table.

It needs no Spark, and may run beside writers, readers and other compactions. ``vacuum`` of
deltalake deletes. Merging is done here rather than by its ``optimize`` (1.6): of two of those at
once both succeed, so that rows are there twice, and its z-order compares only the first bytes of
texts, so that types with a common beginning stay mixed.
"""

import dataclasses
import time
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from mariner_spark import limits
from mariner_spark.errors import LakeError
from mariner_spark.lake.files import paths_of, read, write
from mariner_spark.lake.tables import LATEST, TABLES, Lake


class Compacted(msgspec.Struct, frozen=True):
    """Result of a compaction, of all tables.

    Attributes:
        replaced: number of replaced files.
        written: number of files that replace them.
        deleted: number of deleted files.
    """

    replaced: int
    written: int
    deleted: int


def compact(
    path: str, *, grace_hours: int = limits.GRACE_HOURS, is_by_type: bool = False
) -> Compacted:
    """Merge small files, and delete files that belong to no table.

    Args:
        path: the lake.
        grace_hours: how long files are kept that belong to no table (any more): longer than the
            longest query and the longest batch of an ingestion.
        is_by_type: sort the rows of each day by type and time, rather than by time: every file of
            ``events`` and ``values`` is written anew.

    Raises:
        NoLakeError: there is no lake.
        LakeError: it cannot be read or written.
    """
    lake = Lake(path)
    lake.open()
    replaced = written = deleted = 0
    for name in TABLES:
        if (table := lake.find(name)) is None:
            continue
        for group in _groups(table, is_by_type) if name != LATEST else ():
            n_new = _merge(lake, name, group, is_by_type)
            replaced += len(group) if n_new else 0
            written += n_new
        deleted += len(lake.vacuum(name, grace_hours))
    return Compacted(replaced, written, deleted)


def _groups(table: DeltaTable, is_by_type: bool) -> Iterator[list[str]]:
    """Files to be merged into one each: of a day, in order of time, as far as they fit."""
    found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    # other tools may write files without statistics: they stay as they are
    files = [i for i in found if i["num_records"] and i.get("min.timestamp")]
    order = itemgetter("partition.date", "min.timestamp")
    for _, of_day in groupby(sorted(files, key=order), itemgetter("partition.date")):
        group: list[str] = []
        rows = n_bytes = 0
        for file in of_day:
            n_new, size = file["num_records"], file["size_bytes"]
            is_large = n_new >= limits.FILE_ROWS // 2 or size >= limits.MERGED_BYTES // 2
            if is_large and not is_by_type:  # two such files do not fit into one
                continue
            if group and (rows + n_new > limits.FILE_ROWS or n_bytes + size > limits.MERGED_BYTES):
                yield group
                group, rows, n_bytes = [], 0, 0
            group.append(file["path"])
            rows, n_bytes = rows + n_new, n_bytes + size
        yield group


def _merge(lake: Lake, name: str, paths: list[str], is_by_type: bool) -> int:
    """Replace files of a day by one.

    Returns:
        Number of files that replace them; 0: it is one already, or another compaction was faster.
    """
    if len(paths) < (1 if is_by_type else 2):
        return 0
    try:
        rows = pa.concat_tables(read(lake, name, i) for i in paths)
    except LakeError as e:
        if isinstance(e.__cause__, FileNotFoundError):
            return 0  # and a vacuum came behind it
        raise
    new = write(lake, name, rows, is_by_type=is_by_type)
    values, now_ms = dict(new[0].partition_values), int(time.time() * 1000)
    old = [RemoveAction(i, False, now_ms, None, values) for i in paths]
    added = [dataclasses.replace(i, data_change=False) for i in new]
    for _ in range(limits.COMMIT_TRIES):
        table = lake.open(name)
        if not set(paths_of(table)).issuperset(paths):
            break
        if lake.commit(table, name, [*old, *added]):
            return len(added)
    return 0
