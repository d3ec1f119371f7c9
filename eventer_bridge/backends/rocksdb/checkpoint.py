"""Checkpoints: consistent copies of a store, taken while it is written to.

RocksDB creates one in the store's directory, from hard links, which takes milliseconds, however
large the store is. It is then moved to the target: by a rename on the same file system, or by
copying its files, while registration goes on.

Runs on a thread that may block.
"""

import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StorageError

_SCRATCH: Final = re.compile(r"checkpoint-[0-9a-f]{8}(\.tmp)?")
"""Names of temporary checkpoints in the store's directory, with RocksDB's own temporary suffix."""


def ext_checkpoint(
    store: Store, target: Path, is_stopped: Callable[[], bool] = lambda: False
) -> None:
    """Create a checkpoint: an ordinary store with everything written before the call.

    Args:
        store: the store, which is open.
        target: absolute path that does not exist, in a directory that does.
        is_stopped: called at intervals; true cancels.

    Raises:
        StorageError: it failed; no files are left.
        ClosedError: it was cancelled.
    """
    if not target.is_absolute():
        raise StorageError(f"{target}: expected an absolute path")
    if not target.parent.is_dir():
        raise StorageError(f"{target.parent}: no such directory")
    directories.refuse_existing(target, may_be_empty=False)
    scratch = scratch_path(store.path)
    try:
        store.ext_checkpoint(scratch)
        directories.make_private(scratch)
        directories.move(scratch, target, is_stopped)
    except OSError as e:
        raise StorageError(f"{target}: cannot be written: {e.strerror}") from e
    finally:
        # RocksDB has a temporary name of its own
        for path in (scratch, scratch.with_name(f"{scratch.name}.tmp")):
            shutil.rmtree(path, ignore_errors=True)


def scratch_path(store_path: Path) -> Path:
    """A new path in a store's directory for a temporary checkpoint."""
    return store_path.absolute() / f"checkpoint-{secrets.token_hex(4)}"


def ext_remove_scratch(store_path: Path) -> None:
    """Remove temporary checkpoints of interrupted processes."""
    for entry in os.scandir(store_path):
        if _SCRATCH.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
