"""Events for reports, read by Spark or by DuckDB: from a store, a gateway or a lake.

DuckDB runs in this process, without Java. It reads the files of a lake; events of a store or a
gateway are read as Spark's tasks do, by this process and others, into temporary files.
"""

import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from duckdb import DuckDBPyConnection, DuckDBPyRelation
from pyspark.sql.types import StructType

from mariner_spark import conditions, limits, reader, schema, times, values
from mariner_spark.errors import LakeError
from mariner_spark.lake.ingest import do_all, processes
from mariner_spark.lake.maintenance import count, find_rollups
from mariner_spark.lake.rollups import RollupFiles
from mariner_spark.lake.tables import EVENTS, FILES_DELETED, ROLLUPS, Lake
from mariner_spark.reports import relations
from mariner_spark.reports.events import prepare, span_of
from mariner_spark.reports.job import ReportJob
from mariner_spark.reports.relations import Relation, query
from mariner_spark.source import kinds, network, snapshots, store
from mariner_spark.source.rows import Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Engine: TypeAlias = Literal["spark", "duckdb"]


class EventSource(Protocol):
    """Reads events; of a lake, those of the job's version."""

    def read(self, job: ReportJob, columns: Collection[str]) -> AbstractContextManager[Relation]:
        """The prepared events of a job, with these columns at least."""

    def read_lake(self, job: ReportJob) -> Relation:
        """The events of a job about a lake, as the lake has them."""

    def count_unread(self, job: ReportJob) -> int:
        """How many of those have a number that cannot be read."""

    def read_rollups(self, job: ReportJob, width_us: int, origin_us: int) -> "Relation | None":
        """The rollups of those, of which buckets can be made (``maintenance.find_rollups``)."""


