"""Mariner messages as bytes, and back (002, "Messages").

``schemas/mariner.yaml`` is the contract: what it accepts is accepted, what it rejects is
rejected. Decoding does not ask it, but decodes into typed structs, which gives the same
verdict much faster (a differential test holds the two together). Only when that refuses, what
the contract accepts all the same is looked for (``lenient``), and then the reason: the schema
tells it for messages of up to ``limits.MAX_EXPLAINED_BYTES``, typed decoding for larger ones.

Beyond the contract:

- a message is UTF-8 and valid JSON (no NaN, no lone surrogates), nested no deeper than
  ``MAX_RECEIVED_DEPTH`` levels;
- one of more than ``limits.MAX_LENIENT_BYTES`` has no additional properties, no integers with
  a point or an exponent, and no key twice where only the last value is good;
- a registered JSON payload keeps the bounds of ``payloads.exceeded``.

Sans I/O; any thread.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import msgspec

from eventer_bridge import payloads
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    Event,
    JsonPayload,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Status,
)
from eventer_bridge.slices import Steps, cut_in_steps
from mariner import limits
from mariner.errors import ContractError
from mariner.wire import contract, lenient
from mariner.wire import wire_types as wire
from mariner.wire.messages import (
    EventsMsg,
    InitRes,
    Message,
    QueryReq,
    QueryRes,
    RegisterReq,
    RegisterRes,
    StatusMsg,
)

_encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode
_decode_wire: Final[Callable[[bytes], wire.WireMessage]] = msgspec.json.Decoder(
    wire.WireMessage
).decode
_decode_query: Final = msgspec.json.Decoder(wire.WireQuery).decode
_decode_events: Final = msgspec.json.Decoder(list[Event]).decode
_decode_status: Final = msgspec.json.Decoder(Status).decode
_decode_str: Final = msgspec.json.Decoder(str).decode

_decode_any: Final = msgspec.json.Decoder(float_hook=lenient.number).decode
_decode_head: Final = msgspec.json.Decoder(wire.Head).decode

# what may be wrong with a message: its JSON, its types, its nesting, its encoding
_DECODE_ERRORS: Final = (msgspec.DecodeError, RecursionError, UnicodeError)

_TOO_DEEP: Final = "JSON is nested too deeply"

_CUT_SURROGATE: Final = re.compile(rb'\\u[dD][89abAB][0-9a-fA-F]{2}"')
"""First half of a pair at the end of a string: msgspec only says "truncated"."""


# --- decoding -----------------------------------------------------------------------------


def decode(message: bytes) -> Message:
    """Decode a message.

    Args:
        message: without framing.

    Raises:
        ContractError: it is refused; with JSON pointer and reason.
    """
    try:
        if not message.isascii():
            message.decode()  # raw parts are not checked by msgspec
        return _decode(message)
    except _DECODE_ERRORS as e:
        return _decode_again(message, e)


def _decode(message: bytes) -> Message:
    decoded = _decode_wire(message)
    if isinstance(decoded, RegisterReq):
        for event in decoded.register_events:
            # inlined for speed: only a longer payload can exceed a bound
            payload = event.payload
            if type(payload) is JsonPayload and len(payload.data) > payloads.HARMLESS_BYTES:
                _check_payloads(decoded)
                break
        return decoded
    match decoded:
        case wire.WireQueryReq():
            # of which additional properties are not known to be none
            check_depth(message)
            return QueryReq(decoded.query_id, _query_params(_decode_query(message)))
        case wire.WireInitRes():
            return _init_res(decoded)
        case wire.WireRegisterRes():
            return _register_res(decoded)
        case EventsMsg() | QueryRes():
            _check_received(decoded.events)
    return decoded


def check_depth(data: bytes) -> None:
    """Refuse JSON that is nested too deeply; raises ContractError."""
    if len(data) > payloads.HARMLESS_RECEIVED_BYTES and payloads.is_too_deep(data):
        raise ContractError(_TOO_DEEP)


def _check_received(events: Sequence[Event]) -> None:
    """What a server tells: of the bounds of payloads only that of depth, they are stored."""
    for event in events:
        payload = event.payload
        if type(payload) is JsonPayload and len(payload.data) > payloads.HARMLESS_BYTES:
            check_depth(bytes(payload.data))


def _check_payloads(request: RegisterReq) -> None:
    try:
        check_payloads(request.register_events)
    except ContractError as e:
        if not e.pointer:
            raise
        raise e.of_registration(request.register_id) from None


def check_payloads(events: Sequence[RegisterEvent], first_index: int = 0) -> None:
    """Refuse JSON payloads that exceed ``payloads.exceeded``.

    Args:
        events: of a ``register_req``.
        first_index: place of the first one in it.

    Raises:
        ContractError: one does; without the request's identifier.
    """
    for i, event in enumerate(events, first_index):
        payload = event.payload
        if type(payload) is not JsonPayload or len(payload.data) <= payloads.HARMLESS_BYTES:
            continue
        data = bytes(payload.data)
        check_depth(data)  # which not every Python's decoder refuses
        if reason := payloads.exceeded(data):
            pointer = f"/register_events/{i}/payload/data"
            raise ContractError(reason, pointer=pointer, msg_type="register_req")


def check_payload_in_steps(event: RegisterEvent, index: int) -> Steps[None]:
    """As :func:`check_payloads`, of one event, which may be large."""
    payload = event.payload
    if type(payload) is not JsonPayload or len(payload.data) <= payloads.HARMLESS_BYTES:
        return
    data = bytes(payload.data)
    yield
    check_depth(data)
    yield
    if reason := (yield from payloads.exceeded_in_steps(data)):
        pointer = f"/register_events/{index}/payload/data"
        raise ContractError(reason, pointer=pointer, msg_type="register_req")


def _decode_again(message: bytes, error: Exception) -> Message:
    """Decode what typed decoding refused, if the contract accepts it; else tell why not."""
    try:
        message.decode()
        if len(message) > limits.MAX_LENIENT_BYTES:
            _refuse_unexplained(message, error)
        check_depth(message)
        try:
            return _decode(lenient.plain_message(message))
        except msgspec.ValidationError:
            if len(message) > limits.MAX_EXPLAINED_BYTES:
                _refuse_unexplained(message, error)
        value = _decode_any(message)
        if explained := contract.explain(value):
            _refuse(value, *explained)
        raise ContractError(str(error))
    except RecursionError:
        raise ContractError(_TOO_DEEP) from None
    except UnicodeDecodeError as e:
        raise ContractError(f"not UTF-8: {e.reason} at byte {e.start}") from None
    except msgspec.ValidationError as e:  # JSON that Python cannot hold
        raise ContractError(str(e)) from None
    except msgspec.DecodeError as e:
        reason = "lone surrogate" if _CUT_SURROGATE.search(message) else str(e)
        raise ContractError(f"not JSON: {reason}") from None


def _refuse_unexplained(message: bytes, error: Exception) -> NoReturn:
    """Refuse a message that is so large that decoding it for the schema would take long."""
    head = _decode_head(message)
    value = {
        key: _decode_any(raw)
        for key in head.__struct_fields__
        if (raw := getattr(head, key)) is not msgspec.UNSET and len(raw) <= limits.MAX_REASON_BYTES
    }
    _refuse(value, "", str(error)[: limits.MAX_REASON_BYTES])


def _refuse(value: Any, pointer: str, reason: str) -> NoReturn:
    msg_type = register_id = None
    if isinstance(value, dict):
        msg_type, register_id = value.get("msg_type"), value.get("register_id")
    if (
        msg_type != "register_req"
        or type(register_id) is not int
        or not INT64_MIN <= register_id <= INT64_MAX
    ):
        register_id = None
    raise ContractError(
        reason,
        pointer=pointer,
        msg_type=msg_type if isinstance(msg_type, str) else None,
        register_id=register_id,
    )


# --- encoding -----------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """Encode a message, without framing. STARTING and STOPPING are told as STANDBY.

    Raises:
        UnicodeEncodeError: a text has no UTF-8 form (a lone surrogate).
    """
    match message:
        case InitRes():
            return _encode(_wire_init_res(message))
        case StatusMsg():
            return _encode(StatusMsg(_as_client_sees(message.status)))
        case RegisterRes():
            return _encode(_wire_register_res(message))
        case QueryReq():
            return _encode(_wire_query(message))
    return _encode(message)


def encode_ping_response(ping_id: int) -> bytes:
    """Encode a ``ping_res``; as :func:`encode`, but faster."""
    return b'{"msg_type":"ping_res","ping_id":%d}' % ping_id


def encode_event(event: Event) -> bytes:
    """Encode an event, to be part of messages made by the functions below."""
    return _encode(event)


def encode_events(events: Sequence[Event]) -> bytes:
    """Encode events, with commas between them; as many :func:`encode_event` joined."""
    return _encode(events)[1:-1]


def encode_events_message(events: Sequence[bytes]) -> bytes:
    """An ``events`` message of events that are encoded already."""
    return b'{"msg_type":"events","events":[%b]}' % b",".join(events)


def encode_register_success(register_id: int, events: Sequence[bytes]) -> bytes:
    """A ``register_res`` of events that are encoded already."""
    return b'{"msg_type":"register_res","register_id":%d,"success":true,"events":[%b]}' % (
        register_id,
        b",".join(events),
    )


def events_message_parts(parts: Sequence[bytes]) -> list[bytes]:
    """As :func:`encode_events_message`, of a large session; the parts have their commas."""
    return [b'{"msg_type":"events","events":[', *parts, b"]}"]


def register_success_parts(register_id: int, parts: Sequence[bytes]) -> list[bytes]:
    """As :func:`encode_register_success`, of a large session; the parts have their commas."""
    head = b'{"msg_type":"register_res","register_id":%d,"success":true,"events":[' % register_id
    return [head, *parts, b"]}"]


def encode_query_result(query_id: int, result: QueryResult) -> Steps[list[bytes]]:
    """The parts of a ``query_res``, whose events are encoded in steps."""
    encoded = [b'{"msg_type":"query_res","query_id":%d,"events":[' % query_id]
    end = b'],"more_follows":true}' if result.more_follows else b'],"more_follows":false}'
    waiting = yield from cut_in_steps(result.events)
    del result  # each event is freed when it is encoded, and not all of them at a stretch
    comma = b""
    while waiting:
        encoded += (comma, encode_events(waiting.popleft()))
        comma = b","
        yield
    encoded.append(end)
    return encoded


# --- between wire and messages ------------------------------------------------------------


def _query_params(query: wire.WireQuery) -> QueryParams:
    match query:
        case wire.LatestProperties():
            return QueryLatestParams(_optional(query.event_types), _optional(query.last_event_id))
        case wire.TimeseriesProperties():
            return QueryTimeseriesParams(
                _optional(query.event_types),
                _optional(query.t_from),
                _optional(query.t_to),
                _optional(query.source_t_from),
                _optional(query.source_t_to),
                query.order,
                query.order_by,
                _max_results(query.max_results),
                _optional(query.last_event_id),
                _optional(query.ids),
                _optional(query.payload),
                query.unique_type,
            )
        case wire.ServerProperties():
            return QueryServerParams(
                query.server_id,
                query.persisted,
                _max_results(query.max_results),
                _optional(query.last_event_id),
            )


_QUERY_TYPES: Final[dict[type[QueryParams], str]] = {
    QueryLatestParams: "latest",
    QueryTimeseriesParams: "timeseries",
    QueryServerParams: "server",
}


def _wire_query(message: QueryReq) -> dict[str, Any]:
    params = message.params
    properties = {i: getattr(params, i) for i in params.__struct_fields__}
    return {
        "msg_type": "query_req",
        "query_id": message.query_id,
        "query_type": _QUERY_TYPES[type(params)],
        # what is not set is left out: servers of another make do not know all of it
        **{
            key: i
            for key, i in properties.items()
            if key == "persisted" or not (i is None or i is False)
        },
    }


def _optional(value: Any) -> Any:
    return None if value is msgspec.UNSET else value


def _max_results(value: int | msgspec.UnsetType) -> int | None:
    if isinstance(value, msgspec.UnsetType):
        return None
    if value < 0:
        raise msgspec.ValidationError("max_results is negative")
    return value


def _required(value: msgspec.Raw | msgspec.UnsetType) -> msgspec.Raw:
    if isinstance(value, msgspec.UnsetType):
        raise msgspec.ValidationError("required property is missing")
    return value


def _check_unused(*raws: msgspec.Raw | msgspec.UnsetType) -> None:
    for raw in raws:
        if not isinstance(raw, msgspec.UnsetType):
            check_depth(bytes(raw))


def _init_res(res: wire.WireInitRes) -> InitRes:
    _check_unused(res.status, res.error)
    if res.success:
        return InitRes(True, status=_decode_status(_required(res.status)))
    return InitRes(False, error=_decode_str(_required(res.error)))


def _wire_init_res(message: InitRes) -> dict[str, Any]:
    res: dict[str, Any] = {"msg_type": "init_res", "success": message.success}
    if message.success:
        return res | {"status": _as_client_sees(message.status or Status.STANDBY)}
    return res | {"error": message.error or ""}


def _register_res(res: wire.WireRegisterRes) -> RegisterRes:
    if res.success:
        _check_unused(res.error, res.outcome)
        events = _decode_events(_required(res.events))
        _check_received(events)
        return RegisterRes(res.register_id, True, events=events)
    _check_unused(res.events)
    error, outcome = (
        None if isinstance(i, msgspec.UnsetType) else _decode_str(i)
        for i in (res.error, res.outcome)
    )
    return RegisterRes(res.register_id, False, error=error, outcome=outcome)


def _wire_register_res(message: RegisterRes) -> dict[str, Any]:
    res = {
        "msg_type": "register_res",
        "register_id": message.register_id,
        "success": message.success,
    }
    if message.success:
        return res | {"events": message.events or ()}
    told = {"error": message.error, "outcome": message.outcome}
    return res | {key: i for key, i in told.items() if i is not None}


def _as_client_sees(status: Status) -> Status:
    return status if status is Status.OPERATIONAL else Status.STANDBY
