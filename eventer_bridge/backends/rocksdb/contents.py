"""Metadata of a database: format, event types and their prices, passed time, an unfinished session.

Read when a store is opened, and before that by :func:`check`, without changing anything, so that an
unusable store stays unchanged. Runs on a thread that may block. All functions raise
``StoreDamagedError`` for rows that cannot be decoded, and RocksDB's exceptions, for
``database.explain``; ``path`` is that of the store, for messages.

A large session is written in parts, and yet whole or not at all: RocksDB holds the interpreter's
lock while it writes, 0.3 us a row, so a session of 65,536 events at once would block the loop. Each
part is a commit by itself. The first one also notes the session (``keys.UNFINISHED_KEY``), the last
one brings its rows in ``session`` and ``server`` and removes the note. While there is a note, the
session's rows in ``event`` and ``source`` are hidden: from queries, in a copy of the store, and
after a crash. Opening a store for writing deletes them first.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from rocksdict import Rdict, WriteBatch, WriteOptions

from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.errors import StoreDamagedError, StoreFormatError
from eventer_bridge.model import EventType

FORMAT: Final = 3
"""Version of the layout in ``keys``; incremented when older versions would misread it."""

IMPORTING: Final = b"import"
"""Stored in place of the format until an import is complete."""

FAMILIES: Final = ("event", "source", "session", "server", "type", "request", "reader")
"""Column families besides ``default``."""

N_STAGED: Final = 5
"""The first so many of them have the rows of events."""


def check(path: Path, db: Rdict, names: Iterable[str]) -> None:
    """Refuse a database (open for reading, maybe) that is no event store, or cannot be used."""
    if is_known_format(path, db, names):
        read_types(path, db.get_column_family("type"))
        read_spent(path, db)
        read_in_order_ends(path, db)
        read_clock(path, db)
        unfinished_session(db)


def is_known_format(path: Path, db: Rdict, names: Iterable[str]) -> bool:
    """Whether it is a store of this format, else raises as :func:`check`; false: it is empty."""
    found = db.get(keys.FORMAT_KEY)
    if found is None:
        if any(next(rows(db.get_column_family(name)), None) for name in names):
            raise StoreDamagedError(f"{path}: a database, but not an event store")
        return False
    if found == IMPORTING:
        raise StoreDamagedError(
            f"{path}: an import into this event store was interrupted: remove it, and import again"
        )
    if not found.isdigit() or int(found) != FORMAT:
        raise StoreFormatError(
            f"{path}: the event store has format {found.decode(errors='replace')},"
            f" this version supports only format {FORMAT}"
        )
    if missing := set(FAMILIES).difference(names):
        raise _damaged(path, f"no column family {', '.join(sorted(missing))}")
    return True


def rows(family: Rdict, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Rows of a column family whose keys begin with ``prefix``, in order."""
    iterator = family.iter()
    iterator.seek(prefix)
    while iterator.valid() and (key := iterator.key()).startswith(prefix):
        yield key, iterator.value()
        iterator.next()
    iterator.status()  # raises if it is not the end, but a failure


def read_types(path: Path, family: Rdict) -> list[tuple[TypeId, EventType]]:
    """The stored event types, from the column family ``type``."""
    types: list[tuple[TypeId, EventType]] = []
    for type_id, data in rows(family):
        try:
            types.append((type_id, keys.decode_type(data)))
        except (ValueError, msgspec.DecodeError) as e:
            raise _damaged(path, f"a type: {e}") from None
        if type_id != keys.encode_type_id(len(types) - 1):
            raise _damaged(path, "a type is missing")
    return types


def read_spent(path: Path, default: Rdict) -> dict[str, int]:
    """Prices paid by each owner (``TypeBudget.spent``), from ``default``."""
    spent: dict[str, int] = {}
    for key, price in rows(default, keys.SPENT_KEY):
        if len(price) != keys.INT_BYTES:
            raise _damaged(path, "a quota's row")
        spent[keys.decode_owner(key)] = keys.decode_int(price)
    return spent


def read_in_order_ends(path: Path, default: Rdict) -> dict[TypeId, bytes]:
    """Where the order of types ended (``source_order``), from ``default``."""
    ends: dict[TypeId, bytes] = {}
    for key, end in rows(default, keys.IN_ORDER_KEY):
        if len(end) not in (0, keys.POSITION_BYTES):
            raise _damaged(path, "a type's order")
        ends[key.removeprefix(keys.IN_ORDER_KEY)] = end
    return ends


def read_clock(path: Path, default: Rdict) -> PassedTime:
    """The time that passed with the store, from ``default``."""
    try:
        return PassedTime(default.get(keys.CLOCK_KEY))
    except ValueError:
        raise _damaged(path, "the time that passed") from None


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    """How far the store of a member of a group has come (``member``), in ``default``.

    ``digest`` is that of the record at its position.
    """

    group_id: str
    position: int
    digest: int


encode_group: Final = msgspec.msgpack.Encoder().encode
_decode_group: Final = msgspec.msgpack.Decoder(GroupRow).decode


def read_group(path: Path, default: Rdict) -> GroupRow | None:
    """The group of a store, from ``default``; None: it belongs to none."""
    found: bytes | None = default.get(keys.GROUP_KEY)
    try:
        return None if found is None else _decode_group(found)
    except msgspec.DecodeError as e:
        raise _damaged(path, f"its group: {e}") from None


def _damaged(path: Path, what: str) -> StoreDamagedError:
    return StoreDamagedError(f"{path}: the event store is damaged: {what}")


def note(session_key: bytes, first_new: TypeId, type_ids: Iterable[TypeId]) -> bytes:
    """The note of a session: its key, the first type that is stored with it, its types."""
    return b"".join((session_key, first_new, *type_ids))


def unfinished_session(db: Rdict) -> bytes | None:
    """Key of the session that is written in part now, from ``default``; None: none."""
    noted: bytes | None = db.get(keys.UNFINISHED_KEY)
    return None if noted is None else noted[: keys.SESSION_KEY_BYTES]


def undo(db: Rdict) -> None:
    """Delete the rows of an unfinished session from a database that was opened for writing."""
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
        for key, value in rows(events, type_id + session_key):
            if source_key := keys.source_key(key, value):
                batch.delete(source_key, source_cf)
            batch.delete(key, event_cf)
            if batch.len() >= store_limits.UNDONE_ROWS:
                db.write(batch, synced)
                batch = WriteBatch(raw_mode=True)
        if type_id >= first_new:
            batch.delete(type_id, type_cf)
            batch.delete(keys.IN_ORDER_KEY + type_id)
    batch.delete(keys.UNFINISHED_KEY)
    db.write(batch, synced)
