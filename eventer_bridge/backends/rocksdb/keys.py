"""Keys and values of the store: bytes whose order is the order of the events.

Pure functions, for any thread. Integers are big-endian, signed ones with the sign bit flipped,
so that comparing bytes compares values. Keys have a fixed size, so that many of them can be
decoded at once (``numpy`` over the joined keys, as Spark's source does)::

    position  = timestamp (12) · server (8) · session (8) · instance (8)       36 bytes
    timestamp = s (8) · us (4)

    event     type (4) · position                                  → value of the event
    source    type (4) · source timestamp (12) · position          → nothing
    session   timestamp · server (8) · first session (8)
                                       → (session (8) · instance (8) · type (4)) per event
    server    server (8) · first session (8)                       → timestamp
    type      type (4)                                             → JSON array of segments
    default   "format"                                             → see ``contents``
              "reserved" · server (8)                              → session (8)
              "deleted" · server (8)                    → session (8) · timestamp
              "types of " · owner                       → price of the types that this owner
                                                          registered first (8)
              "log"                                     → random, see ``log_tail``
              "history"                                 → name of the store's history, a UUID
              "unfinished"                              → see ``contents``
              "group"                                   → see ``contents``
              "in order until" · type                   → position; see ``source_order``
              "clock"                                   → see ``passed_time``
    reader    see ``reader_rows``, and ``trimmed``

The order of positions is the natural order of events (001, "Event ordering"), ties between
servers broken by id, as in ``model.natural_key``. Only events that have a source timestamp are in
``source``, and of those only the ones that ``event`` does not have in the order of their source
timestamps already (``source_order``).

Sessions that were registered together are one *block* (:class:`SessionBlock`): they have a row in
``session`` and one in ``server``, whose keys name the first of them, even after it was deleted.

The value of an event is one byte of flags, the source timestamp if there is one, and the
payload: raw JSON, or the size of ``data_type`` (4), ``data_type`` in UTF-8, the data.
"""

import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import msgspec

from eventer_bridge.model import (
    BinaryPayload,
    Event,
    EventId,
    EventType,
    JsonPayload,
    Payload,
    Timestamp,
)

TypeId: TypeAlias = bytes
"""The four bytes that stand for an event type in the store."""

KEY_MAX: Final = b"\xff" * 64
"""``prefix + KEY_MAX`` lies behind every key that begins with ``prefix``."""

TIMESTAMP_FIELDS: Final = {"s": "Q", "us": "I"}
SESSION_FIELDS: Final = {**TIMESTAMP_FIELDS, "server": "Q", "session": "Q"}
EVENT_FIELDS: Final = {"type": "I", **SESSION_FIELDS, "instance": "Q"}
"""Fields of keys in order, each with its code in ``struct``, which ``numpy`` knows as well."""

BYTE_ORDER: Final = ">"
SIGN_BIT: Final = 1 << 63
"""Flipped in every ``Q`` field: seconds and ids are signed, all other fields are not."""


def _struct(fields: Mapping[str, str]) -> Struct:
    return Struct(BYTE_ORDER + "".join(fields.values()))


_TYPE: Final = Struct(BYTE_ORDER + EVENT_FIELDS["type"])
_INT: Final = Struct(BYTE_ORDER + EVENT_FIELDS["instance"])
_TIMESTAMP: Final = _struct(TIMESTAMP_FIELDS)
_SESSION: Final = _struct(SESSION_FIELDS)
_EVENT: Final = _struct({**EVENT_FIELDS, "type": f"{_TYPE.size}s"})

TYPE_BYTES: Final = _TYPE.size
INT_BYTES: Final = _INT.size
TIMESTAMP_BYTES: Final = _TIMESTAMP.size
ID_BYTES: Final = 3 * INT_BYTES
SERVER_KEY_BYTES: Final = 2 * INT_BYTES
SESSION_KEY_BYTES: Final = _SESSION.size
POSITION_BYTES: Final = TIMESTAMP_BYTES + ID_BYTES
EVENT_KEY_BYTES: Final = _EVENT.size
SOURCE_KEY_BYTES: Final = TYPE_BYTES + TIMESTAMP_BYTES + POSITION_BYTES

