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
from pathlib import Path
from typing import Final

from eventer_bridge.backends.rocksdb import acknowledged, database, directories
from eventer_bridge.backends.rocksdb.log_files import list_logs, log_number
from eventer_bridge.backends.rocksdb.restoring import ext_go_on
from eventer_bridge.errors import StorageError, StoreLossError

mlog = logging.getLogger(__name__)

SET_ASIDE: Final = ".lost"
"""End of the name of a log that is not used any more."""


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
    is_lost = False
    try:
        while (loss := _find_loss(path)) is not None:
            is_lost = True
            _set_aside(path, loss.log_number, loss.good_bytes)
            acknowledged.forget(path)
            mlog.warning(
                "event store goes on without acknowledged events, as its operator said",
                extra={"path": str(path), "reason": str(loss)},
            )
    except OSError as e:
        raise StorageError(f"{path}: cannot be written: {e.strerror}") from e
    finally:
        os.close(lock)
    if is_lost:
        ext_go_on(path, (server_id,))


def _find_loss(path: Path) -> StoreLossError | None:
    try:
        database.check(path)
    except StoreLossError as e:
        return e
    return None


def _set_aside(path: Path, number: int, good_bytes: int) -> None:
    for log in list_logs(path):
        aside = log.with_name(log.name + SET_ASIDE)
        if log_number(log) == number and good_bytes:
            shutil.copyfile(log, aside)
            os.truncate(log, good_bytes)
        elif log_number(log) >= number:
            log.rename(aside)
    directories.sync(path)