def end_us(source: EventSource, job: ReportJob) -> int | None:
    """Timestamp in microseconds until when a job sees silence; None: until its last event.

    It is the end of the job's time, but not after this moment. A lake may lack what followed: of a
    lake, and without such an end, it is the last event of any type in that time, for which a store
    or a gateway takes one look-up.
    """
    if job.last is not None and job.lake is None and not job.is_open:
        return min(times.parse_last(job.last), time.time_ns() // 1_000)
    if job.types is None:
        return None
    if job.lake is not None:
        return span_of(source.read_lake(job._replace(types=None))).last
    if job.options.path is not None:
        found = store.last_timestamp(
            job.options.path, snapshots.this_driver(), job.options.selection.time
        )
    else:
        found = network.last_timestamp(job.options.gateway, job.options.selection.time)
    return None if found is None else times.to_us(found)


def count_unread(source: EventSource, job: ReportJob, events: Relation) -> int:
    """Number of the events, of which numbers are asked for, whose number cannot be read."""
    if job.lake is not None:
        return source.count_unread(job)
    sql = "SELECT count(CASE WHEN value_unread THEN 1 END) AS unread FROM {events}"
    return int(relations.row(query(sql, events=events))["unread"])


_NULL_WITH_NUMBER: Final = """
    SELECT payload_json FROM {events} WHERE value IS NULL AND payload_kind = 'json' AND regexp_like(
        payload_json, '(^|[^0-9a-zA-Z_.+"-])-?[0-9][0-9.]*[eE][+]?[0-9]{{3}}|[0-9]{{200}}')
"""
"""Payloads that may have a number beyond all doubles: few."""


class SparkSource(NamedTuple):
    """Reads events with Spark."""

    spark: "SparkSession"

    @contextlib.contextmanager
    def read(self, job: ReportJob, columns: Collection[str]) -> Iterator[Relation]:
        """See :class:`EventSource`. A lake is not persisted: its Parquet is as fast."""
        if job.lake is not None:
            yield prepare(self.read_lake(job))
            return
        arguments = {**job.source, **job.selection, "value_path": job.value_path}
        arguments["source_out_of_range"] = kinds.CLIP
        events = reader.read(self.spark, **arguments, columns=_in_order(columns))
        with relations.persisted(events) as kept:
            yield kept

    def read_lake(self, job: ReportJob) -> "DataFrame":
        """See :class:`EventSource`."""
        assert job.lake is not None
        selection = job.options.selection
        return reader.read_events(self.spark, job.lake, selection, version=job.version)

    def count_unread(self, job: ReportJob) -> int:
        """See :class:`EventSource`."""
        found = query(_NULL_WITH_NUMBER, events=self.read_lake(job))
        return reader.with_value(found, job.number_path).where("value_unread").count()

    def read_rollups(self, job: ReportJob, width_us: int, origin_us: int) -> "Relation | None":
        """See :class:`EventSource`."""
        found = _find_rollups(job, width_us, origin_us)
        if found is None:
            return None
        return reader.pieces(self.spark, Lake(str(job.lake)), found, job.options.selection.types)


class DuckDBSource(NamedTuple):
    """Reads events with DuckDB; temporary files are in a folder.

    ``n_events``: about how many events there are; None: unknown.
    """

    connection: DuckDBPyConnection
    folder: Path
    n_events: int | None

    @contextlib.contextmanager
    def read(self, job: ReportJob, columns: Collection[str]) -> Iterator[Relation]:
        """See :class:`EventSource`."""
        if job.lake is not None:
            yield prepare(self.read_lake(job))
            return
        read, parts, wanted = _plan(job, columns, 1 + (self.n_events or 0) // limits.PART_ROWS)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            with processes() as pool:
                written = do_all(pool, partial(_write, Path(folder), wanted, read), parts)
            yield self._of_files([i for i in written if i is not None], wanted)

    def read_lake(self, job: ReportJob) -> DuckDBPyRelation:
        """See :class:`EventSource`."""
        assert job.lake is not None
        lake, selection = Lake(job.lake), job.options.selection
        paths = reader.select_files(lake, lake.open(EVENTS, job.version), selection)
        rows = self._of_lake(lake, EVENTS, paths, schema.LAKE_SCHEMA)
        return _where(rows, conditions.of_selection(selection, relations.duckdb_text))

    def count_unread(self, job: ReportJob) -> int:
        """See :class:`EventSource`."""

        def count(batches: Iterable[pa.RecordBatch]) -> int:
            texts = (i.column("payload_json") for i in batches)
            return sum(values.find(i, job.number_path).unread.true_count for i in texts)

        found = query(_NULL_WITH_NUMBER, events=self.read_lake(job))
        return relations.of_batches(found, count)

    def read_rollups(self, job: ReportJob, width_us: int, origin_us: int) -> "Relation | None":
        """See :class:`EventSource`."""
        found = _find_rollups(job, width_us, origin_us)
        if found is None:
            return None
        types = job.options.selection.types
        paths = found.paths(types)
        rows = self._of_lake(Lake(str(job.lake)), ROLLUPS, paths, schema.ROLLUP_SCHEMA)
        return _where(rows, found.where(types, relations.duckdb_text))

    def _of_lake(
        self, lake: Lake, table: str, paths: Sequence[str], columns: StructType
    ) -> DuckDBPyRelation:
        wanted = schema.arrow_schema(columns)
        if lake.is_local:
            try:
                return self._of_files([f"{lake.uri(table)}/{i}" for i in paths], wanted)
            except duckdb.IOException as e:
                if "No files found" not in str(e):
                    raise
                raise LakeError(f"{lake}: table {table}: {FILES_DELETED}") from e
        from pyarrow import dataset  # noqa: PLC0415  # slow to import, and only needed here

        files = lake.files(table)
        return self.connection.from_arrow(
            dataset.dataset(paths, wanted, format="parquet", filesystem=files)
        )

    def _of_files(self, paths: Sequence[str], wanted: pa.Schema) -> DuckDBPyRelation:
        """Rows of files of this machine; what a file lacks is null, as Delta has it."""
        nothing = self.connection.from_arrow(wanted.empty_table())
        if not paths:
            return nothing
        found = self.connection.read_parquet([_escaped(i) for i in paths], union_by_name=True)
        known = set(found.columns)
        columns = (
            f'"{name}"' if name in known else f'CAST(NULL AS {kind}) AS "{name}"'
            for name, kind in zip(nothing.columns, nothing.types, strict=True)
        )
        return found.project(", ".join(columns))


@contextlib.contextmanager
def open_duckdb(n_events: int | None) -> Iterator[DuckDBSource]:
    """Read so many events with DuckDB: in bounded memory, with temporary files that are removed.

    If there are many, or it is unknown, this process gets a low priority, as Java does: a gateway
    on this machine goes first.
    """
    with (
        _low_priority(is_needed=n_events is None or n_events > limits.PART_ROWS),
        tempfile.TemporaryDirectory(prefix="mariner-report-") as folder,
        relations.connect() as connection,
    ):
        connection.execute(f"SET memory_limit = '{limits.DUCKDB_MEMORY_BYTES}B'")
        connection.execute("SET temp_directory = ?", [folder])
        connection.execute("SET parquet_metadata_cache = true")  # files do not change
        yield DuckDBSource(connection, Path(folder), n_events)


@contextlib.contextmanager
def _low_priority(*, is_needed: bool) -> Iterator[None]:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if is_needed:
        os.setpriority(os.PRIO_PROCESS, 0, max(before, limits.NICENESS))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):  # only root may
            os.setpriority(os.PRIO_PROCESS, 0, before)


def choose(n_events: int | None) -> Engine:
    """The engine for so many events: Spark for very many, and if a session of it is given."""
    is_given = "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ
    return "spark" if is_given or (n_events or 0) > limits.DUCKDB_EVENTS else "duckdb"


def count_events(job: ReportJob) -> int | None:
    """Number of events in the store or the lake of a job, an estimate; None: of a gateway."""
    if job.lake is not None:
        return count(job.lake)[0]
    path = job.options.path
    return None if path is None else store.count(path, snapshots.this_driver())


# --- parts --------------------------------------------------------------------------------


def _find_rollups(job: ReportJob, width_us: int, origin_us: int) -> RollupFiles | None:
    assert job.lake is not None
    assert job.version is not None
    moments = job.options.selection.time
    return find_rollups(Lake(job.lake), job.version, width_us, origin_us, moments)


def _in_order(columns: Collection[str]) -> list[str]:
    return [i for i in schema.KNOWN.names if i in columns]


ReadPart: TypeAlias = Callable[[Any], Iterable[pa.RecordBatch]]


def _plan(
    job: ReportJob, columns: Collection[str], n_parts: int
) -> tuple[ReadPart, Sequence[Any], pa.Schema]:
    """How to read a store or a gateway, in which parts, and the columns."""
    options = job.options
    wanted = schema.arrow_schema(StructType([schema.KNOWN[i] for i in _in_order(columns)]))
    how: dict[str, Any] = {
        "selection": options.selection,
        "columns": Columns(wanted, job.number_path),
    }
    if options.path is None:
        gateway = options.gateway
        parts: Sequence[Any] = network.plan(gateway, options.selection, n_parts)
        return partial(network.read, gateway, **how), parts, wanted
    parts = store.plan(options.path, snapshots.this_driver(), options.selection, n_parts)
    return partial(store.read, **how), parts, wanted


def _write(folder: Path, wanted: pa.Schema, read: ReadPart, part: Any) -> str | None:
    """Write the events of a part to a file; None: there are none."""
    path = folder / f"{uuid.uuid4()}.parquet"
    texts = [i.name for i in wanted if i.name in {"type_path", "payload_kind"}]
    with contextlib.ExitStack() as stack:
        writer = None
        for group in _groups(read(part)):
            if writer is None:
                writer = stack.enter_context(
                    pq.ParquetWriter(path, wanted, compression="lz4", use_dictionary=texts)
                )
            writer.write_table(pa.Table.from_batches(group))
    return None if writer is None else str(path)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches of a row group each."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if len(group) * limits.BATCH_ROWS >= limits.ROW_GROUP_ROWS:
            yield group
            group = []
    if group:
        yield group


def _escaped(path: str) -> str:
    """A path without patterns of DuckDB."""
    return "".join(f"[{i}]" if i in "[*?" else i for i in path)


def _where(rows: DuckDBPyRelation, found: Iterable[str]) -> DuckDBPyRelation:
    return reduce(DuckDBPyRelation.filter, found, rows)
