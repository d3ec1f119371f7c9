"""Mariner messages as bytes, and back (002, "Messages").

``schemas/mariner.yaml`` is the contract: what it accepts is accepted, what it rejects is
rejected. Decoding does not ask it, but decodes into typed structs, which gives the same
verdict much faster (a differential test holds the two together). Only when that refuses is
the schema asked: to tell the reason, and because it accepts what typed decoding does not:
integers written as ``1.0`` or ``1e3``, and keys given twice where only the last value counts.

Beyond the contract:

- a message is UTF-8 and valid JSON (no NaN, no lone surrogates), nested no deeper than
  Python's recursion limit allows (about 1,000 levels);
- a registered JSON payload keeps the bounds of ``payload_bounds``.

Sans I/O; any thread.
"""

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import msgspec

from eventer_bridge import payload_bounds
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
    Status,
)
from mariner import contract
from mariner import wire_types as wire
from mariner.errors import InvalidMessageError
from mariner.messages import (
    EventsMsg,
    InitReq,
    InitRes,
    Message,
    PingReq,
    PingRes,
    QueryReq,
    QueryRes,
    RegisterReq,
    RegisterRes,
    StatusMsg,
)

_encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode
_decode_wire: Final = msgspec.json.Decoder(wire.WireMessage).decode
_decode_query: Final = msgspec.json.Decoder(wire.WireQuery).decode
_decode_events: Final = msgspec.json.Decoder(list[Event]).decode
_decode_status: Final = msgspec.json.Decoder(Status).decode
_decode_str: Final = msgspec.json.Decoder(str).decode

# what may be wrong with a message: its JSON, its types, its nesting, its encoding
_DECODE_ERRORS: Final = (msgspec.DecodeError, RecursionError, UnicodeError)

_CUT_SURROGATE: Final = re.compile(rb'\\u[dD][89abAB][0-9a-fA-F]{2}"')
"""First half of a pair at the end of a string: msgspec only says "truncated"."""


# --- decoding -----------------------------------------------------------------------------


def decode(message: bytes) -> Message:
    """Decode a message.

    Args:
        message: without framing.

    Raises:
        InvalidMessageError: it is refused; with JSON pointer and reason.
    """
    try:
        if not message.isascii():
            message.decode()  # raw parts are not checked by msgspec
        return _decode(message)
    except _DECODE_ERRORS:
        return _decode_again(message)


def _decode(message: bytes) -> Message:
    decoded = _decode_wire(message)
    if isinstance(decoded, wire.RegisterReq):
        for event in decoded.register_events:
            # inlined for speed: only a longer payload can exceed a bound
            payload = event.payload
            if type(payload) is JsonPayload and len(payload.data) > payload_bounds.HARMLESS_BYTES:
                _check_payloads(decoded)
                break
        return RegisterReq(decoded.register_id, decoded.register_events)
    if isinstance(decoded, wire.QueryReq):
        return QueryReq(decoded.query_id, _query_params(_decode_query(message)))
    return _FROM_WIRE[type(decoded)](decoded)


def _check_payloads(request: wire.RegisterReq) -> None:
    for i, event in enumerate(request.register_events):
        payload = event.payload
        if isinstance(payload, JsonPayload) and (
            reason := payload_bounds.exceeded(bytes(payload.data))
        ):
            raise InvalidMessageError(
                reason,
                pointer=f"/register_events/{i}/payload/data",
                msg_type="register_req",
                register_id=request.register_id,
            )


def _decode_again(message: bytes) -> Message:
    """Decode what typed decoding refused, if the contract accepts it; else tell why not."""
    try:
        message.decode()
        value = _decode_any(message)
        if explained := contract.explain(value):
            _refuse(value, *explained)
        return _decode(_encode(_with_integers(msgspec.Raw(message), _MESSAGE)))
    except RecursionError:
        raise InvalidMessageError("JSON is nested too deeply") from None
    except UnicodeDecodeError as e:
        raise InvalidMessageError(f"not UTF-8: {e.reason} at byte {e.start}") from None
    except msgspec.ValidationError as e:  # JSON that Python cannot hold
        raise InvalidMessageError(str(e)) from None
    except msgspec.DecodeError as e:
        reason = "lone surrogate" if _CUT_SURROGATE.search(message) else str(e)
        raise InvalidMessageError(f"not JSON: {reason}") from None


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
    raise InvalidMessageError(
        reason,
        pointer=pointer,
        msg_type=msg_type if isinstance(msg_type, str) else None,
        register_id=register_id,
    )


def _number(text: str) -> int | float:
    """A number with a point or an exponent; JSON Schema takes ``1.0`` for an integer."""
    value = float(text)
    if math.isinf(value):
        value = math.copysign(sys.float_info.max, value)
    return int(value) if value.is_integer() else value


_decode_any: Final = msgspec.json.Decoder(float_hook=_number).decode
_decode_shallow: Final = msgspec.json.Decoder(
    dict[str, msgspec.Raw] | list[msgspec.Raw] | str | int | float | bool | None
).decode

_Shape: TypeAlias = Mapping[str, "_Shape | None"]
"""Objects of a message by property, and in them the properties that are integers (None).
Elements of an array have the shape of the array."""

