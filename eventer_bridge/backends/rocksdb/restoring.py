"""Stores that lack events that clients have seen: restored ones, rewound ones, and damaged logs.

A restored store lacks the events after the backup, one with a damaged log those that were lost. So
no id that may have been allocated since is reused, and the store gets a new history (``history``),
by which followers notice (:func:`ext_begin_history`). A clock may be behind, and a backup may be
restored more than once: how far ids are raised is random, too.

A store without acknowledged events that its log lost is opened only if the operator accepts the
loss (:func:`ext_accept_loss`). The log is kept up to the damage; the rest is set aside, under a
name that RocksDB ignores. Rows in sorted files stay, so rows of a session may be missing in one
index and not in another: ``verify`` finds them.

A backup can be restored as of an earlier moment (:func:`ext_rewind`): later events are deleted, in
commits of limited size, each of which leaves a consistent store.

Runs on a thread that may block.
"""

import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path
from typing import Final, NamedTuple

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.reader_rows import (
    CURSOR_PREFIX,
    PARKED_PREFIX,
    decode_cursor,
    decode_parked,
    encode_row,
)
from eventer_bridge.backends.rocksdb import contents, database, directories, keys, log_tail
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.info import ext_servers
from eventer_bridge.backends.rocksdb.keys import SessionBlock
from eventer_bridge.backends.rocksdb.log_files import list_logs, log_number
from eventer_bridge.backends.rocksdb.request_rows import ext_forget_later
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StoreDamagedError, StoreLossError
from eventer_bridge.model import INT64_MAX, EventId, Timestamp

mlog = logging.getLogger(__name__)


class RestoredServer(NamedTuple):
    """A server, its last stored session, and the mark up to which ids are never allocated again."""

    server_id: int
    last_session: int | None
    mark: int


class Restored(NamedTuple):
    """The new history of a store, and its servers."""

    history_id: str
    servers: list[RestoredServer]


def ext_begin_history(path: Path, server_ids: Iterable[int] = ()) -> Restored:
    """Begin a new history in a store that no process has open, and raise its marks.

    The marks of all servers are raised (and of ``server_ids``, even if no event of them is stored),
    because the store does not record which one is its own; replication of the others continues
    after their stored events, not after their marks.
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
    before = " ".join(store.histories()[-limits.MAX_HISTORY_SPANS :])
    commit.batch.put(keys.HISTORIES_KEY, before.encode())
    commit.batch.delete(keys.GROUP_KEY)  # it is another one than the members have
    store.stage_history(commit, history_id)
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
        with store.errors():
            for key, _ in contents.rows(store.family("default"), prefix):
                found.add(keys.decode_int(key.removeprefix(prefix)))
    return found


SET_ASIDE: Final = ".lost"
"""Suffix of the name of a log that is set aside."""

ACCEPTING: Final = "LOSS-ACCEPTED"
"""File that exists from before the first change until the store has a new history: without it, an
interruption would leave a store that reuses ids, unnoticed."""


def ext_accept_loss(path: Path, server_id: int) -> None:
    """Make a store that lost acknowledged events usable again; logs the loss.

    No process has it open. A store without a loss is not changed. Ids of ``server_id`` continue far
    above those it may have allocated.
    """
    if not (path / "CURRENT").exists():
        return
    lock = database.lock_directory(path)
    accepting = path / ACCEPTING
    try:
        with directories.os_errors(path, "cannot be written"):
            while (loss := _find_loss(path)) is not None:
                database.refuse_other_format(path)
                os.close(os.open(accepting, os.O_WRONLY | os.O_CREAT, 0o600))
                directories.sync(path)
                _set_aside(path, loss.log_number, loss.good_bytes)
                log_tail.forget(path)
                mlog.warning(
                    "event store continues without acknowledged events, as its operator asked",
                    extra={"path": str(path), "reason": str(loss)},
                )
            is_lost = accepting.exists()
    finally:
        os.close(lock)
    if is_lost:
        ext_begin_history(path, (server_id,))
        with directories.os_errors(path, "cannot be written"):
            accepting.unlink()
            directories.sync(path)


def ext_cut_unsynced(path: Path) -> None:
    """Cut off the damaged end of the log of a member of a group, which has it elsewhere.

    ``StoreLossError``: it is damaged, and is not one yet.
    ``StoreDamagedError``: what was synced is damaged; a part of it may be in sorted files, also
    that it was there.
    """
    if not (path / "CURRENT").exists():
        return
    lock = database.lock_directory(path)
    try:
        with directories.os_errors(path, "cannot be written"):
            while (loss := _find_loss(path)) is not None:
                if not database.has_group(path):
                    raise loss  # no other log has it
                last = log_number(list_logs(path)[-1]) if list_logs(path) else 0
                synced = {log.number: log.n_bytes for log in log_tail.read(path)}
                if loss.log_number != last or loss.good_bytes < synced.get(last, 0):
                    advice = "restore a backup of another member (`mariner restore --member`)"
                    raise StoreDamagedError(f"{loss}: {advice} in its place")
                _set_aside(path, loss.log_number, loss.good_bytes)
                extra = {"path": str(path), "reason": str(loss)}
                mlog.warning("what was not synced comes from the group's log again", extra=extra)
    finally:
        os.close(lock)


def refuse_interrupted(path: Path) -> None:
    """Refuse a store for which accepting a loss was interrupted, by ``StoreLossError``."""
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
        names = (f"{log.name}{SET_ASIDE}{i}" for i in chain([""], (f".{n}" for n in count(1))))
        aside = next(file for i in names if not (file := log.with_name(i)).exists())
        if log_number(log) == number and good_bytes:
            shutil.copyfile(log, aside)
            directories.sync(aside)
            directories.sync(path)
            os.truncate(log, good_bytes)
            directories.sync(log)
        elif log_number(log) >= number:
            log.rename(aside)
    directories.sync(path)


def ext_rewind(path: Path, until: Timestamp) -> int:
    """Delete the events with later timestamps; returns their number, or raises ``StorageError``."""
    store = Store(path)
    try:
        n_deleted = _delete_later(store, until)
        # these ids may be registered again, in other blocks (``store_limits.MAX_PASSED_ROWS``)
        store.ext_compact("server")
        _rewind_readers(store)
        return n_deleted
    finally:
        store.ext_close()


def _delete_later(store: Store, until: Timestamp) -> int:
    snapshot = store.snapshot()
    commit = Commit()
    with store.errors():
        # timestamps of deleted sessions would keep a server's clock ahead
        end = keys.encode_timestamp(until)
        for key, value in contents.rows(store.family("default"), keys.DELETED_KEY):
            if value[keys.INT_BYTES :] > end:
                commit.batch.put(key, value[: keys.INT_BYTES] + end)
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
    """Set cursors back to events that are left, and forget other parked events."""
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


def _write(store: Store, commit: Commit) -> None:
    store.write(commit)
    store.ext_sync()
