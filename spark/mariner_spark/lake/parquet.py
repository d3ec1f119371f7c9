"""The Parquet files of a lake's tables: what the log says of them, and their rows.

A file of ``events`` has rows of a day (UTC) of ``timestamp``, sorted by it, in row groups of which
each task of Spark reads one; a file of ``rollups`` has buckets of one width, sorted by type. A
written file is no part of a table until it is committed (``tables``).
"""

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from numpy.typing import NDArray

from mariner_spark import limits, times, type_path, values
from mariner_spark.lake.tables import (
    EVENTS,
    ORDER,
    ROLLUPS,
    STATISTICS,
    Lake,
    columns_of,
    partitions,
    time_column,
    value_path_of,
)
from mariner_spark.times import EVER, Interval

_ROUNDED_US: Final = 1_000
"""Compaction rounds timestamps in the log to milliseconds."""


class TableFile(NamedTuple):
    """A file of a table, by its path below it, with what the log says of it.

    Its rows are within ``time``, and from type path ``first_type`` to ``last_type``, if that is
    known. ``partition`` is the text of its partition column.
    """

    path: str
    rows: int
    bytes: int
    time: Interval
    first_type: str
    last_type: str | None
    partition: str


def files_of(table: DeltaTable, name: str) -> list[TableFile]:
    """The files of a table, of that name."""
    column, partition = time_column(name), "".join(partitions(name))
    return [
        TableFile(
            file["path"],
            file["num_records"] or 0,
            file["size_bytes"],
            Interval(
                _us(file.get(f"min.{column}"), -_ROUNDED_US),
                _us(file.get(f"max.{column}"), _ROUNDED_US),
            ),
            file.get("min.type_path") or "",
            file.get("max.type_path"),
            str(file.get(f"partition.{partition}")),
        )
        for file in pa.table(table.get_add_actions(flatten=True)).to_pylist()
    ]


def _us(moment: datetime | None, more_us: int) -> int | None:
    return None if moment is None else times.from_datetime(moment) + more_us


def paths_of(table: DeltaTable) -> list[str]:
    """The files of a table, below it."""
    return list(pa.table(table.get_add_actions()).column("path").to_pylist())


# --- reading ----------------------------------------------------------------------------


def read_rows(
    lake: Lake, table: str, path: str, names: Sequence[str] = (), time: Interval = EVER
) -> pa.Table:
    """Rows of a file in some time, by its path below the table; no names: all columns."""
    columns = pa.schema([i for i in lake.schema(table) if not names or i.name in names])
    moment = time_column(table)
    with lake.errors(), pq.ParquetFile(path, filesystem=lake.files(table)) as file:
        groups = [*range(file.num_row_groups)]
        if not time.is_everything:
            groups = [i for i in groups if _may_have(file.metadata.row_group(i), moment, time)]
        rows = fitting(file.read_row_groups(groups, columns.names), columns)
    if time.is_everything:
        return rows
    at = rows.column(moment).cast(pa.int64()).to_numpy()
    return rows.filter(pa.array((time.first <= at) & (at <= time.last)))


