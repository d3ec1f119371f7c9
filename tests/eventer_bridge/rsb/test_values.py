"""Data of wire schemas as JSON values."""

import struct
from typing import Any

import pytest

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.rsb.payloads import CONVERTERS, encode_value, schema_of


@pytest.mark.parametrize(
    ("schema", "data", "value"),
    [
        ("void", b"", None),
        ("double", struct.pack("<d", -1.5), -1.5),
        ("int64", b"\xfe" + b"\xff" * 7, -2),
        ("bool", b"\x01", True),
        ("bool", b"\x00", False),
        ("bytes", b"\x00\xff", "AP8="),
        ("utf-8-string", "Küche".encode(), "Küche"),
    ],
)
def test_there_and_back(schema: str, data: bytes, value: Any) -> None:
    decoded = CONVERTERS[schema].decode(data)
    assert decoded == value
    assert type(decoded) is type(value)
    assert encode_value(schema, value) == data


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("void", b"\x00"),
        ("double", b"1234567"),
        ("double", struct.pack("<d", float("nan"))),
        ("double", struct.pack("<d", float("-inf"))),
        ("int64", b""),
        ("bool", b"\x02"),
        ("bool", b""),
        ("utf-8-string", b"\xff"),
    ],
)
def test_data_without_a_value(schema: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        CONVERTERS[schema].decode(data)


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ("void", 0, "null"),
        ("double", True, "a number"),
        ("double", "1", "a number"),
        ("double", 10**400, "a number"),
        ("int64", 1.0, "an integer of 64 bits"),
        ("int64", 1 << 63, "an integer of 64 bits"),
        ("int64", False, "an integer of 64 bits"),
        ("bool", 1, "true or false"),
        ("bytes", "?", "a string in base64"),
        ("utf-8-string", 1, "a string"),
        (".x.Unknown", 1, "a string in base64"),
    ],
)
def test_values_that_do_not_fit(schema: str, value: Any, expected: str) -> None:
    with pytest.raises(InvalidEventError, match=f"schema '{schema}': expected {expected}"):
        encode_value(schema, value)


def test_the_schema_that_fits() -> None:
    values: tuple[Any, ...] = (None, True, 1, 1.0, "a", [], {}, 1 << 63, -(1 << 63) - 1)
    assert [schema_of(i) for i in values] == [
        *("void", "bool", "int64", "double", "utf-8-string"),
        *(None, None, None, None),
    ]
