"""The clean-shutdown marker: sizes and checksums of a store's small files when it was closed.

RocksDB cannot notice that its list of files (MANIFEST) or its log lost their end: it would open the
store without those rows, and delete files that are no longer listed. The files of a closed store
must not change; so closing it writes their sizes and checksums to the file ``CLOSED``, and opening
it compares and removes them. After a crash there is no marker, and nothing is compared.
"""

import os
import zlib
from pathlib import Path
from typing import Final

import msgspec

from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.errors import StoreDamagedError

MARKER: Final = "CLOSED"

_CHUNK_BYTES: Final = 1 << 20

_Files = dict[str, tuple[int, int]]
"""Size in bytes and CRC-32 of files, by name."""


def write_marker(path: Path) -> None:
    """Mark a store that was just closed.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path / f"{MARKER}.dbtmp"
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(_files(path)))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path / MARKER)
    directories.sync(path)


def check_marker(path: Path) -> None:
    """Compare the files with the marker, if there is one.

    Raises:
        StoreDamagedError: they differ.
        OSError: they cannot be read.
    """
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
    """Remove the marker, after it was compared.

    Raises:
        OSError: it cannot be removed.
    """
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
        while chunk := stream.read(_CHUNK_BYTES):
            size += len(chunk)
            checksum = zlib.crc32(chunk, checksum)
    return size, checksum