FORMAT_KEY: Final = b"format"
RESERVED_KEY: Final = b"reserved"
DELETED_KEY: Final = b"deleted"
"""The last session of a server that retention deleted completely, so that its ids and clock never
go back."""

LOG_KEY: Final = b"log"
"""First row of a new log: random bytes that make the log unique (``log_tail``). Not read
later."""

HISTORY_KEY: Final = b"history"
"""History of the store (``history``). Earlier versions leave it unchanged."""

HISTORIES_KEY: Final = b"histories before"
"""Histories that this one continues, oldest first, with spaces between (``restoring``)."""

CLOCK_KEY: Final = b"clock"
"""The time that passed, and what the clock said (``passed_time``). Earlier versions leave it."""

UNFINISHED_KEY: Final = b"unfinished"
"""Session that is being written in parts (``contents``)."""

GROUP_KEY: Final = b"group"
"""Group of the store, and position in its log that it has come to (``member``)."""

IN_ORDER_KEY: Final = b"in order until"
"""Position of the last event of a type, which follows, that is in order (``source_order``)."""

JSON_FLAG: Final = 1
BINARY_FLAG: Final = 2
SOURCE_FLAG: Final = 4
INDEXED_FLAG: Final = 8
"""Flags of a value: the payload is JSON, or binary; there is a source timestamp; the event is in
``source``."""

PAYLOAD_FLAGS: Final = JSON_FLAG | BINARY_FLAG

VALUE_HEAD_BYTES: Final = 1
SOURCED_HEAD_BYTES: Final = VALUE_HEAD_BYTES + TIMESTAMP_BYTES
"""Size of the value before the payload: flags, or flags and a source timestamp."""

SPENT_KEY: Final = b"types of "
"""Price of the types of an owner, whose name follows in UTF-8 (``type_budget``)."""

_FLAGS: Final = tuple(bytes((i,)) for i in range(16))
_JSON_ONLY: Final = _FLAGS[JSON_FLAG]
_JSON_SOURCED: Final = _FLAGS[JSON_FLAG | SOURCE_FLAG]
_source_timestamp: Final = attrgetter("source_timestamp")

_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


def encode_type_id(number: int) -> TypeId:
    """Number of a type, from 0, as in keys."""
    return _TYPE.pack(number)


def decode_type_id(type_id: TypeId) -> int:
    """The opposite of :func:`encode_type_id`."""
    return int.from_bytes(type_id, "big")


def split_types(type_ids: bytes) -> list[TypeId]:
    """Split joined type ids."""
    return [type_ids[i : i + TYPE_BYTES] for i in range(0, len(type_ids), TYPE_BYTES)]


def decode_type(data: bytes) -> EventType:
    """The opposite of :func:`encode_type`."""
    return msgspec.json.decode(data, type=EventType)


def encode_int(value: int) -> bytes:
    """A signed 64-bit integer, as 8 bytes."""
    return _INT.pack(value + SIGN_BIT)


def decode_int(data: bytes) -> int:
    """The opposite of :func:`encode_int`."""
    number: int = _INT.unpack(data)[0]
    return number - SIGN_BIT


def encode_owner(owner: str) -> bytes:
    """Key of the price of an owner's types."""
    return SPENT_KEY + owner.encode("utf-8", "surrogatepass")


def decode_owner(key: bytes) -> str:
    """The opposite of :func:`encode_owner`."""
    return str(key.removeprefix(SPENT_KEY), "utf-8", "surrogatepass")


def encode_timestamp(timestamp: Timestamp) -> bytes:
    """A timestamp, as 12 bytes."""
    return _TIMESTAMP.pack(timestamp.s + SIGN_BIT, timestamp.us)


