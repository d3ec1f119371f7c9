"""Files of the tables. A written one is no part of a table until it is committed.

A file has rows of one day (UTC) of ``timestamp``, sorted by it, in row groups of which each task of
Spark reads one. Types and the like are dictionary-encoded, ids and times delta-encoded.
"""

import datetime
import json
import time
import uuid
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from mariner_spark import limits, times, type_path
from mariner_spark.lake.tables import EVENTS, ORDER, STATISTICS, Lake, arrow_schema, partitions
from mariner_spark.payload_numbers import find_numbers

_DICTIONARIES: Final = ("server", "type.list.element", "type_path", "payload_kind", "payload_type")
_DIFFERENCES: Final = ("session", "instance", "timestamp", "source_timestamp")

_DAY_US: Final = 86_400_000_000


class EventWriter:
    """Writes events that come in any order; buffers ``limits.FILE_ROWS`` and ``FILE_BYTES``.

    Args:
        lake: the lake.
        value_path: path of the column ``value``.

    Attributes:
        files: the written ones.
    """

    def __init__(self, lake: Lake, value_path: str) -> None:
        self.files: list[AddAction] = []
        self._lake = lake
        self._value_path = value_path
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add events.

        Args:
            batch: with the columns :data:`tables.INPUT`.

        Raises:
            LakeError: a file cannot be written.
        """
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= limits.FILE_ROWS or self._bytes >= limits.FILE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered events, a file a day.

        Raises:
            LakeError: as :meth:`add`.
        """
        batches, self._batches, self._rows, self._bytes = self._batches, [], 0, 0
        if not any(batch.num_rows for batch in batches):
            return
        numbers = [find_numbers(i.column("payload_json"), self._value_path) for i in batches]
        events = pa.Table.from_batches(batches)
        events = events.append_column("value", pa.chunked_array(numbers, pa.float64()))
        self.files += write(self._lake, EVENTS, events)


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
        rows = rows.append_column("type", _types(rows.column("type_path")))
    rows = rows.select(names).cast(arrow_schema(table))
    if not partitions(table):
        return [_write(lake, table, rows, None)]
    if is_by_type:
        day = _moment(rows.column("timestamp")[0]).date()
        return [_write(lake, table, rows, day, limits.SMALL_GROUP_ROWS)]
    days = rows.column("timestamp").cast(pa.int64()).to_numpy() // _DAY_US
    edges = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), rows.num_rows]
    return [
        _write(lake, table, rows.slice(i, j - i), _moment(rows.column("timestamp")[i]).date())
        for i, j in pairwise(edges)
    ]


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
    with lake.errors(), pq.ParquetFile(path, filesystem=lake.file_system(table)) as file:
        return conform(table, file.read(names or arrow_schema(table).names))


def conform(table: str, rows: pa.Table) -> pa.Table:
    """Rows with the table's types of Arrow; other tools write some columns with other ones."""
    columns = [i for i in arrow_schema(table) if i.name in rows.column_names]
    return rows.select([i.name for i in columns]).cast(pa.schema(columns))


def _types(paths: pa.ChunkedArray) -> pa.Array:
    """Event types of type paths."""
    encoded = paths.combine_chunks().dictionary_encode()
    types = [list(type_path.decode(i)) for i in encoded.dictionary.to_pylist()]
    return pa.array(types, pa.list_(pa.string())).take(encoded.indices)


def _write(
    lake: Lake,
    table: str,
    rows: pa.Table,
    day: datetime.date | None,
    group_rows: int = limits.ROW_GROUP_ROWS,
) -> AddAction:
    names = rows.schema.names
    values: dict[str, str | None] = {} if day is None else {"date": day.isoformat()}
    path = "/".join((*(f"{i}={j}" for i, j in values.items()), f"{uuid.uuid4()}.parquet"))
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
    return AddAction(path, size, values, int(time.time() * 1000), True, _stats(rows))


def _stats(rows: pa.Table) -> str:
    """Statistics of a file for the log of the table."""
    least: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    for name in STATISTICS:
        if name in rows.schema.names:
            found = pc.min_max(rows.column(name))
            least[name], largest[name] = _text(found["min"]), _text(found["max"])
    counts = {"numRecords": rows.num_rows, "nullCount": dict.fromkeys(least, 0)}
    return json.dumps({**counts, "minValues": least, "maxValues": largest})


def _moment(timestamp: pa.Scalar) -> datetime.datetime:
    return times.EPOCH + datetime.timedelta(microseconds=timestamp.value)


def _text(value: pa.Scalar) -> Any:
    if not pa.types.is_timestamp(value.type):
        return value.as_py()
    moment = _moment(value)
    return f"{moment.year:04}{moment:-%m-%dT%H:%M:%S.%fZ}"  # %Y has fewer digits before 1000
