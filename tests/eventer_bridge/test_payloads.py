"""Which payloads are the same, whatever they are."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge import limits
from eventer_bridge.model import BinaryPayload, JsonPayload, Payload
from eventer_bridge.payloads import same_as


def of(text: str | bytes) -> JsonPayload:
    return JsonPayload(msgspec.Raw(text if isinstance(text, bytes) else text.encode()))


def is_same(first: Payload, second: Payload | None) -> bool:
    """Compared in both directions."""
    verdict = same_as(first)(second)
    assert second is None or same_as(second)(first) is verdict
    return verdict


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1", "1.0"),
        ("1", "10e-1"),
        ("0", "-0.0"),
        ("0.1", "0.10"),
        ("1e400", "10e399"),
        ("1" + "0" * 30, "1e30"),
        ("9007199254740993", "9007199254740993.0"),
        (" [ 1 , 2 ] ", "[1,2]"),
        ('{"a":1,"b":{"c":[],"d":null}}', '{"b": {"d": null, "c": []}, "a": 1.0}'),
        ('{"a":1,"a":2}', '{"a":2}'),
        ('"\\u00e4\\/"', '"ä/"'),
        ("[" * 900 + "1" + "]" * 900, "[" * 900 + "1.0" + "]" * 900),
    ],
)
def test_the_same_written_otherwise(first: str, second: str) -> None:
    assert is_same(of(first), of(second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1", "true"),
        ("0", "false"),
        ("0", "null"),
        ("1", '"1"'),
        ("true", "false"),
        ("[1]", "[true]"),
        ("[]", "{}"),
        ("[]", "0"),
        ("[1,2]", "[2,1]"),
        ("[1]", "[1,1]"),
        ('{"a":1}', '{"a":1,"b":1}'),
        ('{"a":1}', '{"b":1}'),
        ('{"a":null}', "{}"),
        ('{"a":0}', '{"a":false}'),
        ("0.1", "0.10000000000000000001"),
        ("9007199254740993", "9007199254740992.0"),
        ('"a"', '"A"'),
    ],
)
def test_not_the_same(first: str, second: str) -> None:
    assert not is_same(of(first), of(second))


def test_binary_payloads() -> None:
    payload = BinaryPayload("t", b"1")
    assert is_same(payload, BinaryPayload("t", b"1"))
    others = BinaryPayload("u", b"1"), BinaryPayload("t", b"2"), BinaryPayload("t", b""), of("1")
    assert not any(is_same(payload, i) for i in others)
    assert not is_same(payload, None)
    assert not is_same(of("null"), None)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "1" + "]" * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        "1" * 5_000,
        "1e99999999999999999999999",
        b'"\xff"',
        "[1",
        "",
    ],
    ids=lambda text: text[:10],
)
def test_what_cannot_be_decoded_is_the_same_only_as_its_bytes(text: str | bytes) -> None:
    hostile = of(text)
    assert is_same(hostile, of(text))
    for other in (of("1"), of("[" * 100_000 + "]" * 100_000), of(bytes(hostile.data) + b" ")):
        assert not is_same(hostile, other)


def test_a_long_payload_is_compared_as_bytes() -> None:
    filling = '"' + "x" * (limits.MAX_COMPARED_BYTES - 10) + '"'
    assert is_same(of(filling), of(filling + " "))
    long = of(filling + " " * 20)
    assert is_same(long, of(bytes(long.data)))
    assert not is_same(long, of(filling))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 0.5, "", "a"]),
    lambda i: st.lists(i, max_size=3) | st.dictionaries(st.sampled_from("ab"), i, max_size=2),
    max_leaves=6,
)


def _canonical(value: Any) -> str:
    """Text that equal values have in common: another way to compare."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(float(value))
    return json.dumps(value)


@given(VALUES, VALUES)
def test_as_texts_of_a_canonical_form(first: Any, second: Any) -> None:
    expected = _canonical(first) == _canonical(second)
    assert is_same(JsonPayload.of(first), JsonPayload.of(second)) is expected
    assert is_same(JsonPayload.of(first), of(json.dumps(first, indent=2)))
