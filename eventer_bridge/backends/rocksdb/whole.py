"""Whether a store has all that it ever had: the file ``WHOLE``.

A server whose store is new, was restored, or is an earlier copy gives ids again that it gave
before, and does not know. In a group the other servers do, and are asked (``remote.group``).

The file is written when nothing was missing. It names the history of the store, which is another
one after a restore, and its own inode, which a copy of it does not have: in a file system of its
own, a copy may have its number, but not its generation, a random number (ext4, XFS; some file
systems have none). No backup has the file. A disk that is set back as a whole (a snapshot) is not
noticed.

What is named ``ext_`` runs on a thread that may block.
"""

import contextlib
import fcntl
import os
import sys
from pathlib import Path
from typing import BinaryIO, Final, Self

import msgspec

from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.errors import StorageError

FILE: Final = "WHOLE"

_GET_GENERATION: Final = 0x80087601
"""Request for the generation of an inode (``FS_IOC_GETVERSION`` of ``linux/fs.h``, 64 bits)."""


class _Whole(msgspec.Struct, frozen=True):
    history: str
    inode: int
    generation: int | None

    @classmethod
    def of(cls, history: str, file: BinaryIO) -> Self:
        """What the file is to say."""
        generation = None
        with contextlib.suppress(OSError):  # this file system has none
            number = fcntl.ioctl(file.fileno(), _GET_GENERATION, bytes(8))
            generation = int.from_bytes(number[:4], sys.byteorder)
        return cls(history, os.fstat(file.fileno()).st_ino, generation)


def is_whole(path: Path, history_id: str) -> bool:
    """Whether nothing is missing in a store, as far as its file says; a short read, on any thread.

    Args:
        path: its directory.
        history_id: its history.
    """
    try:
        with (path / FILE).open("rb") as file:
            found = msgspec.json.decode(file.read(), type=_Whole)
            return found == _Whole.of(history_id, file)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False


def ext_note_whole(path: Path, history_id: str) -> None:
    """Note that nothing is missing; arguments as of :func:`is_whole`.

    Raises:
        StorageError: the file cannot be written.
    """
    temporary = path / f"{FILE}.dbtmp"
    try:
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(_Whole.of(history_id, file)))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path / FILE)
        directories.sync(path)
    except OSError as e:
        raise StorageError(f"{path / FILE}: cannot be written: {e.strerror}") from e
