"""The end of the log that RocksDB writes to: acknowledged up to where, and zeros ahead of it.

After a crash RocksDB cannot notice that a log is missing, empty, another store's, or too short. So
the file ``ACKNOWLEDGED`` (:class:`Mark`) describes the logs: how each begins, with a checksum that
distinguishes it from any other, and up to where it was synced and acknowledged::

    bytes of the last log (8, big-endian)
    JSON: [[number, bytes, beginning, in hexadecimal digits], …]

No two logs begin alike: opening a store writes a random row first (``keys.LOG_KEY``). The mark is
written after the log was synced, never before: it may be behind, but not ahead. ``kill -9`` leaves
it exact; a power cut may leave one of some seconds before (``limits.MARK_SYNC_PERIOD_S``), which
notices less. Logs that RocksDB no longer needs may be missing.

A sync of a file that has grown also writes its new size to the disk, through the journal of the
file system: that takes twice the time. So zeros are written ahead of the records now and then,
which the next records overwrite::

    records │ zeros
            ▲ RocksDB writes here

RocksDB reads zeros as the end of the log, and so does ``log_files``. They are written between two
commits, when no records are written, and only at the end of the file. The end of the records is
found by following their headers (``log_files``).

The mark belongs to the thread that syncs.
"""

import contextlib
import ctypes
import errno
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812  # it is a class
from typing import Final, NamedTuple, TypeAlias

import msgspec

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.backends.rocksdb.log_files import (
    BLOCK_BYTES,
    FRAGMENT,
    FULL,
    HEAD_BYTES,
    LAST,
    list_logs,
    log_number,
)
from eventer_bridge.errors import StoreDamagedError, StoreLossError

FILE: Final = "ACKNOWLEDGED"

POSITION: Final = Struct(">Q")
"""What the file begins with."""

_Rows: TypeAlias = list[tuple[int, int, str]]


class Log(NamedTuple):
    """A log: its number (in its name), up to where it was acknowledged, and its beginning."""

    number: int
    n_bytes: int
    head: bytes

    @property
    def name(self) -> str:
        """Its file."""
        return f"{self.number:06}.log"


def check_logs(path: Path, ends: Mapping[int, int]) -> list[Log]:
    """Compare the logs with the mark, if there is one, and with the ends of non-empty ones.

    Returns those that are missing: damage, if RocksDB still needs them (:func:`check_missing`).
    ``StoreLossError``: one is not the store's own, or ends too early; ``StoreDamagedError``: the
    mark cannot be read.
    """
    missing: list[Log] = []
    for log in read(path):
        file = path / log.name
        if not file.exists():
            missing.append(log)
            continue
        end = ends.get(log.number, 0)
        if end and log.n_bytes and read_head(file) != log.head:
            raise _lost(path, log.number, 0, f"its log {log.name} is not its own")
        if end < log.n_bytes:
            what = f"its log {log.name} ends at {end}, but was acknowledged up to {log.n_bytes}"
            raise _lost(path, log.number, end, what)
    return missing


def check_missing(path: Path, missing: list[Log], first_needed: int) -> None:
    """Refuse, by ``StoreLossError``, a store without a log that it needs.

    Rows of ``first_needed`` and later ones are in no sorted file.
    """
    for log in missing:
        if log.number >= first_needed:
            raise _lost(
                path, log.number, 0, f"it was not closed, and its log {log.name} is missing"
            )


def read_head(file: Path) -> bytes:
    """The beginning of a log; raises ``OSError``."""
    with file.open("rb") as stream:
        return stream.read(HEAD_BYTES)


def encode(logs: Sequence[Log]) -> bytes:
    """The contents of the mark for one or more logs."""
    rows: _Rows = [(i.number, i.n_bytes, i.head.hex()) for i in logs]
    return POSITION.pack(logs[-1].n_bytes) + msgspec.json.encode(rows)


def read(path: Path) -> list[Log]:
    """The mark of a store; empty: none. Raises ``StoreDamagedError`` or ``OSError``."""
    try:
        data = (path / FILE).read_bytes()
    except FileNotFoundError:
        return []
    try:
        rows = msgspec.json.decode(data[POSITION.size :], type=_Rows)
        logs = [Log(number, n_bytes, bytes.fromhex(head)) for number, n_bytes, head in rows]
        return [*logs[:-1], logs[-1]._replace(n_bytes=POSITION.unpack_from(data)[0])]
    except (msgspec.DecodeError, StructError, ValueError, IndexError) as e:
        raise StoreDamagedError(
            f"{path}: the event store is damaged: its file {FILE} is not as it was written"
        ) from e


def _lost(path: Path, number: int, good_bytes: int, what: str) -> StoreLossError:
    text = f"{path}: the event store is damaged: {what}: events that were acknowledged are lost"
    return StoreLossError(text, number, good_bytes)


def forget(path: Path) -> None:
    """Remove the mark of a store that no process has open; raises ``OSError``."""
    (path / FILE).unlink(missing_ok=True)


