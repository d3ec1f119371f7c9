"""The database of a store while it is open: used, opened again after a failure, closed.

After a commit failed, the owner opens the database again (:meth:`Database.ext_reopen`), in
the same object. Everything but committing therefore happens inside :meth:`Database.in_use`,
and nothing that was made inside (an iterator, for example) is kept beyond it.
"""

import contextlib
import gc
import os
import shutil
import threading
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from rocksdict import ColumnFamily, Rdict

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.backends.rocksdb.contents import FAMILIES, N_STAGED
from eventer_bridge.backends.rocksdb.database import (
    StorageErrors,
    lock_directory,
    make_durable,
    open_database,
    open_for_reading,
)
from eventer_bridge.backends.rocksdb.log_tail import Mark
from eventer_bridge.backends.rocksdb.markers import write_marker
from eventer_bridge.errors import ClosedError, StorageError, StoreLockedError


class _Use(AbstractContextManager[tuple[Rdict, dict[str, Rdict]]]):
    """See :meth:`Database.in_use`. No generator, which takes three times as long."""

    __slots__ = ("_database",)

    def __init__(self, database: "Database") -> None:
        self._database = database

    def __enter__(self) -> tuple[Rdict, dict[str, Rdict]]:
        database = self._database
        with database._gate:
            if database._unusable is not None:
                raise StorageError(database._unusable)
            database._n_users += 1
        return database._db, database._families

    def __exit__(self, *error: object) -> None:
        database = self._database
        with database._gate:
            database._n_users -= 1
            if database._unusable is not None:  # ``ext_reopen`` waits for that
                database._gate.notify_all()


