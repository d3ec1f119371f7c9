"""The database of a store while it is open: used, opened again after a failure, closed.

After a commit failed, the owner opens the database again (:meth:`Database.ext_reopen`), in
the same object. Everything but committing therefore happens inside :meth:`Database.in_use`,
and nothing that was made inside (an iterator, for example) is kept beyond it.
"""

import contextlib
import gc
import os
import threading
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from pathlib import Path

from rocksdict import ColumnFamily, Rdict

from eventer_bridge.backends.rocksdb.clean_shutdown import write_marker
from eventer_bridge.backends.rocksdb.contents import ALL_FAMILIES, FAMILIES, LATER_FAMILIES
from eventer_bridge.backends.rocksdb.database import (
    StorageErrors,
    lock_directory,
    make_durable,
    open_database,
    open_for_reading,
)
from eventer_bridge.backends.rocksdb.log_tail import Mark
from eventer_bridge.backends.rocksdb.writable import check_writable
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
            if database._unusable is not None:  # somebody waits for that
                database._gate.notify_all()


class Database:
    """See the module. May be used from any thread.

    Args:
        path: directory; created where there is none.
        read_only: look at a database that nobody has open; nothing is created or changed.

    Raises:
        StorageError: one of its branches, see ``database.open_database``.

    Attributes:
        path: as given.
        is_closing: set by the owner, so that who reads for long gives up.
        undecided: keys of the sessions that are written, but not known to be durable yet: those
            of the commit that is under way, or that failed, until the owner decides. Nobody
            who reads sees them.
        in_order_ends: where the order of source timestamps of types ended (``source_order``).
            Who reads may do without what is not loaded.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
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
        self._later: dict[str, ColumnFamily]
        if read_only:
            self._take(*open_for_reading(path))
            return
        self._lock = lock_directory(path)
        try:
            self._take(open_database(path))
            self._ext_begin_mark()
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def families(self) -> tuple[str, ...]:
        """Names of its column families."""
        return ("default", *self._families)

    def in_use(self) -> AbstractContextManager[tuple[Rdict, dict[str, Rdict]]]:
        """Use the database: it stays open meanwhile. Does not wait.

        Gives it as RocksDB has it, and its column families by name.

        Raises:
            StorageError: when entered: it is being opened again, or could not be.
        """
        return _Use(self)

    def check_usable(self) -> None:
        """End who has used the database for long, if others need that it is not used.

        Raises:
            ClosedError: it is about to close.
            StorageError: it is being opened again.
        """
        if self.is_closing:
            raise ClosedError(f"{self.path}: the event store is closed")
        if self._unusable is not None:
            raise StorageError(self._unusable)

    def ext_reopen(self) -> None:
        """Close and open the database, after a commit failed; takes commits afterwards.

        Waits until nobody uses it. Everything that was committed is there then; what was
        not, may be, and what is there is durable.

        Raises:
            StorageError: the disk still fails. The database can be read as before, unless
                it could be closed, but not opened.
            StoreDamagedError: the store was damaged.
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
            self._take(open_database(self.path, create=False))
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
        """Close. Nothing may be under way; afterwards others can open the directory.

        Raises:
            StorageError: buffered rows could not be written; they are in the log.
        """
        try:
            if self._mark is not None:
                self._mark.ext_close()
            if self._unusable is None:
                self._close()
                if self._lock is not None:
                    write_marker(self.path)
        except OSError as e:
            raise StorageError(f"{self.path}: closing failed: {e.strerror}") from e
        finally:
            if self._lock is not None:
                os.close(self._lock)

    def errors(self, what: str = "read failed") -> StorageErrors:
        """Turn what RocksDB raises into ``StorageError``."""
        return StorageErrors(self.path, what)

    def _ext_begin_mark(self) -> None:
        if self._mark is not None:
            self._mark.ext_close()
        try:
            self._mark = Mark(self.path)
        except OSError as e:
            raise StorageError(f"{self.path}: cannot be written: {e.strerror}") from e

    def _take(self, db: Rdict, found: Collection[str] = ALL_FAMILIES) -> None:
        self._db = db
        later = [name for name in LATER_FAMILIES if name in found]
        self._families = {name: db.get_column_family(name) for name in (*FAMILIES, *later)}
        self._handles = [db.get_column_family_handle(name) for name in FAMILIES]
        self._later = {name: db.get_column_family_handle(name) for name in later}

    def _close(self) -> None:
        # RocksDB's lock is held until the last of these references is gone
        self._handles.clear()
        self._later.clear()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.errors("closing failed"))
            for db in (self._db, *self._families.values()):
                stack.callback(db.close)

    def _family(self, name: str) -> Rdict:
        return self._db if name == "default" else self._families[name]
