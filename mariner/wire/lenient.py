"""Normalises messages that the contract accepts and typed decoding does not.

They have integers written as ``1.0`` or ``1e3``, duplicate keys of which only the last value
counts, or additional properties. Everything else, including payloads, stays as received. At
about 5 µs an event, it costs ten times as much as typed decoding.

Sans I/O; any thread.
"""

import re
import sys
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, TypeAlias

import msgspec

from eventer_bridge.model import INT64_MAX

_encode: Final = msgspec.json.Encoder().encode
_decode_shallow: Final = msgspec.json.Decoder(
    dict[str, msgspec.Raw] | list[msgspec.Raw] | str | int | float | bool | None
).decode

_Shape: TypeAlias = "Mapping[str, _Shape] | bool | None"
"""Objects of a message by property; None for integers, True for values left as received. Elements
of an array have the shape of the array."""

_BRACKET: Final = ord("[")
_INTEGER: Final = None
_AS_IT_IS: Final = True

_NUMBER: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]\+?(-?)0*([0-9]*))?")
_MAX_DIGITS: Final = len(str(INT64_MAX))
_MAX_EXPONENT_DIGITS: Final = 9
"""No message has as many digits as a longer exponent moves the point."""
_LONG_EXPONENT: Final = re.compile(r"(?<=[eE])-[0-9]{5,}")
_SMALL: Final = 10.0**sys.float_info.dig
_LARGE: Final = 10.0**_MAX_DIGITS

_TIMESTAMP: Final[_Shape] = {"s": _INTEGER, "us": _INTEGER}
_EVENT_ID: Final[_Shape] = {"server": _INTEGER, "session": _INTEGER, "instance": _INTEGER}
_PAYLOAD: Final[Mapping[str, _Shape]] = {
    "payload_type": _AS_IT_IS,
    "data_type": _AS_IT_IS,
    "data": _AS_IT_IS,
}
_REGISTER_EVENT: Final[Mapping[str, _Shape]] = {
    "type": _AS_IT_IS,
    "source_timestamp": _TIMESTAMP,
    "payload": _PAYLOAD,
}
_EVENT: Final[Mapping[str, _Shape]] = {"id": _EVENT_ID, "timestamp": _TIMESTAMP, **_REGISTER_EVENT}
_HISTORY: Final[_Shape] = {"server_id": _INTEGER, "id": _AS_IT_IS}
_MESSAGES: Final[Mapping[str, Mapping[str, _Shape]]] = {
    "init_req": {
        **dict.fromkeys(("client_name", "client_token", "subscriptions", "persisted"), _AS_IT_IS),
        "server_id": _INTEGER,
        "start": _EVENT_ID,
        "cursor": _AS_IT_IS,
        "decline_gap": _AS_IT_IS,
        "histories": _HISTORY,
        "attempt": {"reader": _AS_IT_IS, "number": _INTEGER},
    },
    "init_res": {
        **dict.fromkeys(("success", "status", "error", "extensions"), _AS_IT_IS),
        "histories": _HISTORY,
        "cursor_resets": _INTEGER,
    },
    "status": {"status": _AS_IT_IS},
    "events": {"events": _EVENT, "redelivered": _AS_IT_IS},
    "register_req": {
        "register_id": _INTEGER,
        "register_events": _REGISTER_EVENT,
        "request_key": _AS_IT_IS,
        "after_key": _AS_IT_IS,
    },
    "register_res": {
        "register_id": _INTEGER,
        "success": _AS_IT_IS,
        "events": _EVENT,
        "error": _AS_IT_IS,
        "outcome": _AS_IT_IS,
        "repeated": _AS_IT_IS,
    },
    "query_req": {
        **dict.fromkeys(("query_id", "server_id", "max_results")),
        **dict.fromkeys(("query_type", "event_types", "order", "order_by"), _AS_IT_IS),
        **dict.fromkeys(("unique_type", "persisted"), _AS_IT_IS),
        **dict.fromkeys(("t_from", "t_to", "source_t_from", "source_t_to"), _TIMESTAMP),
        **dict.fromkeys(("last_event_id", "ids"), _EVENT_ID),
        "payload": _PAYLOAD,
    },
    "query_res": {"query_id": _INTEGER, "events": _EVENT, "more_follows": _AS_IT_IS},
    "ping_req": {"ping_id": _INTEGER},
    "ping_res": {"ping_id": _INTEGER},
    "events_ack": {
        "ids": _EVENT_ID,
        "parked": {"id": _EVENT_ID, "reason": _AS_IT_IS},
        "done": _EVENT_ID,
    },
    "up_to_date": {},
    "gap": {
        "server_id": _INTEGER,
        "oldest": _EVENT_ID,
        "other_history": {"last": _INTEGER, "reason": _AS_IT_IS},
    },
    "cursor_lost": {"reason": _AS_IT_IS},
}


