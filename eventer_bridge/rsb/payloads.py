"""RSB events as events of the core, and the other way round.

An RSB event becomes an event of type prefix + segments of its scope. Its source timestamp is
its create time. Its payload is

* JSON if its data can be represented as a value (:class:`Converter`)::

    {"rsb": {"id": …, "sender": …, "sequence": …, "schema": …, "method": …, "causes": […],
             "meta": {"create_time": …, …, "user_infos": {…}}},
     "value": …}

* binary otherwise, and if JSON would be too large: its type is the wire schema, its data the
  whole notification (of ``schemas/rsb.proto``), which keeps more than the event's data.

Both keep everything, so that the RSB event can be restored.

An event from elsewhere becomes a new RSB event: a JSON value with a matching schema (arrays,
objects and numbers without one as JSON text, a ``utf-8-string``), a binary payload with its
type as the schema. Its author can choose method, schema, causes and so on by ``rsb`` as above,
all parts of which are optional.

Sans I/O; any thread.
"""

import base64
import math
import struct
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple
from uuid import UUID

import msgspec

from eventer_bridge import limits, model
from eventer_bridge.errors import InvalidEventError, InvalidMessageError
from eventer_bridge.rsb import codec
from eventer_bridge.rsb.event import (
    MAX_SEQUENCE,
    Informer,
    MetaData,
    RsbEvent,
    RsbEventId,
    Scope,
    parse_scope,
)


class Converter(NamedTuple):
    """Conversion of one wire schema that has a JSON representation; exact in both directions.

    =============  ===================  =====================================================
    wire schema    data                 JSON value
    =============  ===================  =====================================================
    void           nothing              null
    double         8 bytes, LE          number (NaN and the infinities have no form)
    int64          8 bytes, LE          integer
    bool           1 byte, 00 or 01     true or false
    bytes          any                  string, base64
    utf-8-string   UTF-8                string
    =============  ===================  =====================================================

    ``decode`` raises ``ValueError`` for data without a value, ``encode`` also ``TypeError``.
    """

    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    expected: str


def _unpacker(form: str) -> Callable[[bytes], Any]:
    packed = struct.Struct(form)

    def decode(data: bytes) -> Any:
        if len(data) != packed.size:
            raise ValueError(f"{len(data)} bytes, expected {packed.size}")
        return packed.unpack(data)[0]

    return decode


_unpack_double: Final = _unpacker("<d")
_BOOLS: Final = (b"\x00", b"\x01")


def _decode_void(data: bytes) -> None:
    if data:
        raise ValueError("data, expected none")


def _encode_void(value: Any) -> bytes:
    if value is not None:
        raise ValueError("a value, expected none")
    return b""


def _decode_double(data: bytes) -> float:
    value: float = _unpack_double(data)
    if not math.isfinite(value):
        raise ValueError("no JSON number")
    return value


def _encode_double(value: Any) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("no number")
    try:
        return struct.pack("<d", float(value))
    except OverflowError as e:
        raise ValueError(str(e)) from e


def _encode_int64(value: Any) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("no integer")
    if not model.INT64_MIN <= value <= model.INT64_MAX:
        raise ValueError("out of range")
    return struct.pack("<q", value)


def _encode_bool(value: Any) -> bytes:
    if not isinstance(value, bool):
        raise TypeError("no truth value")
    return _BOOLS[value]


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("no string")
    return value.encode()


CONVERTERS: Final = {
    "void": Converter(_decode_void, _encode_void, "null"),
    "double": Converter(_decode_double, _encode_double, "a number"),
    "int64": Converter(_unpacker("<q"), _encode_int64, "an integer of 64 bits"),
    "bool": Converter(lambda data: bool(_BOOLS.index(data)), _encode_bool, "true or false"),
    "bytes": Converter(
        lambda data: base64.b64encode(data).decode(),
        lambda value: base64.b64decode(value, validate=True),
        "a string in base64",
    ),
    "utf-8-string": Converter(lambda data: data.decode(), _encode_text, "a string"),
}


def encode_value(schema: str, value: Any) -> bytes:
    """Data of a JSON value, or ``InvalidEventError``; of an unknown schema, its data in base64."""
    converter = CONVERTERS.get(schema, CONVERTERS["bytes"])
    try:
        return converter.encode(value)
    except (ValueError, TypeError):
        raise InvalidEventError(
            f"a value of wire schema {model.cut(schema)!r}: expected {converter.expected}"
        ) from None


def schema_of(value: Any) -> str | None:
    """Wire schema for a JSON value; None if none is exact."""
    if value is None:
        return "void"
    if isinstance(value, int) and not model.INT64_MIN <= value <= model.INT64_MAX:
        return None
    return _SCHEMAS.get(type(value))


_SCHEMAS: Final[dict[type, str]] = {
    bool: "bool",
    int: "int64",
    float: "double",
    str: "utf-8-string",
}


_US: Final = 1_000_000


class _Rsb(msgspec.Struct, frozen=True, omit_defaults=True):
    """An RSB event without its value."""

    id: UUID | None = None
    sender: UUID | None = None
    sequence: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)] | None = None
    schema: str | None = None
    method: str | None = None
    causes: tuple[RsbEventId, ...] = ()
    meta: MetaData = MetaData()


