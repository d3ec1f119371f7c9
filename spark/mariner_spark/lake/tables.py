"""The Delta tables of a lake: where they are, their columns, and their files.

A file of ``events`` has rows of a day (UTC) of ``timestamp``, sorted by it, in row groups of which
each task of Spark reads one; a file of ``rollups`` has buckets of one width, sorted by type. A
written file is no part of a table until it is committed. Credentials for object stores come from
the environment, by the names of the ``object_store`` library
(``AWS_ACCESS_KEY_ID``, ``GOOGLE_SERVICE_ACCOUNT``, ``AZURE_STORAGE_ACCOUNT_KEY``, …).
"""

import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from numpy.typing import NDArray
from pyarrow import fs

from eventer_bridge.errors import StorageError
from eventer_bridge.resources import blocking_entry
from mariner_spark import limits, schema, times, type_path, values
from mariner_spark.errors import LakeError, MarinerSparkError, NoLakeError
from mariner_spark.lake.columns import COLUMNS, NamedColumn, of_properties, to_property
from mariner_spark.source.options import local_path
from mariner_spark.times import EVER, Interval

EVENTS: Final = "events"
LATEST: Final = "latest"
ROLLUPS: Final = "rollups"
TABLES: Final = (EVENTS, LATEST, ROLLUPS)

ORDER: Final = ("timestamp", "server", "session", "instance")
"""Columns that events are sorted by."""

SCHEMES: Final = frozenset(("s3", "s3a", "gs", "az", "abfs", "abfss"))
"""Of object stores."""

VALUE_PATH: Final = "mariner.valuePath"
"""Table property: the path in JSON payloads of the column ``value``."""

STATISTICS: Final = ("timestamp", "bucket", "server", "session", "type_path")
"""Columns whose bounds are in the log. Long payloads have no place there."""

_OLD_FORMAT: Final = "_manifest.json"
_REFUSED: Final = re.compile(r"[][\\^|\x00-\x1f]|%[0-9A-Fa-f]{2}")
"""In a path, deltalake 1.6 fails on these."""

_NOISE: Final = re.compile(r"\x1b\[[0-9;]*m|↳|\n\s*0: .*", re.DOTALL)
"""In texts of deltalake: colours, and frames of its stack."""


def arrow_schema(table: str) -> pa.Schema:
    """Columns of a table, without its partition column; all may be null for Delta."""
    columns = schema.ROLLUP_SCHEMA if table == ROLLUPS else schema.LAKE_SCHEMA
    fields = [i.with_nullable(True) for i in schema.arrow_schema(columns)]
    is_type = pa.field("type", pa.list_(pa.string()))
    return pa.schema([is_type if i.name == "type" else i for i in fields])


_PARTITIONS: Final = {
    EVENTS: pa.field("date", pa.date32()),
    ROLLUPS: pa.field("every", pa.string()),
}


def partitions(table: str) -> list[str]:
    """Partition columns of a table: none, or one."""
    return [_PARTITIONS[table].name] if table in _PARTITIONS else []


def time_column(table: str) -> str:
    """The column with the moment of a row: of a rollup, the start of its bucket."""
    return "bucket" if table == ROLLUPS else "timestamp"


