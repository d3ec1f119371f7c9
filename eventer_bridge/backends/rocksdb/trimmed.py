"""Missing events of each server: deleted by retention, or elsewhere before they came here.

From it, an answer says where reading on would skip events. ::

    reader    "t"                          → number of deletions so far (8)
              "t" · server (8)             → session (8) · instance (8) · number (8)
              "t" · server (8) · type (4)  → the same

of the last missing event, of any type and of each, and of the latest deletion. The commit of a
deletion has these rows, too, numbered in the order of the commits: so an answer can leave out what
an earlier one said. Missing events of other servers (:data:`ANY_TYPE`) may be of any type.

Rows are staged on the event loop's thread, and read on a reader thread.
"""

from collections.abc import Collection, Mapping
from typing import Final

from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.keys import LOCAL_ID_BYTES, TypeId
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.types import EveryType
from eventer_bridge.model import INT64_MAX, INT64_MIN, EventId, QueryServerParams

FAMILY: Final = "reader"
PREFIX: Final = b"t"

ANY_TYPE: Final = b"\xff" * keys.TYPE_BYTES
"""In place of a type that is not known."""

SERVER_KEY_BYTES: Final = len(PREFIX) + keys.INT_BYTES


def value_bytes(key: bytes) -> int:
    """Size of the value of a row; raises ``ValueError`` if it is no key of one."""
    if key == PREFIX:
        return keys.INT_BYTES
    if len(key) not in (SERVER_KEY_BYTES, SERVER_KEY_BYTES + keys.TYPE_BYTES):
        raise ValueError(f"a key of {len(key)} bytes")
    return LOCAL_ID_BYTES + keys.INT_BYTES


def number_of(store: Store) -> int:
    """Number of deletions that are written; raises ``StorageError``."""
    with store.errors():
        number: bytes | None = store.family(FAMILY).get(PREFIX)
    return int.from_bytes(number or b"")


class Deletions:
    """Numbers deletions, and creates their rows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._number = number_of(store)
        self._last: dict[bytes, bytes] = {}  # local id of the last missing event of a server

    def stage(self, commit: Commit, missing: Mapping[bytes, bytes]) -> None:
        """Add the rows of the next deletion to its commit, which follows those before it.

        ``missing``: local id (session, instance) of the last event by server and type.
        """
        family, handle = self._store.family(FAMILY), self._store.handle(FAMILY)
        put = commit.batch.put
        self._number += 1
        number = self._number.to_bytes(keys.INT_BYTES)
        put(PREFIX, number, handle)
        for server_and_type, local_id in missing.items():
            put(PREFIX + server_and_type, local_id + number, handle)
            server = server_and_type[: keys.INT_BYTES]
            if server not in self._last:
                with self._store.errors():
                    known: bytes | None = family.get(PREFIX + server)
                self._last[server] = (known or b"")[:LOCAL_ID_BYTES]
            self._last[server] = max(self._last[server], local_id)
        for server in {i[: keys.INT_BYTES] for i in missing}:
            put(PREFIX + server, self._last[server] + number, handle)


def ext_find(
    snapshot: Snapshot, params: QueryServerParams, wanted: Collection[TypeId], known: int
) -> tuple[EventId | None, int]:
    """``deleted`` and ``n_deletions`` of the answer to a query of a server's events.

    Deletions up to the number ``known`` are left out. The snapshot is that of the answer, and has
    :data:`FAMILY`.
    """
    rows = snapshot.iterator(FAMILY)
    if not INT64_MIN <= params.server_id <= INT64_MAX:
        return None, 0
    server, last = keys.encode_int(params.server_id), params.last_event_id
    rows.seek(PREFIX)
    number = rows.value() if rows.valid() and rows.key() == PREFIX else b""
    found = start = b"" if last is None else keys.encode_id(last)
    least = known.to_bytes(keys.INT_BYTES)

    def is_later(value: bytes) -> bool:
        return server + value[:LOCAL_ID_BYTES] > found and value[LOCAL_ID_BYTES:] > least

    rows.seek(PREFIX + server)
    n_rows = 0
    while rows.valid() and (key := rows.key()).startswith(PREFIX + server):
        type_id, value = key[SERVER_KEY_BYTES:], rows.value()
        if not type_id:
            is_all = not known and isinstance(wanted, EveryType)
            if is_all and is_later(value):
                found = server + value[:LOCAL_ID_BYTES]
            if is_all or not is_later(value):  # there may be very many types
                break
        elif is_later(value) and (type_id == ANY_TYPE or type_id in wanted):
            found = server + value[:LOCAL_ID_BYTES]
        n_rows += 1
        if n_rows % store_limits.STEP_ROWS == 0:
            snapshot.pause()
        rows.next()
    with snapshot.errors():
        rows.status()
    if found == start:
        return None, int.from_bytes(number)
    session, instance = found[keys.INT_BYTES :][: keys.INT_BYTES], found[-keys.INT_BYTES :]
    missing = EventId(params.server_id, keys.decode_int(session), keys.decode_int(instance))
    return missing, int.from_bytes(number)
