"""Rewinding a copy of a store to an earlier moment: deletes events with later timestamps.

For a store whose server had a clock that was ahead (``eventer_bridge.core.clock``). Ids are not
reused: reserved ids stay reserved. Request keys of deleted events are forgotten, and cursors that
were behind them go back.

Runs on a thread that may block.
"""

from pathlib import Path

from eventer_bridge import limits
from eventer_bridge.backends.reader_rows import (
    CURSOR_PREFIX,
    PARKED_PREFIX,
    decode_cursor,
    decode_parked,
    encode_row,
)
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.request_rows import ext_forget_later
from eventer_bridge.backends.rocksdb.session_block import SessionBlock
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.model import INT64_MAX, EventId, Timestamp


def ext_rewind(path: Path, until: Timestamp) -> int:
    """Delete the events with later timestamps.

    Args:
        path: directory of the store, which no process has open.
        until: the greatest timestamp to keep.

    Returns:
        Number of deleted events.

    Raises:
        StorageError: it cannot be opened or written.
    """
    store = Store(path)
    try:
        return _rewind(store, until)
    finally:
        store.ext_close()


def _rewind(store: Store, until: Timestamp) -> int:
    n_deleted = _delete_later(store, until)
    # these ids may be registered again, in other blocks (``snapshot.MAX_PASSED_ROWS``)
    store.ext_compact("server")
    _rewind_readers(store)
    return n_deleted


def _delete_later(store: Store, until: Timestamp) -> int:
    snapshot = store.snapshot()
    commit = Commit()
    _rewind_marks(store, commit, keys.encode_timestamp(until))
    with store.errors():
        ext_forget_later(store, commit.batch, until)
    n_deleted = n_staged = 0
    sessions = snapshot.iterator("session")
    sessions.seek(keys.encode_timestamp(until) + keys.KEY_MAX)
    while sessions.valid():
        block = SessionBlock(sessions.key(), sessions.value())
        n_events = _delete_block(store, snapshot, commit, block)
        n_deleted += n_events
        n_staged += n_events
        if n_staged >= limits.RETENTION_BATCH_EVENTS:
            _write(store, commit)
            commit, n_staged = Commit(), 0
        sessions.next()
    with store.errors():
        sessions.status()  # raises if it is not the end, but a failure
    _write(store, commit)
    return n_deleted


def _rewind_readers(store: Store) -> None:
    """Set cursors back to what is left, and forget parked events that are not."""
    rows: dict[bytes, bytes | None] = {}
    with store.errors():
        for key, value in store.reader_rows(CURSOR_PREFIX).items():
            *_, row = decode_cursor(key, value)
            seen = [left for i in row.seen if (left := _not_later(store, i)) is not None]
            if seen != row.seen:
                row.seen = seen
                rows[key] = encode_row(row)
        for key, value in store.reader_rows(PARKED_PREFIX).items():
            *_, event_id, _ = decode_parked(key, value)
            if _not_later(store, event_id) != event_id:
                rows[key] = None
    if rows:
        commit = Commit()
        store.stage_reader_rows(commit, rows)
        _write(store, commit)


def _not_later(store: Store, event_id: EventId) -> EventId | None:
    """An event, or the last one of its server if that is before it; None: nothing is left of it."""
    last = store.last_session(event_id.server)
    if event_id.session <= last.session:
        return event_id
    if last.timestamp is None:
        return None
    block = store.snapshot().last_block(keys.encode_int(event_id.server))
    if block is None or block.last_session != keys.encode_int(last.session):
        return EventId(event_id.server, last.session, INT64_MAX)  # retention deleted it
    return EventId(event_id.server, last.session, keys.decode_int(block.last_instance))


def _delete_block(store: Store, snapshot: Snapshot, commit: Commit, block: SessionBlock) -> int:
    delete = commit.batch.delete
    event_cf, source_cf = store.handle("event"), store.handle("source")
    for key in block.event_keys():
        if source_key := keys.source_key(key, snapshot.value(key)):
            delete(source_key, source_cf)
        delete(key, event_cf)
    delete(block.key, store.handle("session"))
    delete(block.server_key, store.handle("server"))
    return block.n_events


def _rewind_marks(store: Store, commit: Commit, until: bytes) -> None:
    """Reset the timestamps of deleted sessions, which would keep a server's clock ahead."""
    rows = store.iterator("default")
    rows.seek(keys.DELETED_KEY)
    while rows.valid() and (key := rows.key()).startswith(keys.DELETED_KEY):
        session, timestamp = rows.value()[: keys.INT_BYTES], rows.value()[keys.INT_BYTES :]
        if timestamp > until:
            commit.batch.put(key, session + until)
        rows.next()
    with store.errors():
        rows.status()


def _write(store: Store, commit: Commit) -> None:
    store.write(commit)
    store.ext_sync()
