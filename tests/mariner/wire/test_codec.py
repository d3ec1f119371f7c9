"""The codec: there and back, beside the package hat-mariner, and what the contract leaves open."""

import json
from pathlib import Path

import msgspec
import pytest
from hat.mariner.transport import encoder
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge import limits as core_limits
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    QueryResult,
    QueryTimeseriesParams,
    RegisterEvent,
    Status,
    Timestamp,
)
from eventer_bridge.slices import at_once
from mariner.errors import ContractError
from mariner.wire import codec, contract
from mariner.wire.messages import (
    EventsMsg,
    InitRes,
    Message,
    PingReq,
    PingRes,
    QueryReq,
    QueryRes,
    RegisterReq,
    RegisterRes,
    StatusMsg,
)
from tests.mariner.wire.hat_messages import to_hat
from tests.mariner.wire.messages_text import json_payload, ping, register
from tests.mariner.wire.record_vectors import record
from tests.mariner.wire.samples import (
    EXTENDED_MESSAGES,
    EXTENDED_QUERIES,
    FAILED_REGISTRATIONS,
    SAMPLES,
)

VECTORS = json.loads(
    (Path(__file__).parents[2] / "vectors" / "hat_mariner.json").read_text(encoding="utf-8")
)

each_sample = pytest.mark.parametrize("message", SAMPLES.values(), ids=SAMPLES)


def payload_bytes(message: Message) -> bytes:
    """What is kept of the payload of the last event of a registration."""
    assert isinstance(message, RegisterReq)
    payload = message.register_events[-1].payload
    assert isinstance(payload, JsonPayload)
    return bytes(payload.data)


# --- there and back -----------------------------------------------------------------------


@each_sample
def test_decode_encode(message: Message) -> None:
    data = codec.encode(message)
    assert codec.decode(data) == message
    assert contract.explain(json.loads(data)) is None


@pytest.mark.parametrize("message", FAILED_REGISTRATIONS)
def test_reason_of_a_registration_that_failed(message: Message) -> None:
    data = codec.encode(message)
    assert codec.decode(data) == message
    assert contract.explain(json.loads(data)) is None


@pytest.mark.parametrize("message", [*EXTENDED_QUERIES, *EXTENDED_MESSAGES])
def test_messages_that_only_we_know(message: Message) -> None:
    data = codec.encode(message)
    assert codec.decode(data) == message
    assert contract.explain(json.loads(data)) is None


def test_conditions_that_are_not_set_are_left_out() -> None:
    bare = {"msg_type", "query_id", "query_type", "order", "order_by"}
    assert json.loads(codec.encode(QueryReq(5, QueryTimeseriesParams()))).keys() == bare
    # of those that are: no event at all is not the same as every event
    nothing = QueryReq(5, QueryTimeseriesParams(max_results=0, ids=()))
    assert json.loads(codec.encode(nothing)).keys() == bare | {"max_results", "ids"}


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (Status.STANDBY, "STANDBY"),
        (Status.STARTING, "STANDBY"),
        (Status.OPERATIONAL, "OPERATIONAL"),
        (Status.STOPPING, "STANDBY"),
    ],
)
def test_four_states_are_told_as_two_and_all_are_understood(status: Status, told: str) -> None:
    for message in (StatusMsg(status), InitRes(True, status=status)):
        assert json.loads(codec.encode(message))["status"] == told
    assert codec.decode(b'{"msg_type":"status","status":"%b"}' % status.name.encode()) == StatusMsg(
        status
    )


def test_a_declined_connection_has_a_reason_whatever_is_known() -> None:
    assert json.loads(codec.encode(InitRes(False)))["error"] == ""


@pytest.mark.parametrize("ping_id", [INT64_MIN, 0, INT64_MAX])
def test_a_ping_is_answered_as_by_the_encoder(ping_id: int) -> None:
    assert codec.encode_ping_response(ping_id) == codec.encode(PingRes(ping_id))


