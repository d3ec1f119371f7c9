"""Metadata of a database: its format, its event types, their prices, the time that passed.

Read when a store is opened, and before that by :func:`check`, without changing anything, so that an
unusable store stays unchanged. Runs on a thread that may block.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from rocksdict import Rdict

from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.unfinished import unfinished_session
from eventer_bridge.errors import StoreDamagedError, StoreFormatError
from eventer_bridge.model import EventType

FORMAT: Final = 3
"""Version of the layout in ``keys``; incremented when older versions would misread it."""

IMPORTING: Final = b"import"
"""Stored in place of the format until an import is complete."""

FAMILIES: Final = ("event", "source", "session", "server", "type")
"""Column families besides ``default``."""

LATER_FAMILIES: Final = ("request", "reader")
"""Those that stores of earlier versions lack until they are opened to be written."""

ALL_FAMILIES: Final = (*FAMILIES, *LATER_FAMILIES)


def check(path: Path, db: Rdict, names: Iterable[str]) -> None:
    """Refuse a database that is not an event store, or cannot be used.

    Args:
        path: path of the store, for messages.
        db: the database, which may be open for reading only.
        names: names of its column families.

    Raises:
        StoreFormatError: its format is not supported.
        StoreDamagedError: it is damaged, or not an event store.
        Exception: RocksDB's, for ``database.explain``.
    """
    if is_known_format(path, db, names):
        read_types(path, db.get_column_family("type"))
        read_spent(path, db)
        read_in_order_ends(path, db)
        read_clock(path, db)
        unfinished_session(db)


def is_known_format(path: Path, db: Rdict, names: Iterable[str]) -> bool:
    """Whether the database is an event store of this format; false if it is empty.

    Args, Raises: as :func:`check`.
    """
    found = db.get(keys.FORMAT_KEY)
    if found is None:
        if any(_has_rows(db.get_column_family(name)) for name in names):
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
        raise StoreDamagedError(
            f"{path}: the event store is damaged: no column family {', '.join(sorted(missing))}"
        )
    return True


def read_types(path: Path, family: Rdict) -> list[tuple[TypeId, EventType]]:
    """The stored event types.

    Args:
        path: path of the store, for messages.
        family: column family ``type``.

    Raises:
        StoreDamagedError: one is missing, or cannot be decoded.
        Exception: RocksDB's, for ``database.explain``.
    """
    types: list[tuple[TypeId, EventType]] = []
    iterator = family.iter()
    iterator.seek_to_first()
    while iterator.valid():
        try:
            types.append((iterator.key(), keys.decode_type(iterator.value())))
        except (ValueError, msgspec.DecodeError) as e:
            raise StoreDamagedError(f"{path}: the event store is damaged: a type: {e}") from None
        iterator.next()
    iterator.status()  # raises if it is not the end, but a failure
    if any(type_id != keys.encode_type_id(n) for n, (type_id, _) in enumerate(types)):
        raise StoreDamagedError(f"{path}: the event store is damaged: a type is missing")
    return types


def read_spent(path: Path, default: Rdict) -> dict[str, int]:
    """Prices paid by each owner (``TypeBudget.spent``).

    Args:
        path: path of the store, for messages.
        default: column family ``default``.

    Raises:
        StoreDamagedError: a row cannot be decoded.
        Exception: RocksDB's, for ``database.explain``.
    """
    spent: dict[str, int] = {}
    iterator = default.iter()
    iterator.seek(keys.SPENT_KEY)
    while iterator.valid() and iterator.key().startswith(keys.SPENT_KEY):
        price = iterator.value()
        if len(price) != keys.INT_BYTES:
            raise StoreDamagedError(f"{path}: the event store is damaged: a quota's row")
        spent[keys.decode_owner(iterator.key())] = keys.decode_int(price)
        iterator.next()
    iterator.status()
    return spent


def read_in_order_ends(path: Path, default: Rdict) -> dict[TypeId, bytes]:
    """Where the order of types ended (``source_order``).

    Args:
        path: path of the store, for messages.
        default: column family ``default``.

    Raises:
        StoreDamagedError: a row is no position.
        Exception: RocksDB's, for ``database.explain``.
    """
    ends: dict[TypeId, bytes] = {}
    iterator = default.iter()
    iterator.seek(keys.IN_ORDER_KEY)
    while iterator.valid() and (key := iterator.key()).startswith(keys.IN_ORDER_KEY):
        end = iterator.value()
        if len(end) not in (0, keys.POSITION_BYTES):
            raise StoreDamagedError(f"{path}: the event store is damaged: a type's order")
        ends[key.removeprefix(keys.IN_ORDER_KEY)] = end
        iterator.next()
    iterator.status()
    return ends


def read_clock(path: Path, default: Rdict) -> PassedTime:
    """The time that passed with the store.

    Args:
        path: path of the store, for messages.
        default: column family ``default``.

    Raises:
        StoreDamagedError: its row cannot be decoded.
        Exception: RocksDB's, for ``database.explain``.
    """
    try:
        return PassedTime(default.get(keys.CLOCK_KEY))
    except ValueError:
        raise StoreDamagedError(
            f"{path}: the event store is damaged: the time that passed"
        ) from None


def _has_rows(family: Rdict) -> bool:
    iterator = family.iter()
    iterator.seek_to_first()
    iterator.status()
    return iterator.valid()
