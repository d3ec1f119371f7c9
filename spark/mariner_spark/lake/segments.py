"""Segments: writing and reading the Parquet files of a lake.

A segment has events of one day (UTC) of ``timestamp``, sorted by it, in row groups of which each
task reads one. Types and the like are dictionary-encoded, ids and times delta-encoded.
"""

import contextlib
import datetime
import uuid
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql.types import DoubleType, StructField, StructType

from mariner_spark import limits, schema, times
from mariner_spark.errors import LakeError
from mariner_spark.lake.files import Files
from mariner_spark.lake.manifest import Segment

SCHEMA: Final = StructType([*schema.SCHEMA.fields, StructField("value", DoubleType())])
"""Columns of a lake: those of the data source, and ``value``: the number in a JSON payload."""

_DAY_US: Final = 86_400_000_000
_ORDER: Final = [(i, "ascending") for i in ("timestamp", "server", "session", "instance")]
_DICTIONARIES: Final = ["server", "type.list.element", "type_path", "payload_kind", "payload_type"]
_DIFFERENCES: Final = dict.fromkeys(
    ("session", "instance", "timestamp", "source_timestamp"), "DELTA_BINARY_PACKED"
)


def arrow_schema() -> pa.Schema:
    """Arrow schema of :data:`SCHEMA`."""
    return schema.arrow_schema(SCHEMA)


class SegmentWriter:
    """Writes segments of events that come in any order.

    It buffers up to ``limits.SEGMENT_ROWS`` events and ``limits.SEGMENT_BYTES`` in memory.

    Args:
        files: the lake.

    Attributes:
        segments: the written ones.
    """

    def __init__(self, files: Files) -> None:
        self.segments: list[Segment] = []
        self._files = files
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add events.

        Args:
            batch: with the columns of :data:`SCHEMA`.

        Raises:
            LakeError: a segment cannot be written.
        """
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= limits.SEGMENT_ROWS or self._bytes >= limits.SEGMENT_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered events.

        Raises:
            LakeError: as :meth:`add`.
        """
        batches, self._batches, self._rows, self._bytes = self._batches, [], 0, 0
        if batches:
            self.segments += write(self._files, pa.Table.from_batches(batches))

    def discard(self) -> None:
        """Delete the written segments, as far as possible: the rest is swept later."""
        discard(self._files, self.segments)
        self.segments = []


def write(files: Files, events: pa.Table) -> list[Segment]:
    """Write events as segments, one per day.

    Raises:
        LakeError: one cannot be written; those written before are deleted.
    """
    events = events.cast(arrow_schema()).sort_by(_ORDER)
    moments = _moments(events)
    days = moments // _DAY_US
    edges = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), events.num_rows]
    segments: list[Segment] = []
    try:
        for begin, end in pairwise(edges):
            if begin < end:
                first, last = int(moments[begin]), int(moments[end - 1])
                segments.append(_write(files, events.slice(begin, end - begin), first, last))
    except BaseException:
        discard(files, segments)
        raise
    return segments


def read(files: Files, segments: list[Segment]) -> pa.Table:
    """All events of some segments.

    Raises:
        LakeError: one cannot be read.
    """
    tables = []
    for segment in segments:
        with files.errors(segment.path):
            table = pq.ParquetFile(files.full(segment.path), filesystem=files.arrow).read()
        tables.append(table.cast(arrow_schema()))
    return pa.concat_tables(tables)


def discard(files: Files, segments: list[Segment]) -> None:
    """Delete files that did not become part of the lake, as far as possible."""
    for segment in segments:
        with contextlib.suppress(LakeError):
            files.delete(segment.path)


def _write(files: Files, events: pa.Table, first: int, last: int) -> Segment:
    day = (times.EPOCH + datetime.timedelta(microseconds=first)).date()
    path = f"date={day.isoformat()}/events-{uuid.uuid4().hex}.parquet"
    with files.create(path) as file:
        pq.write_table(
            events,
            file,
            row_group_size=limits.ROW_GROUP_ROWS,
            compression="zstd",
            use_dictionary=_DICTIONARIES,
            column_encoding=_DIFFERENCES,
        )
    size_bytes = files.sizes([path])[path]
    assert size_bytes is not None
    return Segment(path, events.num_rows, size_bytes, first, last, events.nbytes)


def _moments(events: pa.Table) -> NDArray[np.int64]:
    moments: NDArray[np.int64] = (
        events.column("timestamp").cast(pa.int64()).combine_chunks().to_numpy()
    )
    return moments