def test_messages_of_events_that_are_encoded_already() -> None:
    sample = SAMPLES["events"]
    assert isinstance(sample, EventsMsg)
    events = list(sample.events)
    encoded = [codec.encode_event(i) for i in events]
    for n in (0, 1, len(events)):
        made = codec.encode_events_message(encoded[:n])
        assert made == codec.encode(EventsMsg(events[:n]))
        joined = codec.encode_events(events[:n])  # which large ones are made of, in several parts
        assert b"".join(codec.events_message_parts([joined[:7], joined[7:]])) == made
        for register_id in (INT64_MIN, 0, INT64_MAX):
            made = codec.encode_register_success(register_id, b",".join(encoded[:n]))
            assert made == codec.encode(RegisterRes(register_id, True, events=events[:n]))
            assert codec.encode_register_successes([1, register_id], [[], events[:n]])[1] == made
            parts = codec.register_success_parts(register_id, [joined[:7], joined[7:]])
            assert b"".join(parts) == made
        for more_follows in False, True:
            result = QueryResult(tuple(events[:n]), more_follows)
            parts = at_once(codec.encode_query_result(-5, result))
            assert b"".join(parts) == codec.encode(QueryRes(-5, events[:n], more_follows))


def test_a_large_answer_is_encoded_in_steps() -> None:
    sample = SAMPLES["events"]
    assert isinstance(sample, EventsMsg)
    events = [*sample.events] * core_limits.STEP_EVENTS
    steps = codec.encode_query_result(1, QueryResult(events, True))
    n_steps = -(-len(events) // core_limits.STEP_EVENTS)
    assert n_steps > 1
    for _ in range(n_steps):
        next(steps)
    assert b"".join(at_once(steps)) == codec.encode(QueryRes(1, events, True))


INTEGERS = st.integers(INT64_MIN, INT64_MAX)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)

TIMESTAMPS = st.builds(Timestamp, INTEGERS, st.integers(0, 999_999))

JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda i: st.lists(i, max_size=3) | st.dictionaries(TEXTS, i, max_size=3),
    max_leaves=8,
)

EVENTS = st.builds(
    Event,
    st.builds(EventId, INTEGERS, INTEGERS, INTEGERS),
    st.lists(TEXTS, max_size=4).map(tuple),
    TIMESTAMPS,
    st.none() | TIMESTAMPS,
    st.none() | JSON.map(JsonPayload.of) | st.builds(BinaryPayload, TEXTS, st.binary(max_size=20)),
)


@given(st.lists(EVENTS, max_size=4), INTEGERS)
def test_any_event_comes_back(events: list[Event], identifier: int) -> None:
    for message in (
        EventsMsg(events),
        RegisterRes(identifier, True, events=events),
        QueryRes(identifier, events, True),
        RegisterReq(
            identifier,
            tuple(RegisterEvent(i.type, i.source_timestamp, i.payload) for i in events),
        ),
    ):
        assert codec.decode(codec.encode(message)) == message


# --- the package hat-mariner --------------------------------------------------------------


@each_sample
def test_hat_mariner_understands_us(message: Message) -> None:
    assert encoder.decode_msg(json.loads(codec.encode(message))) == to_hat(message)


@each_sample
def test_we_understand_hat_mariner(message: Message) -> None:
    data = json.dumps(encoder.encode_msg(to_hat(message))).encode()
    assert to_hat(codec.decode(data)) == to_hat(message)


@pytest.mark.parametrize("message", FAILED_REGISTRATIONS)
def test_hat_mariner_ignores_the_reason_of_a_registration_that_failed(message: Message) -> None:
    assert encoder.decode_msg(json.loads(codec.encode(message))) == to_hat(message)


@pytest.mark.parametrize("vector", VECTORS, ids=[i["name"] for i in VECTORS])
def test_golden_vectors(vector: dict[str, str]) -> None:
    decoded = codec.decode(vector["message"].encode())
    assert to_hat(decoded) == to_hat(SAMPLES[vector["name"]])


async def test_golden_vectors_are_what_hat_mariner_writes() -> None:
    assert await record() == VECTORS


# --- what the contract leaves open --------------------------------------------------------