def decode_timestamp(data: bytes, offset: int = 0) -> Timestamp:
    """The opposite of :func:`encode_timestamp`."""
    s, us = _TIMESTAMP.unpack_from(data, offset)
    return Timestamp(s - SIGN_BIT, us)


def is_timestamp(data: bytes, offset: int = 0) -> bool:
    """Whether :func:`decode_timestamp` can decode it."""
    us: int = _TIMESTAMP.unpack_from(data, offset)[1]
    return us < 1_000_000


def session_key(timestamp: Timestamp, server: int, session: int) -> bytes:
    """Key of a session: the position of its events without their instance."""
    return _SESSION.pack(
        timestamp.s + SIGN_BIT, timestamp.us, server + SIGN_BIT, session + SIGN_BIT
    )


def source_of(value: bytes) -> bytes:
    """Source timestamp of an event, encoded, from its value; empty if it has none."""
    return value[VALUE_HEAD_BYTES:SOURCED_HEAD_BYTES] if value[0] & SOURCE_FLAG else b""


def is_in_order(value: bytes) -> bool:
    """Whether an event is in the order of source timestamps in ``event``, from its value."""
    return value[0] & (SOURCE_FLAG | INDEXED_FLAG) == SOURCE_FLAG


def by_source(key: bytes, value: bytes) -> bytes:
    """What orders events by source timestamp, from a row of ``event``; empty if it has none.

    It is the key that the event has in ``source``, or would have.
    """
    source = source_of(value)
    return source and key[:TYPE_BYTES] + source + key[TYPE_BYTES:]


def source_key(key: bytes, value: bytes) -> bytes:
    """Key in ``source``, from a row of ``event``; empty if the event is not there."""
    return by_source(key, value) if value[0] & INDEXED_FLAG else b""


def event_key(key: bytes) -> bytes:
    """Key in ``event``, from a key in ``event`` or ``source``."""
    return key[:TYPE_BYTES] + key[-POSITION_BYTES:]


def session_of(key: bytes) -> bytes:
    """Key of the session, from a key in ``event`` or ``source``."""
    return key[-POSITION_BYTES:-INT_BYTES]


def payload_of(value: bytes) -> Payload | None:
    """Payload of an event, from its value."""
    has_source = value[0] & SOURCE_FLAG
    return _decode_payload(value, SOURCED_HEAD_BYTES if has_source else VALUE_HEAD_BYTES)


def encode_id(event_id: EventId) -> bytes:
    """Server, session and instance: the end of a position."""
    return b"".join(map(encode_int, (event_id.server, event_id.session, event_id.instance)))


def encode_sources(events: Iterable[Event]) -> list[bytes]:
    """Source timestamps of events, empty where there is none."""
    pack = _TIMESTAMP.pack
    return [
        b"" if timestamp is None else pack(timestamp.s + SIGN_BIT, timestamp.us)
        for timestamp in map(_source_timestamp, events)
    ]


def encode_values(events: Iterable[Event], sources: Iterable[bytes]) -> list[bytes]:
    """Values of events that are not in ``source``; ``sources`` by :func:`encode_sources`."""
    return [
        (_JSON_SOURCED + source if source else _JSON_ONLY) + payload.data
        if isinstance(payload := event.payload, JsonPayload)
        else _encode_value(source, payload)
        for event, source in zip(events, sources, strict=True)
    ]


def _encode_value(source: bytes, payload: BinaryPayload | None) -> bytes:
    flag = SOURCE_FLAG if source else 0
    if payload is None:
        return _FLAGS[flag] + source
    # the label is only stored and returned, and need not be valid Unicode
    label = payload.data_type.encode("utf-8", "surrogatepass")
    size = _TYPE.pack(len(label))
    return b"".join((_FLAGS[flag | BINARY_FLAG], source, size, label, payload.data))


def indexed(value: bytes) -> bytes:
    """The value of an event that is in ``source``."""
    return b"".join((_FLAGS[value[0] | INDEXED_FLAG], memoryview(value)[1:]))


