"""Deleting the oldest events of some types, in all column families at once.

Runs on the retention thread. A :class:`Deletion` is an ordinary commit: all families stay
consistent, even after a crash. Sessions that are registered meanwhile may join it.

``event``: by range if many events of a type are deleted, else by key. ``source``: by key (a new
event may have any position in it). ``session``: rewritten without the events, or deleted with its
row in ``server`` if none is left; many successive ones by range. ``default``: the last id and
timestamp of a server, if one of its sessions is deleted.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rocksdict import ColumnFamily, RdictIter

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.scan import KeyRange, find_in_sessions, scan_sessions
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.trimmed import ext_note
from eventer_bridge.backends.turns import yield_gil


class StoredEvent(NamedTuple):
    """A row of ``event``; ``is_latest``: no event of its type comes after it."""

    key: bytes
    value: bytes
    is_latest: bool

    @property
    def n_bytes(self) -> int:
        """Size, as ``retention.event_bytes`` computes it."""
        return len(self.key) + len(self.value)


def ext_oldest(
    snapshot: Snapshot, type_ids: Sequence[TypeId], span: KeyRange, max_events: int
) -> list[StoredEvent]:
    """The first events of some types, in natural order.

    Sessions are walked as long as that is cheaper than seeking every type.
    """
    sessions = scan_sessions(
        snapshot,
        KeyRange(
            span.start[: keys.SESSION_KEY_BYTES], span.stop[: keys.SESSION_KEY_BYTES] + keys.KEY_MAX
        ),
    )
    found = find_in_sessions(snapshot, sessions, frozenset(type_ids), span, limit=max_events)
    yield_gil()
    rows: list[StoredEvent] = []
    iterator = snapshot.iterator("event")
    for key in sorted(found):
        value = snapshot.next_value(iterator, key)
        rows.append(StoredEvent(key, value, not _has_next(snapshot, iterator, key)))
    rows.sort(key=lambda row: row.key[keys.TYPE_BYTES :])
    return rows


def _has_next(snapshot: Snapshot, iterator: RdictIter, key: bytes) -> bool:
    """Whether an iterator, which is after an event, is at another one of its type."""
    if not iterator.valid():
        return False
    following: bytes = iterator.key()
    return following.startswith(key[: keys.TYPE_BYTES]) and not snapshot.hides(following)


class Deletion:
    """See the module.

    Args:
        store: the store.
        snapshot: snapshot that ``events`` were read from.
        events: the first events of some types from a position on, in natural order, without the
            latest of each.
        with_ranges: whether to delete ranges; false: by key only.

    Attributes:
        commit: the deletion.
        newest: session key up to which ranges are deleted; empty: no ranges. No event up to there
            may be written between the snapshot and the deletion.
    """

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot,
        events: Sequence[StoredEvent],
        with_ranges: bool = True,
    ) -> None:
        self.commit = Commit()
        self._batch = self.commit.batch
        self.newest = b""
        self._with_ranges = with_ranges
        if with_ranges and events:
            self.newest = events[-1].key[keys.TYPE_BYTES : -keys.INT_BYTES]
        self._delete_events(store, events)
        self._delete_sessions(store, snapshot, events)

    def _delete_events(self, store: Store, events: Sequence[StoredEvent]) -> None:
        by_type: dict[TypeId, list[bytes]] = {}
        source_cf = store.handle("source")
        for key, value, _ in events:
            if source_key := keys.source_key(key, value):
                self._batch.delete(source_key, source_cf)
            by_type.setdefault(key[: keys.TYPE_BYTES], []).append(key)
        for of_type in by_type.values():
            self._delete_rows(of_type, store.handle("event"))
        ext_note(store, self._batch, [of_type[-1] for of_type in by_type.values()])

    def _delete_sessions(
        self, store: Store, snapshot: Snapshot, events: Sequence[StoredEvent]
    ) -> None:
        gone: dict[bytes, set[bytes]] = {}
        for key, _, _ in events:
            session_key = key[keys.TYPE_BYTES : -keys.INT_BYTES]
            gone.setdefault(session_key, set()).add(key[-keys.INT_BYTES :])
        runs: list[list[bytes]] = [[]]  # successive sessions to be deleted
        iterator = snapshot.iterator("session")
        for session_key, instances in gone.items():  # in the order of the keys
            if not (iterator.valid() and iterator.key() == session_key):
                runs.append([])
            entries = snapshot.next_value(iterator, session_key)
            left = keys.without_entries(entries, instances)
            if left:
                self._batch.put(session_key, left, store.handle("session"))
                runs.append([])
            else:
                runs[-1].append(session_key)
        for run in runs:
            self._delete_rows(run, store.handle("session"))
            self._delete_servers(store, run)

    def _delete_servers(self, store: Store, session_keys: Iterable[bytes]) -> None:
        """Delete rows of ``server``; successive sessions of a server are successive there, too."""
        by_server: dict[bytes, list[bytes]] = {}
        timestamps: dict[bytes, bytes] = {}
        for session_key in session_keys:
            server_key = session_key[keys.TIMESTAMP_BYTES :]
            server = server_key[: keys.INT_BYTES]
            by_server.setdefault(server, []).append(server_key)
            timestamps[server] = session_key[: keys.TIMESTAMP_BYTES]
        for server, server_keys in by_server.items():
            self._delete_rows(server_keys, store.handle("server"))
            position = server_keys[-1][keys.INT_BYTES :] + timestamps[server]
            if position > store.deleted_position(server):
                self._batch.put(keys.DELETED_KEY + server, position)

    def _delete_rows(self, row_keys: Sequence[bytes], family: ColumnFamily) -> None:
        """Delete successive rows."""
        if self._with_ranges and len(row_keys) >= limits.RETENTION_RANGE_ROWS:
            self._batch.delete_range(row_keys[0], row_keys[-1] + b"\x00", family)
        else:
            for key in row_keys:
                self._batch.delete(key, family)
