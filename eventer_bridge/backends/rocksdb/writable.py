"""Check whether a store can be opened for writing again, without touching it."""

import os
from pathlib import Path
from typing import Final

from eventer_bridge.errors import StorageError

MARGIN_BYTES: Final = 1 << 20
"""Size of what opening writes besides the rows of the log: file list, options, RocksDB's log."""

_NAME: Final = "PROBE.dbtmp"


def check_writable(path: Path) -> None:
    """Check that the store exists, and that there is space for what opening it writes.

    Runs on a thread that may block.

    Args:
        path: directory of the store.

    Raises:
        StorageError: it does not, or there is none; the text says why.
    """
    n_bytes = MARGIN_BYTES
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