_TIMESTAMP: Final[_Shape] = {"s": None, "us": None}
_EVENT_ID: Final[_Shape] = {"server": None, "session": None, "instance": None}
_EVENT: Final[_Shape] = {
    "id": _EVENT_ID,
    "timestamp": _TIMESTAMP,
    "source_timestamp": _TIMESTAMP,
    "payload": {},
}
_MESSAGE: Final[_Shape] = {
    **dict.fromkeys(("register_id", "query_id", "ping_id", "server_id", "max_results")),
    **dict.fromkeys(("t_from", "t_to", "source_t_from", "source_t_to"), _TIMESTAMP),
    **dict.fromkeys(("events", "register_events"), _EVENT),
    **dict.fromkeys(("last_event_id", "ids"), _EVENT_ID),
    "payload": {},
}


def _with_integers(raw: msgspec.Raw, shape: _Shape | None) -> Any:
    """The same JSON with integers written as such and keys given once; the rest as it came."""
    if shape is None:
        text = bytes(raw)
        is_decimal = text[:1] in b"-0123456789" and not text.lstrip(b"-").isdigit()
        return _number(text.decode()) if is_decimal else raw
    value = _decode_shallow(raw)
    if isinstance(value, dict):
        return {
            key: _with_integers(i, shape[key]) if key in shape else i for key, i in value.items()
        }
    if isinstance(value, list):
        return [_with_integers(i, shape) for i in value]
    return raw


# --- encoding -----------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """Encode a message, without framing. STARTING and STOPPING are told as STANDBY.

    Raises:
        UnicodeEncodeError: a text has no UTF-8 form (a lone surrogate).
    """
    return _encode(_TO_WIRE[type(message)](message))


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


def encode_query_result(query_id: int, result: QueryResult) -> bytes:
    """A ``query_res``."""
    return _encode(wire.QueryRes(query_id, list(result.events), result.more_follows))


# --- between wire and messages ------------------------------------------------------------


def _query_params(query: wire.WireQuery) -> QueryParams:
    match query:
        case wire.Latest():
            return QueryLatestParams(_optional(query.event_types))
        case wire.Timeseries():
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
        case wire.Server():
            return QueryServerParams(
                query.server_id,
                query.persisted,
                _max_results(query.max_results),
                _optional(query.last_event_id),
            )


def _wire_query(message: QueryReq) -> dict[str, Any]:
    params = message.params
    name, fixed = {
        QueryLatestParams: ("latest", ()),
        QueryTimeseriesParams: ("timeseries", ("order", "order_by")),
        QueryServerParams: ("server", ("server_id", "persisted")),
    }[type(params)]
    # what is not set is left out: servers of another make do not know all of it
    properties = {i: getattr(params, i) for i in params.__struct_fields__}
    return {
        "msg_type": "query_req",
        "query_id": message.query_id,
        "query_type": name,
        **{
            key: i for key, i in properties.items() if key in fixed or not (i is None or i is False)
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


def _init_res(res: wire.InitRes) -> InitRes:
    if res.success:
        return InitRes(True, status=_decode_status(_required(res.status)))
    return InitRes(False, error=_decode_str(_required(res.error)))


def _wire_init_res(message: InitRes) -> dict[str, Any]:
    res: dict[str, Any] = {"msg_type": "init_res", "success": message.success}
    if message.success:
        return res | {"status": _told(message.status or Status.STANDBY)}
    return res | {"error": message.error or ""}


def _register_res(res: wire.RegisterRes) -> RegisterRes:
    if res.success:
        return RegisterRes(res.register_id, True, events=_decode_events(_required(res.events)))
    error = None if isinstance(res.error, msgspec.UnsetType) else _decode_str(res.error)
    return RegisterRes(res.register_id, False, error=error)


def _wire_register_res(message: RegisterRes) -> dict[str, Any]:
    res = {
        "msg_type": "register_res",
        "register_id": message.register_id,
        "success": message.success,
    }
    if message.success:
        return res | {"events": message.events or ()}
    return res if message.error is None else res | {"error": message.error}


def _told(status: Status) -> Status:
    return status if status is Status.OPERATIONAL else Status.STANDBY


_FROM_WIRE: Final[dict[type[wire.Wire], Callable[[Any], Message]]] = {
    wire.InitReq: lambda i: InitReq(
        i.client_name, i.client_token, i.subscriptions, i.server_id, i.persisted
    ),
    wire.InitRes: _init_res,
    wire.StatusMsg: lambda i: StatusMsg(i.status),
    wire.EventsMsg: lambda i: EventsMsg(i.events),
    wire.RegisterRes: _register_res,
    wire.QueryRes: lambda i: QueryRes(i.query_id, i.events, i.more_follows),
    wire.PingReq: lambda i: PingReq(i.ping_id),
    wire.PingRes: lambda i: PingRes(i.ping_id),
}

_TO_WIRE: Final[dict[type[Any], Callable[[Any], Any]]] = {
    InitReq: lambda i: wire.InitReq(
        i.client_name, i.client_token, i.subscriptions, i.server_id, i.persisted
    ),
    InitRes: _wire_init_res,
    StatusMsg: lambda i: wire.StatusMsg(_told(i.status)),
    EventsMsg: lambda i: wire.EventsMsg(i.events),
    RegisterReq: lambda i: wire.RegisterReq(i.register_id, i.register_events),
    RegisterRes: _wire_register_res,
    QueryReq: _wire_query,
    QueryRes: lambda i: wire.QueryRes(i.query_id, i.events, i.more_follows),
    PingReq: lambda i: wire.PingReq(i.ping_id),
    PingRes: lambda i: wire.PingRes(i.ping_id),
}
