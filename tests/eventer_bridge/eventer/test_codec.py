import json
import tracemalloc
from itertools import islice

import pytest
from hat.event import common as hat_common
from hat.sbs import CSerializer, PySerializer, Repository
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from eventer_bridge import limits
from eventer_bridge.chatter import sbs
from eventer_bridge.errors import InvalidEventError, InvalidMessageError
from eventer_bridge.eventer import codec, events
from eventer_bridge.eventer.messages import (
    Message,
    MsgEventsNotify,
    MsgInitReq,
    MsgQueryReq,
    MsgQueryRes,
    MsgRegisterReq,
    MsgRegisterRes,
    RefusedReq,
)
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.packed import Batch
from eventer_bridge.resources import read_schema
from eventer_bridge.slices import at_once
from tests.eventer_bridge.eventer import hat_messages
from tests.eventer_bridge.eventer.hat_messages import to_hat
from tests.eventer_bridge.eventer.record_vectors import VECTORS, record
from tests.eventer_bridge.eventer.samples import SAMPLES, json_payload
from tests.eventer_bridge.packed.support import Types

GOLDEN: list[dict[str, str]] = json.loads(VECTORS.read_text(encoding="utf-8"))

each_sample = pytest.mark.parametrize("message", SAMPLES.values(), ids=SAMPLES)


def register_payload(text: bytes) -> bytes:
    """A MsgRegisterReq of one event with this JSON text."""
    return b"\x81\x80\x80\x81\x81" + bytes((0x80 + len(text),)) + text


# --- the package hat-event ----------------------------------------------------------------


def test_our_schema_is_theirs() -> None:
    ours = Repository(read_schema("HatEventer.sbs")).to_json()
    assert ours == [i for i in hat_common.sbs_repo.to_json() if i["name"] == "HatEventer"]


@each_sample
def test_we_send_what_hat_event_sends(message: Message) -> None:
    assert codec.encode(message) == hat_messages.encode(message)


@each_sample
def test_hat_event_understands_us(message: Message) -> None:
    assert hat_messages.decode(*codec.encode(message)) == to_hat(message)


@each_sample
def test_we_understand_hat_event(message: Message) -> None:
    assert codec.decode(*hat_messages.encode(message)) == message


@pytest.mark.parametrize("vector", GOLDEN, ids=[i["name"] for i in GOLDEN])
def test_golden_vectors(vector: dict[str, str]) -> None:
    data = bytes.fromhex(vector["data"])
    message = SAMPLES[vector["name"]]
    assert codec.decode(vector["type"], data) == message
    assert codec.encode(message) == (vector["type"], data)


def test_golden_vectors_are_what_hat_event_sends() -> None:
    assert record() == GOLDEN


INTEGERS = st.integers(INT64_MIN, INT64_MAX) | st.integers(-10_000, 10_000)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
TIMESTAMPS = st.builds(Timestamp, INTEGERS, st.integers(0, 999_999) | st.integers(0, 100))
TYPES = st.lists(TEXTS, max_size=4).map(tuple)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | INTEGERS
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    lambda i: st.lists(i, max_size=3) | st.dictionaries(TEXTS, i, max_size=3),
    max_leaves=8,
)
EVENTS = st.builds(
    Event,
    st.builds(EventId, *[st.sampled_from((1, 2, 5_000, INT64_MIN)) | INTEGERS] * 3),
    TYPES,
    st.sampled_from((Timestamp(0, 0), Timestamp(1_700_000_000, 70))) | TIMESTAMPS,
    st.none() | TIMESTAMPS,
    st.none() | JSON.map(json_payload) | st.builds(BinaryPayload, TEXTS, st.binary(max_size=99)),
)
TYPE_LISTS = st.none() | st.lists(TYPES, max_size=3).map(tuple)
TIMESERIES = st.builds(
    QueryTimeseriesParams,
    event_types=TYPE_LISTS,
    t_from=st.none() | TIMESTAMPS,
    t_to=st.none() | TIMESTAMPS,
    source_t_from=st.none() | TIMESTAMPS,
    source_t_to=st.none() | TIMESTAMPS,
    order=st.sampled_from(Order),
    order_by=st.sampled_from(OrderBy),
    max_results=st.none() | st.integers(0, INT64_MAX),
    last_event_id=st.none() | st.builds(EventId, INTEGERS, INTEGERS, INTEGERS),
)


