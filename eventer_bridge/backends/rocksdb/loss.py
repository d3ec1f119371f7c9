"""Going on without acknowledged events that the log lost: only if the operator says so.

The log is kept up to where it can be used; what follows is set aside, under a name that RocksDB
does not look at. What was in sorted files already stays, so that rows of the same session may be
missing in one index and not in another: ``verify`` tells. Somebody may have seen what was lost, as
after a restore (``restoring``).

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
from eventer_bridge.backends.rocksdb.restoring import ext_go_on
from eventer_bridge.errors import StorageError, StoreLossError

mlog = logging.getLogger(__name__)

SET_ASIDE: Final = ".lost"
"""End of the name of a log that is not used any more."""

ACCEPTING: Final = "LOSS-ACCEPTED"
"""File that is there from before the first change until the store is of another history: without
it, who is interrupted leaves a store that gives ids again, and nobody would know."""


def ext_accept_loss(path: Path, server_id: int) -> None:
    """Make a store that lost acknowledged events one that can be opened; the log says what.

    Args:
        path: its directory; nobody has it open. A store that lost nothing is not changed.
        server_id: the server whose ids go on far above those that it may have given.

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
                "event store goes on without acknowledged events, as its operator said",
                extra={"path": str(path), "reason": str(loss)},
            )
        is_lost = accepting.exists()
    except OSError as e:
        raise StorageError(f"{path}: cannot be written: {e.strerror}") from e
    finally:
        os.close(lock)
    if is_lost:
        ext_go_on(path, (server_id,))
        try:
            accepting.unlink()
            directories.sync(path)
        except OSError as e:
            raise StorageError(f"{path}: cannot be written: {e.strerror}") from e


def refuse_interrupted(path: Path) -> None:
    """Refuse a store of which somebody accepted a loss and did not come to the end.

    Raises:
        StoreLossError: it is so.
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
    """Where a log is set aside; what was set aside before stays."""
    names = (f"{log.name}{SET_ASIDE}{i}" for i in chain([""], (f".{n}" for n in count(1))))
    return next(path for i in names if not (path := log.with_name(i)).exists())
