"""Whether two payloads are the same (000, "query events": payload).

Binary payloads are the same if their type labels and their data are. JSON payloads are the same
if their values are equal as JSON Schema compares them: ``1`` and ``1.0`` are, ``1`` and
``true`` are not, the order of the keys of an object does not count. This is the one place
where the core decodes a payload, because it was asked to, and only where the bytes differ.

Payloads may be hostile: what Python cannot hold (nested too deeply, numbers of thousands of
digits), is no JSON or is longer than ``limits.MAX_COMPARED_BYTES`` is the same only as what
has the same bytes. Pure functions, for any thread.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import msgspec

from eventer_bridge import limits
from eventer_bridge.model import BinaryPayload, JsonPayload, Payload

# numbers are compared as they are written, not as the nearest float
_decode: Final = msgspec.json.Decoder(float_hook=Decimal).decode
_NOT_DECODED: Final = object()


def same_as(wanted: Payload) -> Callable[[Payload | None], bool]:
    """Condition: whether a payload is the same as this one."""
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
