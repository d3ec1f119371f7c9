"""The Delta tables of a lake: where they are, and their columns.

Credentials for object stores come from the environment, by the names of the ``object_store``
library (``AWS_ACCESS_KEY_ID``, ``GOOGLE_SERVICE_ACCOUNT``, ``AZURE_STORAGE_ACCOUNT_KEY``, …).
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs
from pyspark.sql.types import DoubleType, StructField, StructType

from mariner_spark import limits, schema
from mariner_spark.errors import LakeError, MarinerSparkError, NoLakeError
from mariner_spark.local_path import local_path, refuse_within_store
from mariner_spark.values import DEFAULT_PATH

EVENTS: Final = "events"
LATEST: Final = "latest"
VALUES: Final = "values"
TABLES: Final = (EVENTS, LATEST, VALUES)

SCHEMA: Final = StructType([*schema.SCHEMA.fields, StructField("value", DoubleType())])
"""Columns of events: those of the data source, and ``value``: the number in a JSON payload."""

INPUT: Final = StructType([i for i in schema.SCHEMA if i.name != "type"])
"""Columns that a writer takes: ``type_path`` has the type, and is much faster."""

ORDER: Final = ("timestamp", "server", "session", "instance")
"""Columns that events are sorted by."""

SCHEMES: Final = frozenset(("s3", "s3a", "gs", "az", "abfs", "abfss"))
"""Of object stores."""

VALUE_PATH: Final = "mariner.valuePath"
"""Table property: the path in JSON payloads of the column ``value``."""

_OLD_FORMAT: Final = "_manifest.json"
_REFUSED: Final = re.compile(r"[][\\^|\x00-\x1f]|%[0-9A-Fa-f]{2}")
"""In a path, deltalake 1.6 fails on these."""

_NOISE: Final = re.compile(r"\x1b\[[0-9;]*m|↳|\n\s*0: .*", re.DOTALL)
"""In texts of deltalake: colours, and frames of its stack."""

STATISTICS: Final = ("timestamp", "server", "session", "type_path")
"""Columns whose bounds are in the log. Long payloads have no place there."""


def arrow_schema(table: str) -> pa.Schema:
    """Columns of a table, without its partition column ``date``; all may be null for Delta."""
    columns = schema.arrow_schema(SCHEMA)
    if table == VALUES:
        columns = pa.schema([columns.field(i) for i in ("type_path", "timestamp", "value")])
    nullable = [i.with_nullable(True) for i in columns]
    names = [i.name for i in nullable]
    if "type" in names:
        nullable[names.index("type")] = pa.field("type", pa.list_(pa.string()))
    return pa.schema(nullable)


def partitions(table: str) -> list[str]:
    """Partition columns of a table."""
    return [] if table == LATEST else ["date"]


def delta_schema(table: str) -> pa.Schema:
    """All columns of a table."""
    return pa.schema([*arrow_schema(table), *(pa.field(i, pa.date32()) for i in partitions(table))])


class Lake:
    """Tables below a root.

    Args:
        root: a path of this machine, or a URI: ``file``, ``s3``, ``s3a``, ``gs``, ``az``, ``abfs``,
            ``abfss``.

    Attributes:
        is_local: whether it is on this machine.
        root: as deltalake takes it.

    Raises:
        LakeError: a lake cannot be there.
    """

    def __init__(self, root: str) -> None:
        scheme, separator, _ = root.partition("://")
        self.is_local = not separator or scheme == "file"
        if not self.is_local and scheme not in SCHEMES:
            raise LakeError(
                f"{root}: a lake is on a local path or in an object store, as"
                f" {', '.join(sorted(SCHEMES))}"
            )
        self.root = str(local_path(root)) if self.is_local else root.rstrip("/")
        if found := _REFUSED.search(self.root):
            raise LakeError(f"{self.root}: the path of a lake cannot have {found[0]!r}")

    def __str__(self) -> str:
        return self.root

    def uri(self, table: str) -> str:
        """Where a table is."""
        return f"{self.root}/{table}"

    def find(self, table: str = EVENTS) -> DeltaTable | None:
        """A table at its latest version; None: there is none.

        Raises:
            LakeError: it cannot be read, or the folder is a lake of the format before.
        """
        with self.errors():
            try:
                found = DeltaTable(self.uri(table))
            except TableNotFoundError:
                self._refuse_old_format()
                return None
        protocol = found.protocol()
        if protocol.min_reader_version > 1:  # rows of its files may be deleted, columns renamed
            features = ", ".join(protocol.reader_features or ["columnMapping"])
            raise LakeError(f"{self}: another tool changed table {table}: it needs {features}")
        return found

    def open(self, table: str = EVENTS, version: int | datetime | None = None) -> DeltaTable:
        """A table.

        Args:
            table: its name.
            version: a version, or the moment of one; None: the latest.

        Raises:
            NoLakeError: there is no such table.
            LakeError: as :meth:`find`, or there is no such version.
        """
        found = self.find(table)
        if found is None:
            raise NoLakeError(f"{self}: no lake: it has no Delta table {table}")
        if version is not None:
            with self.errors():
                found.load_as_version(version)
        return found

    def create(self, table: str, value_path: str | None = None) -> DeltaTable:
        """A table, created if there is none.

        Args:
            table: its name.
            value_path: path of the column ``value``; None: that of the lake, or the default.

        Raises:
            LakeError: as :meth:`check`, or it cannot be created.
        """
        found = self.check(value_path) if table == EVENTS else self.find(table)
        if found is not None:
            return found
        names = [i for i in STATISTICS if i in arrow_schema(table).names]
        configuration = {"delta.dataSkippingStatsColumns": ",".join(names)}
        if table == EVENTS:
            configuration[VALUE_PATH] = value_path or DEFAULT_PATH
        # another writer may create it at the same moment
        with self.errors(), contextlib.suppress(CommitFailedError):
            DeltaTable.create(
                self.uri(table),
                delta_schema(table),
                mode="ignore",
                partition_by=partitions(table),
                configuration=configuration,
                raise_if_key_not_exists=False,
            )
        self._sync_log(table, 0)
        if table == EVENTS:
            self.check(value_path)
        return self.open(table)

    def commit(
        self,
        table: DeltaTable,
        name: str,
        files: Sequence[AddAction],
        transactions: Sequence[Transaction],
        *,
        replaces_all: bool = False,
    ) -> bool:
        """Commit files together with application transactions; durably.

        Args:
            table: the table, at the version that the transactions were read from.
            name: its name.
            files: to add.
            transactions: their new versions.
            replaces_all: whether the table has no other files then.

        Returns:
            Whether it was done; false: another commit changed one of the transactions or, if it
            replaces all, anything.

        Raises:
            LakeError: the table cannot be written.
        """
        # as for replace: it must not miss files that another commit added
        tries = 0 if replaces_all else None
        properties = CommitProperties(app_transactions=[*transactions], max_commit_retries=tries)
        mode: Literal["append", "overwrite"] = "overwrite" if replaces_all else "append"
        return self._commit(table, name, [*files], mode, properties)

    def replace(self, name: str, old: Sequence[RemoveAction], new: Sequence[AddAction]) -> bool:
        """Replace files of a table by others with the same rows; durably.

        Args:
            name: the table.
            old: files to remove.
            new: files that replace them.

        Returns:
            Whether it was done; false: another commit removed some of them.

        Raises:
            LakeError: the table cannot be written.
        """
        # deltalake does not see that another commit removes the same file: so no other commit may
        # come between the look and the commit
        properties = CommitProperties(max_commit_retries=0)
        for _ in range(limits.COMMIT_TRIES):
            table = self.open(name)
            with self.errors():
                paths = paths_of(table)
            if not set(paths).issuperset(i.path for i in old):
                return False
            if self._commit(table, name, [*old, *new], "append", properties):
                return True
        return False

    def _commit(
        self,
        table: DeltaTable,
        name: str,
        actions: list[AddAction | RemoveAction],
        mode: Literal["append", "overwrite"],
        properties: CommitProperties,
    ) -> bool:
        columns = Schema.from_arrow(delta_schema(name))
        with self.errors():
            try:
                table.create_write_transaction(
                    actions, mode, columns, partitions(name), commit_properties=properties
                )
            except CommitFailedError:
                return False
        self._sync_log(name, table.version() + 1)
        return True

    def vacuum(self, name: str, grace_hours: int, *, is_dry: bool = False) -> list[str]:
        """Delete files that belong to no table.

        Args:
            name: the table.
            grace_hours: how long they are kept.
            is_dry: only tell which.

        Returns:
            Their paths, below the table.

        Raises:
            LakeError: one cannot be deleted, or a link in the folder leads out of it.
        """
        for folder, folders, files in os.walk(self.uri(name)) if self.is_local else ():
            for path in (Path(folder, i) for i in (*folders, *files)):
                if path.is_symlink() and not is_dry:
                    raise LakeError(f"{path}: is a link: what it leads to would be deleted")
        table = self.open(name)
        with self.errors():
            deleted = table.vacuum(
                grace_hours, dry_run=is_dry, enforce_retention_duration=False, full=True
            )
        if not is_dry:
            self._sync_log(name, table.version() + 1)
        return deleted

    def _sync_log(self, name: str, version: int) -> None:
        """Make commits durable, with the folders that they need."""
        if not self.is_local:
            return
        log = Path(self.uri(name), "_delta_log")
        with self.errors():
            for file in log.iterdir():
                # checkpoints, too, and _last_checkpoint, which is behind all numbers
                if file.name >= f"{version:020}":
                    with contextlib.suppress(FileNotFoundError):
                        _sync(file)
            for folder in (log, log.parent, log.parent.parent):
                _sync(folder)

    def check(self, value_path: str | None) -> DeltaTable | None:
        """Check that events can be added.

        Args:
            value_path: path of the column ``value``; None: that of the lake.

        Returns:
            The table of events; None: there is none.

        Raises:
            LakeError: as :meth:`create`.
        """
        found = self.find()
        if found is None:
            if self.is_local:
                try:
                    refuse_within_store(Path(self.root, EVENTS))
                except MarinerSparkError as e:
                    raise LakeError(str(e)) from e
        elif value_path is not None and value_path != (known := value_path_of(found)):
            raise LakeError(f"{self}: its values are those of {known}, not of {value_path}")
        return found

    @contextlib.contextmanager
    def new_file(self, table: str, path: str) -> Iterator[pa.NativeFile]:
        """Write a file of a table, durably.

        Args:
            table: name of the table.
            path: below the table.

        Raises:
            LakeError: it cannot be written.
        """
        with self.errors():
            if not self.is_local:
                with self.file_system(table).open_output_stream(path) as file:
                    yield file
                return
            target = Path(self.uri(table), path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(target), "wb") as file:
                yield file
            _sync(target)
            _sync(target.parent)  # its own entry is synced with the commit

    def file_system(self, table: str) -> fs.FileSystem:
        """The files of a table, for pyarrow."""
        return fs.PyFileSystem(DeltaStorageHandler(self.uri(table)))

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors to LakeError."""
        try:
            yield
        except TableNotFoundError:
            raise
        except (DeltaError, OSError, pa.ArrowException, ValueError, OverflowError) as e:
            reason = getattr(e, "strerror", None) or _NOISE.sub("", str(e))
            raise LakeError(f"{self}: {' '.join(reason.split())}") from e

    def _refuse_old_format(self) -> None:
        if self.is_local:
            is_old = Path(self.root, _OLD_FORMAT).exists()
        else:
            [found] = DeltaStorageHandler(self.root).get_file_info([_OLD_FORMAT])
            is_old = found.type == fs.FileType.File
        if is_old:
            raise LakeError(
                f"{self}: a lake of Parquet files with a manifest ({_OLD_FORMAT}), which is no"
                " longer read: delete the folder or choose another one, and ingest the events again"
            )


def paths_of(table: DeltaTable) -> list[str]:
    """The files of a table, below it."""
    paths: list[str] = pa.table(table.get_add_actions()).column("path").to_pylist()
    return paths


def value_path_of(events: DeltaTable) -> str:
    """Path in JSON payloads of the column ``value``."""
    return str(events.metadata().configuration.get(VALUE_PATH, DEFAULT_PATH))


def log_name(version: int) -> str:
    """Name of a commit in the log of a table."""
    return f"{version:020}.json"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
