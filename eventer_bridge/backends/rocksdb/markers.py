"""Files beside RocksDB's that say how a store was left: ``CLOSED`` and ``WHOLE``.

RocksDB cannot notice that its list of files (MANIFEST) or its log lost their end: it would open the
store without those rows, and delete files that are no longer listed. The files of a closed store
must not change; so closing it writes their sizes and checksums to ``CLOSED``, and opening it
compares and removes them. After a crash there is no marker, and nothing is compared.

``WHOLE`` says that a store has all that it ever had. A server whose store is new, was restored, or
is an earlier copy allocates ids again without knowing. In a group it asks the others
(``remote.group``), unless there is this file, which is written when nothing is missing. It
names the history of the store, which a restore changes, and its own inode, which a copy does not
have: on another file system, a copy may have its number, but not its generation, a random number
(ext4, XFS; some file systems have none). No backup has the file. A disk that is set back as a whole
(a snapshot) is not noticed.

Runs on a thread that may block.
"""

import contextlib
import fcntl
import os
import sys
import zlib
from pathlib import Path
from typing import BinaryIO, Final, Self

import msgspec

from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.errors import StoreDamagedError

MARKER: Final = "CLOSED"

_Files = dict[str, tuple[int, int]]
"""Size in bytes and CRC-32 of files, by name."""


def write_marker(path: Path) -> None:
    """Mark a store that was just closed; raises ``OSError``."""
    with directories.written(path / MARKER) as file:
        file.write(msgspec.json.encode(_files(path)))


def check_marker(path: Path) -> None:
    """Compare the files with the marker, if any; ``StoreDamagedError``: they differ."""
    marker = path / MARKER
    try:
        expected = _decode(marker.read_bytes())
        found = _files(path)
    except FileNotFoundError:
        return  # no marker, or another process opens the store right now
    names = expected.keys() | found.keys()
    different = sorted(i for i in names if expected.get(i) != found.get(i))
    if different and marker.exists():
        raise StoreDamagedError(
            f"{path}: the event store is damaged, or was changed by something else since it was"
            f" closed: {', '.join(different)} (its file {MARKER} records how it was; without that"
            " file nothing is compared)"
        )


def remove_marker(path: Path) -> None:
    """Remove the marker, after it was compared; raises ``OSError``."""
    (path / MARKER).unlink(missing_ok=True)
    directories.sync(path)


def _decode(data: bytes) -> _Files:
    try:
        return msgspec.json.decode(data, type=_Files)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {MARKER: (0, 0)}  # damaged: differs from any files


def _files(path: Path) -> _Files:
    names = ["CURRENT", *(i.name for i in (*path.glob("MANIFEST-*"), *path.glob("*.log")))]
    return {name: _measure(path / name) for name in names if (path / name).exists()}


def _measure(file: Path) -> tuple[int, int]:
    size = checksum = 0
    with file.open("rb") as stream:
        while chunk := stream.read(store_limits.CHUNK_BYTES):
            size += len(chunk)
            checksum = zlib.crc32(chunk, checksum)
    return size, checksum


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
    """Whether nothing is missing in a store of this history; a short read, on any thread."""
    try:
        with (path / FILE).open("rb") as file:
            found = msgspec.json.decode(file.read(), type=_Whole)
            return found == _Whole.of(history_id, file)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False


def ext_note_whole(path: Path, history_id: str) -> None:
    """Note that nothing is missing in a store of this history; may raise ``StorageError``."""
    with (
        directories.os_errors(path / FILE, "cannot be written"),
        directories.written(path / FILE) as file,
    ):
        file.write(msgspec.json.encode(_Whole.of(history_id, file)))
