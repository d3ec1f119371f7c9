"""The sink of streams that end in a lake: ``writeStream.format("mariner_lake")``.

Tasks write segments, which nobody reads yet. When all of a batch are written, the driver adds
them to the manifest, in one step. Killed before it, the batch is done again, and its first
segments are swept later; killed after it, the batch is offered again, and is known.

Options: ``path``, the lake; ``value_path``, where in JSON payloads the column ``value`` comes from
(as before, ``$.value`` for a new lake). The stream has to give every server's events in the order
of their ids, all of them: an event that is not behind the last one of its server in the lake is
taken to be there already.

:class:`LakeWriter` lives in a process beside the driver, and in the tasks.
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
from mariner_spark.lake.manifest import Begun, Manifest, Position, Segment

FORMAT: Final = "mariner_lake"

_QUERY_ID: Final = "sql.streaming.queryId"

OTHER_STORE: Final = (
    "It is another store than the one that was ingested, or one that was set back: ingest it into"
    " a new lake"
)
"""What to do."""


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
            LakeError: ``path`` is on no file system that a lake can be on, or in a store.
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
        manifest.check_place(Files(path))
        return LakeWriter(path, self.options.get("value_path"))


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote.

    Args:
        query_id: the stream query.
        segments: its events.
        base: by server, for those with events: the last event that was in the lake before.
        reached: by server: the last of these events.
    """

    query_id: str
    segments: list[Segment]
    base: dict[int, Position]
    reached: dict[int, Position]


class LakeWriter(DataSourceStreamArrowWriter):
    """See the module.

    Args:
        path: the lake.
        value_path: where the column ``value`` comes from; None: as the lake has it.
    """

    def __init__(self, path: str, value_path: str | None = None) -> None:
        self._path = path
        self._value_path = value_path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the events of a task that are not in the lake; runs in the task.

        Raises:
            LakeError: the lake cannot be read or written.
        """
        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty(_QUERY_ID)
        assert query_id is not None
        return write_new(Files(self._path), query_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make what the tasks wrote part of the lake, unless this batch is.

        Raises:
            LakeError: another stream added events of the same servers meanwhile, or values of
                another path, or a segment is gone; the lake is as before.
        """
        written = [i for i in messages if isinstance(i, Written)]
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
        """Delete what the tasks wrote.

        Spark calls it also after a commit that failed, when the manifest may hold them. In an
        object store it may even come to hold them later: there they are left to be swept.
        """
        files = Files(self._path)
        if files.is_local:
            _discard(files, [i for i in messages if isinstance(i, Written)])


def write_new(files: Files, query_id: str, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write the events of some batches that are not in the lake.

    Raises:
        LakeError: the lake cannot be read or written, or has another history of a server.
    """
    positions = (manifest.find(files) or Manifest()).positions
    reached: dict[int, Position] = {}
    writer = segments.SegmentWriter(files)
    try:
        for batch in batches:
            new = behind(batch, positions)
            _check_histories(files, positions, new)
            advance(reached, new)
            writer.add(new)
        writer.flush()
    except BaseException:
        writer.discard()
        raise
    base = {server: positions[server] for server in reached if server in positions}
    return Written(query_id, writer.segments, base, reached)


def check(files: Files, old: Manifest, written: list[Written], added: tuple[Segment, ...]) -> None:
    """Check that segments can become part of a lake.

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


def behind(batch: pa.RecordBatch, positions: Mapping[int, Position]) -> pa.RecordBatch:
    """The events of a batch that are behind the last ones of their servers."""
    servers, sessions, instances = _ids(batch)
    keep = np.ones(batch.num_rows, dtype=bool)
    for server in _distinct(batch):
        if server in positions:
            last = positions[server]
            is_same = sessions == last.session
            is_behind = (sessions > last.session) | (is_same & (instances > last.instance))
            keep &= (servers != server) | is_behind
    return batch if keep.all() else batch.filter(pa.array(keep))


def advance(reached: dict[int, Position], batch: pa.RecordBatch) -> None:
    """Note the last events of a batch, by server."""
    servers, sessions, instances = _ids(batch)
    moments = batch.column("timestamp").cast(pa.int64()).to_numpy()
    told = _histories(batch)
    for server in _distinct(batch):
        [rows] = np.nonzero(servers == server)
        rows = rows[sessions[rows] == sessions[rows].max()]
        last = rows[instances[rows].argmax()]
        session, instance, moment = (int(i[last]) for i in (sessions, instances, moments))
        begun = Begun(told[server].first, told[server].id) if server in told else None
        merge(reached, {server: Position(session, instance, moment, begun)})


def merge(positions: dict[int, Position], others: Mapping[int, Position]) -> None:
    """Note positions that are further. A history lasts until another one begins."""
    for server, position in others.items():
        known = positions.get(server, position)
        last = max(known, position, key=lambda i: i.place)
        told = [i.history for i in (known, position) if i.history is not None]
        positions[server] = msgspec.structs.replace(last, history=max(told, default=None))


def _check_histories(
    files: Files, positions: Mapping[int, Position], batch: pa.RecordBatch
) -> None:
    """Refuse events that do not go on from those that are in the lake.

    Raises:
        LakeError: a server has another history.
    """
    for server, told in _histories(batch).items():
        last = positions.get(server)
        if last is None:
            continue
        if reason := history.refusal(last.history_id, told, last.session):
            raise LakeError(f"{files}: server {server}: {reason}. {OTHER_STORE}")


def _histories(batch: pa.RecordBatch) -> dict[int, History]:
    """Histories that servers tell of in a batch, the last one of each."""
    paths = batch.column("type_path")
    found: dict[int, History] = {}
    for row in batch.filter(pc.ends_with(paths, "/history")).to_pylist():
        server, session, text = row["server"], row["session"], row["payload_json"]
        if text is None or row["type"] != list(history.type_of(server)):
            continue
        told = history.decode(text.encode(), session)
        if told is not None and (server not in found or found[server].first < session):
            found[server] = told
    return found


def _discard(files: Files, written: list[Written]) -> None:
    """Delete what tasks wrote, except what is part of the lake."""
    held = {i.path for i in (manifest.find(files) or Manifest()).segments}
    for message in written:
        segments.discard(files, [i for i in message.segments if i.path not in held])


def _ids(batch: pa.RecordBatch) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    return tuple(batch.column(i).to_numpy() for i in ("server", "session", "instance"))


def _distinct(batch: pa.RecordBatch) -> list[int]:
    values: list[int] = pc.unique(batch.column("server")).to_pylist()
    return values
