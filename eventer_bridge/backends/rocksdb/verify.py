"""Verifying a store: reads and decodes every row, and looks it up in the other indexes.

Runs on a thread that may block. RocksDB verifies the checksum of every block that it reads. Memory
does not depend on the size of the store, except for the event types.

Every event must be in the block of its session, which must be in ``server``. If it has a source
timestamp, it must be in ``source``, or in the order of source timestamps (``source_order``). The
numbers of rows show that nothing else is in ``source`` and ``session``; only if they do not match,
each row's event is looked up. What is kept for clients: ``verify_clients``.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from eventer_bridge.backends import passed_time
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.session_block import (
    ENTRY_BYTES,
    LOCAL_ID_BYTES,
    ORIGIN_BYTES,
    SessionBlock,
)
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.verified_rows import (
    Finding,
    VerifiedRows,
    batches,
    id_text,
    key_text,
)
from eventer_bridge.backends.rocksdb.verify_clients import check_clients
from eventer_bridge.model import EventType

EVENTS_AT_A_TIME: Final = 8
"""Events that are looked up together, which is only in a damaged store; they can be large."""


class Counts(NamedTuple):
    """Numbers of rows in a store."""

    events: int
    sessions: int
    servers: int
    event_types: int


def ext_verify(
    store: Store,
    on_finding: Callable[[Finding], None],
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Counts:
    """Check a store.

    Args:
        store: the store; it must not be written to meanwhile.
        on_finding: called for each inconsistency.
        on_progress: called at intervals with the number of rows read, and an estimate of all.
    """
    rows = VerifiedRows(store, on_finding, on_progress)
    verification = _Verification(rows)
    counts = verification.run()
    check_clients(store, rows, verification.names)
    return counts


class _Verification:
    def __init__(self, rows: VerifiedRows) -> None:
        self._rows = rows
        self._report = rows.report
        self.names: dict[TypeId, EventType] = {}
        self._last_sessions: dict[bytes, bytes] = {}
        self._in_order_until: dict[TypeId, bytes] = {}

    def run(self) -> Counts:
        self._check_types()
        n_sessions, n_entries = self._check_sessions()
        self._check_servers()
        self._check_marks()
        n_found = self._rows.n_findings
        n_events, n_sourced = self._check_events()
        is_complete = self._rows.n_findings == n_found
        if not is_complete or n_entries != n_events:
            self._find_extra_entries()
        n_sources = self._check_sources()
        if not is_complete or n_sources != n_sourced:
            self._find_extra_sources()
        return Counts(n_events, n_sessions, len(self._last_sessions), len(self.names))

    def _check_types(self) -> None:
        known: dict[EventType, TypeId] = {}
        for type_id, data in self._rows.all("type"):
            if len(type_id) != keys.TYPE_BYTES:
                self._report("type", key_text(type_id), "not a key of this index")
                continue
            try:
                name = self.names[type_id] = keys.decode_type(data)
            except (ValueError, msgspec.DecodeError) as e:
                self._report("type", key_text(type_id), f"cannot be decoded: {e}")
                continue
            if name in known:
                other = key_text(known[name])
                self._report("type", key_text(type_id), f"{'/'.join(name)!a} is {other} already")
            known[name] = type_id
        for number, type_id in enumerate(sorted(self.names)):
            if type_id != keys.encode_type_id(number):
                self._report(
                    "type", key_text(keys.encode_type_id(number)), "missing: ids have a gap"
                )
                break

    def _check_sessions(self) -> tuple[int, int]:
        n_sessions = n_entries = 0
        for rows in batches(self._rows.all("session")):
            blocks = [block for row in rows if self._is_block(block := SessionBlock(*row))]
            n_sessions += sum(map(self._check_block, blocks))
            n_entries += sum(block.n_events for block in blocks)
            server_keys = [block.server_key for block in blocks]
            for (key, _), timestamp in zip(
                blocks, self._rows.values("server", server_keys), strict=False
            ):
                if timestamp is None:
                    self._report("server", _session(key), "no row, but session has one")
                elif timestamp != key[: keys.TIMESTAMP_BYTES]:
                    self._report("server", _session(key), "another timestamp than in session")
        return n_sessions, n_entries

    def _is_block(self, block: SessionBlock) -> bool:
        key, entries = block
        if len(key) != keys.SESSION_KEY_BYTES or not keys.is_timestamp(key):
            self._report("session", key_text(key), "not a key of this index")
            return False
        if not _is_list(entries):
            self._report("session", _session(key), f"{len(entries)} bytes are no list of events")
            return False
        return True

    def _check_block(self, block: SessionBlock) -> int:
        """Returns how many sessions it has."""
        key, entries = block
        ids = [entries[i : i + LOCAL_ID_BYTES] for i in range(0, len(entries), ENTRY_BYTES)]
        if any(local_id >= following for local_id, following in pairwise(ids)):
            self._report("session", _session(key), "its events are not in order")
        sessions = {local_id[: keys.INT_BYTES] for local_id in ids}
        if (first := min(sessions)) < key[ORIGIN_BYTES:]:
            self._report("session", _session(key), f"has events of session {id_text(first)}")
        return len(sessions)

    def _check_servers(self) -> None:
        last_key = last_timestamp = b""
        before = SessionBlock(b"", b"")
        for rows in batches(self._rows.all("server")):
            good: list[bytes] = []
            for key, timestamp in rows:
                if len(key) != keys.SERVER_KEY_BYTES or len(timestamp) != keys.TIMESTAMP_BYTES:
                    self._report("server", key_text(key), "not a row of this index")
                    continue
                server = key[: keys.INT_BYTES]
                if last_key[: keys.INT_BYTES] == server and timestamp < last_timestamp:
                    self._report("server", id_text(key), f"earlier than {id_text(last_key)}")
                last_key, last_timestamp = key, timestamp
                self._last_sessions[server] = key[keys.INT_BYTES :]
                good.append(timestamp + key)
            for key, entries in zip(good, self._rows.values("session", good), strict=False):
                if entries is None:
                    self._report("session", _session(key), "no row, but server has one")
                block = SessionBlock(key, entries if entries and _is_list(entries) else b"")
                self._check_follows(before, block)
                before = block

    def _check_follows(self, before: SessionBlock, block: SessionBlock) -> None:
        """Check that a block begins behind the one before it in ``server``."""
        server = block.server_key[: keys.INT_BYTES]
        last = before.last_session
        if before.server_key.startswith(server) and block.key[ORIGIN_BYTES:] <= last:
            text = f"overlaps {_session(before.key)}, which goes up to session {id_text(last)}"
            self._report("session", _session(block.key), text)
        self._last_sessions[server] = max(self._last_sessions[server], block.last_session)

    def _check_marks(self) -> None:
        for key, session in self._rows.all("default"):
            if key.startswith(keys.IN_ORDER_KEY):
                self._check_in_order_until(key, session)
            if key.startswith(keys.DELETED_KEY):
                self._check_deleted(key, session)
            if key in (keys.HISTORY_KEY, keys.HISTORIES_KEY) and not session.isascii():
                self._report("default", key_text(key), "not the name of a history")
            if key == keys.CLOCK_KEY and not _is_clock(session):
                self._report("default", key_text(key), "not the time that passed")
            if key.startswith(keys.SPENT_KEY) and len(session) != keys.INT_BYTES:
                self._report("default", key_text(key), "not what the types of a client cost")
            if not key.startswith(keys.RESERVED_KEY):
                continue
            server = key.removeprefix(keys.RESERVED_KEY)
            if len(server) != keys.INT_BYTES or len(session) != keys.INT_BYTES:
                self._report("default", key_text(key), "not a reservation of session ids")
            elif session < (last := self._last_sessions.get(server, b"")):
                self._report(
                    "default",
                    f"server {id_text(server)}",
                    f"session ids up to {id_text(session)} are reserved,"
                    f" but {id_text(last)} is stored",
                )

    def _check_in_order_until(self, key: bytes, position: bytes) -> None:
        type_id = key.removeprefix(keys.IN_ORDER_KEY)
        if type_id not in self.names or len(position) not in (0, keys.POSITION_BYTES):
            self._report("default", key_text(key), "not where the order of a type ends")
        else:
            self._in_order_until[type_id] = position

    def _check_deleted(self, key: bytes, position: bytes) -> None:
        is_server = len(key) == len(keys.DELETED_KEY) + keys.INT_BYTES
        is_position = len(position) == keys.INT_BYTES + keys.TIMESTAMP_BYTES
        if not is_server or not is_position or not keys.is_timestamp(position, keys.INT_BYTES):
            self._report("default", key_text(key), "not a position of deleted sessions")

    def _check_events(self) -> tuple[int, int]:
        """The number of events, and of those that are to be in ``source``."""
        n_events = n_sourced = 0
        for rows in batches(self._event_rows()):
            source_keys = [source_key for _, source_key in rows if source_key]
            n_events += len(rows)
            n_sourced += len(source_keys)
            for key, row in zip(
                source_keys, self._rows.values("source", source_keys), strict=False
            ):
                if row is None:
                    self._report("source", _event(key), "no row, but event has one")
            self._check_entries([key for key, _ in rows])
        return n_events, n_sourced

    def _event_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys of events, and their keys in ``source``, empty where they are not there."""
        last = b""  # by source timestamp, of those that are in order
        for key, value in self._rows.all("event"):
            if len(key) != keys.EVENT_KEY_BYTES or not keys.is_timestamp(key, keys.TYPE_BYTES):
                self._report("event", key_text(key), "not a key of this index")
                continue
            if key[: keys.TYPE_BYTES] not in self.names:
                type_id = key_text(key[: keys.TYPE_BYTES])
                self._report("event", _event(key), f"unknown event type {type_id}")
            source_key = b""
            try:
                keys.check_value(value)
                source_key = keys.source_key(key, value)
                if keys.is_in_order(value):
                    last = self._check_in_order(key, keys.by_source(key, value), last)
            except ValueError as e:
                self._report("event", _event(key), f"cannot be decoded: {e}")
            yield key, source_key

    def _check_in_order(self, key: bytes, by_source: bytes, last: bytes) -> bytes:
        """Check that an event is in order, behind the last one that is; returns the new last."""
        type_id = key[: keys.TYPE_BYTES]
        if key > type_id + self._in_order_until.get(type_id, keys.KEY_MAX):
            self._report("event", _event(key), "behind where the order of its type ends")
        if by_source < last:
            text = f"source timestamp before that of {_event(last)}, but not in source"
            self._report("event", _event(key), text)
        return max(last, by_source)

    def _check_entries(self, event_keys: list[bytes]) -> None:
        for key in event_keys:
            block = self._rows.block_of(keys.session_of(key))
            if block is None:  # it could not be read
                continue
            known = block.find(key[-LOCAL_ID_BYTES:])
            if known is None:
                self._report("session", _event(key), "no entry, but event has a row")
            elif known != key[: keys.TYPE_BYTES]:
                self._report("session", _event(key), "another event type than in event")

    def _check_sources(self) -> int:
        n_sources = 0
        for key, value in self._rows.all("source"):
            n_sources += 1
            if len(key) != keys.SOURCE_KEY_BYTES or value:
                self._report("source", key_text(key), "not a row of this index")
        return n_sources

    def _find_extra_entries(self) -> None:
        for rows in batches(self._rows.all("session", is_again=True)):
            blocks = [SessionBlock(*row) for row in rows if len(row[0]) == keys.SESSION_KEY_BYTES]
            wanted = [key for block in blocks for key in block.event_keys()]
            for some in batches(iter(wanted), EVENTS_AT_A_TIME):
                for key, value in zip(some, self._rows.values("event", some), strict=False):
                    if value is None:
                        self._report("event", _event(key), "no row, but session has an entry")

    def _find_extra_sources(self) -> None:
        for rows in batches(self._rows.all("source", is_again=True), EVENTS_AT_A_TIME):
            good = [key for key, _ in rows if len(key) == keys.SOURCE_KEY_BYTES]
            wanted = [key[: keys.TYPE_BYTES] + key[-keys.POSITION_BYTES :] for key in good]
            for key, value in zip(good, self._rows.values("event", wanted), strict=False):
                if value is None:
                    self._report("event", _event(key), "no row, but source has one")
                else:
                    self._check_source(key, value)

    def _check_source(self, source_key: bytes, value: bytes) -> None:
        event_key = keys.event_key(source_key)
        try:
            keys.check_value(value)
        except ValueError:
            return  # reported already
        if keys.by_source(event_key, value) != source_key:
            self._report("source", _event(event_key), "another source timestamp than in event")
        elif not keys.source_key(event_key, value):
            self._report("source", _event(event_key), "has a row, but the event is in order")


def _is_list(entries: bytes) -> bool:
    return bool(entries) and len(entries) % ENTRY_BYTES == 0


def _is_clock(kept: bytes) -> bool:
    try:
        passed_time.decode(kept)
    except ValueError:
        return False
    return True


def _session(block_key: bytes) -> str:
    return id_text(block_key[keys.TIMESTAMP_BYTES :])


def _event(key: bytes) -> str:
    """Id of the event, from a key that ends with its position."""
    return id_text(key[-keys.ID_BYTES :])
