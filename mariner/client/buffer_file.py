"""The file of a buffer: registrations that wait to be forwarded, in SQLite.

What :meth:`BufferFile.apply` was told is on the disk when it returns (a write-ahead log, synced
with each transaction), and is found again after ``kill -9`` and a loss of power. Several processes
may add registrations; one forwards them. Blocking; belongs to the thread that opened it.
"""

import contextlib
import enum
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from eventer_bridge.model import Timestamp
from mariner import limits
from mariner.errors import BufferFullError, BufferUnusableError

_APPLICATION_ID: Final = 0x4D424646  # "MBFF"
_VERSION: Final = 1

_SCHEMA: Final = """
CREATE TABLE waiting (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, events BLOB NOT NULL,
    queued_us INTEGER NOT NULL
);
CREATE TABLE refused (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, events BLOB NOT NULL, queued_us INTEGER NOT NULL,
    refused_us INTEGER NOT NULL, reason TEXT NOT NULL
);
CREATE TABLE total (
    waiting INTEGER NOT NULL, refused INTEGER NOT NULL, bytes INTEGER NOT NULL,
    forwarded INTEGER NOT NULL, dropped INTEGER NOT NULL
);
INSERT INTO total VALUES (0, 0, 0, 0, 0);
"""


class WhenFull(enum.StrEnum):
    """What becomes of a registration for which a buffer has no room."""

    REFUSE = "refuse"
    DROP_OLDEST = "drop-oldest"
    """Those that were refused for good go first, then those that wait longest."""


class BufferedRegistration(NamedTuple):
    """A registration that waits to be forwarded; ``events`` are a JSON array of ``register_event``.

    ``id`` is its place in the order, from 1; 0: it has none yet.
    """

    id: int
    key: str
    events: bytes
    queued_us: int

    @property
    def size_bytes(self) -> int:
        """What it takes of the buffer."""
        return len(self.events) + limits.BUFFER_ROW_BYTES


class BufferChange(NamedTuple):
    """One transaction: ``forwarded`` and ``refused`` (for good, with the reasons) are ids."""

    added: Sequence[BufferedRegistration]
    forwarded: Sequence[int]
    refused: Sequence[tuple[int, str]]


class BufferStatus(msgspec.Struct, frozen=True):
    """What is in a buffer, and what was.

    ``bytes`` are those of waiting and refused registrations; ``forwarded`` and ``dropped`` (those
    that had to make room) are counts since it was made. ``oldest``: when the first was added.
    """

    waiting: int
    oldest: Timestamp | None
    refused: int
    last_reason: str | None
    bytes: int
    forwarded: int
    dropped: int