def plain_message(message: bytes) -> bytes:
    """A message, normalised for typed decoding.

    Args:
        message: JSON of bounded depth.

    Raises:
        msgspec.DecodeError: it is no JSON, or the contract does not accept it.
    """
    properties = _decode_shallow(message)
    if not isinstance(properties, dict) or "msg_type" not in properties:
        raise msgspec.ValidationError("Expected an object with `msg_type`")
    msg_type = msgspec.json.decode(properties["msg_type"], type=str)
    shape = _MESSAGES.get(msg_type)
    if shape is None:
        raise msgspec.ValidationError("Invalid value of `msg_type`")
    plain = _plain_object(properties, shape)
    return _encode({"msg_type": msg_type, **plain})


def plain_register_event(event: msgspec.Raw) -> bytes:
    """As :func:`plain_message`, of an event of a ``register_req``."""
    return _encode(_plain(event, _REGISTER_EVENT))


def integer(text: str) -> int | None:
    """The exact value of a number that is an integer; None: it is none, or has 20 digits or more.

    To JSON Schema, ``1.0``, ``1e3`` and ``10e-1`` are integers.

    Args:
        text: a JSON number, whose length bounds the cost.
    """
    if len(text) <= sys.float_info.dig:  # for speed: no float is nearer to another such text
        value = float(text)
        if value.is_integer() and 1 <= abs(value) < _SMALL:
            return int(value)
    match = _NUMBER.fullmatch(text)
    assert match is not None
    sign, whole, fraction, exponent_sign, exponent = match.groups("")
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return 0
    if len(exponent) > _MAX_EXPONENT_DIGITS:
        return None
    n_zeros = int(f"{exponent_sign}{exponent or 0}") - len(fraction)
    n_zeros += len(digits) - len(significant)
    if n_zeros < 0 or len(significant) + n_zeros > _MAX_DIGITS:
        return None
    return int(sign + significant + "0" * n_zeros)


def number(text: str) -> int | float | Decimal:
    """A number with a point or an exponent, for the contract; integers as by :func:`integer`."""
    value = float(text)
    if not value.is_integer() or abs(value) >= _LARGE:
        return max(-sys.float_info.max, min(value, sys.float_info.max))
    exact = integer(text)
    # a float might be an integer next to it; Decimal takes exponents of 18 digits
    return Decimal(_LONG_EXPONENT.sub("-9999", text)) if exact is None else exact


def _plain(raw: msgspec.Raw, shape: _Shape) -> Any:
    if shape is _AS_IT_IS:
        return raw
    if not isinstance(shape, Mapping):
        text = bytes(raw)
        is_decimal = text[:1] in b"-0123456789" and not text.lstrip(b"-").isdigit()
        exact = integer(text.decode()) if is_decimal else None
        return raw if exact is None else exact  # typed decoding says what is wrong
    value = _decode_shallow(raw)
    if isinstance(value, dict):
        return _plain_object(value, shape)
    if isinstance(value, list):
        # the contract has no arrays of arrays
        return [i if memoryview(i)[0] == _BRACKET else _plain(i, shape) for i in value]
    return raw


def _plain_object(properties: dict[str, msgspec.Raw], shape: Mapping[str, _Shape]) -> Any:
    plain = {key: _plain(i, shape[key]) for key, i in properties.items() if key in shape}
    if shape is _PAYLOAD and "payload_type" in plain:
        kind = bytes(plain["payload_type"])
        if msgspec.json.decode(kind) == "json":
            plain.pop("data_type", None)
    return plain


# --- half of a surrogate pair, such as ``"\ud800"`` ----------------------------------------
# JSON's grammar allows it (RFC 8259, section 8.2), but no UTF-8 text can hold it, and decoding
# takes it for wrong syntax. Without it, the same JSON tells whether that was all.


_FIRST: Final = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_SECOND: Final = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# begins alike in any case, which the search is fast for
_LONE: Final = re.compile(
    rb"\\u(?:[dD][89abAB][0-9a-fA-F]{2}(?!%b)|[dD][c-fC-F][0-9a-fA-F]{2}(?<!%b))"
    % (_SECOND, _FIRST + _SECOND)
)


def mend(data: bytes) -> tuple[bytes, int] | None:
    """JSON with another character in place of each lone surrogate.

    Args:
        data: JSON, of bounded length.

    Returns:
        As many bytes, whose texts may differ in other places, too; and the position of the first
        lone surrogate. None: there is none.
    """
    plain = data.replace(rb"\\", b"__")  # each backslash that is left begins an escape
    found = _LONE.search(plain)
    return None if found is None else (_LONE.sub(rb"\\ufffd", plain), found.start())


def reason(position: int) -> str:
    """The reason for refusing one."""
    return f"lone surrogate at byte {position}"
