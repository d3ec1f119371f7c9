"""Opening a store, and loading the state that a backend keeps of it, also when it reopens it."""

import logging
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.rocksdb.checkpoint import ext_remove_scratch
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.latest import LatestCache
from eventer_bridge.backends.rocksdb.loss import ext_accept_loss, refuse_interrupted
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.types import TypeRegistry
from eventer_bridge.errors import EventerBridgeError, StorageError

mlog = logging.getLogger(__name__)

T = TypeVar("T")


class Opened(NamedTuple):
    """An open store, its event types, its latest events, and the time that passed with it."""

    store: Store
    types: TypeRegistry
    latest: LatestCache
    clock: PassedTime


def ext_open(path: Path, accept_loss_of: int | None = None) -> Opened:
    """Open a store for writing, and give it a history if it has none; raises as :class:`Store`.

    Args:
        path: its directory.
        accept_loss_of: accept the loss of acknowledged events of this server (``loss``).
    """
    if accept_loss_of is not None:
        ext_accept_loss(path, accept_loss_of)
    refuse_interrupted(path)
    store = Store(path)
    try:
        ext_remove_scratch(path)
        if store.history_id() is None:
            commit = Commit()
            store.stage_history(commit, history.new_id())
            store.ext_write_synced(commit)
        return ext_call(ext_load, store)
    except BaseException:
        store.ext_close()
        raise


def ext_load(store: Store) -> Opened:
    """Load event types, latest events, the order of source timestamps, and the passed time.

    Raises:
        StorageError: it cannot be read.
    """
    types = TypeRegistry(store.ext_types(), store.ext_spent())
    known = [*islice(types.names, limits.LATEST_CACHE_TYPES)]
    latest = store.ext_latest(known)
    store.ext_load_order(known, latest)
    clock = store.ext_clock()
    return Opened(store, types, LatestCache(store.ext_last_position(), latest), clock)


def ext_call(ext_fn: Callable[..., T], *args: Any) -> T:
    """Call a function; an exception does not keep its iterators, and so the database, alive.

    Raises:
        EventerBridgeError: as the function.
        StorageError: the function raised anything else, a bug of ours or of RocksDB's binding,
            which is logged.
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