def decode_event(key: bytes, value: bytes, names: Mapping[TypeId, EventType]) -> Event:
    """An event, from its key in ``event`` and its value; see :func:`decode_events`."""
    [event] = decode_events([(key, value)], names)
    return event


def decode_events(
    rows: Iterable[tuple[bytes, bytes]], names: Mapping[TypeId, EventType]
) -> list[Event]:
    """Events, from their keys in ``event`` and values; ``KeyError``: there is no such type."""
    events: list[Event] = []
    add, unpack_key, unpack_timestamp = events.append, _EVENT.unpack, _TIMESTAMP.unpack_from
    raw = msgspec.Raw
    payload: Payload | None
    for key, value in rows:
        type_id, s, us, server, session, instance = unpack_key(key)
        kind = value[0]
        source_timestamp = None
        begin = VALUE_HEAD_BYTES
        if kind & SOURCE_FLAG:
            source_s, source_us = unpack_timestamp(value, VALUE_HEAD_BYTES)
            source_timestamp = Timestamp(source_s - SIGN_BIT, source_us)
            begin = SOURCED_HEAD_BYTES
            kind &= PAYLOAD_FLAGS
        if kind == JSON_FLAG:  # most of them
            payload = JsonPayload(raw(value[begin:]))
        else:
            payload = _decode_payload(value, begin)
        add(
            Event(
                EventId(server - SIGN_BIT, session - SIGN_BIT, instance - SIGN_BIT),
                names[type_id],
                Timestamp(s - SIGN_BIT, us),
                source_timestamp,
                payload,
            )
        )
    return events


def check_value(value: bytes) -> None:
    """Raise ``ValueError`` for a value that :func:`encode_values` cannot have returned."""
    kind = value[0] & ~(SOURCE_FLAG | INDEXED_FLAG) if value else -1
    begin = VALUE_HEAD_BYTES
    if value and value[0] & INDEXED_FLAG and not value[0] & SOURCE_FLAG:
        raise ValueError("no source timestamp, but a flag says that it is in an index")
    if value and value[0] & SOURCE_FLAG:
        begin = SOURCED_HEAD_BYTES
        if len(value) < begin or not is_timestamp(value, VALUE_HEAD_BYTES):
            raise ValueError("no source timestamp, but a flag says so")
    if kind == JSON_FLAG:
        try:
            _check_json(value[begin:])
        except RecursionError:
            pass  # nested too deeply for this process, but it was stored so
        except msgspec.DecodeError as e:
            raise ValueError(f"payload: {e}") from e
        str(value[begin:], "utf-8")
    elif kind == BINARY_FLAG:
        size_end = begin + _TYPE.size
        if len(value) < size_end or len(value) < size_end + _TYPE.unpack_from(value, begin)[0]:
            raise ValueError("payload: cut off")
    elif kind != 0:
        raise ValueError(f"unknown flags {value[:1].hex() or 'none'}")
    elif len(value) > begin:
        raise ValueError(f"no payload, but {len(value) - begin} bytes of one")


def _decode_payload(value: bytes, begin: int) -> Payload | None:
    kind = value[0] & PAYLOAD_FLAGS
    if kind == JSON_FLAG:
        return JsonPayload(msgspec.Raw(value[begin:]))
    if kind == BINARY_FLAG:
        size = _TYPE.unpack_from(value, begin)[0]
        begin += _TYPE.size
        label = value[begin : begin + size].decode("utf-8", "surrogatepass")
        return BinaryPayload(label, value[begin + size :])
    return None


ORIGIN_BYTES: Final = TIMESTAMP_BYTES + INT_BYTES
"""What the sessions of a block have in common: timestamp and server."""

LOCAL_ID_BYTES: Final = 2 * INT_BYTES
"""Session and instance: the id of an event without the server."""

ENTRY_BYTES: Final = LOCAL_ID_BYTES + TYPE_BYTES


