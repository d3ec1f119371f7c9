"""The sink of streams into a lake: ``writeStream.format("mariner_lake")``.

Tasks write segments, which are not yet part of the lake. When all segments of a batch are written,
the driver commits them: it adds them to the manifest, in one step. If it is killed before that, the
batch runs again, and its first segments are swept later; if it is killed after that, the batch runs
again too, and is skipped.

Options: ``path``, the lake; ``value_path``, the path in JSON payloads of the column ``value`` (as
before; ``$.value`` for a new lake). The stream must have all events of each server in the order of
their ids: events up to the server's position in the lake are skipped.

:class:`LakeWriter` runs in a process beside the driver, and in the tasks.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from eventer_bridge.backends import history
from eventer_bridge.backends.history import History
from mariner_spark import limits
from mariner_spark.errors import LakeError, OptionError, SchemaError
from mariner_spark.lake import manifest, segments
from mariner_spark.lake.files import Files
from mariner_spark.lake.manifest import HistoryStart, Manifest, Position, Segment

FORMAT: Final = "mariner_lake"

_QUERY_ID: Final = "sql.streaming.queryId"

OTHER_STORE: Final = (
    "It is another store than the one that was ingested, or one that was set back: ingest it into"
    " a new lake"
)
"""Advice in error texts."""


class LakeSink(DataSource):
    """``writeStream.format("mariner_lake")``; see the module."""

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return FORMAT

    def streamWriter(  # noqa: N802  # Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Writer of a stream.

        Args:
            schema: columns of the stream.
            overwrite: whether the output mode is "complete".

        Raises:
            OptionError: ``path`` is missing.
            SchemaError: the columns are not those of a lake.
            LakeError: ``path`` is on an unsupported file system, or in a store.
        """
        path = self.options.get("path")
        if not path:
            raise OptionError("path", "is needed: the lake")
        if overwrite:
            raise OptionError("outputMode", "expected append")
        expected = [(i.name, i.dataType.simpleString()) for i in segments.SCHEMA]
        if [(i.name, i.dataType.simpleString()) for i in schema] != expected:
            names = ", ".join(" ".join(i) for i in expected)
            raise SchemaError(f"columns: expected {names}; got {schema.simpleString()}")
        manifest.check_location(Files(path))
        return LakeWriter(path, self.options.get("value_path"))


@dataclass
class TaskResult(WriterCommitMessage):
    """Events that a task wrote.

    Args:
        query_id: id of the stream query.
        segments: files with the events.
        base: positions in the lake before, of the servers with events.
        reached: positions of the last of these events, by server.
    """

    query_id: str
    segments: list[Segment]
    base: dict[int, Position]
    reached: dict[int, Position]