def in_steps(data: bytes) -> MsgRegisterReq | RefusedReq:
    """What becomes of a ``MsgRegisterReq`` in steps."""
    found = at_once(codec.decode_register_req(data, Types(read=codec.read_whole_type).table))
    return found if isinstance(found, RefusedReq) else MsgRegisterReq(found[:])


def check(message: Message) -> None:
    """It is on the wire what hat-event makes of it, and comes back."""
    name, data = codec.encode(message)
    assert (name, data) == hat_messages.encode(message)
    assert codec.decode(name, data) == message
    if isinstance(message, MsgRegisterReq):
        assert in_steps(data) == message
    if name in codec.WITH_EVENTS:
        assert at_once(codec.decode_in_steps(name, data)) == message


@given(st.lists(EVENTS, max_size=5))
def test_any_events(found: list[Event]) -> None:
    check(MsgEventsNotify(found))
    check(MsgRegisterRes(found))
    check(MsgQueryRes(QueryResult(found, bool(len(found) % 2))))
    check(MsgRegisterReq([RegisterEvent(i.type, i.source_timestamp, i.payload) for i in found]))


@given(
    st.builds(
        MsgInitReq,
        TEXTS,
        st.none() | TEXTS,
        st.lists(TYPES, max_size=3).map(tuple),
        st.none() | INTEGERS,
        st.booleans(),
    )
)
def test_any_init_request(message: MsgInitReq) -> None:
    check(message)


@given(TIMESERIES)
def test_any_timeseries_query(params: QueryTimeseriesParams) -> None:
    check(MsgQueryReq(params))


@pytest.mark.parametrize("size", [2, 63, 64, 2_047, 2_048, 8_191, 8_192, 100_000])
def test_payloads_about_every_size_of_a_length(size: int) -> None:
    payloads = (json_payload("x" * (size - 2)), BinaryPayload("x" * size, bytes(size)))
    check(MsgRegisterReq([RegisterEvent((), None, i) for i in payloads]))


def test_a_large_registration_is_decoded_in_steps() -> None:
    n_steps = 3
    many = [
        RegisterEvent((f"{i}",), None, json_payload(i))
        for i in range((n_steps - 1) * limits.STEP_EVENTS + 1)
    ]
    data = codec.encode(MsgRegisterReq(many))[1]
    steps = codec.decode_register_req(data, Types(read=codec.read_whole_type).table)
    for _ in range(n_steps):
        next(steps)
    batch = at_once(steps)
    assert isinstance(batch, Batch)
    assert batch.requested == len(batch)
    assert [*batch] == many


def test_large_messages_of_a_server_are_decoded_in_steps() -> None:
    many = [
        Event(EventId(1, 1, i), (f"{i}",), Timestamp(0, 0), None, None)
        for i in range(2 * limits.STEP_EVENTS + 1)
    ]
    messages = (MsgEventsNotify(many), MsgRegisterRes(many), MsgQueryRes(QueryResult(many, True)))
    for message in messages:
        steps = codec.decode_in_steps(*codec.encode(message))
        for _ in range(3):
            next(steps)
        assert at_once(steps) == message


def test_a_large_answer_is_encoded_in_steps() -> None:
    n_steps = 3
    many = [
        Event(EventId(1, 1, i), (f"{i}",), Timestamp(0, 0), None, None)
        for i in range((n_steps - 1) * limits.STEP_EVENTS + 1)
    ]
    result = QueryResult(many, True)
    steps = codec.encode_query_result(result)
    for _ in range(n_steps):
        next(steps)
    assert b"".join(at_once(steps)) == hat_messages.encode(MsgQueryRes(result))[1]


def test_the_place_of_an_event_is_told_in_a_later_step_too() -> None:
    many = [RegisterEvent((), None, None)] * (limits.STEP_EVENTS + 1)
    wrong = RegisterEvent((), None, JsonPayload(Raw(b"[1")))
    place = len(many)
    refused = in_steps(codec.encode(MsgRegisterReq([*many, wrong]))[1])
    assert isinstance(refused, RefusedReq)
    assert refused.reason.startswith(f"event {place}: payload is not JSON: ")


# --- parts of messages --------------------------------------------------------------------


