"""Mariner messages as bytes, and back (docs/protocol.md).

``schemas/mariner.yaml`` is the contract: it decides which messages are accepted. Decoding into
typed structs gives the same verdict much faster (a differential test compares the two). Only if
that refuses a message, ``lenient`` handles variants that the contract accepts; otherwise the
reason comes from the schema for messages of up to ``limits.MAX_EXPLAINED_BYTES``, from typed
decoding for larger ones.

Beyond the contract:

- a message is UTF-8 and valid JSON (no NaN, no lone surrogates), nested no deeper than
  ``MAX_RECEIVED_DEPTH`` levels;
- one of more than ``limits.MAX_LENIENT_BYTES`` has no additional properties, no integers with
  a point or an exponent, and no duplicate keys of which only the last value is valid;
- a registered JSON payload is within the bounds of ``payloads.exceeded``.

Sans I/O; any thread.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Final, NoReturn, cast

import msgspec

from eventer_bridge import limits as core_limits
from eventer_bridge import model, payloads
from eventer_bridge.errors import InvalidSubscriptionError
from eventer_bridge.model import Event, EventType, RegisterEvent
from eventer_bridge.packed import (
    IS_COMPILED,
    Batch,
    StoredEvents,
    TypeTable,
    batch_of,
    encode_answers,
    encode_stored,
    read_json,
)
from eventer_bridge.slices import Steps, cut_in_steps, event_parts
from eventer_bridge.subscription import check_query_types, too_many_segments
from mariner import limits
from mariner.errors import ContractError
from mariner.wire import lenient
from mariner.wire import messages as wire
from mariner.wire.messages import Message, RegisterReq

_encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode
_decode_wire: Final[Callable[[bytes], wire.WireMessage]] = msgspec.json.Decoder(
    functools.reduce(operator.or_, (wire.FORMS.get(i, i) for i in wire.TYPES))
).decode
_decode_query: Final = msgspec.json.Decoder(wire.WireQuery).decode
_decode_types: Final = msgspec.json.Decoder(wire.Types).decode
_decode_events: Final = msgspec.json.Decoder(list[Event]).decode
_decode_status: Final = msgspec.json.Decoder(model.Status).decode
_decode_str: Final = msgspec.json.Decoder(str).decode
_decode_strs: Final = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_histories: Final = msgspec.json.Decoder(wire.Histories).decode
_decode_bool: Final = msgspec.json.Decoder(bool).decode
_decode_int: Final = msgspec.json.Decoder(model.Int64).decode

_decode_any: Final = msgspec.json.Decoder(float_hook=lenient.number).decode
_decode_head: Final = msgspec.json.Decoder(wire.Head).decode
_decode_raw_events: Final = msgspec.json.Decoder(wire.RawEvents).decode

_OTHERS: Final = frozenset(wire.FORMS.values())
_REGISTRATIONS: Final[frozenset[type[Any]]] = frozenset({RegisterReq})

_SHORTEST_REGISTER_REQ: Final = (
    b'{"msg_type":"register_req","register_id":0,"register_events":[{"type":[],'
    b'"source_timestamp":null,"payload":{"payload_type":"json","data":}}]}'
)
"""Around the payload of an event."""

_HARMLESS_REGISTER_BYTES: Final = payloads.HARMLESS_BYTES + len(_SHORTEST_REGISTER_REQ)
"""The payloads of a ``register_req`` up to this length are within all bounds."""

# errors of a message: its JSON, its types, its nesting, its encoding
_DECODE_ERRORS: Final = (msgspec.DecodeError, RecursionError, UnicodeError)

_TOO_DEEP: Final = "JSON is nested too deeply"


# --- decoding -----------------------------------------------------------------------------


def decode(message: bytes) -> Message:
    """Decode a message, without framing; raises ContractError if it is refused."""
    try:
        if not message.isascii():
            message.decode()  # raw parts are not checked by msgspec
        decoded = _decode_wire(message)
        if type(decoded) is RegisterReq and len(message) <= _HARMLESS_REGISTER_BYTES:
            return decoded  # for speed: as _checked
        return _checked(decoded, message)
    except _DECODE_ERRORS as e:
        return _decode_again(message, e)


def read(message: bytes, types: TypeTable | None) -> Message | Batch:
    """As :func:`decode`, but a registration is a batch of these types, if there are any."""
    if types is None:
        return decode(message)
    batch = read_batch(message, types)
    return _with_batch(decode(message), types) if batch is None else batch


def read_batch(
    message: bytes, types: TypeTable, max_new: int = core_limits.MAX_SESSION_EVENTS
) -> Batch | None:
    """A batch from a ``register_req``; None: it is another message, or is to be decoded.

    So is one that brings more types than ``max_new`` that are not in the table.
    """
    return read_json(message, types, max_new) if IS_COMPILED else None


def _with_batch(message: Message, types: TypeTable) -> Message | Batch:
    if type(message) is not RegisterReq:
        return message
    keys = message.request_key, message.after_key
    return batch_of(message.register_events, types, message.register_id, *keys)


def read_type(text: bytes) -> EventType | None:
    """An event type from its JSON; None: it is none."""
    try:
        return _decode_strs(text)
    except _DECODE_ERRORS:
        return None


def read_several(messages: Sequence[bytes], types: TypeTable | None) -> list[Message | Batch]:
    """As :func:`read`, but faster; up to the first that typed decoding refuses."""
    if types is None:
        return [*_decode_typed(messages)]
    found = [read_json(message, types) if IS_COMPILED else None for message in messages]
    others = [data for data, batch in zip(messages, found, strict=True) if batch is None]
    if not others:
        return cast("list[Message | Batch]", found)
    typed = iter(_decode_typed(others))
    decoded: list[Message | Batch] = []
    for batch in found:
        message = next(typed, None) if batch is None else batch
        if message is None:
            break
        decoded.append(message if isinstance(message, Batch) else _with_batch(message, types))
    return decoded


def _decode_typed(messages: Sequence[bytes]) -> list[Message]:
    decoded: list[Any] = []
    with contextlib.suppress(*_DECODE_ERRORS):
        b"\n".join(messages).decode()  # raw parts are not checked by msgspec
        decoded.extend(map(_decode_wire, messages))  # keeps what precedes an error
    types = {*map(type, decoded)}
    harmless = _HARMLESS_REGISTER_BYTES if types == _REGISTRATIONS else payloads.HARMLESS_BYTES
    if max(map(len, messages)) <= harmless and _OTHERS.isdisjoint(types):
        return decoded
    n_checked = 0
    with contextlib.suppress(ContractError, *_DECODE_ERRORS):
        for message, data in zip(decoded, messages, strict=False):
            if len(data) > harmless or type(message) in _OTHERS:
                decoded[n_checked] = _checked(message, data)
            n_checked += 1
    del decoded[n_checked:]
    return decoded


def _checked(decoded: wire.WireMessage, message: bytes) -> Message:
    match decoded:
        case RegisterReq():
            _check_payloads(decoded)
        case wire.InitReq():
            _check_types(decoded.subscriptions, "/subscriptions", "init_req")
        case wire.WireQueryReq():
            # may have additional properties
            check_depth(message)
            _check_size_of_types(message)
            query = _decode_query(message)
            if not isinstance(query, wire.ServerProperties) and query.event_types:
                _check_types(query.event_types, "/event_types", "query_req")
            return wire.QueryReq(decoded.query_id, _query_params(query))
        case wire.WireInitRes():
            return _init_res(decoded)
        case wire.WireRegisterRes():
            return _register_res(decoded)
        case wire.EventsMsg() | wire.QueryRes():
            _check_received(decoded.events)
    return decoded


def _check_types(query_types: Sequence[EventType], pointer: str, msg_type: str) -> None:
    try:
        check_query_types(query_types)
    except InvalidSubscriptionError as e:
        raise ContractError(str(e), pointer=pointer, msg_type=msg_type) from None


def _check_size_of_types(message: bytes) -> None:
    """Refuse a large query before its many types are decoded."""
    if len(message) <= core_limits.MAX_QUERY_SEGMENTS:  # which have two quotes each
        return
    types = _decode_types(message).event_types
    n_quotes = 0 if types is msgspec.UNSET else bytes(types).count(b'"')
    if n_quotes > 4 * core_limits.MAX_QUERY_SEGMENTS:  # some may be escaped
        error = too_many_segments(n_quotes // 2)
        raise ContractError(str(error), pointer="/event_types", msg_type="query_req")


def check_depth(data: bytes) -> None:
    """Refuse JSON that is nested too deeply; raises ContractError."""
    if len(data) > payloads.HARMLESS_RECEIVED_BYTES and payloads.is_too_deep(data):
        raise ContractError(_TOO_DEEP)


def _check_received(events: Sequence[Event]) -> None:
    """Check a server's message: of the bounds of payloads, only depth, because they are stored."""
    for event in events:
        payload = event.payload
        if type(payload) is model.JsonPayload and len(payload.data) > payloads.HARMLESS_BYTES:
            check_depth(bytes(payload.data))


