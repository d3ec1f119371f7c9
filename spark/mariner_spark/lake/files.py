"""Files of the tables. A written one is no part of a table until it is committed.

A file has rows of one day (UTC) of ``timestamp``, sorted by it, in row groups of which each task of
Spark reads one. Types and the like are dictionary-encoded, ids and times delta-encoded.
"""

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from mariner_spark import limits, times, type_path
from mariner_spark.lake.tables import EVENTS, ORDER, STATISTICS, Lake, arrow_schema, partitions
from mariner_spark.payload_numbers import find_numbers

_DICTIONARIES: Final = ("server", "type.list.element", "type_path", "payload_kind", "payload_type")
_DIFFERENCES: Final = ("session", "instance", "timestamp", "source_timestamp")

_DAY_US: Final = 86_400_000_000


def write_events(lake: Lake, value_path: str, batches: Iterable[pa.RecordBatch]) -> list[AddAction]:
    """Write events that come in any order; buffers ``limits.FILE_ROWS`` and ``FILE_BYTES``.

    Args:
        lake: the lake.
        value_path: path of the column ``value``.
        batches: with the columns ``schema.WITHOUT_TYPE``.

    Returns:
        The files, to be committed.

    Raises:
        LakeError: one cannot be written.
    """
    files = []
    for group in _bounded(batches):
        numbers = [find_numbers(i.column("payload_json"), value_path) for i in group]
        column = pa.chunked_array(numbers, pa.float64())
        files += write(lake, EVENTS, pa.Table.from_batches(group).append_column("value", column))
    return files


def _bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches for a file each day."""
    group: list[pa.RecordBatch] = []
    n_rows = n_bytes = 0
    for batch in batches:
        group.append(batch)
        n_rows += batch.num_rows
        n_bytes += batch.nbytes
        if n_rows >= limits.FILE_ROWS or n_bytes >= limits.FILE_BYTES:
            yield group
            group, n_rows, n_bytes = [], 0, 0
    if n_rows:
        yield group


def paths_of(table: DeltaTable) -> list[str]:
    """The files of a table, below it."""
    return list(pa.table(table.get_add_actions()).column("path").to_pylist())


def write(lake: Lake, table: str, rows: pa.Table, *, is_by_type: bool = False) -> list[AddAction]:
    """Write rows of a table, a file a day if it is partitioned.

    Args:
        lake: the lake.
        table: name of the table.
        rows: with its columns, in any order; at least one. ``type`` may be missing.
        is_by_type: sort by type, then time, rather than by time; rows are of one day.

    Returns:
        The files, to be committed.

    Raises:
        LakeError: one cannot be written.
    """
    names = arrow_schema(table).names
    order = ("type_path", *ORDER) if is_by_type else ORDER
    rows = rows.sort_by([(i, "ascending") for i in order if i in names])
    if "type" in names and "type" not in rows.schema.names:
        paths = rows.column("type_path").combine_chunks().dictionary_encode()
        types = [list(type_path.decode(i)) for i in paths.dictionary.to_pylist()]
        column = pa.array(types, pa.list_(pa.string())).take(paths.indices)
        rows = rows.append_column("type", column)
    rows = rows.select(names).cast(arrow_schema(table))
    edges = [0, rows.num_rows]
    if partitions(table):
        days = rows.column("timestamp").cast(pa.int64()).to_numpy() // _DAY_US
        edges[1:1] = (np.flatnonzero(np.diff(days)) + 1).tolist()
    group_rows = limits.SMALL_GROUP_ROWS if is_by_type else limits.ROW_GROUP_ROWS
    return [_write(lake, table, rows.slice(i, j - i), group_rows) for i, j in pairwise(edges)]


def read(lake: Lake, table: str, path: str, names: Sequence[str] = ()) -> pa.Table:
    """Rows of a file.

    Args:
        lake: the lake.
        table: name of the table.
        path: below the table.
        names: columns; empty: all.

    Raises:
        LakeError: it cannot be read.
    """
    columns = pa.schema([i for i in arrow_schema(table) if not names or i.name in names])
    with lake.errors(), pq.ParquetFile(path, filesystem=lake.files(table)) as file:
        # other tools write some columns with other types of Arrow
        return file.read(columns.names).select(columns.names).cast(columns)


def _write(lake: Lake, table: str, rows: pa.Table, group_rows: int) -> AddAction:
    names, first = rows.schema.names, rows.column("timestamp")[0]
    values: dict[str, str | None] = dict.fromkeys(partitions(table), _text(first)[:10])
    folders = (f"{i}={j}" for i, j in values.items())
    path = "/".join((*folders, f"{first.value:020}-{uuid.uuid4()}.parquet"))  # sorts by time
    with lake.new_file(table, path) as file:
        pq.write_table(
            rows,
            file,
            row_group_size=group_rows,
            compression="zstd",
            use_dictionary=[i for i in _DICTIONARIES if i.partition(".")[0] in names],
            column_encoding={i: "DELTA_BINARY_PACKED" for i in _DIFFERENCES if i in names},
        )
        size = file.tell()
    bounds = {i: pc.min_max(rows.column(i)) for i in STATISTICS if i in names}
    stats = {
        "numRecords": rows.num_rows,
        "nullCount": dict.fromkeys(bounds, 0),
        "minValues": {i: _text(j["min"]) for i, j in bounds.items()},
        "maxValues": {i: _text(j["max"]) for i, j in bounds.items()},
    }
    return AddAction(path, size, values, int(time.time() * 1000), True, json.dumps(stats))


def _text(value: pa.Scalar) -> Any:
    """A value as Delta writes it into its log."""
    return times.to_iso(value.value) if pa.types.is_timestamp(value.type) else value.as_py()
