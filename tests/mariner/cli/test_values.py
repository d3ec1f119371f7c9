"""Event types, moments and events as people write them."""

import math

import click
import msgspec
import pytest

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    EventId,
    JsonPayload,
    Payload,
    RegisterEvent,
    Timestamp,
)
from mariner.cli.backup import restore
from mariner.cli.mariner_server import query
from mariner.cli.values import (
    counted,
    parse_event_id,
    parse_payload,
    parse_register_event,
    parse_timestamp,
    parse_typed_event,
)


@pytest.mark.parametrize(
    ("value", "timestamp"),
    [
        ("2024-05-01T12:00:00Z", Timestamp(1_714_564_800, 0)),
        ("20240501", Timestamp(1_714_521_600, 0)),
        ("1714564800.123456", Timestamp(1_714_564_800, 123_456)),
        (20_240_501, Timestamp(20_240_501, 0)),
        (1_714_564_800, Timestamp(1_714_564_800, 0)),
        (0.25, Timestamp(0, 250_000)),
    ],
)
def test_moment(value: str | float, timestamp: Timestamp) -> None:
    assert parse_timestamp(value) == timestamp


@pytest.mark.parametrize("value", ["", "noon", "2024-13-01", "nan", "inf", math.inf, math.nan])
def test_no_moment(value: str | float) -> None:
    with pytest.raises(InvalidEventError, match=r"expected ISO 8601 \(2024-05-01T12:00:00Z\) or"):
        parse_timestamp(value)


def test_moment_out_of_range() -> None:
    with pytest.raises(InvalidEventError, match="timestamp out of range"):
        parse_timestamp(1e300)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (query, ["--from", "-1h", "--to=-1h", "--source-from=-1h", "--source-to", "-1h"]),
        (restore, ["--until", "-1h"]),
    ],
)
def test_how_long_ago_is_no_option(command: click.Command, arguments: list[str]) -> None:
    before = Timestamp.now()
    parsed = command.make_context(command.name, [*arguments], resilient_parsing=True).params
    found = [i for i in parsed.values() if isinstance(i, Timestamp)]
    assert len(found) == sum("-1h" in i for i in arguments)
    for moment in found:
        assert before <= Timestamp(moment.s + 3_600, moment.us) <= Timestamp.now()


def test_format_moment() -> None:
    assert Timestamp(-1, 999_999).to_iso() == "1969-12-31T23:59:59.999999Z"
    assert Timestamp(1 << 62, 7).to_iso() == f"{1 << 62}.000007"


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ("null", None),
        ("1.0", JsonPayload.of(1.0)),
        ('{"a": 1}', None),
        ('{"payload_type": "json", "data": null}', JsonPayload.of(None)),
        ('{"payload_type": "json", "data": {"payload_type": 1}}', None),
        (
            '{"payload_type": "binary", "data_type": "t", "data": "AP8="}',
            BinaryPayload("t", b"\x00\xff"),
        ),
    ],
)
def test_payload(payload: str, expected: Payload | None) -> None:
    event = parse_register_event(f'{{"type": "a", "payload": {payload}}}')
    if isinstance(event.payload, JsonPayload):
        # as it was written, to the last digit and blank
        written = payload.partition('"data": ')[2][:-1] or payload
        assert bytes(event.payload.data) == written.encode()
    else:
        assert event.payload == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("null", JsonPayload.of(None)),
        (" 1.0 ", JsonPayload(msgspec.Raw(b"1.0"))),
        ('{"payload_type": "json", "data": [1]}', JsonPayload.of([1])),
        (
            '{"payload_type": "binary", "data_type": "t", "data": "AP8="}',
            BinaryPayload("t", b"\x00\xff"),
        ),
    ],
)
def test_payload_to_look_for(text: str, expected: Payload) -> None:
    assert parse_payload(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected JSON: Input data was truncated"),
        ("text", "expected JSON: JSON is malformed"),
        ("1 2", "expected JSON: JSON is malformed: trailing characters"),
        ("\udcff", "expected JSON: 'utf-8' codec can't encode"),
        ("[" * 100_000, "expected JSON: maximum recursion depth"),
        ('{"payload_type": "xml"}', "expected JSON: Invalid value 'xml'"),
    ],
)
def test_wrong_payload_to_look_for(text: str, reason: str) -> None:
    with pytest.raises(InvalidEventError) as e:
        parse_payload(text)
    assert str(e.value).startswith(reason)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on", b'"on"'),
        ("", b'""'),
        ("1.0", b"1.0"),
        ("1.2.3", b'"1.2.3"'),
        ("NaN", b'"NaN"'),
        ("null", b"null"),
        ('"on"', b'"on"'),
        ('{"on": true}', b'{"on": true}'),
        ("21 °C", '"21 °C"'.encode()),
    ],
)
def test_typed_event(text: str, expected: bytes) -> None:
    payload = JsonPayload(msgspec.Raw(expected))
    assert parse_typed_event("a/b", text) == RegisterEvent(("a", "b"), None, payload)