class Lake:
    """Tables below a root: a path of this machine, or a URI (``file`` or one of ``SCHEMES``).

    ``root`` is as deltalake takes it. Raises LakeError if a lake cannot be there.
    """

    def __init__(self, root: str) -> None:
        scheme, separator, _ = root.partition("://")
        self.is_local = not separator or scheme == "file"
        if not self.is_local and scheme not in SCHEMES:
            known = ", ".join(sorted(SCHEMES))
            raise LakeError(f"{root}: a lake is on a local path or in an object store, as {known}")
        self.root = str(local_path(root)) if self.is_local else root.rstrip("/")
        if found := _REFUSED.search(self.root):
            raise LakeError(f"{self.root}: the path of a lake cannot have {found[0]!r}")
        self._named: tuple[NamedColumn, ...] | None = None

    def __str__(self) -> str:
        return self.root

    def schema(self, table: str) -> pa.Schema:
        """Columns of a table, without its partition column: with the named ones of this lake."""
        if table == ROLLUPS:
            return arrow_schema(table)
        named = self._named  # another thread may forget it
        if named is None:
            found = self.find()
            named = self._named = () if found is None else columns_of(found)
        return pa.schema([*arrow_schema(table), *(i.field for i in named)])

    def uri(self, table: str) -> str:
        """Where a table is."""
        return f"{self.root}/{table}"

    def files(self, table: str) -> fs.FileSystem:
        """The files of a table, for pyarrow; paths are below it."""
        if self.is_local:
            return fs.SubTreeFileSystem(self.uri(table), fs.LocalFileSystem())
        return fs.PyFileSystem(DeltaStorageHandler(self.uri(table)))

    def find(self, table: str = EVENTS) -> DeltaTable | None:
        """A table at its latest version; None: there is none.

        Raises LakeError if it cannot be read, or the folder is a lake of the format before.
        """
        with self.errors():
            self._refuse_blocking(table)
            if DeltaTable.is_deltatable(self.uri(table)):
                found = DeltaTable(self.uri(table))
            elif not self.files("").get_file_info([_OLD_FORMAT])[0].is_file:
                return None
            else:
                raise LakeError(
                    f"{self}: a lake of Parquet files with a manifest ({_OLD_FORMAT}), which is no"
                    " longer read: delete the folder or choose another one, and ingest the events"
                    " again"
                )
        protocol = found.protocol()
        if protocol.min_reader_version > 1:  # rows of its files may be deleted, columns renamed
            features = ", ".join(protocol.reader_features or ["columnMapping"])
            raise LakeError(f"{self}: another tool changed table {table}: it needs {features}")
        return found

    def open(self, table: str = EVENTS, version: int | datetime | None = None) -> DeltaTable:
        """A table, at a version or the moment of one; None: the latest.

        Raises NoLakeError if there is no such table, LakeError as :meth:`find`, and without the
        version.
        """
        found = self.find(table)
        if found is None:
            self._refuse_without(table)
        latest = found.version()
        if isinstance(version, int) and not 0 <= version <= latest:
            known = f"expected one from 0 to {latest}"
            raise LakeError(f"{self}: table {table}: no version {version}, {known}")
        with self.errors():
            if version is not None:
                found.load_as_version(version)
            if isinstance(version, datetime):  # before the first version, deltalake loads that
                [log] = self.files(table).get_file_info([log_path(found.version())])
                if log.mtime is not None and _to_ms(version) < _to_ms(log.mtime):
                    there = f"its first version is of {log.mtime.isoformat()}"
                    raise LakeError(f"{self}: table {table}: {there}, not {version.isoformat()}")
        return found

    def _refuse_without(self, table: str) -> NoReturn:
        if table != EVENTS and self.find() is not None:
            text = "`mariner lake rebuild` or the next ingestion makes it"
            raise LakeError(f"{self}: table {table} is not made yet: {text}")
        raise NoLakeError(f"{self}: no lake: it has no Delta table {table}")

    def check(
        self, value_path: str | None, columns: Sequence[NamedColumn] = ()
    ) -> DeltaTable | None:
        """The table of events, if there is one; checks that events can be added.

        Raises LakeError if it cannot be read, or its values are from another path than
        ``value_path`` (None: that of the lake), or its named columns are others than ``columns``
        (none: those of the lake); MarinerSparkError if it would be in a store, or the path is
        invalid.
        """
        if value_path is not None:
            values.parse(value_path)
        found = self.find()
        if found is None:
            if self.is_local:
                refuse_within_store(Path(self.uri(EVENTS)))
        elif value_path not in {None, known := value_path_of(found)}:
            raise LakeError(f"{self}: its values are those of {known}, not of {value_path}")
        elif columns and {*columns} != {*(named := columns_of(found))}:
            has, others = (", ".join(map(str, i)) or "none" for i in (named, columns))
            raise LakeError(f"{self}: its named columns are {has}, not {others}")
        return found

    def create(
        self, table: str, value_path: str | None = None, columns: Sequence[NamedColumn] = ()
    ) -> DeltaTable:
        """A table, created if there is none; other arguments and errors as of :meth:`check`."""
        found = self.check(value_path, columns) if table == EVENTS else self.find(table)
        if found is not None:
            return found
        names = [i for i in STATISTICS if i in arrow_schema(table).names]
        configuration = {"delta.dataSkippingStatsColumns": ",".join(names)}
        if table == EVENTS:
            configuration[VALUE_PATH] = value_path or values.DEFAULT_PATH
            configuration[COLUMNS] = to_property(columns)
            configuration["delta.enableChangeDataFeed"] = "true"
            self._named = (*columns,)
        # another writer may create it at the same moment
        with self.errors(), contextlib.suppress(CommitFailedError):
            DeltaTable.create(
                self.uri(table),
                self._delta_schema(table),
                mode="ignore",
                partition_by=partitions(table),
                configuration=configuration,
                raise_if_key_not_exists=False,
            )
        self._sync_log(table, 0)
        self._named = None  # another writer may have been faster
        return self.create(table, value_path, columns)

    def commit(
        self,
        table: DeltaTable,
        name: str,
        actions: Sequence[AddAction | RemoveAction],
        transactions: Sequence[Transaction] = (),
        *,
        replaces_all: bool = False,
    ) -> bool:
        """Commit changes of files together with application transactions; durably.

        ``table`` is at the version that the changes were made for; if ``replaces_all``, it has no
        other files then. Returns whether it was done; false: another commit changed one of the
        transactions, or came before one that removes files. Raises LakeError if it is not writable.
        """
        # deltalake does not notice that another commit removes the same file, or adds more files
        tries = 0 if replaces_all or any(isinstance(i, RemoveAction) for i in actions) else None
        properties = CommitProperties(app_transactions=[*transactions], max_commit_retries=tries)
        with self.errors():
            try:
                table.create_write_transaction(
                    [*actions],
                    "overwrite" if replaces_all else "append",
                    Schema.from_arrow(self._delta_schema(name)),
                    partitions(name),
                    commit_properties=properties,
                )
            except CommitFailedError:
                return False
        self._sync_log(name, table.version() + 1)
        return True

    def vacuum(self, name: str, grace_hours: int, *, is_dry: bool = False) -> list[str]:
        """Delete files below a table that belong to no version, and are older than the grace.

        Returns their paths; if ``is_dry``, they are only listed. Raises LakeError if one cannot be
        deleted, or a link in the folder leads out of it.
        """
        for path in Path(self.uri(name)).rglob("*") if self.is_local and not is_dry else ():
            if path.is_symlink():
                raise LakeError(f"{path}: is a link: what it leads to would be deleted")
        table = self.open(name)
        with self.errors():
            deleted = table.vacuum(
                grace_hours, dry_run=is_dry, enforce_retention_duration=False, full=True
            )
        if not is_dry:
            self._sync_log(name, table.version() + 1)
        return deleted

    @contextlib.contextmanager
    def new_file(self, table: str, path: str) -> Iterator[pa.NativeFile]:
        """Write a file, given by its path below a table, durably."""
        target = Path(self.uri(table), path)
        with self.errors():
            if self.is_local:
                target.parent.mkdir(parents=True, exist_ok=True)
            with self.files(table).open_output_stream(path) as file:
                yield file
            if self.is_local:
                _sync(target, target.parent)  # whose own entry is synced with the commit

    def _delta_schema(self, table: str) -> pa.Schema:
        """All columns of a table."""
        found = self.schema(table)
        return found.append(_PARTITIONS[table]) if table in _PARTITIONS else found

    def _sync_log(self, name: str, version: int) -> None:
        """Make commits durable, with the folders that they need."""
        if self.is_local:
            log = Path(self.uri(name), "_delta_log")
            with self.errors():
                # checkpoints, too, and _last_checkpoint, which sorts after all numbers
                new = (i for i in log.iterdir() if i.name >= f"{version:020}")
                _sync(*new, log, log.parent, log.parent.parent)

    def _refuse_blocking(self, table: str) -> None:
        """Reading a FIFO would never end: there is none among what says which files there are."""
        log = Path(self.uri(table), "_delta_log")
        if self.is_local and log.is_dir() and (found := blocking_entry(log)) is not None:
            raise LakeError(f"{found}: a FIFO or a device, expected a regular file")

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors to LakeError."""
        try:
            yield
        except (DeltaError, OSError, pa.ArrowException, ValueError, OverflowError) as e:
            reason = getattr(e, "strerror", None) or _NOISE.sub("", str(e))
            raise LakeError(f"{self}: {' '.join(reason.split())}") from e


def log_path(version: int) -> str:
    """A commit in the log of a table, below it."""
    return f"_delta_log/{version:020}.json"


def value_path_of(events: DeltaTable) -> str:
    """Path in JSON payloads of the column ``value``."""
    return str(events.metadata().configuration.get(VALUE_PATH, values.DEFAULT_PATH))


def columns_of(events: DeltaTable) -> tuple[NamedColumn, ...]:
    """Named columns of a table of events."""
    return of_properties(events.metadata().configuration)


def _to_ms(moment: datetime) -> datetime:
    """A moment in the unit of a Delta log."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


