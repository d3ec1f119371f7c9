"""Wire schemas with a JSON representation, and the conversion both ways.

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

All others pass through as bytes. Both directions are exact. Sans I/O; any thread.
"""

import base64
import math
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.excerpts import cut
from eventer_bridge.model import INT64_MAX, INT64_MIN


class Converter(NamedTuple):
    """Conversion of one wire schema.

    Attributes:
        decode: value of data; raises ``ValueError`` if it has none.
        encode: data of a value; raises ``ValueError`` or ``TypeError`` if it has none.
        expected: description of valid values, for errors.
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
    if not INT64_MIN <= value <= INT64_MAX:
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
    """Data of a JSON value; a value of an unknown schema is its data in base64.

    Raises:
        InvalidEventError: the schema has no such value.
    """
    converter = CONVERTERS.get(schema, CONVERTERS["bytes"])
    try:
        return converter.encode(value)
    except (ValueError, TypeError):
        raise InvalidEventError(
            f"a value of wire schema {cut(schema)!r}: expected {converter.expected}"
        ) from None


def schema_of(value: Any) -> str | None:
    """Wire schema for a JSON value; None if none is exact."""
    if value is None:
        return "void"
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        return None
    return _SCHEMAS.get(type(value))


_SCHEMAS: Final[dict[type, str]] = {
    bool: "bool",
    int: "int64",
    float: "double",
    str: "utf-8-string",
}
