"""Deleting the oldest events of some types, in all column families at once.

Runs on the retention thread. A :class:`Deletion` is an ordinary commit: all families stay
consistent, even after a crash. Sessions that are registered meanwhile may join it.

``event``: by range if many events of a type are deleted, else by key. ``source``: by key (a new
event may have any position in it). ``session``: a block is rewritten without the events, or deleted
with its row in ``server`` if none is left; many successive ones by range. ``default``: the last id
and timestamp of a server, if one of its sessions is deleted.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rocksdict import ColumnFamily, RdictIter

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.scan import KeyRange, find_in_blocks, scan_blocks
from eventer_bridge.backends.rocksdb.session_block import LOCAL_ID_BYTES, SessionBlock
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.store import Store
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


class _ReducedBlock(NamedTuple):
    """A block of which events are deleted.

    Attributes:
        block: with them.
        local_ids: sessions and instances of these events.
        is_next: whether it follows the one before.
    """

    block: SessionBlock
    local_ids: set[bytes]
    is_next: bool


def ext_oldest(
    snapshot: Snapshot, type_ids: Sequence[TypeId], span: KeyRange, max_events: int
) -> list[StoredEvent]:
    """The first events of some types, in natural order.

    Blocks of sessions are walked as long as that is cheaper than seeking every type.
    """
    blocks = scan_blocks(snapshot, span)
    found = find_in_blocks(snapshot, blocks, frozenset(type_ids), span, limit=max_events)
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
        events: those that it deletes: the first ones, as ``limits.RETENTION_BATCH_BYTES`` says.
        missing: of which readers are told; see ``trimmed.Deletions``.
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
        self.missing: dict[bytes, bytes] = {}
        self._with_ranges = with_ranges
        blocks = [*_blocks_of(snapshot, events)]
        self.events = events[: sum(len(local_ids) for _, local_ids, _ in blocks)]
        if with_ranges and events:
            self.newest = keys.session_of(self.events[-1].key)
        self._delete_events(store, self.events)
        self._delete_blocks(store, blocks)

    def _delete_events(self, store: Store, events: Sequence[StoredEvent]) -> None:
        by_type: dict[TypeId, list[bytes]] = {}
        source_cf = store.handle("source")
        for key, value, _ in events:
            if source_key := keys.source_key(key, value):
                self._batch.delete(source_key, source_cf)
            type_id = key[: keys.TYPE_BYTES]
            by_type.setdefault(type_id, []).append(key)
            self.missing[key[-keys.ID_BYTES : -LOCAL_ID_BYTES] + type_id] = key[-LOCAL_ID_BYTES:]
        for of_type in by_type.values():
            self._delete_rows(of_type, store.handle("event"))

    def _delete_blocks(self, store: Store, blocks: Iterable[_ReducedBlock]) -> None:
        runs: list[list[SessionBlock]] = []  # successive blocks to be deleted
        positions: dict[bytes, bytes] = {}  # the last session of each server that is gone
        for block, local_ids, is_next in blocks:
            left = block.without(local_ids)
            if left.entries:
                self._batch.put(left.key, left.entries, store.handle("session"))
                runs.append([])
            else:
                if not (is_next and runs):
                    runs.append([])
                runs[-1].append(block)
            gone = {i[: keys.INT_BYTES] for i in local_ids}
            gone = {session for session in gone if not left.has_session(session)}
            if gone:  # blocks come in the order of time
                server = block.server_key[: keys.INT_BYTES]
                positions[server] = max(gone) + block.key[: keys.TIMESTAMP_BYTES]
        for run in runs:
            self._delete_rows([block.key for block in run], store.handle("session"))
            self._delete_servers(store, run)
        for server, position in positions.items():
            if position > store.deleted_position(server):
                self._batch.put(keys.DELETED_KEY + server, position)

    def _delete_servers(self, store: Store, blocks: Iterable[SessionBlock]) -> None:
        """Delete rows of ``server``; successive blocks of a server are successive there, too."""
        by_server: dict[bytes, list[bytes]] = {}
        for block in blocks:
            server = block.server_key[: keys.INT_BYTES]
            by_server.setdefault(server, []).append(block.server_key)
        for server_keys in by_server.values():
            self._delete_rows(server_keys, store.handle("server"))

    def _delete_rows(self, row_keys: Sequence[bytes], family: ColumnFamily) -> None:
        """Delete successive rows."""
        if self._with_ranges and len(row_keys) >= limits.RETENTION_RANGE_ROWS:
            self._batch.delete_range(row_keys[0], row_keys[-1] + b"\x00", family)
        else:
            for key in row_keys:
                self._batch.delete(key, family)


def _blocks_of(snapshot: Snapshot, events: Iterable[StoredEvent]) -> Iterator[_ReducedBlock]:
    """Blocks that have events, which come in order: as many as one commit may rewrite."""
    iterator = snapshot.iterator("session")
    block, is_next = SessionBlock(b"", b""), False
    local_ids: set[bytes] = set()
    n_bytes = 0
    for key, _, _ in events:
        session_key = keys.session_of(key)
        if not block.spans(session_key):
            if local_ids:
                yield _ReducedBlock(block, local_ids, is_next)
            if n_bytes > limits.RETENTION_BATCH_BYTES:
                return
            block, is_next = _block_of(snapshot, iterator, session_key)
            n_bytes += len(block.entries)
            local_ids = set()
        local_ids.add(key[-LOCAL_ID_BYTES:])
    if local_ids:
        yield _ReducedBlock(block, local_ids, is_next)


def _block_of(
    snapshot: Snapshot, iterator: RdictIter, session_key: bytes
) -> tuple[SessionBlock, bool]:
    """The block that has a session, and whether the iterator, which moves behind it, was there."""
    if iterator.valid() and iterator.key() <= session_key:
        block = SessionBlock(iterator.key(), iterator.value())
        if block.spans(session_key):
            iterator.next()
            return block, True
    iterator.seek_for_prev(session_key)
    block = SessionBlock(iterator.key() or b"", iterator.value() or b"")
    if not block.spans(session_key):
        with snapshot.errors():
            iterator.status()
        raise snapshot.damaged(session_key)
    iterator.next()
    return block, False
