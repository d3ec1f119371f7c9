"""The event model: ranges, order, payloads."""

import math
from datetime import UTC, datetime, timedelta, timezone

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
    EventType,
    JsonPayload,
    Payload,
    RegisterEvent,
    Timestamp,
    check_registrable,
    format_event_type,
    natural_key,
    parse_event_type,
)


class Reading(msgspec.Struct):
    unit: str
    value: float


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "payload: nan"),
        (math.inf, "payload: inf"),
        ({"a": [1, (0.5, -math.inf)], "b": None}, "payload['a'][1][1]: -inf"),
        (Reading("°C", math.nan), "payload['value']: nan"),
        ({1: {math.nan}}, "payload[1][0]: nan"),
    ],
)
def test_numbers_that_json_does_not_have(value: object, text: str) -> None:
    with pytest.raises(InvalidEventError) as e:
        JsonPayload.of(value)
    assert str(e.value) == f"{text} has no JSON form, expected a finite number"


def test_values_with_null() -> None:
    of_json = {"a": msgspec.Raw(b"[null]"), "b": None, "c": "null", "d": 1e308}
    assert JsonPayload.of(of_json).value() == {"a": [None], "b": None, "c": "null", "d": 1e308}
    deep: object = None
    for _ in range(500):
        deep = [deep]
    assert JsonPayload.of(deep).value() == deep


def test_events_are_shown_readably() -> None:
    moment = Timestamp(1_800_000_000, 5)
    event = Event(EventId(1, 42, 3), ("lamp", "1"), moment, None, JsonPayload.of({"on": True}))
    head = "2027-01-15T08:00:00.000005Z 1/42/3"
    assert f"{event}" == f'lamp/1 {head} {{"on":true}}'
    replace = msgspec.structs.replace
    assert str(replace(event, payload=None)) == f"lamp/1 {head}"
    binary = BinaryPayload("t", b"\x00\x01")
    assert str(replace(event, payload=binary)) == f"lamp/1 {head} 2 bytes of 't'"
    hostile = replace(event, type=("a/b", "\x1b[2J"), payload=None)
    assert str(hostile) == f'["a/b","\\u001b[2J"] {head}'
    assert str(replace(hostile, type=("\x1b[2J",))) == f"\\x1b[2J {head}"
    assert "JsonPayload(b'{\"on\":true}')" in repr(event)


def test_timestamps_and_datetimes() -> None:
    for zone in (UTC, timezone(timedelta(hours=2))):
        moment = datetime(2027, 1, 15, 9, 0, 0, 5, tzinfo=zone)
        assert Timestamp.of(moment).to_datetime() == moment
    assert Timestamp.of(datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC)) == Timestamp(-1, 1)
    with pytest.raises(InvalidEventError) as e:
        Timestamp.of(datetime(2027, 1, 15))  # that is the point
    assert str(e.value) == (
        "2027-01-15T00:00:00 has no time zone: expected a datetime with one, such as"
        " datetime.now(UTC) or moment.astimezone()"
    )


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


@pytest.mark.parametrize(
    ("text", "event_type"),
    [
        ("a", ("a",)),
        ("a/b/*", ("a", "b", "*")),
        ("/a//", ("", "a", "", "")),
        ('["a/b"]', ("a/b",)),
        ('["["]', ("[",)),
        ("[]", ()),
        ('[""]', ("",)),
        ("ä b", ("ä b",)),
    ],
)
def test_event_type_and_back(text: str, event_type: EventType) -> None:
    assert parse_event_type(text) == event_type
    assert format_event_type(event_type) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "an empty event type is written as []"),
        ("[1]", "expected a JSON array of strings: Expected `str`, got `int`"),
        ("[", "expected a JSON array of strings: Input data was truncated"),
    ],
)
def test_wrong_event_type(text: str, reason: str) -> None:
    with pytest.raises(InvalidEventError) as e:
        parse_event_type(text)
    assert str(e.value).startswith(reason)