def test_messages_are_joined_of_events_that_are_encoded_once() -> None:
    sample = SAMPLES["query_res"]
    assert isinstance(sample, MsgQueryRes)
    found = list(sample.result.events)
    encoded = events.encode_events(found)
    for n in (0, 1, 3, len(found)):
        notify = codec.encode_events_notify(encoded[:n])
        assert notify == hat_messages.encode(MsgEventsNotify(found[:n]))[1]
        success = codec.encode_register_success(encoded[:n])
        assert success == hat_messages.encode(MsgRegisterRes(found[:n]))[1]
    assert hat_messages.encode(MsgRegisterRes(None))[1] == codec.REGISTER_FAILURE


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 0, 1), (0, 1, 2), (3,), (0, 0)])
def test_answers_of_several_sessions(sizes: tuple[int, ...]) -> None:
    sample = SAMPLES["query_res"]
    assert isinstance(sample, MsgQueryRes)
    found = iter(sample.result.events)
    sessions = [[*islice(found, n)] for n in sizes]
    expected = [hat_messages.encode(MsgRegisterRes(i))[1] for i in sessions]
    assert codec.encode_register_successes(sessions) == expected


# --- what is remembered -------------------------------------------------------------------


def test_more_types_and_seconds_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CACHED_SECONDS", 3)
    monkeypatch.setattr(limits, "CACHE_BYTES", 1_000)
    monkeypatch.setattr(limits, "MAX_CACHED_TYPE_BYTES", 5)
    many = [
        RegisterEvent((str(i % 7), "x" * (i % 5)), Timestamp(1_600_000_000 + i % 6, i), None)
        for i in range(200)
    ]
    for _ in range(2):
        check(MsgRegisterReq(many))
    check(
        MsgEventsNotify(
            [Event(EventId(1, 1, 1), i.type, Timestamp(1, 1), None, None) for i in many]
        )
    )


@pytest.mark.parametrize("us", [1_000_000, -600_000])
def test_microseconds_of_known_seconds_are_checked_too(us: int) -> None:
    second = 1_700_000_000
    known = [RegisterEvent(("a",), Timestamp(second, 999_999), None)]
    name, data = codec.encode(MsgRegisterReq(known))
    assert codec.decode(name, data) == MsgRegisterReq(known)
    wrong = data.replace(sbs.encode_integer(999_999), sbs.encode_integer(us))
    refused = codec.decode(name, wrong)
    assert isinstance(refused, RefusedReq)
    assert f"timestamp out of range: s={second} us={us} " in refused.reason


def test_what_one_event_has_is_not_taken_for_what_another_has() -> None:
    """Not even where the message begins with the same bytes: its count, and the first server."""

    def notify(ids: list[EventId], timestamps: list[Timestamp]) -> MsgEventsNotify:
        parts = zip(ids, timestamps, strict=True)
        return MsgEventsNotify([Event(i, ("a",), t, None, None) for i, t in parts])

    same, times = Timestamp(7, 7), [Timestamp(3, 4), Timestamp(5, 6), Timestamp(3, 4)]
    check(notify([EventId(3, 3, 1), EventId(3, 4, 1), EventId(4, 3, 1)], [same] * 3))
    check(notify([EventId(4, 1, i) for i in range(3)], times))


def test_types_are_remembered_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CACHE_BYTES", 100_000)

    def encode(number: int) -> bytes:
        event = RegisterEvent((f"{number:0200}",), None, None)
        return codec.encode(MsgRegisterReq([event]))[1]

    def decode(number: int) -> None:
        data = first.replace(b"0" * 200, f"{number:0200}".encode())
        codec.decode("HatEventer.MsgRegisterReq", data)

    first = encode(0)
    for use in (encode, decode):
        tracemalloc.start()
        try:
            for number in range(1_000):
                use(number)
            assert tracemalloc.get_traced_memory()[1] < 110_000
        finally:
            tracemalloc.stop()


def test_a_type_is_not_taken_for_another_one_that_is_known() -> None:
    """Not even where it begins with it."""
    types = [("a",), ("a", ""), ("", "a"), (), ("",), ("\x01a",), ("a\x80",), ("aa",)]
    for first in types:
        for second in types:
            check(
                MsgRegisterReq(
                    [RegisterEvent(i, None, None) for i in (first, first, second, first)]
                )
            )


def test_types_of_unusual_encoding_are_sent_as_usual() -> None:
    """A peer may write more zeros than it needs to; nobody else is to hear of it."""
    decoded = codec.decode("HatEventer.MsgRegisterReq", bytes.fromhex("8100810083717879 8080"))
    expected = MsgRegisterReq([RegisterEvent(("qxy",), None, None)])
    assert decoded == expected
    check(expected)