class Database:
    """See the module. Any thread; raises as ``database.open_database``.

    ``path`` is created where there is none. ``read_only``: look at a database that no process has
    open; nothing is created or changed. ``is_volatile``: it is removed when it is closed, so
    nothing is synced. ``is_recorded``: it is that of a member of a group (``member``), whose
    commits are in a log elsewhere, and are written while others are synced.

    Attributes:
        is_closing: set by the owner, so that long reads end.
        undecided: keys of the sessions that are written, but not known to be durable yet: those of
            the commit in progress, or of a failed one, until the owner decides. They are hidden
            from reads.
        all_handles: what names all of its column families in a ``WriteBatch``, in their order.
        in_order_ends: where the order of source timestamps of types ended (``source_order``). Reads
            may do without entries that are not loaded.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        is_volatile: bool = False,
        is_recorded: bool = False,
    ) -> None:
        self.path = path
        self.is_recorded = is_recorded
        self._read_errors = StorageErrors(path, "read failed")
        self.is_volatile = is_volatile
        self.is_closing = False
        self.undecided: AbstractSet[bytes] = frozenset()
        self.in_order_ends: dict[bytes, bytes] = {}
        self._gate = threading.Condition()
        self._n_users = 0
        self._unusable: str | None = None  # why, while the database is not open
        self._lock: int | None = None
        self._mark: Mark | None = None
        self._db: Rdict
        self._families: dict[str, Rdict]
        self._handles: list[ColumnFamily]
        self.all_handles: list[ColumnFamily]
        self._handle_of: dict[str, ColumnFamily]
        if read_only:
            self._take(open_for_reading(path))
            return
        self._lock = lock_directory(path)
        try:
            self._take(open_database(path, is_volatile=is_volatile))
            self._ext_begin_mark()
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def families(self) -> tuple[str, ...]:
        """Names of its column families."""
        return ("default", *self._families)

    def in_use(self) -> AbstractContextManager[tuple[Rdict, dict[str, Rdict]]]:
        """Use the database, and its column families by name: it stays open meanwhile.

        Entering raises ``StorageError`` if it is being opened again, or could not be.
        """
        return _Use(self)

    def check_usable(self) -> None:
        """Raise ``ClosedError`` or ``StorageError`` if it is about to close or be opened again."""
        if self.is_closing:
            raise ClosedError(f"{self.path}: the event store is closed")
        if self._unusable is not None:
            raise StorageError(self._unusable)

    def ext_reopen(self) -> None:
        """Close and open the database, after a commit failed; takes commits afterwards.

        Waits for the end of all uses. Afterwards everything that was committed is there and
        durable; what was not may be. ``StorageError``: the disk still fails; the database can be
        read as before, unless it was closed, but could not be opened. ``StoreDamagedError``: the
        store was damaged.
        """
        check_writable(self.path)
        with self._gate:
            was_open = self._unusable is None
            self._unusable = f"{self.path}: the event store is being opened again"
            self._gate.wait_for(lambda: not self._n_users)
        if was_open:
            with contextlib.suppress(StorageError):  # it failed already; the log has it all
                self._close()
        try:
            self._take(open_database(self.path, create=False, is_volatile=self.is_volatile))
        except StorageError as e:
            self._unusable = str(e)
            if isinstance(e, StoreLockedError):
                # what holds it can only be ours: garbage that has an iterator
                gc.unfreeze()
                gc.collect()
            raise
        self._unusable = None
        with self.errors("cannot be written"):
            make_durable(self._db, self._families.values())
        self._ext_begin_mark()

    def ext_close(self) -> None:
        """Close, with nothing in progress; afterwards others can open the directory.

        Raises ``StorageError`` if buffered rows could not be written; they are in the log.
        """
        try:
            if self._mark is not None:
                self._mark.ext_close()
            if self._unusable is None:
                self._close()
                if self._lock is not None and not self.is_volatile:
                    write_marker(self.path)
        except OSError as e:
            raise StorageError(f"{self.path}: closing failed: {e.strerror}") from e
        finally:
            if self.is_volatile:
                shutil.rmtree(self.path, ignore_errors=True)
            if self._lock is not None:
                os.close(self._lock)

    def errors(self, what: str | None = None) -> StorageErrors:
        """Turn what RocksDB raises into ``StorageError``, which says what failed, or reading."""
        return self._read_errors if what is None else StorageErrors(self.path, what)

    def _ext_begin_mark(self) -> None:
        if self._mark is not None:
            self._mark.ext_close()
        if self.is_volatile:
            return
        with directories.os_errors(self.path, "cannot be written"):
            self._mark = Mark(self.path, is_written_meanwhile=self.is_recorded)

    def _take(self, db: Rdict) -> None:
        self._db = db
        self._families = {name: db.get_column_family(name) for name in FAMILIES}
        self._handle_of = {name: db.get_column_family_handle(name) for name in FAMILIES}
        self.all_handles = [db.get_column_family_handle("default"), *self._handle_of.values()]
        self._handles = [*self._handle_of.values()][:N_STAGED]

    def _close(self) -> None:
        # RocksDB's lock is held until the last of these references is gone
        self._handles.clear()
        self._handle_of.clear()
        self.all_handles.clear()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.errors("closing failed"))
            for db in (self._db, *self._families.values()):
                stack.callback(db.close)

    def family(self, name: str) -> Rdict:
        """A column family, to be used inside :meth:`in_use`."""
        return self._db if name == "default" else self._families[name]


_NAME: Final = "PROBE.dbtmp"


def check_writable(path: Path) -> None:
    """Raise ``StorageError`` without the store, or space for what opening it writes."""
    n_bytes = limits.REOPEN_MARGIN_BYTES
    try:
        if not (path / "CURRENT").exists():  # an unmounted file system, for example
            raise StorageError(f"{path}: the event store no longer exists")
        n_bytes += sum(i.stat().st_size for i in path.glob("*.log"))
        _ext_write(path / _NAME, n_bytes)
    except OSError as e:
        raise StorageError(
            f"{path}: the event store cannot be written: {e.strerror} ({n_bytes} bytes tried)"
        ) from e


def _ext_write(file: Path, n_bytes: int) -> None:
    """Write a temporary file."""
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, n_bytes)
        os.write(descriptor, bytes(4096))
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
        file.unlink(missing_ok=True)
