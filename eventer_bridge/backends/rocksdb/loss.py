"""Opening a store without acknowledged events that its log lost: only if the operator accepts it.

The log is kept up to the damage; the rest is set aside, under a name that RocksDB ignores. Rows in
sorted files stay, so rows of a session may be missing in one index and not in another: ``verify``
finds them. Clients may have seen the lost events, as after a restore (``restoring``).

Runs on a thread that may block.
"""

import logging
import os
import shutil
from itertools import chain, count
from pathlib import Path
from typing import Final

from eventer_bridge.backends.rocksdb import acknowledged, database, directories
from eventer_bridge.backends.rocksdb.log_files import list_logs, log_number
from eventer_bridge.backends.rocksdb.restoring import ext_begin_history
from eventer_bridge.errors import StorageError, StoreLossError

mlog = logging.getLogger(__name__)

SET_ASIDE: Final = ".lost"
"""Suffix of the name of a log that is set aside."""

ACCEPTING: Final = "LOSS-ACCEPTED"
"""File that exists from before the first change until the store has a new history: without it, an
interruption would leave a store that reuses ids, unnoticed."""


def ext_accept_loss(path: Path, server_id: int) -> None:
    """Make a store that lost acknowledged events usable again; logs the loss.

    Args:
        path: its directory; no process has it open. A store without a loss is not changed.
        server_id: the server whose ids continue far above those it may have allocated.

    Raises:
        StorageError: it cannot be opened for another reason.
    """
    if not (path / "CURRENT").exists():
        return
    lock = database.lock_directory(path)
    accepting = path / ACCEPTING
    try:
        while (loss := _find_loss(path)) is not None:
            database.refuse_other_format(path)
            os.close(os.open(accepting, os.O_WRONLY | os.O_CREAT, 0o600))
            directories.sync(path)
            _set_aside(path, loss.log_number, loss.good_bytes)
            acknowledged.forget(path)
            mlog.warning(
                "event store continues without acknowledged events, as its operator asked",
                extra={"path": str(path), "reason": str(loss)},
            )
        is_lost = accepting.exists()
    except OSError as e:
        raise StorageError(f"{path}: cannot be written: {e.strerror}") from e
    finally:
        os.close(lock)
    if is_lost:
        ext_begin_history(path, (server_id,))
        try:
            accepting.unlink()
            directories.sync(path)
        except OSError as e:
            raise StorageError(f"{path}: cannot be written: {e.strerror}") from e


def refuse_interrupted(path: Path) -> None:
    """Refuse a store for which accepting a loss was interrupted.

    Raises:
        StoreLossError: it was.
    """
    if (path / ACCEPTING).exists():
        text = f"{path}: the event store lost events, and going on without them was interrupted"
        raise StoreLossError(text, 0, 0)


def _find_loss(path: Path) -> StoreLossError | None:
    try:
        database.check(path)
    except StoreLossError as e:
        return e
    return None


def _set_aside(path: Path, number: int, good_bytes: int) -> None:
    for log in list_logs(path):
        aside = _free_name(log)
        if log_number(log) == number and good_bytes:
            shutil.copyfile(log, aside)
            directories.sync(aside)
            directories.sync(path)
            os.truncate(log, good_bytes)
            directories.sync(log)
        elif log_number(log) >= number:
            log.rename(aside)
    directories.sync(path)


def _free_name(log: Path) -> Path:
    """An unused name to set a log aside."""
    names = (f"{log.name}{SET_ASIDE}{i}" for i in chain([""], (f".{n}" for n in count(1))))
    return next(path for i in names if not (path := log.with_name(i)).exists())
