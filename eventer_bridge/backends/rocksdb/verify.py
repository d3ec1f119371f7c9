"""Verifying a store: reads and decodes every row, and compares what follows from it with the rest.

From an event follow its entry in the block of its session, that block's row in ``server``, and its
row in ``source``, unless it is in the order of source timestamps (``source_order``). These are
looked up. The numbers of rows show that nothing else is in ``source`` and ``session``; only if they
do not match, each of their rows is looked up in ``event``.

What rows of clients name (request keys, parked events, gaps) must be stored, unless retention
deleted it: then it is not behind the last session of its server that was deleted.

Runs on a thread that may block. RocksDB verifies the checksum of each block that it reads. Memory
does not depend on the size of the store, except for the event types.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from typing import NamedTuple, TypeVar

import msgspec
from rocksdict import RdictIter

from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends import passed_time, reader_rows
from eventer_bridge.backends.rocksdb import keys, request_rows, trimmed
from eventer_bridge.backends.rocksdb.keys import SessionBlock, TypeId
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StorageError
from eventer_bridge.model import EventId, EventType

T = TypeVar("T")


class Finding(NamedTuple):
    """An inconsistency of a family.

    ``row`` is an event (``server/session/instance``), a session or the block that begins with it
    (``server/session``), an event type, or a key (``key …`` in hexadecimal digits).
    """

    family: str
    row: str
    text: str

    def __str__(self) -> str:
        return f"{self.family}: {self.row}: {self.text}"


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
    """Check a store, which must not be written to meanwhile.

    ``on_progress`` is called at intervals with the number of rows read, and an estimate of all.
    """
    rows = _Rows(store, on_finding, on_progress)
    events = _Events(rows)
    counts = events.check()
    _check_requests(store, rows)
    _Readers(store, rows, events).check()
    return counts


class _Rows:
    """Rows of a store, as far as they can be read; what cannot is reported."""

    def __init__(
        self,
        store: Store,
        on_finding: Callable[[Finding], None],
        on_progress: Callable[[int, int], None],
    ) -> None:
        self.n_findings = 0
        self._store = store
        self._on_finding = on_finding
        self._on_progress = on_progress
        self._n_done = 0
        self._n_total = sum(map(store.n_rows, store.families))
        self._unfinished = store.unfinished_session()
        self._iterators: dict[str, RdictIter] = {}  # for looking up
        self._block = SessionBlock(b"", b"")  # that was looked up last

    def all(self, family: str, *, is_again: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Rows of a column family, which are counted for progress at the first time."""
        iterator = self._store.iterator(family)
        iterator.seek_to_first()
        key = b""
        while iterator.valid():
            key = iterator.key()
            if keys.session_of(key) != self._unfinished:
                yield key, iterator.value()
            if not is_again:
                self._n_done += 1
                if self._n_done % store_limits.VERIFIED_ROWS == 0:
                    self._on_progress(self._n_done, max(self._n_done, self._n_total))
            iterator.next()
        if not is_again:
            self._report_unreadable(family, f"{_key(key)} and behind", iterator.status)

    def look_up(
        self,
        family: str,
        wanted: Iterable[tuple[T, bytes]],
        n_rows: int = store_limits.VERIFIED_ROWS,
    ) -> Iterator[tuple[T, bytes | None]]:
        """Values of keys, some at a time, each with what came with the key."""
        for some in _batches(wanted, n_rows):
            found: list[bytes | None] = []

            def read(
                row_keys: list[bytes] = [key for _, key in some],  # noqa: B006
                found: list[bytes | None] = found,
            ) -> None:
                found.extend(self._store.values(family, row_keys))

            self._report_unreadable(family, f"{_key(some[0][1])} and behind", read)
            yield from zip((i for i, _ in some), found, strict=False)

    def block_of(self, session_key: bytes) -> SessionBlock | None:
        """The block that has a session; without entries if none has.

        Quick for one session after the other. None: it cannot be read.
        """
        if not self._block.spans(session_key):
            found = self._last_row("session", session_key)
            if found is None:
                return None
            self._block = SessionBlock(*found)
        block = self._block
        return block if block.spans(session_key) else SessionBlock(session_key, b"")

    def is_stored(self, session_key: bytes) -> bool:
        """Whether a session is stored, or was until retention came."""
        block = self.block_of(session_key)
        server_key = session_key[keys.TIMESTAMP_BYTES :]
        server, session = server_key[: keys.INT_BYTES], server_key[keys.INT_BYTES :]
        return (
            block is None
            or block.has_session(session)  # some of it may be deleted
            or self._store.deleted_position(server)[: keys.INT_BYTES] >= session
        )

    def is_id_stored(self, server_key: bytes) -> bool:
        """As :meth:`is_stored`, by server and session."""
        found = self._last_row("server", server_key)
        if found is None:
            return True
        timestamp = found[1] or bytes(keys.TIMESTAMP_BYTES)  # of whichever server: none else fits
        return self.is_stored(timestamp + server_key)

    def report(self, family: str, row: str, text: str) -> None:
        self.n_findings += 1
        self._on_finding(Finding(family, row, text))

    def _last_row(self, family: str, key: bytes) -> tuple[bytes, bytes] | None:
        """The last row up to a key; empty where there is none; None: it cannot be read."""
        found: list[tuple[bytes, bytes]] = []
        iterator = self._iterators.get(family)
        if iterator is None:
            iterator = self._iterators[family] = self._store.iterator(family)

        def read() -> None:
            iterator.seek_for_prev(key)
            iterator.status()
            found.append((iterator.key() or b"", iterator.value() or b""))

        self._report_unreadable(family, f"{_key(key)} and before", read)
        return found[0] if found else None

    def _report_unreadable(self, family: str, row: str, read: Callable[[], None]) -> None:
        try:
            with self._store.errors():
                read()
        except StorageError as e:
            self.report(family, row, f"cannot be read: {e}")


