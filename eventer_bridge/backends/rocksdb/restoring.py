"""What makes a copy of a backup the store of a server that went back in time.

The copy is a store that the server will open. What was registered after the backup is gone in it,
as what was lost is from a store that lost something (``loss``), but somebody has seen it: so no id
up to what may have been given since is given again, and the store is of another history from now
on (``history``), by which those who have seen it know.

Runs on a thread that may block.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.model import INT64_MAX


class RestoredServer(NamedTuple):
    """Where ids of a server go on.

    Attributes:
        server_id: identifier of the server.
        last_session: its last session that is stored; None: there is none.
        mark: ids of sessions up to this one are not given any more.
    """

    server_id: int
    last_session: int | None
    mark: int


class Restored(NamedTuple):
    """The history that a store has from now on, and its servers."""

    history_id: str
    servers: list[RestoredServer]


def ext_go_on(path: Path, server_ids: Iterable[int] = ()) -> Restored:
    """Make a store of a copy of a backup that nobody has opened.

    All servers' marks are raised, because it does not say which of them is its own: how far the
    others are replicated goes by what is stored of them.

    Args:
        path: its directory.
        server_ids: servers whose ids it gave, even if it knows nothing of them any more.

    Raises:
        StorageError: it cannot be opened or written.
    """
    store = Store(path)
    try:
        commit = Commit()
        servers: list[RestoredServer] = []
        for server_id in sorted(_servers(store).union(server_ids)):
            last = store.last_session(server_id)
            mark = _raised(store.mark(server_id).session, time.time_ns() // 1_000)
            store.stage_reservation(commit, server_id, mark)
            last_session = None if last.timestamp is None else last.session
            servers.append(RestoredServer(server_id, last_session, mark))
        history_id = history.new_id()
        store.stage_history(commit, history_id)
        store.ext_write_synced(commit)
        return Restored(history_id, servers)
    finally:
        store.ext_close()


def _raised(mark: int, now_us: int) -> int:
    """See ``limits.RESTORED_SESSIONS``."""
    return min(now_us if now_us > mark else mark + limits.RESTORED_SESSIONS, INT64_MAX)


def _servers(store: Store) -> set[int]:
    """Servers that have events, had some, or gave ids."""
    found: set[bytes] = set()
    iterator = store.iterator("server")
    iterator.seek_to_first()
    while iterator.valid():
        server = iterator.key()[: keys.INT_BYTES]
        found.add(server)
        iterator.seek(server + keys.KEY_MAX)
    with store.errors():
        iterator.status()
    for prefix in (keys.DELETED_KEY, keys.RESERVED_KEY):
        marks = store.iterator("default")
        marks.seek(prefix)
        while marks.valid() and (key := marks.key()).startswith(prefix):
            found.add(key.removeprefix(prefix))
            marks.next()
        with store.errors():
            marks.status()
    return set(map(keys.decode_int, found))
