"""RSB events as events of the core: nothing is lost on the way there and back."""

import json
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge import limits
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import (
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    Payload,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.rsb import codec, payloads
from eventer_bridge.rsb.event import Informer, RsbEvent, parse_scope
from tests.eventer_bridge.rsb.samples import SENDER, events, sample

PREFIX = ("rsb",)
SCOPE = parse_scope("/robot/arm/")
NOW = Timestamp(1_700_000_001, 7)


def registered(event: RegisterEvent) -> Event:
    return Event(EventId(1, 1, 1), event.type, NOW, event.source_timestamp, event.payload)


def of_another(payload: Payload | None, source_timestamp: Timestamp | None = None) -> RsbEvent:
    """What is sent of somebody else's event."""
    event = registered(RegisterEvent(("rsb", "robot", "arm"), source_timestamp, payload))
    return payloads.from_event(event, SCOPE, Informer(SCOPE, 41))


@given(events(), st.sampled_from([(), ("rsb",), ("a", "b/c")]))
def test_the_round_trip_is_exact(event: RsbEvent, prefix: tuple[str, ...]) -> None:
    register_event = payloads.to_register(event, prefix)
    assert register_event.type == prefix + event.scope.segments
    if isinstance(register_event.payload, JsonPayload):
        json.loads(bytes(register_event.payload.data))  # of everybody else's parsers, too
    scope = payloads.scope_of(register_event.type, prefix)
    assert scope == event.scope
    assert payloads.from_event(registered(register_event), scope, Informer(scope)) == event


def test_known_data_becomes_json() -> None:
    event = payloads.to_register(sample(378).delivered(1_700_000_000_200_000), PREFIX)
    assert event.type == ("rsb", "robot", "arm")
    assert event.source_timestamp == Timestamp(1_700_000_000, 123_456)
    assert isinstance(event.payload, JsonPayload)
    value = event.payload.value()
    assert value["rsb"]["meta"].pop("deliver_time") > 1_700_000_000_200_000
    assert value == {
        "rsb": {
            "id": str(sample(378).id),
            "sender": str(SENDER),
            "sequence": 378,
            "schema": "utf-8-string",
            "method": "REQUEST",
            "causes": [{"sender": str(i.sender), "sequence": i.sequence} for i in sample().causes],
            "meta": {
                "create_time": 1_700_000_000_123_456,
                "send_time": 1_700_000_000_123_999,
                "receive_time": 1_700_000_000_200_000,
                "user_times": {"seen": 5, "before 1970": -1},
                "user_infos": {"unit": "C", "ort": "Küche"},
            },
        },
        "value": "hello",
    }


@pytest.mark.parametrize(
    ("schema", "data", "data_type"),
    [
        (".rst.vision.Image", b"\x01\x02", ".rst.vision.Image"),
        ("double", b"\x00\x00\x00\x00\x00\x00\xf8\x7f", "double"),  # NaN
        ("utf-8-string", b"\xff", "utf-8-string"),
        ("sch\udcff", b"", "sch\\xff"),
        ("", b"", ""),
    ],
)
def test_other_data_becomes_a_binary_payload(schema: str, data: bytes, data_type: str) -> None:
    event = sample(1, schema, data)
    payload = payloads.to_register(event, PREFIX).payload
    assert payload == BinaryPayload(data_type, codec.encode(event))


def test_json_that_would_be_too_large_becomes_a_binary_payload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event = sample(1, "utf-8-string", b"\0" * 2_000)  # which JSON escapes
    as_json = payloads.to_register(event, PREFIX).payload
    assert isinstance(as_json, JsonPayload)
    monkeypatch.setattr(limits, "MAX_PAYLOAD_BYTES", len(as_json.data))
    assert payloads.to_register(event, PREFIX).payload == as_json
    monkeypatch.setattr(limits, "MAX_PAYLOAD_BYTES", len(as_json.data) - 1)
    register_event = payloads.to_register(event, PREFIX)
    assert register_event.payload == BinaryPayload("utf-8-string", codec.encode(event))
    assert payloads.from_event(registered(register_event), SCOPE, Informer(SCOPE)) == event


def test_without_create_time_there_is_no_source_timestamp() -> None:
    event = codec.decode(codec.encode(RsbEvent(sample().event_id, SCOPE)))
    assert payloads.to_register(event, PREFIX).source_timestamp is None


@pytest.mark.parametrize(
    ("payload", "schema", "data"),
    [
        (None, "void", b""),
        (JsonPayload.of(None), "void", b""),
        (JsonPayload.of(True), "bool", b"\x01"),
        (JsonPayload.of(258), "int64", b"\x02\x01" + bytes(6)),
        (JsonPayload.of(1.0), "double", bytes(6) + b"\xf0\x3f"),
        (JsonPayload.of("Tür"), "utf-8-string", "Tür".encode()),
        (JsonPayload(msgspec.Raw(b'{ "a": [1] }')), "utf-8-string", b'{ "a": [1] }'),
        (JsonPayload(msgspec.Raw(b"[1, 2]")), "utf-8-string", b"[1, 2]"),
        (JsonPayload(msgspec.Raw(b"99999999999999999999")), "utf-8-string", b"9" * 20),
        (JsonPayload(msgspec.Raw(b"1e999")), "utf-8-string", b"1e999"),
        (JsonPayload(msgspec.Raw(b'"\\ud800"')), "utf-8-string", b'"\\ud800"'),
        (JsonPayload(msgspec.Raw(b'{"a": 1e999}')), "utf-8-string", b'{"a": 1e999}'),
        (BinaryPayload("image/png", b"\x89PNG"), "image/png", b"\x89PNG"),
        # another's notification, in a payload of another type or on another scope
        (BinaryPayload("x", codec.encode(sample(1, "y"))), "x", codec.encode(sample(1, "y"))),
        (
            BinaryPayload("y", codec.encode(sample(1, "y", scope="/z/"))),
            *("y", codec.encode(sample(1, "y", scope="/z/"))),
        ),
    ],
)
def test_events_of_others(payload: Payload | None, schema: str, data: bytes) -> None:
    event = of_another(payload)
    assert (event.scope, event.schema, event.data) == (SCOPE, schema, data)
    assert event.event_id.sequence == 41
    assert (event.method, event.causes) == (None, ())
    assert event.meta.create_time == 1_700_000_001_000_007


def test_the_create_time_of_others_is_their_source_timestamp() -> None:
    assert of_another(None, Timestamp(5, 6)).meta.create_time == 5_000_006
    far = of_another(None, Timestamp(1 << 62, 0)).meta.create_time
    assert far is not None
    assert far > 1_700_000_001_000_007  # out of range: the time of its making


def test_others_choose_method_schema_and_causes() -> None:
    cause = {"sender": str(SENDER), "sequence": 3}
    rsb = {
        "method": "SET",
        "schema": "double",
        "causes": [cause],
        "meta": {"user_infos": {"a": "b"}},
    }
    event = of_another(JsonPayload.of({"rsb": rsb, "value": 5}))
    assert (event.method, event.schema) == ("SET", "double")
    assert event.data == bytes(6) + b"\x14\x40"
    assert [(i.sender, i.sequence) for i in event.causes] == [(SENDER, 3)]
    assert event.meta.user_infos == {"a": "b"}
    assert event.event_id.sequence == 41
    with_id = of_another(JsonPayload.of({"rsb": {**cause}, "value": None}))
    assert (with_id.event_id.sender, with_id.event_id.sequence) == (SENDER, 3)
    assert of_another(JsonPayload.of({"rsb": {}, "value": True})).schema == "bool"
    spaced = JsonPayload(msgspec.Raw(b' \n{"rsb": {}, "value": true} '))
    assert of_another(spaced).schema == "bool"


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"rsb": 5}, r"payload: Expected `object`, got `int` - at `\$.rsb`"),
        ({"rsb": {"sequence": -1}}, "Expected `int` >= 0"),
        ({"rsb": {"sender": "x"}}, "Invalid UUID"),
        ({"rsb": {"schema": "bool"}, "value": 1}, "schema 'bool': expected true or false"),
        ({"rsb": {}, "value": [1]}, "rsb.schema: missing, and no schema fits the value"),
    ],
)
def test_what_others_can_get_wrong(payload: Any, reason: str) -> None:
    with pytest.raises(InvalidEventError, match=reason):
        of_another(JsonPayload.of(payload))


