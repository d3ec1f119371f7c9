"""Beginning a new history in a store that lost events, after a restore or an accepted loss.

A restored store lacks the events after the backup, as a damaged one lacks lost events (``loss``),
but clients have seen them. So no id that may have been allocated since is reused, and the store
gets a new history (``history``), by which followers notice. A clock may be behind, and a backup may
be restored more than once: how far ids are raised is random, too.

Runs on a thread that may block.
"""

import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.info import ext_servers
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.model import INT64_MAX


class RestoredServer(NamedTuple):
    """Ids of a server in the store.

    Attributes:
        server_id: identifier of the server.
        last_session: its last stored session; None: there is none.
        mark: session ids up to this one are never allocated again.
    """

    server_id: int
    last_session: int | None
    mark: int


class Restored(NamedTuple):
    """The new history of a store, and its servers."""

    history_id: str
    servers: list[RestoredServer]


def ext_begin_history(path: Path, server_ids: Iterable[int] = ()) -> Restored:
    """Begin a new history in a store that no process has open, and raise its marks.

    The marks of all servers are raised, because the store does not record which one is its own;
    replication of the others continues after their stored events, not after their marks.

    Args:
        path: its directory.
        server_ids: servers that allocated ids, even if nothing of them is stored any more.

    Raises:
        StorageError: it cannot be opened or written.
    """
    store = Store(path)
    try:
        commit = Commit()
        restored = stage_history(store, commit, _servers(store).union(server_ids))
        store.ext_write_synced(commit)
        return restored
    finally:
        store.ext_close()


def stage_history(store: Store, commit: Commit, server_ids: Iterable[int]) -> Restored:
    """Add to a commit a new history, and raised marks of servers; as :func:`ext_begin_history`."""
    servers: list[RestoredServer] = []
    for server_id in sorted(server_ids):
        last = store.last_session(server_id)
        mark = _raised(store.mark(server_id).session, time.time_ns() // 1_000)
        store.stage_reservation(commit, server_id, mark)
        last_session = None if last.timestamp is None else last.session
        servers.append(RestoredServer(server_id, last_session, mark))
    history_id = history.new_id()
    store.stage_next_history(commit, history_id)
    return Restored(history_id, servers)


def _raised(mark: int, now_us: int) -> int:
    """See ``limits.RESTORED_SESSIONS``."""
    least = max(now_us, mark + limits.RESTORED_SESSIONS)
    room = max(limits.MAX_RESTORED_SESSION - least, 0) // limits.RESTORED_SHARE
    return min(least + secrets.randbelow(room + 1), INT64_MAX)


def _servers(store: Store) -> set[int]:
    """Servers that have or had events, or reserved ids."""
    found = {server.server_id for server in ext_servers(store)}
    for prefix in (keys.DELETED_KEY, keys.RESERVED_KEY):
        marks = store.iterator("default")
        marks.seek(prefix)
        while marks.valid() and (key := marks.key()).startswith(prefix):
            found.add(keys.decode_int(key.removeprefix(prefix)))
            marks.next()
        with store.errors():
            marks.status()
    return found