def fitting(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Rows of a file as columns of its table; what the file lacks is null, as Delta has it."""
    known = set(rows.schema.names)
    # other tools write some columns with other types of Arrow
    found = [
        rows.column(i.name).cast(i.type)
        if i.name in known
        else pa.chunked_array([pa.nulls(rows.num_rows, i.type)])
        for i in columns
    ]
    return pa.Table.from_arrays(found, schema=columns)


def _may_have(group: pq.RowGroupMetaData, moment: str, time: Interval) -> bool:
    """Whether a row group may have rows of some time."""
    columns = (group.column(i) for i in range(group.num_columns))
    [found] = [i.statistics for i in columns if i.path_in_schema == moment]
    if found is None or not found.has_min_max:
        return True
    bounds = Interval(times.from_datetime(found.min), times.from_datetime(found.max))
    return not bounds.intersection(time).is_empty


def rank(names: pa.ChunkedArray) -> tuple[pa.Array, NDArray[np.int32]]:
    """Different texts, ascending, and of each given one the place among them."""
    encoded = names.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(order), np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    return encoded.dictionary.take(pa.array(order)), ranks[encoded.indices.to_numpy()]


# --- writing ----------------------------------------------------------------------------

_DICTIONARIES: Final = ("server", "type.list.element", "type_path", "payload_kind", "payload_type")

_DIFFERENCES: Final = (
    "session", "instance", "timestamp", "source_timestamp", "bucket", "first_at", "last_at",
)  # fmt: skip

_DAY_US: Final = 86_400_000_000


def write_events(
    lake: Lake, events: DeltaTable, batches: Iterable[pa.RecordBatch]
) -> list[AddAction]:
    """As :func:`write_rows`, for events in any order; buffers ``limits.FILE_ROWS``, ``FILE_BYTES``.

    ``events`` is the table; the batches have the columns ``schema.WITHOUT_TYPE``.
    """
    value_path, named, files = value_path_of(events), columns_of(events), []
    for group in _bounded(batches):
        numbers = [values.find_numbers(i.column("payload_json"), value_path) for i in group]
        column = pa.chunked_array(numbers, pa.float64())
        rows = pa.Table.from_batches(group).append_column("value", column)
        for i in named:
            parts = [i.find(batch.column("payload_json")) for batch in group]
            rows = rows.append_column(i.field, pa.chunked_array(parts, i.field.type))
        files += write_rows(lake, EVENTS, rows)
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


def write_rows(
    lake: Lake, table: str, rows: pa.Table, *, is_by_type: bool = False
) -> list[AddAction]:
    """Write at least one row of ``events`` or ``latest`` to files, to be committed.

    A file a day of ``events``. Columns are in any order; ``type`` may be missing. Sorted by time or
    (one day only) by type first.
    """
    names = lake.schema(table).names
    order = ("type_path", *ORDER) if is_by_type else ORDER
    rows = rows.sort_by([(i, "ascending") for i in order])
    if "type" not in rows.schema.names:
        paths = rows.column("type_path").combine_chunks().dictionary_encode()
        types = [list(type_path.decode(i)) for i in paths.dictionary.to_pylist()]
        column = pa.array(types, pa.list_(pa.string())).take(paths.indices)
        rows = rows.append_column("type", column)
    rows = rows.select(names).cast(lake.schema(table))
    group_rows = limits.SMALL_GROUP_ROWS if is_by_type else limits.ROW_GROUP_ROWS
    if not partitions(table):
        return [_write_file(lake, table, rows, {}, group_rows)]
    days = rows.column("timestamp").cast(pa.int64()).to_numpy() // _DAY_US
    edges = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), rows.num_rows]
    parts = [rows.slice(i, j - i) for i, j in pairwise(edges)]
    return [
        _write_file(lake, table, i, {"date": _text(i.column("timestamp")[0])[:10]}, group_rows)
        for i in parts
    ]


def write_rollups(lake: Lake, every: str, rows: pa.Table) -> AddAction:
    """Write at least one row of ``rollups``, buckets of one width, to a file, to be committed."""
    _, ranks = rank(rows.column("type_path"))
    order = np.lexsort((rows.column("bucket").cast(pa.int64()), ranks))
    if (order[1:] < order[:-1]).any():
        rows = rows.take(pa.array(order))
    return _write_file(lake, ROLLUPS, rows, {"every": every}, limits.SMALL_GROUP_ROWS)


def _write_file(
    lake: Lake, table: str, rows: pa.Table, values: dict[str, str | None], group_rows: int
) -> AddAction:
    names = rows.schema.names
    folders = (f"{i}={j}" for i, j in values.items())
    first = pc.min(rows.column(time_column(table))).value
    path = "/".join((*folders, f"{first:020}-{uuid.uuid4()}.parquet"))  # sorts by time
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
