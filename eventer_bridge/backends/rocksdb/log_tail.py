"""The log that RocksDB writes to: where its records end, and zeros ahead of them.

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

import ctypes
import math
import os
from pathlib import Path
from typing import Final

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb.log_files import BLOCK_BYTES, FRAGMENT, is_fragment

LIBC: Final = ctypes.PyDLL(None)
"""For calls with every commit: those of ``os`` give the interpreter's lock away, and to get it
back takes longer than the call where the loop is busy."""
LIBC.pread.restype = ctypes.c_ssize_t
LIBC.pread.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)

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
    """

    def __init__(self, file: Path, end: int) -> None:
        self.end = end
        self._ahead = 0.0  # zeros were written up to here; infinite: no more are
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
            if LIBC.pread(self._file, header, size, begin) < size:
                break
            _, length, kind = FRAGMENT.unpack(header.raw)
            if not is_fragment(kind):
                break
            self.end = begin + size + length
        return self.end - before

    def ext_write_ahead(self, n_bytes: int) -> None:
        """Write zeros for the next commits, if there are few left.

        That it fails, because the disk is full, is no failure: nothing needs them.

        Args:
            n_bytes: of the last commit. Large ones gain nothing.
        """
        if (
            n_bytes > limits.LOG_AHEAD_COMMIT_BYTES
            or self._ahead - self.end >= limits.LOG_AHEAD_COMMIT_BYTES
        ):
            return
        try:
            size = os.fstat(self._file).st_size
            ahead = (size + len(_ZEROS)) // BLOCK_BYTES * BLOCK_BYTES
            self._ahead = size + os.pwrite(self._file, _ZEROS[: ahead - size], size)
        except OSError:
            self._ahead = math.inf

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
