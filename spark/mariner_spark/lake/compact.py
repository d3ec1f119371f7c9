"""Compaction: ``optimize`` merges small files of a day, ``vacuum`` deletes files of no table.

It needs no Spark, and may run beside writers, readers and other compactions.
"""

import msgspec
from deltalake import ColumnProperties, DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError

from mariner_spark import limits
from mariner_spark.errors import NoLakeError
from mariner_spark.lake.files import DICTIONARIES, DIFFERENCES
from mariner_spark.lake.tables import EVENTS, TABLES, VALUES, Lake, delta_schema


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
        is_by_type: sort the rows of each day by type and time (z-order) rather than keep them in
            order of time: every file of ``events`` and ``values`` is written anew.

    Raises:
        NoLakeError: there is no lake.
        LakeError: it cannot be read or written.
    """
    lake = Lake(path)
    replaced = written = deleted = 0
    for name in TABLES:
        table = lake.find(name)
        if table is None:
            if name == EVENTS:
                raise NoLakeError(f"{lake}: no lake: it has no Delta table {name}")
            continue
        with lake.errors():
            try:
                done = _optimize(table, name, is_by_type)
            except CommitFailedError:
                done = {}  # another compaction was faster
            replaced += done.get("numFilesRemoved", 0)
            written += done.get("numFilesAdded", 0)
            deleted += len(
                lake.open(name).vacuum(
                    grace_hours, dry_run=False, enforce_retention_duration=False, full=True
                )
            )
    return Compacted(replaced, written, deleted)


def _optimize(table: DeltaTable, name: str, is_by_type: bool) -> dict[str, int]:
    columns = {i: ColumnProperties(dictionary_enabled=True) for i in DICTIONARIES}
    columns |= dict.fromkeys(
        DIFFERENCES, ColumnProperties(dictionary_enabled=False, encoding="DELTA_BINARY_PACKED")
    )
    known = {i.partition(".")[0] for i in columns} & set(delta_schema(name).names)
    properties = WriterProperties(
        compression="ZSTD",
        max_row_group_size=limits.Z_ROW_GROUP_ROWS if is_by_type else limits.ROW_GROUP_ROWS,
        column_properties={i: j for i, j in columns.items() if i.partition(".")[0] in known},
    )
    if is_by_type and name in {EVENTS, VALUES}:
        return table.optimize.z_order(["type_path", "timestamp"], writer_properties=properties)
    return table.optimize.compact(writer_properties=properties)
