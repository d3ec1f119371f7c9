"""Keys and values of the store: bytes whose order is the order of the events.

Pure functions, for any thread. Every integer is big-endian with its sign bit flipped, so
that comparing bytes compares values. Keys have a fixed size, so that many of them can be
decoded at once (``numpy`` over the joined keys)::

    place     = timestamp (12) · server (8) · session (8) · instance (8)       36 bytes
    timestamp = s (8) · us (4)

    event     type (4) · place                                     → value of the event
    source    type (4) · no_source (1) · source timestamp (12) · place   → nothing
    session   place without instance (28)          → (instance (8) · type (4)) per event
    server    server (8) · session (8)                             → timestamp
    type      type (4)                                             → JSON array of segments
    default   "format"                                             → see ``contents``
              "reserved" · server (8)                              → session (8)
              "deleted" · server (8)                    → session (8) · timestamp
              "types of " · who                         → what the types cost that who
                                                          brought (8)
              "log"                                     → random, see ``acknowledged``
              "history"                                 → name of the store's history, a UUID
              "unfinished"                              → see ``unfinished``

The order of places is the natural order of events (001, "Event ordering"), ties between
servers broken by id, as in ``model.natural_key``. ``no_source`` is 1 where there is no
source timestamp (zeros follow): such events come last in either direction.

The value of an event is one byte of flags, the source timestamp if there is one, and the
payload: raw JSON, or the size of ``data_type`` (4), ``data_type`` in UTF-8, the data.
"""

import bisect
from collections.abc import Collection, Mapping
from struct import Struct
from typing import Final, TypeAlias

import msgspec

from eventer_bridge.errors import InvalidEventError
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

TYPE_BYTES: Final = 4
INT_BYTES: Final = 8
TIMESTAMP_BYTES: Final = 12
ID_BYTES: Final = 24
SERVER_KEY_BYTES: Final = 16
SESSION_KEY_BYTES: Final = 28
PLACE_BYTES: Final = 36
ENTRY_BYTES: Final = 12
EVENT_KEY_BYTES: Final = 40
SOURCE_KEY_BYTES: Final = 53

HAS_SOURCE: Final = b"\x00"
NO_SOURCE: Final = b"\x01"

FORMAT_KEY: Final = b"format"
RESERVED_KEY: Final = b"reserved"
DELETED_KEY: Final = b"deleted"
"""The last of a server's sessions that retention deleted whole, so that ids and clock of the
server never go back by it."""

LOG_KEY: Final = b"log"
"""What is written first to a new log, so that it is like no other (``acknowledged``). Of no
meaning later."""

HISTORY_KEY: Final = b"history"
"""Which history the store is of (``history``). Versions that know of none leave it as it is."""

UNFINISHED_KEY: Final = b"unfinished"
"""Which session is being written in parts (``unfinished``)."""

JSON_FLAG: Final = 1
BINARY_FLAG: Final = 2
SOURCE_FLAG: Final = 4
"""Flags of a value: the payload is JSON, or binary; there is a source timestamp."""

SPENT_KEY: Final = b"types of "
"""What the types cost that somebody brought, whose name follows in UTF-8 (``type_budget``)."""

_BIAS: Final = 1 << 63
_TYPE: Final = Struct(">I")
_INT: Final = Struct(">Q")
_TIMESTAMP: Final = Struct(">QI")
_SESSION: Final = Struct(">QIQQ")
_EVENT: Final = Struct(">4sQIQQQ")

_FLAGS: Final = tuple(bytes((i,)) for i in range(8))
_JSON_ONLY: Final = _FLAGS[JSON_FLAG]
_WITHOUT_SOURCE: Final = NO_SOURCE + bytes(TIMESTAMP_BYTES)

_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


def encode_type_id(number: int) -> TypeId:
    """Number of a type, from 0, as it stands in keys."""
    return _TYPE.pack(number)


def decode_type_id(type_id: TypeId) -> int:
    """The opposite of :func:`encode_type_id`."""
    return int.from_bytes(type_id, "big")


def split_types(type_ids: bytes) -> list[TypeId]:
    """Ids of types that stand one behind the other."""
    return [type_ids[i : i + TYPE_BYTES] for i in range(0, len(type_ids), TYPE_BYTES)]


def encode_type(event_type: EventType) -> bytes:
    """Segments of a type.

    Raises:
        InvalidEventError: a segment has no UTF-8 form (a lone surrogate).
    """
    try:
        return msgspec.json.encode(event_type)
    except UnicodeEncodeError as e:
        raise InvalidEventError(f"event type {event_type!a} is not Unicode text: {e}") from e


def decode_type(data: bytes) -> EventType:
    """The opposite of :func:`encode_type`."""
    return msgspec.json.decode(data, type=EventType)


def encode_int(value: int) -> bytes:
    """A signed 64-bit integer, as 8 bytes."""
    return _INT.pack(value + _BIAS)


def decode_int(data: bytes) -> int:
    """The opposite of :func:`encode_int`."""
    number: int = _INT.unpack(data)[0]
    return number - _BIAS


def encode_owner(owner: str) -> bytes:
    """Key of what the types of an owner cost."""
    return SPENT_KEY + owner.encode("utf-8", "surrogatepass")


def decode_owner(key: bytes) -> str:
    """The opposite of :func:`encode_owner`."""
    return str(key.removeprefix(SPENT_KEY), "utf-8", "surrogatepass")


def encode_timestamp(timestamp: Timestamp) -> bytes:
    """A timestamp, as 12 bytes."""
    return _TIMESTAMP.pack(timestamp.s + _BIAS, timestamp.us)