def test_typed_event_of_bytes_and_of_a_type_with_a_slash() -> None:
    binary = '{"payload_type": "binary", "data_type": "t", "data": "AP8="}'
    event = parse_typed_event('["a/b"]', binary)
    assert event == RegisterEvent(("a/b",), None, BinaryPayload("t", b"\x00\xff"))


@pytest.mark.parametrize(
    ("event_type", "payload", "reason"),
    [
        ("a/?", "on", "event type 'a/?': '?' and '*' are for queries only"),
        ("", "on", "an empty event type is written as []"),
        ("a", ' {"on": tru}', "payload: expected JSON: JSON is malformed"),
        ("a", "[1", "payload: expected JSON: Input data was truncated"),
        ("a", '"on', "payload: expected JSON: Input data was truncated"),
        ("a", "\udcff", "not UTF-8 text: "),
        ("\udcff", "on", "not UTF-8 text: "),
    ],
)
def test_wrong_typed_event(event_type: str, payload: str, reason: str) -> None:
    with pytest.raises(InvalidEventError) as e:
        parse_typed_event(event_type, payload)
    assert str(e.value).startswith(reason)


def test_event_id() -> None:
    assert parse_event_id("1/42/1") == EventId(1, 42, 1)
    assert parse_event_id(f"-1/{INT64_MAX}/{INT64_MIN}") == EventId(-1, INT64_MAX, INT64_MIN)


@pytest.mark.parametrize(
    "text",
    ["", "1", "1/2", "1/2/3/4", "1/2/x", "1/2/3\n", "1/2/-", "1//3", f"1/2/{1 << 63}"],
)
def test_wrong_event_id(text: str) -> None:
    with pytest.raises(InvalidEventError) as e:
        parse_event_id(text)
    assert str(e.value) == f"{text!r}: expected SERVER/SESSION/INSTANCE, as 1/42/1"


def test_register_event_has_defaults() -> None:
    assert parse_register_event(b'{"type": ["a", "b"]}') == RegisterEvent(("a", "b"), None, None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Input data was truncated"),
        ("1", "Expected `object`, got `int`"),
        ('{"payload": 1}', "Object missing required field `type`"),
        ('{"type": "a", "paylod": 1}', "Object contains unknown field `paylod`"),
        ('{"type": "a/?"}', "event type 'a/?': '?' and '*' are for queries only"),
        ('{"type": ""}', "an empty event type is written as []"),
        ('{"type": "[1]"}', "expected a JSON array of strings"),
        ('{"type": "a", "source_timestamp": "noon"}', "source_timestamp: 'noon': expected ISO"),
        ('{"type": "a", "source_timestamp": {"s": 1, "us": 1000000}}', "$.source_timestamp.us"),
        ('{"type": "a", "source_timestamp": 1e300}', "source_timestamp: timestamp out of range"),
        ('{"type": "a", "source_timestamp": true}', "got `bool` - at `$.source_timestamp`"),
        ('{"type": "a", "payload": {"payload_type": "xml"}}', "payload: Invalid value 'xml'"),
        (
            '{"type": "a", "payload": {"payload_type": "json"}}',
            "payload: Object missing",
        ),
        ('{"type": "a", "payload": NaN}', "JSON is malformed"),
        ('{"type": "a", "payload": ' + "[" * 100_000 + "]" * 100_000 + "}", "maximum recursion"),
        (b'{"type": "\xff"}', "not UTF-8 text"),
    ],
)
def test_wrong_register_event(line: str | bytes, reason: str) -> None:
    with pytest.raises(InvalidEventError) as e:
        parse_register_event(line)
    assert reason in str(e.value)


def test_one_is_not_many() -> None:
    assert [counted(i, "event") for i in (0, 1, 2)] == ["0 events", "1 event", "2 events"]
