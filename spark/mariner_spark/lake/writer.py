"""The sink of streams into a lake: ``writeStream.format("mariner_lake")``; see the package.

Options: ``path``, the lake, which exists. The stream must have all events of each server in the
order of their ids: events up to the server's position in the lake are skipped.

:class:`LakeWriter` runs in a process beside the driver, and in the tasks.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from eventer_bridge.backends import history
from eventer_bridge.backends.history import History
from mariner_spark import limits, type_path
from mariner_spark.errors import LakeError, OptionError, SchemaError
from mariner_spark.lake import positions
from mariner_spark.lake.files import EventWriter
from mariner_spark.lake.positions import Position
from mariner_spark.lake.tables import EVENTS, INPUT, Lake, value_path_of

FORMAT: Final = "mariner_lake"

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
            SchemaError: the columns are not :data:`tables.INPUT`.
        """
        path = self.options.get("path")
        if not path:
            raise OptionError("path", "is needed: the lake")
        if overwrite:
            raise OptionError("outputMode", "expected append")
        if _columns(schema) != (expected := _columns(INPUT)):
            names = ", ".join(" ".join(i) for i in expected)
            raise SchemaError(f"columns: expected {names}; got {schema.simpleString()}")
        return LakeWriter(path)


@dataclass
class Written(WriterCommitMessage):
    """Events that a task wrote.

    Args:
        files: files with the events.
        base: positions in the lake before, of the servers with events.
        reached: the last of these events, by server.
        told: histories that these events tell, the last one of each server.
    """

    files: list[AddAction]
    base: dict[int, Position]
    reached: dict[int, Position]
    told: dict[int, History]


