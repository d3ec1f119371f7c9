import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge import limits, payloads
from eventer_bridge.slices import at_once

DEEP = "nested deeper than 128 levels"
LONG = "a number of more than 1000 digits in a row"


def nested(depth: int, inner: str = "") -> str:
    """Arrays and objects by turns."""
    opening = "".join('{"k":' if i % 2 else "[" for i in range(depth))
    closing = "".join("}" if i % 2 else "]" for i in reversed(range(depth)))
    return opening + (inner or ("1" if depth % 2 == 0 else "")) + closing


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("null", None),
        (nested(128), None),
        (nested(129), DEEP),
        (nested(900), DEEP),
        ("[" + "[]," * 5000 + "[]]", None),
        ("[" + nested(127) + "," + nested(127) + "]", None),
        ("[" + nested(127) + "," + nested(128) + "]", DEEP),
        ('["' + "[" * 5000 + '"]', None),
        ('["' + "]" * 200 + '",' + nested(128) + "]", DEEP),
        (nested(100, '["\\"' + "[" * 500 + '\\\\","\\\\\\"' + "{" * 500 + '"]'), None),
        (nested(127, '["\\\\",[1]]'), DEEP),
        ("1" * 1000, None),
        ("1" * 1001, LONG),
        ("-" + "1" * 1001, LONG),
        ("[0." + "1" * 1000 + ",1." + "2" * 1000 + "]", None),
        ("[0." + "1" * 1001 + "]", LONG),
        ("1e" + "0" * 1001, LONG),
        ('"' + "1" * 5000 + '"', None),
        ('{"' + "1" * 5000 + '":' + "2" * 1001 + "}", LONG),
        ('["\\"' + "1" * 5000 + '"]', None),
    ],
)
def test_bounds(payload: str, reason: str | None) -> None:
    assert payloads.exceeded(payload.encode()) == reason
    assert at_once(payloads.exceeded_in_steps(payload.encode())) == reason


def test_a_large_payload_is_looked_at_in_steps() -> None:
    text = b'"' + b"x" * (4 << 20) + b'"'
    assert sum(1 for _ in payloads.exceeded_in_steps(text)) > 8
    for late, reason in (b"[" * 129 + b"]" * 129, DEEP), (b"1" * 1_001, LONG):
        data = b"[" + text + b"," + late + b"]"
        assert at_once(payloads.exceeded_in_steps(data)) == reason


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


TEXTS = st.text('[]{}"\\,:a1', max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda i: st.lists(i, max_size=4) | st.dictionaries(TEXTS, i, max_size=4),
    max_leaves=30,
)


@given(VALUES, st.integers(90, 140))
def test_depth_is_exact(value: Any, levels: int) -> None:
    for _ in range(levels):
        value = [value]
    expected = DEEP if depth_of(value) > limits.MAX_JSON_DEPTH else None
    assert payloads.exceeded(json.dumps(value).encode()) == expected


@given(VALUES)
def test_what_is_not_looked_at_keeps_the_bounds(value: Any) -> None:
    data = json.dumps(value).encode()
    if len(data) <= payloads.HARMLESS_BYTES:
        assert payloads.exceeded(data) is None


@pytest.mark.parametrize(
    "payload",
    [
        "[" + "[]," * 200 + '"",' * 600_000 + "1]",
        "[" + "[]," * 200 + '"' + '\\"' * 1_000_000 + '"]',
        "[" * 80 + "[[],[],[]]," * 180_000 + "1" + "]" * 80,
        "[" + ",".join(["1" * 999] * 2_000) + "]",
    ],
    ids=["many strings", "escapes", "zigzag", "rows of digits"],
)
def test_two_megabytes_made_to_be_slow_are_not(payload: str) -> None:
    begin = time.thread_time()
    assert payloads.exceeded(payload.encode()) is None
    assert time.thread_time() - begin < 1  # about 0.03 s