class _Envelope(msgspec.Struct, frozen=True):
    rsb: _Rsb
    value: Any = None


class _Probe(msgspec.Struct):
    rsb: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_encode: Final = msgspec.json.Encoder().encode
_decode_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_decode_probe: Final = msgspec.json.Decoder(_Probe).decode
_decode_value: Final = msgspec.json.Decoder().decode


def to_register(event: RsbEvent, prefix: model.EventType) -> model.RegisterEvent:
    """The event to register for an RSB event."""
    create_us = event.meta.create_time
    source_timestamp = None if create_us is None else model.Timestamp(*divmod(create_us, _US))
    payload: model.Payload
    if (data := to_json(event)) is None or len(data) > limits.MAX_PAYLOAD_BYTES:
        payload = model.BinaryPayload(_escape(event.schema), codec.encode(event))
    else:
        payload = model.JsonPayload(msgspec.Raw(data))
    return model.RegisterEvent(prefix + event.scope.segments, source_timestamp, payload)


def to_json(event: RsbEvent) -> bytes | None:
    """JSON of an RSB event, as in the payload; None if its data cannot be a JSON value."""
    converter = CONVERTERS.get(event.schema)
    if converter is None:
        return None
    try:
        return _encode(_Envelope(_rsb_of(event), converter.decode(event.data)))
    except ValueError:  # no value; or a string that is not UTF-8
        return None


def to_json_as_bytes(event: RsbEvent) -> bytes:
    """JSON of any RSB event, its data in base64; bytes that are not UTF-8 are escaped."""
    escaped = _escaped(msgspec.to_builtins(_rsb_of(event)))
    return _encode({"rsb": escaped, "value": CONVERTERS["bytes"].decode(event.data)})


def scope_of(event_type: model.EventType, prefix: model.EventType) -> Scope | None:
    """Scope for events of a type; None if the bridge does not send them."""
    if event_type[: len(prefix)] != prefix:
        return None
    segments = event_type[len(prefix) :]
    try:
        scope = parse_scope(str(Scope(segments)))
    except InvalidEventError:
        return None
    return scope if scope.segments == segments else None  # not with "/" within a segment


def from_event(event: model.Event, scope: Scope, informer: Informer) -> RsbEvent:
    """RSB event of an event of the core: the original one, or a new one by ``informer``.

    ``InvalidEventError``: ``rsb`` in its payload is invalid.
    """
    moment = event.source_timestamp or event.timestamp
    created = MetaData(create_time=_microseconds(moment))
    payload = event.payload
    if payload is None:
        return informer.create(scope, meta=created)
    if isinstance(payload, model.BinaryPayload):
        original = _original(payload, scope)
        if original is not None:
            return original
        return informer.create(scope, payload.data_type, payload.data, meta=created)
    raw = bytes(payload.data)
    try:
        if raw.lstrip().startswith(b"{") and _decode_probe(raw).rsb is not msgspec.UNSET:
            return _from_envelope(raw, scope, informer, created)
        value = _decode_value(raw)
    except msgspec.DecodeError:  # JSON that Python cannot hold: 1e999
        schema = None
    else:
        schema = schema_of(value)
    if schema is None:
        return informer.create(scope, "utf-8-string", raw, meta=created)
    return informer.create(scope, schema, encode_value(schema, value), meta=created)


def _rsb_of(event: RsbEvent) -> _Rsb:
    by, of_what = event.event_id, (event.schema, event.method, event.causes, event.meta)
    return _Rsb(event.id, by.sender, by.sequence, *of_what)


def _from_envelope(raw: bytes, scope: Scope, informer: Informer, created: MetaData) -> RsbEvent:
    try:
        rsb = (envelope := _decode_envelope(raw)).rsb
    except msgspec.DecodeError as e:
        raise InvalidEventError(f"payload: {e}") from e
    schema = rsb.schema or schema_of(envelope.value)
    if schema is None:
        raise InvalidEventError("payload: rsb.schema: missing, and no schema fits the value")
    data = encode_value(schema, envelope.value)
    if rsb.sender is not None and rsb.sequence is not None:
        event_id = RsbEventId(rsb.sender, rsb.sequence)
        return RsbEvent(event_id, scope, schema, data, rsb.method, rsb.causes, rsb.meta)
    meta = rsb.meta
    if meta.create_time is None:
        meta = msgspec.structs.replace(meta, create_time=created.create_time)
    return informer.create(scope, schema, data, method=rsb.method, causes=rsb.causes, meta=meta)


def _original(payload: model.BinaryPayload, scope: Scope) -> RsbEvent | None:
    """The original RSB event of a binary payload; None if there is none."""
    try:
        event = codec.decode(payload.data)
    except InvalidMessageError:
        return None
    is_ours = event.scope == scope and _escape(event.schema) == payload.data_type
    return event if is_ours else None


def _escape(text: str) -> str:
    """Text that JSON can represent."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return _escape(value)
    if isinstance(value, dict):
        return {_escape(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_escaped(item) for item in value]
    return value


def _microseconds(moment: model.Timestamp) -> int | None:
    value = moment.s * _US + moment.us
    return value if -(1 << 63) <= value < 1 << 63 else None