# --- files --------------------------------------------------------------------------------

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


LAST_PATH: Final = "\U0010ffff" * 3
"""After all type paths that occur."""

_ROUNDED_US: Final = 1_000
"""Compaction rounds timestamps in the log to milliseconds."""


class TableFile(NamedTuple):
    """A file of a table, by its path below it, with what the log says of it.

    Its rows are within ``time``, and from type path ``first_type`` to ``last_type``. ``partition``
    is the text of its partition column.
    """

    path: str
    rows: int
    bytes: int
    time: Interval
    first_type: str
    last_type: str
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
            file.get("max.type_path") or LAST_PATH,
            str(file.get(f"partition.{partition}")),
        )
        for file in pa.table(table.get_add_actions(flatten=True)).to_pylist()
    ]


def _us(moment: datetime | None, more_us: int) -> int | None:
    return None if moment is None else times.from_datetime(moment) + more_us


def paths_of(table: DeltaTable) -> list[str]:
    """The files of a table, below it."""
    return list(pa.table(table.get_add_actions()).column("path").to_pylist())


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


def refuse_within_store(path: Path) -> None:
    """Raise MarinerSparkError if a path is inside an event store."""
    # slow to import, and only needed here
    from eventer_bridge.backends.rocksdb import directories  # noqa: PLC0415

    try:
        directories.refuse_within_store(path)
    except StorageError as e:
        raise MarinerSparkError(str(e)) from e


def _sync(*paths: Path) -> None:
    """Make files and folders durable; those that are gone are left out."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