class SessionBlock(NamedTuple):
    """A row of ``session``.

    ``key`` is timestamp, server, and the session that was the first of them; ``entries`` session,
    instance and type of each event, empty where the row is missing.
    """

    key: bytes
    entries: bytes

    @property
    def origin(self) -> bytes:
        """What the positions of its events begin with: timestamp and server."""
        return self.key[:ORIGIN_BYTES]

    @property
    def server_key(self) -> bytes:
        """Its key in ``server``."""
        return self.key[TIMESTAMP_BYTES:]

    @property
    def first_session(self) -> bytes:
        """Its first session that is left; that of its key, where the row is missing."""
        return self.entries[:INT_BYTES] or self.key[ORIGIN_BYTES:]

    @property
    def last_session(self) -> bytes:
        """Its last session that is left; that of its key, where the row is missing."""
        return self._last_entry[:INT_BYTES] or self.key[ORIGIN_BYTES:]

    @property
    def last_instance(self) -> bytes:
        """Instance of its last event; empty where the row is missing."""
        return self._last_entry[INT_BYTES:LOCAL_ID_BYTES]

    @property
    def n_events(self) -> int:
        """Number of its events."""
        return len(self.entries) // ENTRY_BYTES

    def spans(self, session_key: bytes) -> bool:
        """Whether a session is within it: if it is stored, it is here."""
        return self.key <= session_key <= self.origin + self.last_session

    def has_session(self, session: bytes) -> bool:
        """Whether it has events of a session (8)."""
        return self._entry(session).startswith(session)

    def find(self, local_id: bytes) -> TypeId | None:
        """Type of one of its events, by session and instance, encoded."""
        entry = self._entry(local_id)
        return entry[LOCAL_ID_BYTES:] if entry.startswith(local_id) else None

    def event_keys(self) -> Iterator[bytes]:
        """Keys in ``event`` of its events, in order."""
        origin, entries = self.origin, self.entries
        for begin in range(0, len(entries) - ENTRY_BYTES + 1, ENTRY_BYTES):
            end = begin + LOCAL_ID_BYTES
            yield entries[end : begin + ENTRY_BYTES] + origin + entries[begin:end]

    def between(self, start: bytes, stop: bytes) -> range:
        """Where its entries begin of positions from ``start`` up to, but without ``stop``."""
        origin, entries = self.origin, self.entries

        def position(begin: int) -> bytes:
            return origin + entries[begin : begin + LOCAL_ID_BYTES]

        begins = range(0, len(entries), ENTRY_BYTES)
        first = bisect.bisect_left(begins, start, key=position)
        return begins[first : bisect.bisect_left(begins, stop, first, key=position)]

    def without(self, local_ids: Collection[bytes]) -> "SessionBlock":
        """The block without some of its events, by session and instance of each, encoded."""
        entries = self.entries
        if self.n_events == len(local_ids):
            return SessionBlock(self.key, b"")
        left: list[bytes] = []
        end = 0
        for local_id in sorted(local_ids):
            begin = self._begin(local_id)
            left.append(entries[end:begin])
            end = begin + ENTRY_BYTES * entries.startswith(local_id, begin)
        left.append(entries[end:])
        return SessionBlock(self.key, b"".join(left))

    @property
    def _last_entry(self) -> bytes:
        return self.entries[max(self.n_events - 1, 0) * ENTRY_BYTES :][:ENTRY_BYTES]

    def _entry(self, start: bytes) -> bytes:
        """The first entry that is not before ``start``; empty where there is none."""
        begin = self._begin(start)
        return self.entries[begin : begin + ENTRY_BYTES]

    def _begin(self, start: bytes) -> int:
        """Where that entry begins; the end where there is none."""
        entries = self.entries
        begins = range(0, len(entries), ENTRY_BYTES)
        index = bisect.bisect_left(begins, start, key=lambda i: entries[i : i + len(start)])
        return index * ENTRY_BYTES
