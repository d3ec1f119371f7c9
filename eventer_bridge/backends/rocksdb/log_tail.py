"""The log that RocksDB writes to: how far it was synced and acknowledged, and zeros ahead of that.

:class:`Mark` writes the file ``ACKNOWLEDGED`` (``acknowledged``) after each sync.

A sync of a file that has grown also writes its new size to the disk, through the journal of the
file system: that takes twice the time. So zeros are written ahead of the records now and then,
which the next records overwrite::

    records │ zeros
            ▲ RocksDB writes here

RocksDB reads zeros as the end of the log, and so does ``log_files``. They are written between two
commits, when nobody writes records, and only where the file ends: never over anything.

Where the records end is not the size of the file then. It is found by following their headers,
for the format of which see ``log_files``.

Belongs to the thread that syncs.
"""

import contextlib
import ctypes
import errno
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import acknowledged, directories
from eventer_bridge.backends.rocksdb.acknowledged import FILE, Log
from eventer_bridge.backends.rocksdb.log_files import (
    BLOCK_BYTES,
    FRAGMENT,
    FULL,
    LAST,
    list_logs,
    log_number,
)

_LIBC: Final = ctypes.PyDLL(None)
"""For calls with every commit: those of ``os`` give the interpreter's lock away, and to get it
back takes longer than the call where the loop is busy."""
_LIBC.pread.restype = ctypes.c_ssize_t
_LIBC.pread.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)

_BEGIN: Final = ctypes.c_longlong(0)
_SIZE: Final = ctypes.c_size_t(acknowledged.POSITION.size)

MAX_LOOKS: Final = 100
"""How often a directory is listed until a log is found: RocksDB may replace the only one
meanwhile."""

_ZEROS: Final = bytes(limits.LOG_AHEAD_BYTES)


class LogTail:
    """See the module.

    Args:
        file: the log.
        end: where its records end, or any place before that where one begins.

    Raises:
        OSError: it cannot be opened.

    Attributes:
        end: where its records end, as of the last :meth:`ext_follow`.
        ahead: up to where zeros were written; infinite: no more are.
    """

    def __init__(self, file: Path, end: int) -> None:
        self.end = end
        self.ahead = 0.0
        self._header = ctypes.create_string_buffer(FRAGMENT.size)
        self._file = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        self.ext_follow()

    def ext_follow(self) -> int:
        """Find the end of the records, which may have come further; returns how much, in bytes."""
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
    """Where the records of a log end.

    Raises:
        OSError: it cannot be read.
    """
    tail = LogTail(file, 0)
    tail.ext_close()
    return tail.end


class Mark:
    """The mark of a store that is open (``acknowledged``).

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
        _LIBC.pwrite(self._file, acknowledged.POSITION.pack(tail.end), _SIZE, _BEGIN)
        self._ends[self._number] = tail.end
        few = limits.LOG_AHEAD_COMMIT_BYTES
        if tail.ahead - tail.end < few and n_bytes <= few:  # larger commits gain nothing
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
        logs = _look_at(self._path, self._ends)
        last = logs[-1]
        temporary = self._path / f"{FILE}.dbtmp"
        with temporary.open("wb") as stream:
            stream.write(acknowledged.encode(logs))
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


def _look_at(path: Path, ends: Mapping[int, int]) -> list[Log]:
    """The logs of a store that is open, one at least; where they end, as far as not known."""
    for _ in range(MAX_LOOKS):
        logs: list[Log] = []
        for file in list_logs(path):
            with contextlib.suppress(FileNotFoundError):  # RocksDB needs it no longer
                number = log_number(file)
                end = ends.get(number) or find_end(file)
                logs.append(Log(number, end, acknowledged.read_head(file)))
        if logs:
            return logs
    raise FileNotFoundError(errno.ENOENT, "there is no log", str(path))
