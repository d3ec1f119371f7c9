"""A large session is written in parts, and yet whole or not at all.

RocksDB keeps the interpreter's lock while it writes, 0.3 us a row, so that a session of 65,536
events at once would hold up everybody. Each part is a commit by itself, written and synced as
any other. The first one also notes which session is being written (``keys.UNFINISHED_KEY``), the
last one brings the session's rows in ``session`` and ``server`` and takes the note back. Whoever
finds the note passes over that session's rows in ``event`` and ``source``: a query, a copy of
the store, and who looks at a store after a crash. Who opens a store to write deletes them first.
"""

from collections.abc import Iterable
from typing import Final

from rocksdict import Rdict, WriteBatch, WriteOptions

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId

_ROWS_AT_A_TIME: Final = 4_096
"""Rows that are deleted in one write."""


def note(session_key: bytes, first_new: TypeId, type_ids: Iterable[TypeId]) -> bytes:
    """What is noted of a session.

    Args:
        session_key: its key.
        first_new: types from this one on are stored with it.
        type_ids: types of its events, each once.
    """
    return b"".join((session_key, first_new, *type_ids))


def unfinished_session(db: Rdict) -> bytes | None:
    """Key of the session of which only parts are written now; None where there is none.

    Args:
        db: the column family ``default``.

    Raises:
        Exception: RocksDB's, for ``database.explain``.
    """
    noted: bytes | None = db.get(keys.UNFINISHED_KEY)
    return None if noted is None else noted[: keys.SESSION_KEY_BYTES]


def undo(db: Rdict) -> None:
    """Delete what there is of a session that was not written whole.

    Runs on a thread that may block.

    Args:
        db: a database that was just opened, to be written.

    Raises:
        Exception: RocksDB's, for ``database.explain``.
    """
    noted: bytes | None = db.get(keys.UNFINISHED_KEY)
    if noted is None:
        return
    session_key, rest = noted[: keys.SESSION_KEY_BYTES], noted[keys.SESSION_KEY_BYTES :]
    first_new, *type_ids = keys.split_types(rest)
    events = db.get_column_family("event")
    event_cf, source_cf, type_cf = map(db.get_column_family_handle, ("event", "source", "type"))
    synced = WriteOptions()
    synced.sync = True  # each: the log may end in one write that is torn, not in several
    batch = WriteBatch(raw_mode=True)
    for type_id in type_ids:
        prefix = type_id + session_key
        row = events.iter()
        row.seek(prefix)
        while row.valid() and (key := row.key()).startswith(prefix):
            if source_key := keys.source_key(key, row.value()):
                batch.delete(source_key, source_cf)
            batch.delete(key, event_cf)
            row.next()
            if batch.len() >= _ROWS_AT_A_TIME:
                db.write(batch, synced)
                batch = WriteBatch(raw_mode=True)
        row.status()  # raises if it is not the end, but a failure
        if type_id >= first_new:
            batch.delete(type_id, type_cf)
            batch.delete(keys.IN_ORDER_KEY + type_id)
    batch.delete(keys.UNFINISHED_KEY)
    db.write(batch, synced)
