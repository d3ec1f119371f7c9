"""Payloads: equality, and the bounds of registered JSON payloads.

Binary payloads are equal if their type labels and their data are. JSON
payloads are equal if their values are, as in JSON Schema: ``1`` equals ``1.0`` but not ``true``,
and the order of an object's keys does not count. Only here does the core decode payloads, on
request and if the bytes differ. Payloads that Python cannot hold (nested too deeply, numbers of
thousands of digits), that are no JSON or that are longer than ``limits.MAX_COMPARED_BYTES`` are
compared as bytes.

The core decodes no payload otherwise, but subscribers do: payloads that break their parsers
(nesting, numbers of thousands of digits) are refused at registration. The depth that msgspec
follows depends on the interpreter (1,000 levels for 3.11, more for later ones, less within other
calls), so nesting is checked before decoding. These bounds are exact, and of linear cost; the
length, or a few passes at the speed of memory, clear most payloads.

Pure functions, for any thread.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import msgspec

from eventer_bridge import limits
from eventer_bridge.model import BinaryPayload, JsonPayload, Payload
from eventer_bridge.slices import Steps

# numbers are compared as written, not as the nearest float
_decode: Final = msgspec.json.Decoder(float_hook=Decimal).decode
_NOT_DECODED: Final = object()

HARMLESS_BYTES: Final = min(2 * limits.MAX_JSON_DEPTH, limits.MAX_NUMBER_DIGITS)
"""A valid JSON value up to this length is within all bounds."""

HARMLESS_RECEIVED_BYTES: Final = 2 * limits.MAX_RECEIVED_DEPTH
"""JSON up to this length is not nested deeper than any sender may nest it."""

_DIGIT_BLOCK: Final = limits.MAX_NUMBER_DIGITS // 2
"""A row of digits that is too long contains a whole block of this size, aligned to it."""

_STEP_BYTES: Final = 1_024 * _DIGIT_BLOCK
"""Bytes of a payload examined in one step."""

# a match starts only where a row of digits starts: linear for any input
_LONG_NUMBER: Final = re.compile(rb"(?<![0-9])[0-9]{%d}" % (limits.MAX_NUMBER_DIGITS + 1))
_BRACES_AS_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(i for i in range(256) if i not in b"[]{}")
_NO_MARKS: Final = _NO_BRACKETS.replace(b'"', b"")
_NO_OPENING: Final = bytes(i for i in range(256) if i not in b"[{")


def same_as(wanted: Payload) -> Callable[[Payload | None], bool]:
    """Condition: whether a payload equals this one."""
    if isinstance(wanted, BinaryPayload):
        return lambda payload: payload == wanted
    data = bytes(wanted.data)
    value = _value(data)

    def is_same(payload: Payload | None) -> bool:
        if not isinstance(payload, JsonPayload):
            return False
        other = bytes(payload.data)
        if other == data:
            return True
        if value is _NOT_DECODED:
            return False
        other_value = _value(other)
        return other_value is not _NOT_DECODED and _is_equal(value, other_value)

    return is_same


def _value(data: bytes) -> Any:
    if len(data) > limits.MAX_COMPARED_BYTES:
        return _NOT_DECODED
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError, ArithmeticError):
        return _NOT_DECODED


def _is_equal(first: Any, second: Any) -> bool:
    waiting = [(first, second)]  # no recursion: values may be nested deeply
    while waiting:
        a, b = waiting.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            waiting.extend((i, b[key]) for key, i in a.items())
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            waiting.extend(zip(a, b, strict=True))
        elif isinstance(a, bool) is not isinstance(b, bool) or a != b:
            return False
    return True


def exceeded(data: bytes) -> str | None:
    """The bound that a payload, a valid JSON value, exceeds; None if it is within all of them."""
    may_be_deep = _has_many_brackets(data)
    may_be_long = _has_digit_block(data, 0, len(data))
    if not may_be_deep and not may_be_long:
        return None
    return _exceeded(without_strings(data), may_be_deep=may_be_deep, may_be_long=may_be_long)


def exceeded_in_steps(data: bytes) -> Steps[str | None]:
    """As :func:`exceeded`, of a large payload."""
    may_be_deep = _has_many_brackets(data)
    yield
    may_be_long = False
    for begin in range(0, len(data), _STEP_BYTES):
        may_be_long = may_be_long or _has_digit_block(data, begin, begin + _STEP_BYTES)
        yield
    if not may_be_deep and not may_be_long:
        return None
    data = without_strings(data)
    yield
    return _exceeded(data, may_be_deep=may_be_deep, may_be_long=may_be_long)


def _has_many_brackets(data: bytes) -> bool:
    return data.count(b"[") + data.count(b"{") > limits.MAX_JSON_DEPTH


def _has_digit_block(data: bytes, begin: int, end: int) -> bool:
    return any(data[i : i + _DIGIT_BLOCK].isdigit() for i in range(begin, end, _DIGIT_BLOCK))


def _exceeded(data: bytes, *, may_be_deep: bool, may_be_long: bool) -> str | None:
    """As :func:`exceeded`, of JSON outside strings."""
    if may_be_long and _LONG_NUMBER.search(data):
        return f"a number of more than {limits.MAX_NUMBER_DIGITS} digits in a row"
    if may_be_deep and _is_deep(data, limits.MAX_JSON_DEPTH):
        return f"nested deeper than {limits.MAX_JSON_DEPTH} levels"
    return None


def is_too_deep(data: bytes) -> bool:
    """Whether JSON is nested deeper than any sender may nest it (``limits.MAX_RECEIVED_DEPTH``).

    The result is arbitrary for bytes that are no JSON.
    """
    if len(data) <= HARMLESS_RECEIVED_BYTES:
        return False
    if len(data.translate(None, _NO_OPENING)) <= limits.MAX_RECEIVED_DEPTH:
        return False
    # without adjacent quotes, bytes inside strings stay inside
    marks = _without_escapes(data).translate(None, _NO_MARKS).replace(b'""', b"")
    return _is_deep(_outside_quotes(marks), limits.MAX_RECEIVED_DEPTH)


def without_strings(data: bytes) -> bytes:
    """Valid JSON, from outside of a string to outside of one, without its strings."""
    return _outside_quotes(_without_escapes(data))


def _without_escapes(data: bytes) -> bytes:
    """A valid JSON value in which each quote begins or ends a string."""
    if b"\\" in data:  # inside a string
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
    return data


def _outside_quotes(data: bytes) -> bytes:
    return b"".join(data.split(b'"')[::2])


def _is_deep(data: bytes, max_depth: int) -> bool:
    """Whether the brackets and braces of JSON without strings nest too deeply."""
    brackets = data.translate(_BRACES_AS_BRACKETS, _NO_BRACKETS)
    depth = 0
    for begin in range(0, len(brackets), max_depth // 2):
        chunk = brackets[begin : begin + max_depth // 2]
        n_open = chunk.count(b"[")
        if depth + n_open > max_depth:
            # only here one by one: flat data of any size is decided above
            for bracket in chunk:
                depth += 1 if bracket == 0x5B else -1
                if depth > max_depth:
                    return True
        else:
            depth += 2 * n_open - len(chunk)
    return False