@pytest.mark.parametrize("number", ["12.0", "1.2e1", "120E-1", "0.12e+2", "12"])
def test_integers_may_be_written_with_point_or_exponent(number: str) -> None:
    assert codec.decode(ping(number).encode()) == PingReq(12)


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("9007199254740993.0", 9007199254740993),
        ("9007199254740993e0", 9007199254740993),
        ("-90071992547409930e-1", -9007199254740993),
        ("9223372036854775807.000", INT64_MAX),
        ("-9.223372036854775808E+18", INT64_MIN),
        ("0.0000000000000000001e19", 1),
        ("-0.0", 0),
        ("0e999999999999999999999", 0),
        ("1" + "0" * 5_000 + "e-5000", 1),
        ("1e" + "0" * 5_000 + "3", 1_000),
    ],
)
def test_integers_are_exact_however_they_are_written(number: str, value: int) -> None:
    assert codec.decode(ping(number).encode()) == PingReq(value)
    event = f'{{"type":["a"],"source_timestamp":{{"s":{number},"us":1.0}},"payload":null}}'
    wrong = '{"type":["a"],"source_timestamp":null}'
    request = codec.decode(register(event, register_id=number).encode())
    assert isinstance(request, RegisterReq)
    assert request.register_id == value
    assert request.register_events[-1].source_timestamp == Timestamp(value, 1)
    with pytest.raises(ContractError) as e:
        codec.decode(register(wrong, register_id=number).encode())
    assert e.value.register_id == value  # also of what is refused


def test_integers_with_a_point_in_every_place() -> None:
    query = (
        '{"msg_type":"query_req","query_id":1.0,"query_type":"timeseries","order":"ASCENDING",'
        '"order_by":"TIMESTAMP","t_from":{"s":1e3,"us":5.0},"max_results":2.0,'
        '"last_event_id":{"server":1.0,"session":-2.0,"instance":-9223372036854775808.0},'
        '"ids":[{"server":1.0,"session":2.0,"instance":30e-1}],'
        '"payload":{"payload_type":"json","data":[1.0]}}'
    )
    decoded = codec.decode(query.encode())
    assert isinstance(decoded, QueryReq)
    assert isinstance(decoded.params, QueryTimeseriesParams)
    assert decoded.query_id == 1
    assert decoded.params.t_from == Timestamp(1000, 5)
    assert decoded.params.max_results == 2
    assert decoded.params.last_event_id == EventId(1, -2, INT64_MIN)
    assert all(type(i) is int for i in msgspec.structs.astuple(decoded.params.last_event_id))
    assert decoded.params.ids == (EventId(1, 2, 3),)
    assert decoded.params.payload == JsonPayload(msgspec.Raw(b"[1.0]"))


@pytest.mark.parametrize(
    "data", ["1.0", "1e400", "1" * 900, '{"a":1.0,"a":2}', '{"payload_type":"binary","s":1.0}']
)
def test_payload_is_kept_as_it_came(data: str) -> None:
    """Also where integers elsewhere in the message have to be written anew."""
    for register_id in ("7", "7.0"):
        message = register(payload=json_payload(f" {data} "), register_id=register_id)
        assert payload_bytes(codec.decode(message.encode())) == data.encode()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (ping('"x"', ',"ping_id":1'), PingReq(1)),
        ('{"msg_type":"ping_req","msg_type":"ping_res","ping_id":1}', PingRes(1)),
        (
            '{"msg_type":"init_res","success":true,"success":false,"error":"no"}',
            InitRes(False, error="no"),
        ),
    ],
)
def test_of_a_key_that_is_given_twice_the_last_value_counts(
    message: str, expected: Message
) -> None:
    assert codec.decode(message.encode()) == expected


def test_last_value_counts_in_payloads_too() -> None:
    payload = '{"payload_type":"what","payload_type":"json","data":1,"data":[2]}'
    assert payload_bytes(codec.decode(register(payload=payload).encode())) == b"[2]"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            '{"msg_type":"init_res","success":true,"status":"STANDBY","error":{},"outcome":0}',
            InitRes(True, status=Status.STANDBY),
        ),
        (
            '{"msg_type":"init_res","success":false,"status":6,"error":"x"}',
            InitRes(False, error="x"),
        ),
        (
            '{"msg_type":"register_res","register_id":1,"success":false,"events":0}',
            RegisterRes(1, False),
        ),
        (
            '{"msg_type":"register_res","register_id":1,"success":true,"events":[],"error":0}',
            RegisterRes(1, True, events=[]),
        ),
        (
            '{"msg_type":"register_res","register_id":1,"success":true,"events":[],"outcome":0}',
            RegisterRes(1, True, events=[]),
        ),
        (ping("1", ',"register_id":"x","events":{"events":[1e400]}'), PingReq(1)),
        (ping("1.0", ',"register_id":"x","events":{"events":[1e400]}'), PingReq(1)),
    ],
)
def test_properties_of_other_branches_are_ignored(message: str, expected: Message) -> None:
    assert codec.decode(message.encode()) == expected
