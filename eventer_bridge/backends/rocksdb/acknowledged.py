"""How far the log was acknowledged: a mark beside it, by which a loss is noticed.

After a crash RocksDB takes the log as it finds it. One that is gone, empty, another store's, or
that ends early is as good to it as one that had no more to say. So the file ``ACKNOWLEDGED`` notes
the logs that there are: how each begins, with a checksum by which it is told from any other, and
up to where it was synced and acknowledged::

    bytes of the last log (8, big-endian)
    JSON: [[number, bytes, what it begins with, in hexadecimal digits], …]

So that no two logs begin alike, whoever opens a store writes a random row first
(``keys.LOG_KEY``). The mark is written after the log was synced, never before: it may be behind,
but not ahead. ``kill -9`` leaves it exact; a power cut may leave one of some seconds before
(``limits.MARK_SYNC_PERIOD_S``), which notices less. A store of before has none; a gateway of before
does not look at it, and what that leaves is no damage: logs that are not needed any more may be
gone.
"""

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812  # it is a class
from typing import Final, NamedTuple, TypeAlias

import msgspec

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.backends.rocksdb.log_files import HEAD_BYTES, list_logs, log_number
from eventer_bridge.backends.rocksdb.log_tail import LIBC, LogTail, find_end
from eventer_bridge.errors import StoreDamagedError, StoreLossError

FILE: Final = "ACKNOWLEDGED"

_POSITION: Final = Struct(">Q")

_BEGIN: Final = ctypes.c_longlong(0)
_SIZE: Final = ctypes.c_size_t(_POSITION.size)

MAX_LOOKS: Final = 100
"""How often a directory is listed until a log is found: RocksDB may replace the only one
meanwhile."""

_Rows: TypeAlias = list[tuple[int, int, str]]


class Log(NamedTuple):
    """What is known of a log.

    Attributes:
        number: in its name.
        n_bytes: up to where it was acknowledged.
        head: what it begins with.
    """

    number: int
    n_bytes: int
    head: bytes

    @property
    def name(self) -> str:
        """Its file."""
        return f"{self.number:06}.log"


