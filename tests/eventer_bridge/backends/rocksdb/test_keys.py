"""Encoding of keys and values: round trips, and bytes in the order of what they mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge import packed
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    Timestamp,
)

ints = st.integers(INT64_MIN, INT64_MAX)
timestamps = st.builds(Timestamp, ints, st.integers(0, 999_999))
ids = st.builds(EventId, ints, ints, ints)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
types = st.lists(texts, max_size=4).map(tuple)
payloads = st.one_of(
    st.none(),
    st.builds(JsonPayload.of, st.lists(st.integers() | texts, max_size=3)),
    st.builds(BinaryPayload, st.text(max_size=5), st.binary(max_size=9)),
)
events = st.builds(Event, ids, types, timestamps, st.none() | timestamps, payloads)


def encoded(event: Event) -> bytes:
    [value] = keys.encode_values([event], keys.encode_sources([event]))
    return value


@given(ints, ints)
def test_integers_keep_their_order(first: int, second: int) -> None:
    assert (keys.encode_int(first) < keys.encode_int(second)) == (first < second)
    assert keys.decode_int(keys.encode_int(first)) == first


@given(timestamps, timestamps)
def test_timestamps_keep_their_order(first: Timestamp, second: Timestamp) -> None:
    low, high = keys.encode_timestamp(first), keys.encode_timestamp(second)
    assert (low < high) == (first < second)
    assert len(low) == keys.TIMESTAMP_BYTES
    assert keys.decode_timestamp(b"xx" + low, 2) == first


@given(ids, ids)
def test_ids_keep_their_order(first: EventId, second: EventId) -> None:
    assert (keys.encode_id(first) < keys.encode_id(second)) == (first < second)
    assert len(keys.encode_id(first)) == keys.ID_BYTES


@given(timestamps, ids)
def test_a_session_key_is_timestamp_server_and_session(timestamp: Timestamp, id_: EventId) -> None:
    key = keys.session_key(timestamp, id_.server, id_.session)
    assert key + keys.encode_int(id_.instance) == keys.encode_timestamp(timestamp) + keys.encode_id(
        id_
    )
    assert len(key) == keys.SESSION_KEY_BYTES


@given(events, st.integers(0, 2**32 - 1))
def test_an_event_comes_back(event: Event, number: int) -> None:
    type_id = keys.encode_type_id(number)
    key = type_id + keys.session_key(event.timestamp, event.id.server, event.id.session)
    key += keys.encode_int(event.id.instance)
    assert len(key) == keys.TYPE_BYTES + keys.POSITION_BYTES
    value = encoded(event)
    names = {type_id: event.type}
    assert keys.decode_event(key, value, names) == event
    keys.check_value(value)
    assert keys.source_key(key, value) == b""
    assert keys.is_in_order(value) == (event.source_timestamp is not None)
    if event.source_timestamp is None:
        assert keys.by_source(key, value) == b""
        return
    by_source = keys.by_source(key, value)
    assert len(by_source) == keys.SOURCE_KEY_BYTES
    assert keys.event_key(by_source) == key
    assert keys.decode_timestamp(by_source, keys.TYPE_BYTES) == event.source_timestamp
    indexed = keys.indexed(value)
    assert keys.source_key(key, indexed) == keys.by_source(key, indexed) == by_source
    assert not keys.is_in_order(indexed)
    assert keys.decode_event(key, indexed, names) == event
    assert keys.payload_of(indexed) == event.payload
    keys.check_value(indexed)


def test_a_label_need_not_be_good_unicode() -> None:
    payload = BinaryPayload("\ud800", b"x")
    event = Event(EventId(1, 1, 1), ("a",), Timestamp(0, 0), None, payload)
    key = b"type" + keys.session_key(event.timestamp, 1, 1) + keys.encode_int(1)
    assert keys.decode_event(key, encoded(event), {b"type": ("a",)}) == event


@given(events, events)
def test_source_timestamps_keep_their_order(first: Event, second: Event) -> None:
    for event in (first, second):
        [source] = keys.encode_sources([event])
        assert source == keys.source_of(encoded(event))
        assert len(source) == (keys.TIMESTAMP_BYTES if event.source_timestamp else 0)
    low, high = keys.encode_sources([first, second])
    if first.source_timestamp and second.source_timestamp:
        assert (low < high) == (first.source_timestamp < second.source_timestamp)


@given(types)
def test_a_type_comes_back(event_type: tuple[str, ...]) -> None:
    assert keys.decode_type(packed.encode_type(event_type)) == event_type


def test_a_type_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidEventError, match=r"\\ud800.* is not Unicode text"):
        packed.encode_type(("a", "\ud800"))


def test_the_layout_stays_as_it_is() -> None:
    event_id = EventId(1, 2, 3)
    payload = BinaryPayload("t", b"\xff")
    event = Event(event_id, ("a",), Timestamp(4, 5), Timestamp(-1, 6), payload)
    assert keys.session_key(event.timestamp, 1, 2).hex(" ", 4) == (
        "80000000 00000004 00000005 80000000 00000001 80000000 00000002"
    )
    assert encoded(event).hex() == "067fffffffffffffff000000060000000174ff"
    plain = Event(event_id, ("a",), Timestamp(4, 5), None, JsonPayload.of([1]))
    assert encoded(plain) == b"\x01[1]"
    assert keys.indexed(encoded(event)).hex().startswith("0e7f")
    assert packed.encode_type(("a", "b")) == b'["a","b"]'