def decode_timestamp(data: bytes, offset: int = 0) -> Timestamp:
    """The opposite of :func:`encode_timestamp`."""
    s, us = _TIMESTAMP.unpack_from(data, offset)
    return Timestamp(s - _BIAS, us)


def is_timestamp(data: bytes, offset: int = 0) -> bool:
    """Whether :func:`decode_timestamp` would decode it."""
    us: int = _TIMESTAMP.unpack_from(data, offset)[1]
    return us < 1_000_000


def session_key(timestamp: Timestamp, server: int, session: int) -> bytes:
    """Key of a session: the place of its events without their instance."""
    return _SESSION.pack(timestamp.s + _BIAS, timestamp.us, server + _BIAS, session + _BIAS)


def source_of(value: bytes) -> bytes:
    """``no_source`` and the source timestamp of an event, from its value (13 bytes)."""
    if value[0] & SOURCE_FLAG:
        return HAS_SOURCE + value[1 : 1 + TIMESTAMP_BYTES]
    return _WITHOUT_SOURCE


def event_key(key: bytes) -> bytes:
    """Key in ``event``, from a key in ``event`` or ``source``."""
    return key[:TYPE_BYTES] + key[-PLACE_BYTES:]


def session_of(key: bytes) -> bytes:
    """Key in ``session``, from a key in ``event`` or ``source``."""
    return key[-PLACE_BYTES:-INT_BYTES]


def payload_of(value: bytes) -> Payload | None:
    """Payload of an event, from its value."""
    begin = 1 + TIMESTAMP_BYTES if value[0] & SOURCE_FLAG else 1
    return _decode_payload(value, begin)


def encode_id(event_id: EventId) -> bytes:
    """Server, session and instance: the end of a place."""
    return b"".join(map(encode_int, (event_id.server, event_id.session, event_id.instance)))


def find_entry(entries: bytes, instance: bytes) -> TypeId | None:
    """Type of one of a session's events.

    Args:
        entries: value of the session.
        instance: instance, encoded.
    """
    starts = range(0, len(entries), ENTRY_BYTES)
    index = bisect.bisect_left(starts, instance, key=lambda i: entries[i : i + INT_BYTES])
    entry = entries[index * ENTRY_BYTES : (index + 1) * ENTRY_BYTES]
    return entry[INT_BYTES:] if entry.startswith(instance) else None


def without_entries(entries: bytes, instances: Collection[bytes]) -> bytes:
    """What is left of a session's entries.

    Args:
        entries: value of the session.
        instances: those that go, encoded.
    """
    if len(entries) == ENTRY_BYTES * len(instances):
        return b""
    every = (entries[i : i + ENTRY_BYTES] for i in range(0, len(entries), ENTRY_BYTES))
    return b"".join(entry for entry in every if entry[:INT_BYTES] not in instances)


def encode_value(event: Event) -> tuple[bytes, bytes]:
    """What is kept of an event besides its key.

    Returns:
        ``no_source`` and the source timestamp (13 bytes, as :func:`source_of` finds them in
        the value), and the value.
    """
    timestamp, payload = event.source_timestamp, event.payload
    if timestamp is None:
        if isinstance(payload, JsonPayload):  # most of them
            return _WITHOUT_SOURCE, _JSON_ONLY + payload.data
        has_source, source, head = 0, _WITHOUT_SOURCE, b""
    else:
        head = _TIMESTAMP.pack(timestamp.s + _BIAS, timestamp.us)
        has_source, source = SOURCE_FLAG, HAS_SOURCE + head
    if isinstance(payload, JsonPayload):
        return source, b"".join((_FLAGS[has_source | JSON_FLAG], head, payload.data))
    if payload is None:
        return source, _FLAGS[has_source] + head
    # what is only stored and handed out again need not be good Unicode
    label = payload.data_type.encode("utf-8", "surrogatepass")
    size = _TYPE.pack(len(label))
    return source, b"".join((_FLAGS[has_source | BINARY_FLAG], head, size, label, payload.data))


def decode_event(key: bytes, value: bytes, names: Mapping[TypeId, EventType]) -> Event:
    """An event, from its key in ``event`` and its value.

    Args:
        key: key of the event.
        value: what :func:`encode_value` made.
        names: types by their ids.
    """
    type_id, s, us, server, session, instance = _EVENT.unpack(key)
    source_timestamp = None
    begin = 1
    if value[0] & SOURCE_FLAG:
        source_timestamp = decode_timestamp(value, 1)
        begin += TIMESTAMP_BYTES
    return Event(
        EventId(server - _BIAS, session - _BIAS, instance - _BIAS),
        names[type_id],
        Timestamp(s - _BIAS, us),
        source_timestamp,
        _decode_payload(value, begin),
    )


def check_value(value: bytes) -> None:
    """Refuse what :func:`encode_value` cannot have made.

    Raises:
        ValueError: it says why.
    """
    kind = value[0] & ~SOURCE_FLAG if value else -1
    begin = 1
    if value and value[0] & SOURCE_FLAG:
        begin += TIMESTAMP_BYTES
        if len(value) < begin or not is_timestamp(value, 1):
            raise ValueError("no source timestamp, but a flag says so")
    if kind == JSON_FLAG:
        try:
            _check_json(value[begin:])
        except RecursionError:
            pass  # deeper than this process can follow, but so it was stored
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
    kind = value[0] & ~SOURCE_FLAG
    if kind == JSON_FLAG:
        return JsonPayload(msgspec.Raw(value[begin:]))
    if kind == BINARY_FLAG:
        size = _TYPE.unpack_from(value, begin)[0]
        begin += _TYPE.size
        label = value[begin : begin + size].decode("utf-8", "surrogatepass")
        return BinaryPayload(label, value[begin + size :])
    return None
