"""A consistent copy of a store that goes on being written, in a directory of its own.

RocksDB makes it within the store's directory, out of hard links, which takes milliseconds
however large the store is. From there it is moved to where it was asked for: on the same
file system that is a rename; on another, its files are copied while registration goes on.

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
"""Names of checkpoints within the store's directory; RocksDB makes them under another first."""


def ext_checkpoint(
    store: Store, target: Path, is_stopped: Callable[[], bool] = lambda: False
) -> None:
    """Make a checkpoint: an ordinary store that holds all that was written before the call.

    Args:
        store: the store, which is open.
        target: absolute path that does not exist, in a directory that does.
        is_stopped: asked now and then; true gives up.

    Raises:
        StorageError: it failed; nothing is left of it.
        ClosedError: it was stopped.
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
        # RocksDB, too, makes it under another name first
        for path in (scratch, scratch.with_name(f"{scratch.name}.tmp")):
            shutil.rmtree(path, ignore_errors=True)


def scratch_path(store_path: Path) -> Path:
    """A new path within a store's directory, for a checkpoint that is removed soon."""
    return store_path.absolute() / f"checkpoint-{secrets.token_hex(4)}"


def ext_remove_scratch(store_path: Path) -> None:
    """Remove what interrupted processes left, so that it no longer takes space."""
    for entry in os.scandir(store_path):
        if _SCRATCH.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