class _Events:
    """Events, and their indexes."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self._report = rows.report
        self.names: dict[TypeId, EventType] = {}
        self._last_sessions: dict[bytes, bytes] = {}
        self._in_order_until: dict[TypeId, bytes] = {}
        self._n_sessions = self._n_entries = 0

    def check(self) -> Counts:
        self._check_types()
        self._check_sessions()
        self._check_servers()
        for key, value in self._rows.all("default"):
            self._check_mark(key, value)
        n_found = self._rows.n_findings
        n_events, n_sourced = self._check_events()
        is_complete = self._rows.n_findings == n_found
        if not is_complete or self._n_entries != n_events:
            self._find_extra_entries()
        n_sources = self._count_sources()
        if not is_complete or n_sources != n_sourced:
            self._find_extra_sources()
        return Counts(n_events, self._n_sessions, len(self._last_sessions), len(self.names))

    def _check_types(self) -> None:
        known: dict[EventType, TypeId] = {}
        for type_id, data in self._rows.all("type"):
            if len(type_id) != keys.TYPE_BYTES:
                self._report("type", _key(type_id), "not a key of this index")
                continue
            try:
                name = self.names[type_id] = keys.decode_type(data)
            except (ValueError, msgspec.DecodeError) as e:
                self._report("type", _key(type_id), f"cannot be decoded: {e}")
                continue
            if name in known:
                other = _key(known[name])
                self._report("type", _key(type_id), f"{'/'.join(name)!a} is {other} already")
            known[name] = type_id
        for number, type_id in enumerate(sorted(self.names)):
            if type_id != keys.encode_type_id(number):
                self._report("type", _key(keys.encode_type_id(number)), "missing: ids have a gap")
                break

    def _check_sessions(self) -> None:
        for (key, _), timestamp in self._rows.look_up("server", self._blocks()):
            if timestamp is None:
                self._report("server", _session(key), "no row, but session has one")
            elif timestamp != key[: keys.TIMESTAMP_BYTES]:
                self._report("server", _session(key), "another timestamp than in session")

    def _blocks(self) -> Iterator[tuple[SessionBlock, bytes]]:
        """Blocks of sessions, and their keys in ``server``."""
        for key, entries in self._rows.all("session"):
            if len(key) != keys.SESSION_KEY_BYTES or not keys.is_timestamp(key):
                self._report("session", _key(key), "not a key of this index")
                continue
            if not _is_list(entries):
                text = f"{len(entries)} bytes are no list of events"
                self._report("session", _session(key), text)
                continue
            ids = [
                entries[i : i + keys.LOCAL_ID_BYTES]
                for i in range(0, len(entries), keys.ENTRY_BYTES)
            ]
            if any(local_id >= following for local_id, following in pairwise(ids)):
                self._report("session", _session(key), "its events are not in order")
            sessions = {local_id[: keys.INT_BYTES] for local_id in ids}
            if (first := min(sessions)) < key[keys.ORIGIN_BYTES :]:
                self._report("session", _session(key), f"has events of session {_id(first)}")
            self._n_sessions += len(sessions)
            self._n_entries += len(ids)
            block = SessionBlock(key, entries)
            yield block, block.server_key

    def _check_servers(self) -> None:
        before = SessionBlock(b"", b"")
        for key, entries in self._rows.look_up("session", self._block_keys()):
            if entries is None:
                self._report("session", _session(key), "no row, but server has one")
            block = SessionBlock(key, entries if entries and _is_list(entries) else b"")
            server, last = block.server_key[: keys.INT_BYTES], before.last_session
            if before.server_key.startswith(server) and key[keys.ORIGIN_BYTES :] <= last:
                text = f"overlaps {_session(before.key)}, which goes up to session {_id(last)}"
                self._report("session", _session(key), text)
            self._last_sessions[server] = max(self._last_sessions[server], block.last_session)
            before = block

    def _block_keys(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys of blocks, from ``server``, twice each."""
        last_key = last_timestamp = b""
        for key, timestamp in self._rows.all("server"):
            if len(key) != keys.SERVER_KEY_BYTES or len(timestamp) != keys.TIMESTAMP_BYTES:
                self._report("server", _key(key), "not a row of this index")
                continue
            server = key[: keys.INT_BYTES]
            if last_key[: keys.INT_BYTES] == server and timestamp < last_timestamp:
                self._report("server", _id(key), f"earlier than {_id(last_key)}")
            last_key, last_timestamp = key, timestamp
            self._last_sessions[server] = key[keys.INT_BYTES :]
            yield timestamp + key, timestamp + key

    def _check_mark(self, key: bytes, value: bytes) -> None:
        """Check a row of ``default``."""
        text = ""
        if key.startswith(keys.IN_ORDER_KEY):
            type_id = key.removeprefix(keys.IN_ORDER_KEY)
            if type_id in self.names and len(value) in (0, keys.POSITION_BYTES):
                self._in_order_until[type_id] = value
            else:
                text = "not where the order of a type ends"
        elif key.startswith(keys.RESERVED_KEY):
            text = self._check_reserved(key.removeprefix(keys.RESERVED_KEY), value)
        elif key.startswith(keys.DELETED_KEY):
            text = "" if _is_deleted(key, value) else "not a position of deleted sessions"
        elif key.startswith(keys.SPENT_KEY):
            is_price = len(value) == keys.INT_BYTES
            text = "" if is_price else "not what the types of a client cost"
        elif key in (keys.HISTORY_KEY, keys.HISTORIES_KEY):
            text = "" if value.isascii() else "not the name of a history"
        elif key == keys.CLOCK_KEY:
            text = "" if _is_clock(value) else "not the time that passed"
        if text:
            self._report("default", _key(key), text)

    def _check_reserved(self, server: bytes, session: bytes) -> str:
        if len(server) != keys.INT_BYTES or len(session) != keys.INT_BYTES:
            return "not a reservation of session ids"
        if session < (last := self._last_sessions.get(server, b"")):
            text = f"session ids up to {_id(session)} are reserved, but {_id(last)} is stored"
            self._report("default", f"server {_id(server)}", text)
        return ""

    def _check_events(self) -> tuple[int, int]:
        """The number of events, and of those that are to be in ``source``."""
        n_events = n_sourced = 0
        for rows in _batches(self._event_rows()):
            sourced = [(source_key, source_key) for _, source_key in rows if source_key]
            n_events += len(rows)
            n_sourced += len(sourced)
            for source_key, row in self._rows.look_up("source", sourced):
                if row is None:
                    self._report("source", _event(source_key), "no row, but event has one")
            for key, _ in rows:
                self._check_entry(key)
        return n_events, n_sourced

    def _event_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys of events, and their keys in ``source``, empty where they are not there."""
        last = b""  # by source timestamp, of those that are in order
        for key, value in self._rows.all("event"):
            if len(key) != keys.EVENT_KEY_BYTES or not keys.is_timestamp(key, keys.TYPE_BYTES):
                self._report("event", _key(key), "not a key of this index")
                continue
            if key[: keys.TYPE_BYTES] not in self.names:
                type_id = _key(key[: keys.TYPE_BYTES])
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

    def _check_entry(self, key: bytes) -> None:
        block = self._rows.block_of(keys.session_of(key))
        if block is None:
            return
        known = block.find(key[-keys.LOCAL_ID_BYTES :])
        if known is None:
            self._report("session", _event(key), "no entry, but event has a row")
        elif known != key[: keys.TYPE_BYTES]:
            self._report("session", _event(key), "another event type than in event")

    def _count_sources(self) -> int:
        n_sources = 0
        for key, value in self._rows.all("source"):
            n_sources += 1
            if len(key) != keys.SOURCE_KEY_BYTES or value:
                self._report("source", _key(key), "not a row of this index")
        return n_sources

    def _find_extra_entries(self) -> None:
        rows = self._rows.all("session", is_again=True)
        blocks = (SessionBlock(*row) for row in rows if len(row[0]) == keys.SESSION_KEY_BYTES)
        wanted = ((key, key) for block in blocks for key in block.event_keys())
        for key, value in self._rows.look_up("event", wanted, store_limits.VERIFIED_EVENTS):
            if value is None:
                self._report("event", _event(key), "no row, but session has an entry")

    def _find_extra_sources(self) -> None:
        rows = self._rows.all("source", is_again=True)
        wanted = (
            (key, keys.event_key(key)) for key, _ in rows if len(key) == keys.SOURCE_KEY_BYTES
        )
        for key, value in self._rows.look_up("event", wanted, store_limits.VERIFIED_EVENTS):
            if value is None:
                self._report("event", _event(key), "no row, but source has one")
                continue
            try:
                keys.check_value(value)
            except ValueError:
                continue  # reported already
            if keys.by_source(keys.event_key(key), value) != key:
                self._report("source", _event(key), "another source timestamp than in event")
            elif not keys.source_key(keys.event_key(key), value):
                self._report("source", _event(key), "has a row, but the event is in order")


def _check_requests(store: Store, rows: _Rows) -> None:
    """Check request keys; the sessions of those in one row follow each other."""

    def report(key: bytes, text: str) -> None:
        rows.report(request_rows.FAMILY, _key(key), text)

    generations: dict[bytes, int] = {}
    owners = store.iterator(request_rows.FAMILY)
    owners.seek(request_rows.OWNER_PREFIX)  # they are behind the rows of keys
    while owners.valid() and (key := owners.key()).startswith(request_rows.OWNER_PREFIX):
        try:
            owner, generation = request_rows.decode_owner(key, owners.value())
        except ValueError as e:
            report(key, str(e))
        else:
            generations[owner] = generation
        owners.next()
    series: tuple[bytes, bytes, int] | None = None  # of rows: one kind, client and generation
    last = ""
    for key, value in rows.all(request_rows.FAMILY):
        if key.startswith(request_rows.OWNER_PREFIX):
            continue
        try:
            row = request_rows.decode_requests(key, value)
        except ValueError as e:
            report(key, str(e))
            continue
        newest = generations.get(row.owner)
        if newest is None:
            report(key, "its client has no row")
        elif row.generation not in (newest - 1, newest):
            report(key, f"of generation {row.generation}, but its client has {newest}")
        if (key[:1], row.owner, row.generation) != series:
            series, last = (key[:1], row.owner, row.generation), ""
        names = [last, *row.names]
        if names != sorted({*names}):
            report(key, "its keys do not sort behind those of the row before")
        last = row.names[-1]
        for session in range(row.session, row.session + len(row.names)):
            if not rows.is_stored(keys.session_key(row.timestamp, row.server, session)):
                report(key, f"session {row.server}/{session} is not stored")


class _Readers:
    """Rows of readers: cursors, which are before what they parked, and gaps."""

    def __init__(self, store: Store, rows: _Rows, events: _Events) -> None:
        self._store = store
        self._rows = rows
        self._known_types = events.names
        self._cursors: set[tuple[str, str]] = set()

    def check(self) -> None:
        checks = {
            reader_rows.CURSOR_PREFIX: self._check_cursor,
            reader_rows.PARKED_PREFIX: self._check_parked,
            trimmed.PREFIX: self._check_trimmed,
        }
        for key, value in self._rows.all(trimmed.FAMILY):
            check = checks.get(key[:1])
            if check is None:
                self._report(_key(key), "not a key of this index")
                continue
            try:
                check(key, value)
            except ValueError as e:
                self._report(_key(key), f"cannot be decoded: {e}")

    def _check_cursor(self, key: bytes, value: bytes) -> None:
        client, name, row = reader_rows.decode_cursor(key, value)
        if not row.is_deleted:
            self._cursors.add((client, name))
        for seen in row.seen:
            last = self._store.last_session(seen.server).session
            if seen.session > last:
                text = f"is at {_event_id(seen)}, but the last session of server {seen.server} is"
                self._report(f"cursor {name!a} of {client!a}", f"{text} {last}")

    def _check_parked(self, key: bytes, value: bytes) -> None:
        client, name, event_id, _ = reader_rows.decode_parked(key, value)
        by = f"parked by cursor {name!a} of {client!a}"
        if (client, name) not in self._cursors:
            self._report(_event_id(event_id), f"{by}, which does not exist")
        elif not self._rows.is_id_stored(keys.encode_id(event_id)[: keys.SERVER_KEY_BYTES]):
            self._report(_event_id(event_id), f"{by}, but not stored")

    def _check_trimmed(self, key: bytes, value: bytes) -> None:
        expected = trimmed.value_bytes(key)
        if len(value) != expected:
            raise ValueError(f"{len(value)} bytes, expected {expected}")
        type_id = key[trimmed.SERVER_KEY_BYTES :]
        if type_id not in (b"", trimmed.ANY_TYPE) and type_id not in self._known_types:
            self._report(_key(key), f"unknown event type {_key(type_id)}")

    def _report(self, row: str, text: str) -> None:
        self._rows.report(trimmed.FAMILY, row, text)


def _batches(rows: Iterable[T], n_rows: int = store_limits.VERIFIED_ROWS) -> Iterator[list[T]]:
    waiting = iter(rows)
    while batch := list(islice(waiting, n_rows)):
        yield batch


def _is_list(entries: bytes) -> bool:
    return bool(entries) and len(entries) % keys.ENTRY_BYTES == 0


def _is_deleted(key: bytes, position: bytes) -> bool:
    return (
        len(key) == len(keys.DELETED_KEY) + keys.INT_BYTES
        and len(position) == keys.INT_BYTES + keys.TIMESTAMP_BYTES
        and keys.is_timestamp(position, keys.INT_BYTES)
    )


def _is_clock(kept: bytes) -> bool:
    try:
        passed_time.decode(kept)
    except ValueError:
        return False
    return True


def _key(key: bytes) -> str:
    return f"key {key.hex()}"


def _id(encoded: bytes) -> str:
    """Text of server, session and instance, as far as they are present."""
    size = keys.INT_BYTES
    parts = [encoded[i : i + size] for i in range(0, len(encoded), size)]
    return "/".join(str(keys.decode_int(part)) for part in parts)


def _session(block_key: bytes) -> str:
    return _id(block_key[keys.TIMESTAMP_BYTES :])


def _event(key: bytes) -> str:
    """Id of the event, from a key that ends with its position."""
    return _id(key[-keys.ID_BYTES :])


def _event_id(event_id: EventId) -> str:
    return f"{event_id.server}/{event_id.session}/{event_id.instance}"