def _check_payloads(request: RegisterReq) -> None:
    try:
        check_payloads(request.register_events)
    except ContractError as e:
        if not e.pointer:
            raise
        raise e.of_registration(request.register_id) from None


def check_payloads(events: Sequence[RegisterEvent], first_index: int = 0) -> None:
    """Refuse JSON payloads that exceed ``payloads.exceeded``, of events of a ``register_req``.

    ``first_index`` is the first one's. Raises ContractError without the request's identifier.
    """
    for i, event in enumerate(events, first_index):
        payload = event.payload
        if type(payload) is not model.JsonPayload or len(payload.data) <= payloads.HARMLESS_BYTES:
            continue
        data = bytes(payload.data)
        check_depth(data)  # not every Python version's decoder refuses it
        if reason := payloads.exceeded(data):
            pointer = f"/register_events/{i}/payload/data"
            raise ContractError(reason, pointer=pointer, msg_type="register_req")


def check_payload_in_steps(event: RegisterEvent, index: int) -> Steps[None]:
    """As :func:`check_payloads`, of one event, which may be large."""
    payload = event.payload
    if type(payload) is not model.JsonPayload or len(payload.data) <= payloads.HARMLESS_BYTES:
        return
    data = bytes(payload.data)
    yield
    check_depth(data)
    yield
    if reason := (yield from payloads.exceeded_in_steps(data)):
        pointer = f"/register_events/{index}/payload/data"
        raise ContractError(reason, pointer=pointer, msg_type="register_req")


