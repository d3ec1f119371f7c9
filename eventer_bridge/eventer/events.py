"""Events of Eventer messages as bytes, and back (001, "Chatter messages"): the hot path.

Repeated values are encoded and decoded once: types and seconds are cached by their bytes, ids
and timestamps from one event to the next. No encoded value is a prefix of another one of its
type, so the same bytes mean the same everywhere. That saves searching for the end of a type:
it is assumed to be as long as the last one, which holds if the cache has these bytes.

A JSON payload is a String of JSON text, and is kept as it is (``model.JsonPayload``), white space
around it included.

Read functions are like those of ``sbs``. They also raise ``InvalidEventError`` for well-formed
data that is no event: a timestamp out of range, a payload that is not JSON.

Sans I/O; any thread.
"""

import struct
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from eventer_bridge import limits, payloads
from eventer_bridge.chatter import sbs
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.eventer.messages import RefusedEvent
from eventer_bridge.memory import BoundedCache, type_bytes
from eventer_bridge.model import (
    BinaryPayload,
    Event,
    EventId,
    EventType,
    JsonPayload,
    Payload,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.packed import Batch, TypeTable, append, batch_of
from eventer_bridge.slices import Steps, parts

_MIN_EVENT_BYTES: Final = 8  # three integers, type, two integers, two Optionals
_MIN_REGISTER_EVENT_BYTES: Final = 3
_MIN_STRING_BYTES: Final = 1

_SECONDS_BYTES: Final = 5
"""Of the seconds of a timestamp from 1974 to 2514; others are not cached."""

_NONE: Final = bytes((sbs.FIRST,))
_VALUE: Final = bytes((sbs.SECOND,))
_BINARY: Final = bytes((sbs.SECOND, sbs.FIRST))
_JSON: Final = bytes((sbs.SECOND, sbs.SECOND))
_JSON_WITH_LENGTH: Final = tuple(_JSON + i for i in sbs.SMALL_INTEGERS)

_three_bytes: Final = struct.Struct("BBB").pack

_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode

_type_cache: Final[BoundedCache[bytes, EventType]] = BoundedCache()
_types: Final = _type_cache.known
_encoding_cache: Final[BoundedCache[EventType, bytes]] = BoundedCache()
_encoded_types: Final = _encoding_cache.known
_seconds: Final[dict[bytes, int]] = {}
_encoded_seconds: Final[dict[int, bytes]] = {}
_last_type_bytes = 0  # of the type that was read last: the next is guessed to be as long


# --- writing ------------------------------------------------------------------------------


def encode_events(events: Sequence[Event]) -> list[bytes]:
    """Events, of one session, answer or server mostly, each on its own, for joining to messages.

    As all that write, it raises ``UnicodeEncodeError`` for a text with a lone surrogate.
    """
    encoded: list[bytes] = []
    types, encode_integer, join = _encoded_types, sbs.encode_integer, b"".join
    small, n_small, json_lengths = sbs.SMALL_INTEGERS, len(sbs.SMALL_INTEGERS), _JSON_WITH_LENGTH
    server = session = timestamp = None
    server_id = session_id = time = b""
    for event in events:
        event_id = event.id
        if event_id.session != session or event_id.server != server:
            if event_id.server != server:
                server = event_id.server
                server_id = encode_integer(server)
            session = event_id.session
            session_id = server_id + encode_integer(session)
        if event.timestamp is not timestamp:
            timestamp = event.timestamp
            time = _encode_timestamp(timestamp)
        instance = event_id.instance
        head = (
            session_id,
            small[instance] if 0 <= instance < n_small else encode_integer(instance),
            types.get(event.type) or encode_type(event.type),
            time,
        )
        source, payload = event.source_timestamp, event.payload
        # inlined for speed: most payloads
        if type(payload) is JsonPayload and (size := len(payload.data)) < len(json_lengths):
            if source is None:
                content: tuple[bytes, ...] = (_NONE, json_lengths[size], payload.data)
            else:
                content = (_VALUE, _encode_timestamp(source), json_lengths[size], payload.data)
        else:
            content = _encode_content(source, payload)
        encoded.append(join(head + content))
    return encoded


def encode_register_events(events: Sequence[RegisterEvent]) -> bytes:
    """An Array of RegisterEvent."""
    parts = [sbs.encode_length(len(events))]
    for event in events:
        parts.append(_encoded_types.get(event.type) or encode_type(event.type))
        parts += _encode_content(event.source_timestamp, event.payload)
    return b"".join(parts)


def encode_type(event_type: EventType) -> bytes:
    """An EventType."""
    segments = [sbs.encode_string(i) for i in event_type]
    encoded = sbs.encode_length(len(segments)) + b"".join(segments)
    if len(encoded) <= limits.MAX_CACHED_TYPE_BYTES:
        n_bytes = type_bytes(event_type) + sys.getsizeof(encoded)
        _encoding_cache.put(event_type, encoded, n_bytes)
    return encoded


def _encode_timestamp(timestamp: Timestamp) -> bytes:
    s = timestamp.s
    seconds = _encoded_seconds.get(s)
    if seconds is None:
        if len(_encoded_seconds) >= limits.CACHED_SECONDS:
            _encoded_seconds.clear()
        seconds = _encoded_seconds[s] = sbs.encode_integer(s)
    us = timestamp.us
    if us < 0x2000:
        return seconds + sbs.encode_length(us)
    return seconds + _three_bytes(us >> 14, us >> 7 & 0x7F, us & 0x7F | 0x80)


def _encode_content(
    source_timestamp: Timestamp | None, payload: Payload | None
) -> tuple[bytes, ...]:
    """What Event and RegisterEvent have in common at their end."""
    source = _NONE if source_timestamp is None else _VALUE + _encode_timestamp(source_timestamp)
    if payload is None:
        return source, _NONE
    size = len(payload.data)
    if isinstance(payload, JsonPayload):
        if size < len(_JSON_WITH_LENGTH):
            return source, _JSON_WITH_LENGTH[size], payload.data
        return source, _JSON, sbs.encode_integer(size), payload.data
    data_type = sbs.encode_string(payload.data_type)
    return source, _BINARY, data_type, sbs.encode_length(size), payload.data


# --- reading ------------------------------------------------------------------------------


def read_register_events(data: bytes, pos: int) -> tuple[list[RegisterEvent], int]:
    """An Array of RegisterEvent; JSON payloads are checked by ``payloads.exceeded``."""
    events: list[RegisterEvent] = []
    if data[pos] == sbs.SECOND and len(data) - pos > _MIN_REGISTER_EVENT_BYTES:  # most have one
        return events, _read_more_register_events(data, pos + 1, 1, events)
    count, pos = _read_session_count(data, pos)
    return events, _read_more_register_events(data, pos, count, events)


def read_batch(data: bytes, types: TypeTable) -> Steps[tuple[Batch, int]]:
    """As :func:`read_register_events`, of many events, which become a batch meanwhile."""
    count, pos = _read_session_count(data, 0)
    batch = batch_of((), types)
    for part in parts(count):
        events: list[RegisterEvent] = []
        n_events = part.stop - part.start
        pos = _read_more_register_events(data, pos, n_events, events, part.start)
        append(batch, events)
        yield
    return batch, pos


def _read_session_count(data: bytes, pos: int) -> tuple[int, int]:
    count, pos = sbs.read_count(data, pos, _MIN_REGISTER_EVENT_BYTES)
    if count > limits.MAX_SESSION_EVENTS:
        raise InvalidEventError(f"{count} events, at most {limits.MAX_SESSION_EVENTS} are allowed")
    return count, pos


def _read_more_register_events(
    data: bytes, pos: int, count: int, events: list[RegisterEvent], n_before: int = 0
) -> int:
    """Append ``count`` events, of which others come before; returns the position after them."""
    global _last_type_bytes  # noqa: PLW0603  # a guess: any thread may change it
    type_bytes = _last_type_bytes
    try:
        for _ in range(count):
            end = pos + type_bytes
            event_type = _types.get(data[pos:end])
            if event_type is None:
                event_type, end = read_type(data, pos)
                _last_type_bytes = type_bytes = end - pos
            source_timestamp, payload, pos = _read_content(data, end, is_registered=True)
            events.append(RegisterEvent(event_type, source_timestamp, payload))
    except InvalidEventError as e:
        raise InvalidEventError(f"event {n_before + len(events)}: {e}") from None
    return pos


def read_events(
    data: bytes, pos: int, refused: list[RefusedEvent] | None = None
) -> Steps[tuple[list[Event], int]]:
    """An Array of Event, in steps; payloads are checked by the bounds for received ones.

    ``refused`` receives invalid events, which are skipped; None: these raise.
    """
    count, pos = sbs.read_count(data, pos, _MIN_EVENT_BYTES)
    if count > limits.MAX_RECEIVED_EVENTS:
        raise InvalidEventError(f"{count} events, at most {limits.MAX_RECEIVED_EVENTS} are allowed")
    events: list[Event] = []
    for part in parts(count):
        pos = _read_more_events(data, pos, part.stop - part.start, events, refused)
        yield
    return events, pos


def _read_more_events(
    data: bytes, pos: int, count: int, events: list[Event], refused: list[RefusedEvent] | None
) -> int:
    """Append ``count`` events; returns the position after them."""
    server = session = type_bytes = 0
    timestamp = None
    session_id = time = b""
    for _ in range(count):
        begin = pos
        try:
            if session_id and data.startswith(session_id, pos):
                pos += len(session_id)
            else:
                server, pos = sbs.read_integer(data, pos)
                session, pos = sbs.read_integer(data, pos)
                session_id = data[begin:pos]
            instance, pos = sbs.read_integer(data, pos)

            end = pos + type_bytes
            event_type = _types.get(data[pos:end])
            if event_type is None:
                event_type, end = read_type(data, pos)
                type_bytes = end - pos

            if timestamp is not None and data.startswith(time, end):
                pos = end + len(time)
            else:
                timestamp, pos = read_timestamp(data, end)
                time = data[end:pos]
            source_timestamp, payload, pos = _read_content(data, pos, is_registered=False)
            event_id = EventId(server, session, instance)
            events.append(Event(event_id, event_type, timestamp, source_timestamp, payload))
        except InvalidEventError as e:
            if refused is None:
                raise InvalidEventError(f"event {len(events)}: {e}") from None
            event_id, pos = _skip_event(data, begin)
            refused.append(RefusedEvent(event_id, str(e), len(events)))
    return pos


def read_type(data: bytes, pos: int) -> tuple[EventType, int]:
    """An EventType, which may have wildcards."""
    # its end, if count and lengths have one byte each; else the bytes found are not in the cache
    end, size = pos + 1, len(data)
    for _ in range(data[pos] - 0x80):
        if end >= size or data[end] < 0x80:
            break
        end += data[end] - 0x7F
    encoded = data[pos:end]
    known = _types.get(encoded)
    if known is not None:
        return known, pos + len(encoded)
    event_type, end = read_unknown_type(data, pos)
    if end - pos <= limits.MAX_CACHED_TYPE_BYTES:
        encoded = data[pos:end]
        n_bytes = sys.getsizeof(encoded) + type_bytes(event_type)
        _type_cache.put(encoded, event_type, n_bytes)
    return event_type, end


def read_unknown_type(data: bytes, pos: int) -> tuple[EventType, int]:
    """As :func:`read_type`, of one that is not in the cache and does not come there."""
    count, pos = sbs.read_count(data, pos, _MIN_STRING_BYTES)
    if count > limits.MAX_TYPE_SEGMENTS + 1:
        raise InvalidEventError(
            f"event type has {count} segments, at most {limits.MAX_TYPE_SEGMENTS} are allowed"
        )
    segments = []
    for _ in range(count):
        segment, pos = sbs.read_string(data, pos)
        segments.append(segment)
    return tuple(segments), pos


def read_timestamp(data: bytes, pos: int) -> tuple[Timestamp, int]:
    """A Timestamp."""
    end = pos + _SECONDS_BYTES
    s = _seconds.get(data[pos:end])
    if s is None:
        s, end = sbs.read_integer(data, pos)
        if end - pos == _SECONDS_BYTES:
            if len(_seconds) >= limits.CACHED_SECONDS:
                _seconds.clear()
            _seconds[data[pos:end]] = s
    # inlined for speed: an integer of three bytes
    if (
        (first := data[end]) < 0x40
        and (second := data[end + 1]) < 0x80
        and (third := data[end + 2]) >= 0x80
    ):
        us, end = first << 14 | second << 7 | third & 0x7F, end + 3
    else:
        us, end = sbs.read_integer(data, end)
    if 0 <= us < 1_000_000:
        return Timestamp(s, us), end
    return Timestamp.checked(s, us), end


def _skip_event(data: bytes, pos: int) -> tuple[EventId, int]:
    """Skip an Event, reading only its identifier."""
    server, pos = sbs.read_integer(data, pos)
    session, pos = sbs.read_integer(data, pos)
    instance, pos = sbs.read_integer(data, pos)
    count, pos = sbs.read_count(data, pos, _MIN_STRING_BYTES)
    for _ in range(count):
        _, pos = sbs.read_string(data, pos)
    _, pos = _skip_timestamp(data, pos)
    _, pos = sbs.read_optional(_skip_timestamp, data, pos)
    has_payload, pos = sbs.read_choice(data, pos, 2)
    if has_payload:
        is_json, pos = sbs.read_choice(data, pos, 2)
        _, pos = sbs.read_string(data, pos)
        if not is_json:
            _, pos = sbs.read_bytes(data, pos)
    return EventId(server, session, instance), pos


def _skip_timestamp(data: bytes, pos: int) -> tuple[None, int]:
    for _ in range(2):
        _, pos = sbs.read_integer(data, pos)
    return None, pos


def _read_content(
    data: bytes, pos: int, is_registered: bool
) -> tuple[Timestamp | None, Payload | None, int]:
    """What Event and RegisterEvent have in common at their end, and the position after it.

    ``is_registered``: whether all of ``payloads.exceeded`` applies to a JSON payload.
    """
    source_timestamp: Timestamp | None = None
    kind = data[pos]
    if kind == sbs.SECOND:
        # inlined for speed: known seconds, and microseconds of three bytes
        begin = pos + 1
        end = begin + _SECONDS_BYTES
        if (
            (s := _seconds.get(data[begin:end])) is not None
            and (first := data[end]) < 0x40
            and (second := data[end + 1]) < 0x80
            and (third := data[end + 2]) >= 0x80
            and (us := first << 14 | second << 7 | third & 0x7F) < 1_000_000
        ):
            source_timestamp = Timestamp(s, us)
            pos = end + 3
        else:
            source_timestamp, pos = read_timestamp(data, begin)
    elif kind == sbs.FIRST:
        pos += 1
    else:
        source_timestamp, pos = sbs.read_optional(read_timestamp, data, pos)

    if not data.startswith(_JSON, pos):
        return source_timestamp, *_read_payload(data, pos, is_registered)
    # inlined for speed: JSON text with a length of one or two bytes
    first = data[pos + 2]
    if 0x80 <= first < 0xC0:
        pos += 3
        end = pos + first - 0x80
    elif first < 0x40 and (second := data[pos + 3]) >= 0x80:
        pos += 4
        end = pos + (first << 7) + second - 0x80
    else:
        return source_timestamp, *_read_payload(data, pos, is_registered)
    if end > len(data):
        raise IndexError
    return source_timestamp, _json_payload(data[pos:end], end, is_registered), end


def _read_payload(data: bytes, pos: int, is_registered: bool) -> tuple[Payload | None, int]:
    """Any Optional(EventPayload)."""
    has_payload, pos = sbs.read_choice(data, pos, 2)
    if not has_payload:
        return None, pos
    is_json, pos = sbs.read_choice(data, pos, 2)
    if is_json:
        text, pos = sbs.read_bytes(data, pos)
        return _json_payload(text, pos, is_registered), pos
    data_type, pos = sbs.read_string(data, pos)
    content, pos = sbs.read_bytes(data, pos)
    return BinaryPayload(data_type, content), pos


def _json_payload(text: bytes, end: int, is_registered: bool) -> JsonPayload:
    """The payload of a String that ends at a position of a message."""
    if not text.isascii():
        sbs.decode_utf8(text, end)  # msgspec does not look at what it leaves raw
    is_harmless = len(text) <= payloads.HARMLESS_BYTES
    if not is_harmless and payloads.is_too_deep(text):
        raise InvalidEventError("payload is nested too deeply")
    try:
        _check_json(text)
    except msgspec.DecodeError as e:
        raise InvalidEventError(f"payload is not JSON: {e}") from None
    if is_registered and not is_harmless and (reason := payloads.exceeded(text)):
        raise InvalidEventError(f"payload: {reason}")
    return JsonPayload(msgspec.Raw(text))