class LakeWriter(DataSourceStreamArrowWriter):
    """See the module.

    Args:
        path: the lake.
        value_path: path of the column ``value``; None: that of the lake.
    """

    def __init__(self, path: str, value_path: str | None = None) -> None:
        self._path = path
        self._value_path = value_path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write the events of a partition that the lake lacks; runs in the task.

        Raises:
            LakeError: the lake cannot be read or written.
        """
        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty(_QUERY_ID)
        assert query_id is not None
        return write_new(Files(self._path), query_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Add the segments of the tasks to the lake, unless the batch was committed before.

        Raises:
            LakeError: another stream added events of the same servers meanwhile, the values are
                from another path, or a segment is missing; the lake is unchanged.
        """
        written = [i for i in messages if isinstance(i, TaskResult)]
        files = Files(self._path)
        added = tuple(segment for message in written for segment in message.segments)
        is_new = False

        def change(old: Manifest) -> Manifest:
            nonlocal is_new
            query_id = written[0].query_id
            is_new = old.queries.get(query_id, -1) < batchId
            if not is_new:
                return old
            check(files, old, written, added)
            old = manifest.with_values(files, old, self._value_path or old.value_path)
            queries = {key: batch for key, batch in old.queries.items() if key != query_id}
            queries = dict([*queries.items(), (query_id, batchId)][-limits.LAKE_QUERIES :])
            positions = dict(old.positions)
            for message in written:
                merge(positions, message.reached)
            return old.changed(added=added, positions=positions, queries=queries)

        if not written:
            return
        try:
            manifest.update(files, change)
        finally:
            if not is_new:
                _discard(files, written)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete the segments of the tasks.

        Spark also calls it after a failed commit, when they may be in the manifest. In an object
        store they may even get into it later, so they are left to be swept there.
        """
        files = Files(self._path)
        if files.is_local:
            _discard(files, [i for i in messages if isinstance(i, TaskResult)])


def write_new(files: Files, query_id: str, batches: Iterable[pa.RecordBatch]) -> TaskResult:
    """Write the events of some batches that the lake lacks.

    Raises:
        LakeError: the lake cannot be read or written, or has another history of a server.
    """
    positions = (manifest.find(files) or Manifest()).positions
    reached: dict[int, Position] = {}
    writer = segments.SegmentWriter(files)
    try:
        for batch in batches:
            new = new_events(batch, positions)
            _check_histories(files, positions, new)
            advance(reached, new)
            writer.add(new)
        writer.flush()
    except BaseException:
        writer.discard()
        raise
    base = {server: positions[server] for server in reached if server in positions}
    return TaskResult(query_id, writer.segments, base, reached)


def check(
    files: Files, old: Manifest, written: list[TaskResult], added: tuple[Segment, ...]
) -> None:
    """Check that segments can be added to a lake.

    Raises:
        LakeError: they cannot.
    """
    for message in written:
        for server in message.reached:
            if old.positions.get(server) != message.base.get(server):
                raise LakeError(
                    f"{files}: another stream added events of server {server} meanwhile:"
                    " one at a time; start this one again"
                )
    sizes = files.sizes([i.path for i in added])
    swept = {i.path for i in old.replaced}
    for segment in added:
        if segment.path in swept or sizes[segment.path] != segment.bytes:
            raise LakeError(f"{files}/{segment.path}: is gone or changed since it was written")


def new_events(batch: pa.RecordBatch, positions: Mapping[int, Position]) -> pa.RecordBatch:
    """The events of a batch after the positions of their servers."""
    servers, sessions, instances = _ids(batch)
    keep = np.ones(batch.num_rows, dtype=bool)
    for server in _distinct(batch):
        if server in positions:
            last = positions[server]
            is_same = sessions == last.session
            is_new = (sessions > last.session) | (is_same & (instances > last.instance))
            keep &= (servers != server) | is_new
    return batch if keep.all() else batch.filter(pa.array(keep))


def advance(reached: dict[int, Position], batch: pa.RecordBatch) -> None:
    """Move positions to the last events of a batch."""
    servers, sessions, instances = _ids(batch)
    moments = batch.column("timestamp").cast(pa.int64()).to_numpy()
    histories = _histories(batch)
    for server in _distinct(batch):
        [rows] = np.nonzero(servers == server)
        rows = rows[sessions[rows] == sessions[rows].max()]
        last = rows[instances[rows].argmax()]
        session, instance, moment = (int(i[last]) for i in (sessions, instances, moments))
        found = histories.get(server)
        history_start = None if found is None else HistoryStart(found.first, found.id)
        merge(reached, {server: Position(session, instance, moment, history_start)})


def merge(positions: dict[int, Position], others: Mapping[int, Position]) -> None:
    """Move positions forward. A history applies until the next one starts."""
    for server, position in others.items():
        known = positions.get(server, position)
        last = max(known, position, key=lambda i: i.offset)
        starts = [i.history for i in (known, position) if i.history is not None]
        positions[server] = msgspec.structs.replace(last, history=max(starts, default=None))


def _check_histories(
    files: Files, positions: Mapping[int, Position], batch: pa.RecordBatch
) -> None:
    """Refuse events that do not continue those in the lake.

    Raises:
        LakeError: a server has another history.
    """
    for server, current in _histories(batch).items():
        last = positions.get(server)
        if last is None:
            continue
        if reason := history.refusal(last.history_id, current, last.session):
            raise LakeError(f"{files}: server {server}: {reason}. {OTHER_STORE}")


def _histories(batch: pa.RecordBatch) -> dict[int, History]:
    """Histories that servers report in a batch, the last one of each."""
    paths = batch.column("type_path")
    found: dict[int, History] = {}
    for row in batch.filter(pc.ends_with(paths, "/history")).to_pylist():
        server, session, text = row["server"], row["session"], row["payload_json"]
        if text is None or row["type"] != list(history.type_of(server)):
            continue
        current = history.decode(text.encode(), session)
        if current is not None and (server not in found or found[server].first < session):
            found[server] = current
    return found


def _discard(files: Files, written: list[TaskResult]) -> None:
    """Delete the segments of tasks that are not part of the lake."""
    kept = {i.path for i in (manifest.find(files) or Manifest()).segments}
    for message in written:
        segments.discard(files, [i for i in message.segments if i.path not in kept])


def _ids(batch: pa.RecordBatch) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    return tuple(batch.column(i).to_numpy() for i in ("server", "session", "instance"))


def _distinct(batch: pa.RecordBatch) -> list[int]:
    values: list[int] = pc.unique(batch.column("server")).to_pylist()
    return values
