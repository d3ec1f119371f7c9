"""The Delta tables of a lake: where they are, their columns, and commits to them.

Credentials for object stores come from the environment, by the names of the ``object_store``
library (``AWS_ACCESS_KEY_ID``, ``GOOGLE_SERVICE_ACCOUNT``, ``AZURE_STORAGE_ACCOUNT_KEY``, …).
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NoReturn

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from eventer_bridge.errors import StorageError
from eventer_bridge.resources import blocking_entry
from mariner_spark import schema, values
from mariner_spark.errors import LakeError, MarinerSparkError, NoLakeError
from mariner_spark.lake.columns import COLUMNS, NamedColumn, of_properties, to_property
from mariner_spark.source.kinds import local_path

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

FILES_DELETED: Final = "files of this version are deleted, as by a vacuum: read a later one"

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