class Mark:
    """The mark of a store that is open; see the module. Belongs to the thread that syncs.

    Made when RocksDB has just opened the store, so that it has a log of its own.

    Args:
        path: directory of the store.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = ctypes.c_int(-1)
        self._tail: LogTail | None = None
        self._ends: dict[int, int] = {}  # of the logs that were noted, by their numbers
        self._number = 0  # of the last of them
        self._synced_s = 0.0
        self._ext_note_logs()

    def ext_advance(self) -> None:
        """Note that the log was synced up to where its records end now; some 5 us.

        That it cannot be noted is no failure: the mark is behind then.
        """
        tail, was_empty = self._tail, not self._ends[self._number]
        n_bytes = 0 if tail is None else tail.ext_follow()
        if tail is None or not n_bytes or was_empty:  # RocksDB began another one
            with contextlib.suppress(OSError):
                self._ext_note_logs()
            return
        LIBC.pwrite(self._file, _POSITION.pack(tail.end), _SIZE, _BEGIN)
        self._ends[self._number] = tail.end
        tail.ext_write_ahead(n_bytes)
        if time.monotonic() - self._synced_s > limits.MARK_SYNC_PERIOD_S:
            with contextlib.suppress(OSError):
                os.fdatasync(self._file.value)
                self._synced_s = time.monotonic()

    def ext_close(self) -> None:
        """Give its files back; it stays in the store."""
        if self._file.value >= 0:
            os.close(self._file.value)
            self._file = ctypes.c_int(-1)
        if self._tail is not None:
            self._tail.ext_close()
            self._tail = None

    def _ext_note_logs(self) -> None:
        logs = _look_at(self._path, self._ends)
        last = logs[-1]
        temporary = self._path / f"{FILE}.dbtmp"
        rows: _Rows = [(i.number, i.n_bytes, i.head.hex()) for i in logs]
        with temporary.open("wb") as stream:
            stream.write(_POSITION.pack(last.n_bytes) + msgspec.json.encode(rows))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(self._path / FILE)
        directories.sync(self._path)
        tail = LogTail(self._path / last.name, last.n_bytes)
        try:
            file = os.open(self._path / FILE, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            tail.ext_close()
            raise
        self.ext_close()
        self._file, self._tail = ctypes.c_int(file), tail
        self._ends = {i.number: i.n_bytes for i in logs}
        self._number, self._synced_s = last.number, time.monotonic()


def check_logs(path: Path, ends: Mapping[int, int]) -> list[Log]:
    """Compare the logs that there are with the mark, if there is one.

    Args:
        path: directory of a store that nobody has open.
        ends: where each log ends that is not empty, by its number.

    Returns:
        Those that are missing: damage, if RocksDB still needs them (:func:`check_missing`).

    Raises:
        StoreLossError: one is not the store's own, or ends too early.
        StoreDamagedError: the mark cannot be read.
        OSError: a file cannot be read.
    """
    missing: list[Log] = []
    for log in read(path):
        file = path / log.name
        if not file.exists():
            missing.append(log)
            continue
        end = ends.get(log.number, 0)
        if end and log.n_bytes and _read_head(file) != log.head:
            raise _lost(path, log.number, 0, f"its log {log.name} is not its own")
        if end < log.n_bytes:
            what = f"its log {log.name} ends at {end}, but was acknowledged up to {log.n_bytes}"
            raise _lost(path, log.number, end, what)
    return missing


def check_missing(path: Path, missing: list[Log], first_needed: int) -> None:
    """Refuse a store without a log that it needs.

    Args:
        path: directory of the store.
        missing: what :func:`check_logs` found.
        first_needed: number of the first log that has rows which are in no sorted file.

    Raises:
        StoreLossError: it is so.
    """
    for log in missing:
        if log.number >= first_needed:
            raise _lost(
                path, log.number, 0, f"it was not closed, and its log {log.name} is missing"
            )


def _look_at(path: Path, ends: Mapping[int, int]) -> list[Log]:
    """The logs of a store that is open, one at least; where they end, as far as not known."""
    for _ in range(MAX_LOOKS):
        logs: list[Log] = []
        for file in list_logs(path):
            with contextlib.suppress(FileNotFoundError):  # RocksDB needs it no longer
                number = log_number(file)
                end = ends.get(number) or find_end(file)
                logs.append(Log(number, end, _read_head(file)))
        if logs:
            return logs
    raise FileNotFoundError(errno.ENOENT, "there is no log", str(path))


def _read_head(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(HEAD_BYTES)


def read(path: Path) -> list[Log]:
    """What the mark of a store says; empty where there is none.

    Raises:
        StoreDamagedError: it cannot be read.
        OSError: the same.
    """
    try:
        data = (path / FILE).read_bytes()
    except FileNotFoundError:
        return []
    try:
        rows = msgspec.json.decode(data[_POSITION.size :], type=_Rows)
        logs = [Log(number, n_bytes, bytes.fromhex(head)) for number, n_bytes, head in rows]
        return [*logs[:-1], logs[-1]._replace(n_bytes=_POSITION.unpack_from(data)[0])]
    except (msgspec.DecodeError, StructError, ValueError, IndexError) as e:
        raise StoreDamagedError(
            f"{path}: the event store is damaged: its file {FILE} is not as it was written"
        ) from e


def _lost(path: Path, number: int, good_bytes: int, what: str) -> StoreLossError:
    text = f"{path}: the event store is damaged: {what}: events that were acknowledged are lost"
    return StoreLossError(text, number, good_bytes)


def forget(path: Path) -> None:
    """Remove the mark of a store that nobody has open.

    Raises:
        OSError: it cannot be removed.
    """
    (path / FILE).unlink(missing_ok=True)
