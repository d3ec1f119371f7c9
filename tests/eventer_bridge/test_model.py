"""The event model: ranges, order, payloads."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    Payload,
    RegisterEvent,
    Timestamp,
    check_registrable,
    natural_key,
)


@pytest.mark.parametrize("s", [INT64_MIN, -1, 0, INT64_MAX])
@pytest.mark.parametrize("us", [0, 999_999])
def test_timestamps_in_range(s: int, us: int) -> None:
    timestamp = Timestamp.checked(s, us)
    assert msgspec.json.decode(msgspec.json.encode(timestamp), type=Timestamp) == timestamp


@pytest.mark.parametrize(
    ("s", "us"), [(INT64_MIN - 1, 0), (INT64_MAX + 1, 0), (0, -1), (0, 1_000_000)]
)
def test_timestamps_out_of_range(s: int, us: int) -> None:
    with pytest.raises(InvalidEventError, match=f"timestamp out of range: s={s} us={us}"):
        Timestamp.checked(s, us)
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`|out of range"):
        msgspec.json.decode(f'{{"s":{s},"us":{us}}}', type=Timestamp)


@given(st.integers(-(10**9), 4 * 10**9), st.integers(0, 999_999))
def test_timestamps_and_floats(s: int, us: int) -> None:
    timestamp = Timestamp(s, us)
    assert Timestamp.from_float(timestamp.to_float()) == timestamp


def test_timestamps_are_ordered() -> None:
    assert Timestamp(-1, 999_999) < Timestamp(0, 0) < Timestamp(0, 1) < Timestamp(1, 0)
    assert Timestamp(0, 0) < Timestamp.now()


@pytest.mark.parametrize("value", [INT64_MAX + 1, INT64_MIN - 1, True, 1.5, "1"])
def test_ids_are_64_bit_integers(value: object) -> None:
    data = msgspec.json.encode({"server": 1, "session": value, "instance": 1})
    with pytest.raises(msgspec.ValidationError, match=r"\$\.session"):
        msgspec.json.decode(data, type=EventId)


def test_json_payloads_stay_as_they_are_written() -> None:
    text = b'{ "b":1.50, "a" : [1e3,"\\u017e"] }'
    data = b'{"payload_type":"json","data":' + text + b"}"
    payload = msgspec.json.decode(data, type=JsonPayload)
    assert bytes(payload.data) == text
    assert payload.value() == {"a": [1000.0, "ž"], "b": 1.5}
    assert text in msgspec.json.encode(payload)
    assert JsonPayload.of([1, None]).value() == [1, None]


def test_payloads_are_told_apart_by_their_tag() -> None:
    payload: Payload = BinaryPayload("t", b"\x00\xff")
    data = msgspec.json.encode(payload)
    assert data == b'{"payload_type":"binary","data_type":"t","data":"AP8="}'
    assert msgspec.json.decode(data, type=Payload) == payload


def test_every_property_of_a_register_event_is_required() -> None:
    for data in (b"{}", b'{"type":[]}', b'{"type":[],"payload":null}'):
        with pytest.raises(msgspec.ValidationError, match="missing required field"):
            msgspec.json.decode(data, type=RegisterEvent)


def test_wildcards_cannot_be_registered() -> None:
    check_registrable(())
    check_registrable(("a", "?b", "**"))
    for event_type in (("?",), ("a", "*"), ("*", "a")):
        with pytest.raises(InvalidEventError, match=r"'\?' and '\*' are for queries only"):
            check_registrable(event_type)


def precedes(first: Event, second: Event) -> bool:
    """The natural order of 001: events of one server by id, of different ones by timestamp."""
    if first.id.server == second.id.server:
        return first.id < second.id
    return first.timestamp < second.timestamp


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=20),
)
def test_the_natural_order_is_that_of_its_key(steps: list[tuple[int, int]]) -> None:
    # each server's ids and timestamps rise together, as they do in a store
    clocks = {1: 0, 2: 0, 3: 0}
    events = []
    for session, (server, seconds) in enumerate(steps, 1):
        clocks[server] += seconds
        event_id = EventId(server, session, 1)
        events.append(Event(event_id, ("a",), Timestamp(clocks[server], 0), None, None))
    ordered = sorted(events, key=natural_key)
    for i, first in enumerate(ordered):
        for second in ordered[i + 1 :]:
            assert not precedes(second, first)
            same_moment = first.timestamp == second.timestamp
            different_servers = first.id.server != second.id.server
            assert precedes(first, second) or (same_moment and different_servers)