class BufferFile:
    """See the module; arguments are those of ``RegistrationBuffer.open``.

    Raises BufferUnusableError if it is damaged, of another version, or unreadable.
    """

    def __init__(self, directory: Path, max_bytes: int, when_full: WhenFull) -> None:
        self.directory = directory
        self._max_bytes = max_bytes
        self._when_full = when_full
        self._lock: int | None = None
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise BufferUnusableError(f"{directory}: {e.strerror}") from e
        with self._errors():
            self._db = sqlite3.connect(
                directory / "buffer.sqlite",
                timeout=limits.BUFFER_LOCK_TIMEOUT_S,
                isolation_level=None,
            )
            try:
                with _locked(directory):  # of several processes, one makes it
                    self._prepare()
            except BaseException:
                self._db.close()
                raise

    def close(self) -> None:
        """Close it; another process may lock it then."""
        self._db.close()
        if self._lock is not None:
            os.close(self._lock)

    def lock(self) -> None:
        """Become the one that forwards, until it is closed; raises BufferUnusableError."""
        try:
            self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise BufferUnusableError(
                f"{self.directory}: another process forwards it, or this one already"
            ) from e
        except OSError as e:
            raise BufferUnusableError(f"{self.directory}: {e.strerror}") from e

    def apply(self, change: BufferChange) -> list[BufferFullError | None]:
        """Write a change, all of it or nothing; returns why each added registration is not there.

        Raises BufferUnusableError: nothing is written, or (if a sync failed) nobody knows.
        """
        with self._transaction():
            for row_id in change.forwarded:
                self._forwarded(row_id)
            for row_id, reason in change.refused:
                self._refused(row_id, reason)
            return [self._add(i) for i in change.added]

    def read(self, after_id: int, max_rows: int, max_bytes: int) -> list[BufferedRegistration]:
        """The next registrations behind an id, in their order, up to some rows and bytes."""
        found: list[BufferedRegistration] = []
        size_bytes = 0
        with self._errors(), contextlib.closing(self._db.cursor()) as cursor:
            cursor.execute(
                "SELECT id, key, events, queued_us FROM waiting WHERE id > ? ORDER BY id LIMIT ?",
                (after_id, max_rows),
            )
            for row in cursor:
                found.append(BufferedRegistration(*row))
                size_bytes += found[-1].size_bytes
                if size_bytes >= max_bytes:
                    break
        return found

    def status(self) -> BufferStatus:
        """What is in it, of one moment."""
        with self._errors():
            waiting, refused, n_bytes, forwarded, dropped, queued_us, reason = self._row(
                "SELECT *, (SELECT queued_us FROM waiting ORDER BY id LIMIT 1),"
                " (SELECT reason FROM refused ORDER BY id DESC LIMIT 1) FROM total"
            )
        return BufferStatus(
            waiting=waiting,
            oldest=None if queued_us is None else Timestamp(*divmod(queued_us, 1_000_000)),
            refused=refused,
            last_reason=reason,
            bytes=n_bytes,
            forwarded=forwarded,
            dropped=dropped,
        )

    def retry_refused(self) -> int:
        """Add what was refused for good again, behind everything else; returns how many."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO waiting SELECT NULL, key, events, queued_us FROM refused ORDER BY id"
            )
            count = self._db.execute("DELETE FROM refused").rowcount
            self._count(waiting=count, refused=-count)
            return count

    def drop_refused(self) -> int:
        """Drop what was refused for good; returns how many."""
        with self._transaction():
            [n_bytes] = self._row("SELECT coalesce(sum(length(events)), 0) FROM refused")
            n_dropped = self._db.execute("DELETE FROM refused").rowcount
            freed_bytes = n_bytes + n_dropped * limits.BUFFER_ROW_BYTES
            self._count(refused=-n_dropped, bytes=-freed_bytes, dropped=n_dropped)
            return n_dropped

    # --- rows -----------------------------------------------------------------------------

    def _add(self, row: BufferedRegistration) -> BufferFullError | None:
        [used_bytes] = self._row("SELECT bytes FROM total")
        needed_bytes = used_bytes + row.size_bytes - self._max_bytes
        if needed_bytes > 0:
            is_fitting = row.size_bytes <= self._max_bytes
            if self._when_full is WhenFull.REFUSE or not is_fitting:
                return BufferFullError(
                    f"{self.directory}: the buffer is full: {used_bytes} of {self._max_bytes}"
                    f" bytes are used, {row.size_bytes} are needed"
                )
            self._drop(needed_bytes)
        self._db.execute("INSERT INTO waiting VALUES (NULL, ?, ?, ?)", row[1:])
        self._count(waiting=1, bytes=row.size_bytes)
        return None

    def _drop(self, needed_bytes: int) -> None:
        """Drop the oldest that take so much together."""
        for table in ("refused", "waiting"):
            freed_bytes = n_dropped = last_id = 0
            select = f"SELECT id, length(events) FROM {table} ORDER BY id"  # noqa: S608  # ours
            with contextlib.closing(self._db.execute(select)) as rows:
                for row_id, n_bytes in rows:
                    last_id = row_id
                    freed_bytes += n_bytes + limits.BUFFER_ROW_BYTES
                    n_dropped += 1
                    if freed_bytes >= needed_bytes:
                        break
            self._db.execute(f"DELETE FROM {table} WHERE id <= ?", (last_id,))  # noqa: S608  # ours
            self._count(**{table: -n_dropped}, bytes=-freed_bytes, dropped=n_dropped)
            needed_bytes -= freed_bytes
            if needed_bytes <= 0:
                return

    def _forwarded(self, row_id: int) -> None:
        [n_bytes] = self._row("SELECT sum(length(events)) FROM waiting WHERE id = ?", row_id)
        if n_bytes is None:  # dropped while it was under way
            self._count(forwarded=1, dropped=-1)
            return
        self._db.execute("DELETE FROM waiting WHERE id = ?", (row_id,))
        self._count(waiting=-1, bytes=-n_bytes - limits.BUFFER_ROW_BYTES, forwarded=1)

    def _refused(self, row_id: int, reason: str) -> None:
        now = Timestamp.now()
        self._db.execute(
            "INSERT INTO refused SELECT id, key, events, queued_us, ?, ? FROM waiting WHERE id = ?",
            (now.s * 1_000_000 + now.us, reason, row_id),
        )
        count = self._db.execute("DELETE FROM waiting WHERE id = ?", (row_id,)).rowcount
        self._count(waiting=-count, refused=count)

    def _count(self, **more: int) -> None:
        """Add to totals, which are kept so that nothing has to be counted."""
        changes = ", ".join(f"{name} = {name} + :{name}" for name in more)
        self._db.execute(f"UPDATE total SET {changes}", more)  # noqa: S608  # names are ours

    # --- SQLite ---------------------------------------------------------------------------

    def _prepare(self) -> None:
        db = self._db
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA cell_size_check = ON")
        with self._transaction():
            [application_id] = self._row("PRAGMA application_id")
            [version] = self._row("PRAGMA user_version")
            [n_tables] = self._row("SELECT count(*) FROM sqlite_master")
            is_new = not (application_id or version or n_tables)
            if is_new:
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {_VERSION}")
            elif (application_id, version) != (_APPLICATION_ID, _VERSION):
                raise BufferUnusableError(
                    f"{self.directory}: not a buffer of this version: application"
                    f" {application_id:#x}, version {version}"
                )
        if is_new:
            _sync(self.directory)
            _sync(self.directory.parent)

    def _row(self, statement: str, *values: object) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._db.execute(statement, values).fetchone()
        return row

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as e:
            is_damage = getattr(e, "sqlite_errorname", "") in {"SQLITE_CORRUPT", "SQLITE_NOTADB"}
            text = f"the buffer is damaged: {e}" if is_damage else str(e)
            raise BufferUnusableError(f"{self.directory}: {text}") from e


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