def test_a_value_that_python_cannot_hold() -> None:
    with pytest.raises(InvalidEventError, match="payload: Number out of range"):
        of_another(JsonPayload(msgspec.Raw(b'{"rsb": {}, "value": 1e999}')))


@pytest.mark.parametrize(
    ("event_type", "scope"),
    [
        (("rsb",), "/"),
        (("rsb", "a", "b"), "/a/b/"),
        (("rsb", "a b"), None),
        (("rsb", ""), None),
        (("rsb", "a/b"), None),
        (("a", "rsb"), None),
        ((), None),
        (("rsb", "x" * 2000), None),
    ],
)
def test_scope_of_types(event_type: tuple[str, ...], scope: str | None) -> None:
    found = payloads.scope_of(event_type, PREFIX)
    assert (None if found is None else str(found)) == scope


def test_json_for_people_escapes_what_is_not_text() -> None:
    event = sample(1, ".x\udcff", b"\x00")
    assert payloads.to_json(event) is None
    value = json.loads(payloads.to_json_as_bytes(event))
    assert value["rsb"]["schema"] == ".x\\xff"
    assert value["value"] == "AA=="
    assert UUID(value["rsb"]["id"]) == event.id
    assert value["rsb"]["meta"]["user_infos"]["ort"] == "Küche"