class LakeWriter(DataSourceStreamArrowWriter):
    """See the module.

    Args:
        path: the lake.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the events of a partition that the lake lacks; runs in the task.

        Raises:
            LakeError: the lake cannot be read or written.
        """
        return write_new(Lake(self._path), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Add the files of the tasks to the lake.

        Raises:
            LakeError: as :func:`append`.
        """
        append(Lake(self._path), [i for i in messages if isinstance(i, Written)])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the vacuum removes the files of the tasks.

        Spark also aborts if only the answer of a commit was lost.
        """


def write_new(lake: Lake, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write the events of some batches that a lake lacks.

    Raises:
        LakeError: the lake cannot be read or written, or has another history of a server.
    """
    table = lake.open()
    base = positions.find_all(table)
    writer = EventWriter(lake, value_path_of(table))
    reached: dict[int, Position] = {}
    told: dict[int, History] = {}
    for batch in batches:
        new = _new_events(batch, base)
        found = _histories(new)
        check_histories(lake, base, found)
        told.update(found)
        _advance(reached, new)
        writer.add(new)
    writer.flush()
    return Written(writer.files, {i: base[i] for i in reached if i in base}, reached, told)


def append(lake: Lake, written: list[Written]) -> None:
    """Commit the files of some tasks, unless another writer committed the same events meanwhile.

    Raises:
        LakeError: another writer added events of the same servers meanwhile, or a file is gone; the
            lake is unchanged.
    """
    files = [file for part in written for file in part.files]
    if not files:
        return
    _check_files(lake, files)
    base = {server: known for part in written for server, known in part.base.items()}
    reached = _reached(base, written)
    for _ in range(limits.COMMIT_TRIES):
        table = lake.open()
        current = {i: positions.find(table, i) for i in reached}
        if current == reached:
            return
        for server, position in current.items():
            if any(i.base.get(server) != position for i in written if server in i.reached):
                raise LakeError(
                    f"{lake}: another ingestion added events of server {server} meanwhile: one at"
                    " a time; start this one again"
                )
        if lake.commit(table, EVENTS, files, positions.transactions(table, reached)):
            return
    raise LakeError(f"{lake}: {limits.COMMIT_TRIES} commits failed: too many writers")


def _check_files(lake: Lake, files: Sequence[AddAction]) -> None:
    """Refuse files that a vacuum has deleted.

    Raises:
        LakeError: one is gone.
    """
    with lake.errors():
        found = lake.file_system(EVENTS).get_file_info([i.path for i in files])
    for file, info in zip(files, found, strict=True):
        if info.size != file.size:
            raise LakeError(f"{lake}: {file.path}: is gone or changed since it was written")


def check_histories(
    lake: Lake, base: Mapping[int, Position], found: Mapping[int, History], source: str = ""
) -> None:
    """Refuse events that do not continue those in the lake.

    Args:
        lake: the lake.
        base: its positions.
        found: histories that servers report.
        source: where, for the text of the error.

    Raises:
        LakeError: a server has another history.
    """
    for server, current in found.items():
        if (last := base.get(server)) is None:
            continue
        if reason := history.refusal(last.history, current, last.session):
            where = f"{source}: " if source else ""
            raise LakeError(f"{lake}: {where}server {server}: {reason}. {OTHER_STORE}")


def _reached(base: Mapping[int, Position], written: list[Written]) -> dict[int, Position]:
    """Positions after all tasks. A history applies until the next one begins."""
    reached: dict[int, Position] = {}
    told: dict[int, History] = {}
    for part in written:
        for server, position in part.reached.items():
            reached[server] = max(reached.get(server, position), position, key=_offset)
        for server, found in part.told.items():
            told[server] = max(told.get(server, found), found, key=lambda i: i.first)
    for server, position in reached.items():
        name = _uuid(told[server].id) if server in told else None
        if name is None and server in base:
            name = base[server].history
        reached[server] = msgspec.structs.replace(position, history=name)
    return reached


def _new_events(batch: pa.RecordBatch, base: Mapping[int, Position]) -> pa.RecordBatch:
    """The events of a batch after the positions of their servers."""
    servers, sessions, instances = _ids(batch)
    keep = np.ones(batch.num_rows, dtype=bool)
    for server in np.unique(servers).tolist():
        if server in base:
            last = base[server]
            is_new = sessions > last.session
            is_new |= (sessions == last.session) & (instances > last.instance)
            keep &= (servers != server) | is_new
    return batch if keep.all() else batch.filter(pa.array(keep))


def _advance(reached: dict[int, Position], batch: pa.RecordBatch) -> None:
    """Move positions to the last events of a batch."""
    servers, sessions, instances = _ids(batch)
    moments = batch.column("timestamp").cast(pa.int64()).to_numpy()
    for server in np.unique(servers).tolist():
        [rows] = np.nonzero(servers == server)
        rows = rows[sessions[rows] == sessions[rows].max()]
        last = rows[instances[rows].argmax()]
        new = Position(int(sessions[last]), int(instances[last]), int(moments[last]))
        reached[server] = max(reached.get(server, new), new, key=_offset)


def _histories(batch: pa.RecordBatch) -> dict[int, History]:
    """Histories that servers report in a batch, the last one of each."""
    paths = batch.column("type_path")
    found: dict[int, History] = {}
    columns = ["server", "session", "type_path", "payload_json"]
    for row in batch.filter(pc.ends_with(paths, "/history")).select(columns).to_pylist():
        server, session, text = row["server"], row["session"], row["payload_json"]
        if text is None or row["type_path"] != type_path.encode(history.type_of(server)):
            continue
        current = history.decode(text.encode(), session)
        if current is not None and (server not in found or found[server].first < session):
            found[server] = current
    return found


def _uuid(name: str) -> str | None:
    """Name of a history, if it is one of ours: a UUID."""
    try:
        return name if str(uuid.UUID(name)) == name else None
    except ValueError:
        return None


def _ids(batch: pa.RecordBatch) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    return tuple(batch.column(i).to_numpy() for i in ("server", "session", "instance"))


def _offset(position: Position) -> tuple[int, int]:
    return position.offset


def _columns(columns: StructType) -> list[tuple[str, str]]:
    return [(i.name, i.dataType.simpleString()) for i in columns]
