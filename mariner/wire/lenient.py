"""Normalises messages that the contract accepts and typed decoding does not.

They have integers written as ``1.0`` or ``1e3``, duplicate keys of which only the last value
counts, or additional properties. Everything else, including payloads, stays as received. At
about 5 µs an event, it costs ten times as much as typed decoding.

Sans I/O; any thread.
"""

import functools
import re
import sys
from collections import ChainMap
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import inspect

from eventer_bridge.model import INT64_MAX, RegisterEvent
from mariner import limits
from mariner.wire import messages

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
_LONG_EXPONENT: Final = re.compile(r"(?<=[eE])-[0-9]{5,}")
_SMALL: Final = 10.0**sys.float_info.dig
_LARGE: Final = 10.0**_MAX_DIGITS


def _shape_of(kind: inspect.Type) -> _Shape:
    """What is to be normalised in a value of a type; of a union, in any of its types."""
    match kind:
        case inspect.IntType():
            return _INTEGER
        case inspect.StructType(fields=fields, tag_field=tag):
            shapes = {i.encode_name: _shape_of(i.type) for i in fields}
            return shapes if tag is None else {**shapes, tag: _AS_IT_IS}
        case inspect.ListType() | inspect.VarTupleType():
            return _shape_of(kind.item_type)
        case inspect.Metadata():
            return _shape_of(kind.type)
        case inspect.UnionType(types=types):
            found = [*map(_shape_of, types)]
            objects = [i for i in found if isinstance(i, dict)]
            return _INTEGER if _INTEGER in found else dict(ChainMap(*objects)) or _AS_IT_IS
    return _AS_IT_IS


@functools.cache
def _shape(*kinds: Any) -> Mapping[str, _Shape]:
    """Of an object that has the properties of all of these types."""
    shapes = [_shape_of(i) for i in inspect.multi_type_info(kinds)]
    return dict(ChainMap(*[i for i in shapes if isinstance(i, dict)]))


_MESSAGES: Final = {messages.name_of(i): (i,) for i in messages.TYPES} | {
    "query_req": (messages.WireQueryReq, messages.WireQuery)
}


def plain_message(message: bytes) -> bytes:
    """A message (of bounded depth), normalised for typed decoding.

    Raises msgspec.DecodeError if it is no JSON, or the contract does not accept it.
    """
    properties = _decode_shallow(message)
    if not isinstance(properties, dict) or "msg_type" not in properties:
        raise msgspec.ValidationError("Expected an object with `msg_type`")
    msg_type = msgspec.json.decode(properties["msg_type"], type=str)
    if msg_type not in _MESSAGES:
        raise msgspec.ValidationError("Invalid value of `msg_type`")
    plain = _plain_object(properties, _shape(*_MESSAGES[msg_type]))
    return _encode({**plain, "msg_type": msg_type})


def plain_register_event(event: msgspec.Raw) -> bytes:
    """As :func:`plain_message`, of an event of a ``register_req``."""
    return _encode(_plain(event, _shape(RegisterEvent)))


def integer(text: str) -> int | None:
    """The exact value of a number that is an integer; None: it is none, or has 20 digits or more.

    To JSON Schema, ``1.0``, ``1e3`` and ``10e-1`` are integers. The length bounds the cost.
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
    if len(exponent) > limits.MAX_EXPONENT_DIGITS:
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
    if "payload_type" in plain:
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
    """JSON with another character in place of each lone surrogate; and where the first one is.

    The texts may differ in other places, too, but not in length. None: there is no such character.
    """
    plain = data.replace(rb"\\", b"__")  # each backslash that is left begins an escape
    found = _LONE.search(plain)
    return None if found is None else (_LONE.sub(rb"\\ufffd", plain), found.start())


def reason(position: int) -> str:
    """The reason for refusing one."""
    return f"lone surrogate at byte {position}"