# --- JSON payloads ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["1.0", "1e400", '{"a":1.0,"a":2}', '"\\ud83d\\ude00"', '{ "ž" : [ ] }']
)
def test_payload_is_kept_as_it_came(text: str) -> None:
    for payload in (text.encode(), f"\t {text}\r\n".encode()):
        data = register_payload(payload)
        decoded = codec.decode("HatEventer.MsgRegisterReq", data)
        assert decoded == MsgRegisterReq([RegisterEvent((), None, JsonPayload(Raw(payload)))])
        assert codec.encode(decoded)[1] == data


# --- what cannot be encoded ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            MsgRegisterReq([RegisterEvent(("\ud800",), None, None)]),
            "HatEventer.MsgRegisterReq cannot be encoded: 'utf-8' codec can't encode character"
            " '\\ud800' in position 0: surrogates not allowed",
        ),
        (
            MsgQueryReq(QueryServerParams(1 << 63)),
            "HatEventer.MsgQueryReq cannot be encoded: int too big to convert",
        ),
        *[
            (
                MsgQueryReq(QueryTimeseriesParams(**i)),
                "an Event Server cannot be queried by ids, payload or unique_type",
            )
            for i in ({"ids": ()}, {"payload": JsonPayload.of(1)}, {"unique_type": True})
        ],
    ],
)
def test_what_cannot_be_encoded(message: Message, text: str) -> None:
    with pytest.raises(InvalidEventError) as e:
        codec.encode(message)
    assert str(e.value) == text


@pytest.mark.parametrize(
    "source_timestamp", [None, Timestamp(-1, 0), Timestamp(1_700_000_000, 999_999)]
)
@pytest.mark.parametrize(
    "payload", [None, BinaryPayload("", b""), BinaryPayload("t", b"\x00" * 300)]
)
@pytest.mark.parametrize("event_type", [(), ("a",), ("b", "ž" * 200)])
def test_events_that_cannot_be_are_left_out_whatever_else_they_say(
    event_type: tuple[str, ...],
    payload: BinaryPayload | None,
    source_timestamp: Timestamp | None,
) -> None:
    good = Event(EventId(1, 700, 1), ("a", "b"), Timestamp(5, 6), None, json_payload([1]))
    value = hat_common.sbs_repo.decode(*hat_messages.encode(MsgEventsNotify([good] * 5)))
    other = Event(EventId(2, -300, 70_000), event_type, Timestamp(5, 6), source_timestamp, payload)
    bad = hat_common.sbs_repo.decode(*hat_messages.encode(MsgEventsNotify([other])))[0]
    bad["timestamp"]["us"] = 1_000_000
    unreadable = {**value[0], "payload": ("value", ("json", "[1"))}
    value[1], value[3] = bad, unreadable
    name = codec.type_name(MsgEventsNotify)
    message = codec.decode(name, bytes(hat_common.sbs_repo.encode(name, value)))
    assert isinstance(message, MsgEventsNotify)
    assert message.events == [good] * 3
    assert [i.id for i in message.refused] == [other.id, good.id]
    assert "timestamp out of range" in message.refused[0].reason
    assert "payload is not JSON" in message.refused[1].reason


_BEHIND = QueryLatestParams((("a", "*"), ("b",)), EventId(1, -(1 << 40), 3))
_DELETED = QueryResult([], True, EventId(1, -(1 << 40), 3), 7)


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        (MsgQueryReq(_BEHIND), MsgQueryReq(QueryLatestParams(_BEHIND.event_types))),
        (MsgQueryRes(_DELETED), MsgQueryRes(QueryResult([], True))),
    ],
)
def test_hat_event_does_not_see_what_is_ours(message: Message, plain: Message) -> None:
    name, data = codec.encode(message)
    assert codec.decode(name, data) == message
    bare = codec.encode(plain)[1]
    assert data.startswith(bare)
    for serializer in (PySerializer, CSerializer):
        theirs = hat_common.sbs_repo.decode(name, data, serializer=serializer)
        assert theirs == hat_common.sbs_repo.decode(name, bare)
    for end in range(len(bare) + 1, len(data)):
        with pytest.raises(InvalidMessageError, match="ends too early"):
            codec.decode(name, data[:end])
    with pytest.raises(InvalidMessageError, match="but 1 bytes follow"):
        codec.decode(name, data + b"\x80")
