"""What is remembered of event types is bounded in bytes."""

import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge import limits
from eventer_bridge.core.payload_schemas import PayloadSchemas
from eventer_bridge.core.rights import ClientConfig, RegisterRule, Rights
from eventer_bridge.memory import ENTRY_BYTES, BoundedCache, type_bytes
from eventer_bridge.model import EventType, JsonPayload, RegisterEvent, cut, quoted_type
from eventer_bridge.rsb.event import parse_scope
from tests.support.schemas import NUMBERS

MIB = 1 << 20


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1_200)), max_size=60))
def test_never_more_than_the_bound(entries: list[tuple[int, int]]) -> None:
    remembered: BoundedCache[int, int] = BoundedCache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CACHE_BYTES", 1_000)
        for key, n_bytes in entries:
            if key in remembered.known:
                continue
            remembered.put(key, n_bytes, n_bytes)
            assert (key in remembered.known) is (n_bytes + ENTRY_BYTES <= 1_000)
            assert sum(i + ENTRY_BYTES for i in remembered.known.values()) <= 1_000
    remembered.clear()
    assert not remembered.known


@given(st.lists(st.text(), max_size=70).map(tuple))
def test_a_type_in_a_reason_is_short(event_type: EventType) -> None:
    text = "/".join(event_type)
    shown = quoted_type(event_type)
    if len(text) <= limits.MAX_REASON_CHARACTERS // 2:
        assert shown == repr(text)
    else:
        assert shown == repr(text[: limits.MAX_REASON_CHARACTERS // 2 - 1] + "…")
    assert len(cut(shown)) <= limits.MAX_REASON_CHARACTERS


def rights(*query_types: EventType) -> Rights:
    rule = RegisterRule(query_types)
    return Rights(ClientConfig("app", None, (), (rule,)), PayloadSchemas())


@pytest.mark.parametrize(
    ("event_type", "reason"),
    [
        (("other", "x" * 900), "no right to register 'other/xxx"),
        (("allowed", "x" * MIB), "1048583 bytes, at most 1024"),
        (("allowed", "\ud800" * 400), "1207 bytes, at most 1024"),
        (("?",) * 100_000, "100000 segments, at most 64"),
        (("allowed", "*"), "'?' and '*' are for queries only"),
    ],
)
def test_refused_types_are_not_remembered(event_type: EventType, reason: str) -> None:
    client = rights(("allowed", "*"))
    refusal = client.refusal([RegisterEvent(event_type, None, None)])
    assert refusal is not None
    assert reason in refusal
    assert len(refusal) <= 2 * limits.MAX_REASON_CHARACTERS
    tracemalloc.start()
    try:
        for number in range(200):
            numbered = (*event_type[:-1], f"{number}", event_type[-1])
            assert client.refusal([RegisterEvent(numbered, None, None)]) is not None
            del numbered
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_allowed_types_are_remembered_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CACHE_BYTES", MIB)
    client = rights(("allowed", "*"))
    tracemalloc.start()
    try:
        for number in range(1_000):
            longest = ("allowed", *(f"{number:04}{i:02}" for i in range(63)))
            assert client.refusal([RegisterEvent(longest, None, None)]) is None
        used_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 1_000 * type_bytes(longest) > 3 * MIB
    assert used_bytes < 1.2 * MIB


def test_schemas_of_types_are_remembered_within_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CACHE_BYTES", 100_000)
    schemas = PayloadSchemas([NUMBERS])
    rule = RegisterRule((("*",),), NUMBERS["$id"])
    client = Rights(ClientConfig("app", None, (), (rule,) * 100), schemas)  # 800 bytes a type
    payload = JsonPayload.of([])
    tracemalloc.start()
    try:
        for number in range(400):
            assert client.refusal([RegisterEvent((f"{number}",), None, payload)]) is None
        assert tracemalloc.get_traced_memory()[1] < 120_000
    finally:
        tracemalloc.stop()


def test_scopes_are_remembered_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CACHE_BYTES", MIB)
    tracemalloc.start()
    try:
        for number in range(500):
            text = "/" + "".join(f"{number:04x}-{i}/" for i in range(100, 200))
            assert len(parse_scope(text).segments) == 100
        used_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 500 * 100 * sys.getsizeof("0000-100") > 2 * MIB
    assert used_bytes < MIB