_LIBC: Final = ctypes.PyDLL(None)
"""For calls with every commit: those of ``os`` give the interpreter's lock away, and to get it
back takes longer than the call where the loop is busy."""
_LIBC.pread.restype = ctypes.c_ssize_t
_LIBC.pread.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)

_BEGIN: Final = ctypes.c_longlong(0)
_SIZE: Final = ctypes.c_size_t(POSITION.size)

_ZEROS: Final = bytes(limits.LOG_AHEAD_BYTES)


class LogTail:
    """The log, open for reading and for writing zeros.

    ``end`` of its records is as of the last :meth:`ext_follow`; at first, that of any earlier one.
    ``ahead`` is up to where zeros were written; infinite: no more are.
    """

    def __init__(self, file: Path, end: int) -> None:
        self.end = end
        self.ahead = 0.0
        self._header = ctypes.create_string_buffer(FRAGMENT.size)
        self._file = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        self.ext_follow()

    def ext_follow(self) -> int:
        """Find the end of the records; returns by how many bytes it moved."""
        header, size, before = self._header, FRAGMENT.size, self.end
        while True:
            begin = self.end
            left = BLOCK_BYTES - begin % BLOCK_BYTES
            if left < size:
                begin += left
            if _LIBC.pread(self._file, header, size, begin) < size:
                break
            _, length, kind = FRAGMENT.unpack(header.raw)
            if not FULL <= kind <= LAST:  # zeros, or not written yet
                break
            self.end = begin + size + length
        return self.end - before

    def ext_write_ahead(self) -> None:
        """Write zeros for the next commits; only between two commits.

        That it fails, because the disk is full, is no failure: nothing needs them.
        """
        try:
            size = os.fstat(self._file).st_size
            ahead = (size + len(_ZEROS)) // BLOCK_BYTES * BLOCK_BYTES
            self.ahead = size + os.pwrite(self._file, _ZEROS[: ahead - size], size)
        except OSError:
            self.ahead = math.inf

    def ext_close(self) -> None:
        """Give the file back."""
        os.close(self._file)


def find_end(file: Path) -> int:
    """The end of the records of a log; raises ``OSError``."""
    tail = LogTail(file, 0)
    tail.ext_close()
    return tail.end


class Mark:
    """The mark of a store that was just opened, so that it has a log; raises ``OSError``.

    ``is_written_meanwhile``: rows are written while it is synced. Then :meth:`ext_look` comes
    before each sync, the mark is behind rather, and no zeros are written.
    """

    def __init__(self, path: Path, *, is_written_meanwhile: bool = False) -> None:
        self._path = path
        self._is_written_meanwhile = is_written_meanwhile
        self._n_seen = 0
        self._file = ctypes.c_int(-1)
        self._tail: LogTail | None = None
        self._ends: dict[int, int] = {}  # of the logs that were noted, by their numbers
        self._number = 0  # of the last of them
        self._synced_s = 0.0
        self._ext_note_logs()

    def ext_look(self) -> None:
        """Look up to where the log is to be synced now."""
        if self._tail is not None:
            self._n_seen = self._tail.ext_follow()
            if not self._ends[self._number]:  # to be noted with its beginning
                self._ends[self._number] = self._tail.end
                self._n_seen = 0

    def ext_advance(self) -> None:
        """Note that the log was synced up to where its records end now; some 5 us.

        That it cannot be noted is no failure: the mark is behind then.
        """
        tail, was_empty = self._tail, not self._ends[self._number]
        if tail is None:
            n_bytes = 0
        else:
            n_bytes = self._n_seen if self._is_written_meanwhile else tail.ext_follow()
        if tail is None or not n_bytes or was_empty:  # RocksDB began another one
            with contextlib.suppress(OSError):
                self._ext_note_logs()
            return
        _LIBC.pwrite(self._file, POSITION.pack(tail.end), _SIZE, _BEGIN)
        self._ends[self._number] = tail.end
        few = limits.LOG_AHEAD_COMMIT_BYTES
        is_wanted = n_bytes <= few and not self._is_written_meanwhile
        if tail.ahead - tail.end < few and is_wanted:  # larger commits gain nothing
            tail.ext_write_ahead()
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
        logs = _look_at(self._path, self._ends, is_written=self._is_written_meanwhile)
        last = logs[-1]
        with directories.written(self._path / FILE) as stream:
            stream.write(encode(logs))
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


def _look_at(path: Path, ends: Mapping[int, int], *, is_written: bool) -> list[Log]:
    """The logs of a store that is open, one at least; where they end, as far as not known.

    ``is_written``: they are written, so their end is not that of what is synced: 0 then.
    """
    for _ in range(limits.LOG_LOOKS):
        logs: list[Log] = []
        for file in list_logs(path):
            with contextlib.suppress(FileNotFoundError):  # RocksDB needs it no longer
                number = log_number(file)
                end = ends.get(number) or (0 if is_written else find_end(file))
                logs.append(Log(number, end, read_head(file)))
        if logs:
            return logs
    raise FileNotFoundError(errno.ENOENT, "there is no log", str(path))