def _decode_again(message: bytes, error: Exception) -> Message:
    """Decode a message that typed decoding refused, or raise the contract's reason."""
    try:
        message.decode()
        if len(message) > limits.MAX_LENIENT_BYTES:
            _refuse_unexplained(message, str(error))
        check_depth(message)
        try:
            plain = lenient.plain_message(message)
            return _checked(_decode_wire(plain), plain)
        except msgspec.ValidationError as e:
            if len(message) <= limits.MAX_EXPLAINED_BYTES:
                _refuse_explained(message)
            _refuse_unexplained(message, str(e))
    except RecursionError:
        raise ContractError(_TOO_DEEP) from None
    except UnicodeDecodeError as e:
        raise ContractError(f"not UTF-8: {e.reason} at byte {e.start}") from None
    except msgspec.ValidationError as e:  # it is no object
        raise ContractError(str(e)) from None
    except msgspec.DecodeError as e:
        _refuse_text(message, e)


def _refuse_explained(message: bytes) -> None:
    """Refuse a message for the reason of the schema, if that is here, and has one."""
    try:
        from mariner.wire.contract import explain  # noqa: PLC0415  # a client may have none
    except ModuleNotFoundError:
        return
    try:
        value = _decode_any(message)
    except msgspec.ValidationError:  # JSON that Python cannot hold
        return
    if explained := explain(value):
        _refuse(value, *explained)


def _refuse_unexplained(message: bytes, reason: str, pointer: str = "") -> NoReturn:
    head = _decode_head(message)
    value = {
        key: _decode_any(raw)
        for key in head.__struct_fields__
        if (raw := getattr(head, key)) is not msgspec.UNSET and len(raw) <= limits.MAX_REASON_BYTES
    }
    _refuse(value, pointer, reason[: limits.MAX_REASON_BYTES])


def _refuse_text(message: bytes, error: Exception) -> NoReturn:
    """Refuse a message that is no JSON, or has lone surrogates."""
    if len(message) <= limits.MAX_LENIENT_BYTES and (found := lenient.mend(message)):
        mended, position = found
        with contextlib.suppress(msgspec.DecodeError):
            pointer = _pointer_to_event(mended, position)
            _refuse_unexplained(mended, lenient.reason(position), pointer)
    raise ContractError(f"not JSON: {error}") from None


def _pointer_to_event(message: bytes, position: int) -> str:
    """Of the event of a ``register_req`` at a position, if there is one."""
    try:
        events = _decode_raw_events(message).register_events
    except msgspec.ValidationError:
        return ""
    begin = 0
    for index, event in enumerate(map(bytes, events)):
        begin = message.index(event, begin)
        if begin <= position < begin + len(event):
            return f"/register_events/{index}"
        begin += len(event)
    return ""


