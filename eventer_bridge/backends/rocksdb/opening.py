"""Opening a store, and loading the state that a backend keeps of it, also when it reopens it."""

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.control import ext_remove_scratch
from eventer_bridge.backends.rocksdb.latest import LatestCache
from eventer_bridge.backends.rocksdb.restoring import (
    ext_accept_loss,
    ext_cut_unsynced,
    refuse_interrupted,
)
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.types import TypeRegistry
from eventer_bridge.errors import (
    EventerBridgeError,
    StorageError,
    StoreDamagedError,
    StoreLossError,
)

mlog = logging.getLogger(__name__)

T = TypeVar("T")

_TEMPORARY: Final = "mariner-memory-"
"""Prefix of the names of stores that only last as long as they are open."""


class Opened(NamedTuple):
    """An open store, its event types, its latest events, and the time that passed with it."""

    store: Store
    types: TypeRegistry
    latest: LatestCache
    clock: PassedTime


def ext_open(path: Path, accept_loss_of: int | None = None) -> Opened:
    """Open a store for writing, as ``backend.create``; raises as :class:`Store`."""
    if accept_loss_of is not None:
        ext_accept_loss(path, accept_loss_of)
    refuse_interrupted(path)
    return _ext_load_new(Store(path))


def ext_open_member(path: Path) -> Opened:
    """Open the store of a member of a group, which gets its history from the log of the group.

    What is written and not synced may be lost with the machine: the log has it.
    """
    try:
        refuse_interrupted(path)
        ext_cut_unsynced(path)
    except StoreLossError as e:
        advice = "it is in no group yet: start it once without event_core.group"
        raise StoreDamagedError(f"{e}: {advice}") from e
    return _ext_load_new(Store(path, is_recorded=True))


def ext_open_temporary() -> Opened:
    """Open an empty store in the directory for temporary files; closing it removes it."""
    try:
        directory = Path(tempfile.gettempdir())
    except FileNotFoundError as e:  # none that it tried (``$TMPDIR``, ``/tmp``, …) can be written
        raise StorageError(f"{e.strerror}: a store in memory needs one") from e
    with directories.os_errors(directory, "cannot be written"):
        _ext_remove_left_over()
        path = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
    try:
        store = Store(path, is_volatile=True)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return _ext_load_new(store)


def _ext_remove_left_over() -> None:
    """Remove the temporary stores of processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"):
        try:
            if path.lstat().st_uid != os.geteuid() or not (path / "CURRENT").exists():
                continue
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # removed meanwhile
            continue
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(directory)


def _ext_load_new(store: Store) -> Opened:
    """Load a store that was just opened, and give it a history if it is to have one."""
    try:
        ext_remove_scratch(store.path)
        if store.group_row() is not None and not store.is_recorded:
            raise StorageError(
                f"{store.path}: the event store is that of a member of a group, and the others"
                " would not have what it registers alone: configure event_core.group, or make a"
                " store of its own of it (`mariner restore`)"
            )
        if store.history_id() is None and not store.is_recorded:
            commit = Commit()
            store.stage_history(commit, history.new_id())
            store.ext_write_synced(commit)
        return ext_call(ext_load, store)
    except BaseException:
        store.ext_close()
        raise


def ext_load(store: Store) -> Opened:
    """Load event types, latest events, the order of source timestamps, and the passed time."""
    types = TypeRegistry(store.ext_types(), store.ext_spent())
    known = [*islice(types.names, limits.LATEST_CACHE_TYPES)]
    latest = store.ext_latest(known)
    store.ext_load_order(known, latest)
    clock = store.ext_clock()
    return Opened(store, types, LatestCache(store.ext_last_position(), latest), clock)


def ext_call(ext_fn: Callable[..., T], *args: Any) -> T:
    """Call a function; an exception does not keep its iterators, and so the database, alive.

    What is no ``EventerBridgeError`` is a bug: it is logged, and a ``StorageError``.
    """
    try:
        return ext_fn(*args)
    except EventerBridgeError as e:
        e.__context__ = e.__cause__ = None
        raise e.with_traceback(None) from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:
        raise unexpected(e) from None


def unexpected(error: BaseException) -> StorageError:
    """Log an unexpected exception, and convert it to an error that callers handle."""
    mlog.error("event store failed unexpectedly", exc_info=error)
    return StorageError(f"the event store failed unexpectedly: {type(error).__name__}: {error}")
