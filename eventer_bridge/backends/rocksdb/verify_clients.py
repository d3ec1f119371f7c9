"""Verifying what a store keeps for clients: request keys, cursors, parked events, gaps.

What these rows name must be stored, unless retention deleted it: then it is not behind the last
session of its server that was deleted.

Runs on a thread that may block.
"""

from collections.abc import Collection, Iterator

from eventer_bridge.backends.reader_rows import (
    CURSOR_PREFIX,
    PARKED_PREFIX,
    decode_cursor,
    decode_parked,
)
from eventer_bridge.backends.rocksdb import keys, request_rows, trimmed
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.session_block import SessionBlock
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.verified_rows import VerifiedRows, id_text, key_text
from eventer_bridge.model import EventId


def check_clients(store: Store, rows: VerifiedRows, known_types: Collection[TypeId]) -> None:
    """Check the rows that are kept for clients.

    Args:
        store: the store.
        rows: its rows, and what is told of them.
        known_types: ids of its event types.
    """
    if request_rows.FAMILY in store.families:
        _Requests(store, rows).check()
    if trimmed.FAMILY in store.families:
        _Readers(store, rows, known_types).check()


class _Requests:
    def __init__(self, store: Store, rows: VerifiedRows) -> None:
        self._store = store
        self._rows = rows
        self._generations: dict[bytes, int] = {}

    def check(self) -> None:
        self._read_owners()
        for key, session_key in self._requests():
            block = self._rows.block_of(session_key)
            server_key = session_key[keys.TIMESTAMP_BYTES :]
            if block is not None and not _is_kept(self._store, block, server_key):
                self._report(key, f"session {id_text(server_key)} is not stored")

    def _read_owners(self) -> None:
        """The generations of clients; their rows are behind their keys."""
        rows = self._store.iterator(request_rows.FAMILY)
        rows.seek(request_rows.OWNER_PREFIX)
        while rows.valid() and (key := rows.key()).startswith(request_rows.OWNER_PREFIX):
            try:
                owner, generation = request_rows.decode_owner(key, rows.value())
            except ValueError as e:
                self._report(key, str(e))
            else:
                self._generations[owner] = generation
            rows.next()

    def _requests(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys of rows, with the key of each session that they name."""
        series: tuple[bytes, bytes, int] | None = None  # of rows: one kind, client and generation
        last = ""
        for key, value in self._rows.all(request_rows.FAMILY):
            if key.startswith(request_rows.OWNER_PREFIX):
                continue
            try:
                row = request_rows.decode_requests(key, value)
            except ValueError as e:
                self._report(key, str(e))
                continue
            newest = self._generations.get(row.owner)
            if newest is None:
                self._report(key, "its client has no row")
            elif row.generation not in (newest - 1, newest):
                text = f"of generation {row.generation}, but its client has {newest}"
                self._report(key, text)
            if (key[:1], row.owner, row.generation) != series:
                series, last = (key[:1], row.owner, row.generation), ""
            names = [last, *row.names]
            if names != sorted({*names}):
                self._report(key, "its keys do not sort behind those of the row before")
            last = row.names[-1]
            for session in range(row.session, row.session + len(row.names)):
                yield key, keys.session_key(row.timestamp, row.server, session)

    def _report(self, key: bytes, text: str) -> None:
        self._rows.report(request_rows.FAMILY, key_text(key), text)


class _Readers:
    def __init__(self, store: Store, rows: VerifiedRows, known_types: Collection[TypeId]) -> None:
        self._store = store
        self._rows = rows
        self._known_types = known_types
        self._cursors: set[tuple[str, str]] = set()  # they are before what they parked

    def check(self) -> None:
        checks = {
            CURSOR_PREFIX: self._check_cursor,
            PARKED_PREFIX: self._check_parked,
            trimmed.PREFIX: self._check_trimmed,
        }
        for key, value in self._rows.all(trimmed.FAMILY):
            check = checks.get(key[:1])
            if check is None:
                self._report(key_text(key), "not a key of this index")
                continue
            try:
                check(key, value)
            except ValueError as e:
                self._report(key_text(key), f"cannot be decoded: {e}")

    def _check_cursor(self, key: bytes, value: bytes) -> None:
        client, name, row = decode_cursor(key, value)
        if not row.is_deleted:
            self._cursors.add((client, name))
        for seen in row.seen:
            last = self._store.last_session(seen.server).session
            if seen.session > last:
                text = f"is at {_id(seen)}, but the last session of server {seen.server} is {last}"
                self._report(_cursor(client, name), text)

    def _check_parked(self, key: bytes, value: bytes) -> None:
        client, name, event_id, _ = decode_parked(key, value)
        if (client, name) not in self._cursors:
            text = f"parked by {_cursor(client, name)}, which does not exist"
            self._report(_id(event_id), text)
        elif not self._is_stored(event_id):
            text = f"parked by {_cursor(client, name)}, but not stored"
            self._report(_id(event_id), text)

    def _check_trimmed(self, key: bytes, value: bytes) -> None:
        expected = trimmed.value_bytes(key)
        if len(value) != expected:
            raise ValueError(f"{len(value)} bytes, expected {expected}")
        type_id = key[trimmed.SERVER_KEY_BYTES :]
        if type_id not in (b"", trimmed.ANY_TYPE) and type_id not in self._known_types:
            self._report(key_text(key), f"unknown event type {key_text(type_id)}")

    def _is_stored(self, event_id: EventId) -> bool:
        """Whether its session is, or was until retention came."""
        server_key = keys.encode_id(event_id)[: keys.SERVER_KEY_BYTES]
        block = self._rows.block_of_id(server_key)
        return block is None or _is_kept(self._store, block, server_key)

    def _report(self, row: str, text: str) -> None:
        self._rows.report(trimmed.FAMILY, row, text)


def _is_kept(store: Store, block: SessionBlock, server_key: bytes) -> bool:
    """Whether a session is stored in its block, or may have been deleted by retention."""
    server, session = server_key[: keys.INT_BYTES], server_key[keys.INT_BYTES :]
    if block.has_session(session):  # some of it may be deleted
        return True
    return store.deleted_position(server)[: keys.INT_BYTES] >= session


def _cursor(client: str, name: str) -> str:
    return f"cursor {name!a} of {client!a}"


def _id(event_id: EventId) -> str:
    return f"{event_id.server}/{event_id.session}/{event_id.instance}"