def _refuse(value: Any, pointer: str, reason: str) -> NoReturn:
    msg_type = register_id = None
    if isinstance(value, dict):
        msg_type, register_id = value.get("msg_type"), value.get("register_id")
    is_id = type(register_id) is int and model.INT64_MIN <= register_id <= model.INT64_MAX
    raise ContractError(
        reason,
        pointer=pointer,
        msg_type=msg_type if isinstance(msg_type, str) else None,
        register_id=register_id if is_id and msg_type == "register_req" else None,
    )


# --- encoding -----------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """Encode a message, without framing. STARTING and STOPPING become STANDBY.

    Raises UnicodeEncodeError if a text has no UTF-8 form (a lone surrogate).
    """
    match message:
        case wire.InitRes():
            return _encode(_wire_init_res(message))
        case wire.StatusMsg():
            return _encode(wire.StatusMsg(_as_client_sees(message.status)))
        case wire.RegisterRes():
            return _encode(_wire_register_res(message))
        case wire.QueryReq():
            return _encode(_wire_query(message))
    return _encode(message)


def encode_ping_response(ping_id: int) -> bytes:
    """Encode a ``ping_res``; as :func:`encode`, but faster."""
    return b'{"msg_type":"ping_res","ping_id":%d}' % ping_id


def encode_event(event: Event) -> bytes:
    """Encode an event, for messages of the functions below."""
    return _encode(event)


def encode_events(events: Sequence[Event]) -> bytes:
    """Encode events, with commas between them; as many :func:`encode_event` joined."""
    return _encode(events)[1:-1]


def encode_events_message(events: Sequence[bytes]) -> bytes:
    """An ``events`` message of encoded events."""
    return b'{"msg_type":"events","events":[%b]}' % b",".join(events)


def encode_register_success(register_id: int, events: bytes) -> bytes:
    """A ``register_res`` of :func:`encode_events`."""
    return b"".join(register_success_parts(register_id, (events,)))


class _RegisterSuccess(msgspec.Struct, gc=False, tag_field="msg_type", tag="register_res"):
    register_id: int
    success: bool
    events: Sequence[Event]


def encode_register_successes(
    register_ids: Iterable[int], events: Iterable[Sequence[Event]]
) -> list[bytes]:
    """As :func:`encode_register_success`, of several requests and the events of each."""
    return [*map(_encode, map(_RegisterSuccess, register_ids, repeat(True), events))]


def encode_batch_successes(batches: list[Batch]) -> bytes:
    """As :func:`encode_register_success`, of batches that are encodable; frames, joined."""
    before = b'{"msg_type":"register_res","register_id":'
    return encode_answers(batches, before, b',"success":true,"events":[', b"]}")


def encode_events_in_steps(
    events: Sequence[Event], *, is_redelivered: bool = False
) -> Steps[list[bytes]]:
    """The parts of an ``events`` message, encoded in steps."""
    end = b'],"redelivered":true}' if is_redelivered else b"]}"
    return _encode_parts(b'{"msg_type":"events","events":[', event_parts(events), end)


def _encode_parts(head: bytes, parts: Iterable[Sequence[Event]], end: bytes) -> Steps[list[bytes]]:
    encoded = [head]
    comma = b""
    for some in parts:
        encoded += (comma, encode_events(some))
        comma = b","
        yield
    encoded.append(end)
    return encoded


def events_message_parts(parts: Sequence[bytes]) -> list[bytes]:
    """As :func:`encode_events_message`, of a large session; the parts include commas."""
    return [b'{"msg_type":"events","events":[', *parts, b"]}"]


def register_success_parts(
    register_id: int, parts: Sequence[bytes], *, is_repeated: bool = False
) -> list[bytes]:
    """As :func:`encode_register_success`, of a large session; the parts include commas."""
    head = b'{"msg_type":"register_res","register_id":%d,"success":true,"events":[' % register_id
    return [head, *parts, b'],"repeated":true}' if is_repeated else b"]}"]


def encode_query_result(query_id: int, result: model.QueryResult) -> Steps[list[bytes]]:
    """The parts of a ``query_res``, whose events are encoded in steps; one part if they are few."""
    events = result.events
    end = b'],"more_follows":true}' if result.more_follows else b'],"more_follows":false}'
    head = b'{"msg_type":"query_res","query_id":%d,"events":[' % query_id
    if isinstance(events, StoredEvents):
        return [encode_stored(events, head, end)]
    if len(events) <= core_limits.STEP_EVENTS:
        n_bytes = sum([len(i.payload.data) for i in events if i.payload is not None])
        if n_bytes <= core_limits.STEP_BYTES:
            return [_encode(wire.QueryRes(query_id, events, result.more_follows))]
    del events
    waiting = yield from cut_in_steps(result.events)
    del result  # each event is freed once encoded, not all of them at once
    parts = (waiting.popleft() for _ in range(len(waiting)))
    return (yield from _encode_parts(head, parts, end))


# --- between wire and messages ------------------------------------------------------------


def _query_params(query: wire.WireQuery) -> model.QueryParams:
    params = wire.QUERIES[type(query)](*msgspec.structs.astuple(query))
    if not isinstance(params, model.QueryLatestParams) and (params.max_results or 0) < 0:
        raise msgspec.ValidationError("max_results is negative")
    return params


_QUERY_TYPES: Final = {params: wire.name_of(i) for i, params in wire.QUERIES.items()}


def _wire_query(message: wire.QueryReq) -> dict[str, Any]:
    params = message.params
    head = {"msg_type": "query_req", "query_id": message.query_id}
    properties = msgspec.structs.asdict(params).items()
    # unset properties are omitted: other servers do not know all of them
    given = {key: i for key, i in properties if key == "persisted" or not (i is None or i is False)}
    return {**head, "query_type": _QUERY_TYPES[type(params)], **given}


def _required(value: msgspec.Raw | msgspec.UnsetType) -> msgspec.Raw:
    if isinstance(value, msgspec.UnsetType):
        raise msgspec.ValidationError("required property is missing")
    return value


def _check_unused(*raws: msgspec.Raw | msgspec.UnsetType) -> None:
    for raw in raws:
        if not isinstance(raw, msgspec.UnsetType):
            check_depth(bytes(raw))


def _init_res(res: wire.WireInitRes) -> wire.InitRes:
    _check_unused(
        res.status, res.error, res.extensions, res.histories, res.cursor_resets, res.outcome
    )
    if not res.success:
        outcome = None if isinstance(res.outcome, msgspec.UnsetType) else _decode_str(res.outcome)
        return wire.InitRes(False, error=_decode_str(_required(res.error)), outcome=outcome)
    status = _decode_status(_required(res.status))
    unset, extensions, histories = msgspec.UnsetType, res.extensions, res.histories
    resets = res.cursor_resets
    return wire.InitRes(
        True,
        status=status,
        extensions=() if isinstance(extensions, unset) else _decode_strs(extensions),
        histories=() if isinstance(histories, unset) else _decode_histories(histories),
        cursor_resets=0 if isinstance(resets, unset) else _decode_int(resets),
    )


def _wire_init_res(message: wire.InitRes) -> dict[str, Any]:
    res: dict[str, Any] = {"msg_type": "init_res", "success": message.success}
    if message.success:
        res["status"] = _as_client_sees(message.status or model.Status.STANDBY)
        more = {
            "extensions": message.extensions,
            "histories": message.histories,
            "cursor_resets": message.cursor_resets,
        }
        return res | {key: i for key, i in more.items() if i}
    res["error"] = message.error or ""
    return res if message.outcome is None else res | {"outcome": message.outcome}


def _register_res(res: wire.WireRegisterRes) -> wire.RegisterRes:
    if res.success:
        _check_unused(res.error, res.outcome)
        events = _decode_events(_required(res.events))
        _check_received(events)
        is_repeated = isinstance(res.repeated, msgspec.Raw) and _decode_bool(res.repeated)
        return wire.RegisterRes(res.register_id, True, events=events, repeated=is_repeated)
    _check_unused(res.events, res.repeated)
    error, outcome = (
        None if isinstance(i, msgspec.UnsetType) else _decode_str(i)
        for i in (res.error, res.outcome)
    )
    return wire.RegisterRes(res.register_id, False, error=error, outcome=outcome)


def _wire_register_res(message: wire.RegisterRes) -> dict[str, Any]:
    res: dict[str, Any] = {
        "msg_type": "register_res",
        "register_id": message.register_id,
        "success": message.success,
    }
    if message.success:
        res["events"] = message.events or ()
        return res | ({"repeated": True} if message.repeated else {})
    details = {"error": message.error, "outcome": message.outcome}
    return res | {key: i for key, i in details.items() if i is not None}


def _as_client_sees(status: model.Status) -> model.Status:
    return status if status is model.Status.OPERATIONAL else model.Status.STANDBY
