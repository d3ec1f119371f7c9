"""What no peer should send: refused with the reason, at once, without much memory."""

import re
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

from eventer_bridge import limits
from eventer_bridge.chatter.sbs import encode_integer, encode_string
from eventer_bridge.errors import InvalidMessageError
from eventer_bridge.eventer import codec
from eventer_bridge.eventer.messages import (
    Message,
    MsgInitReq,
    MsgQueryReq,
    MsgQueryRes,
    MsgRegisterReq,
    RefusedReq,
)
from eventer_bridge.model import EventId, QueryLatestParams
from eventer_bridge.slices import Steps, at_once
from tests.eventer_bridge.eventer.samples import SAMPLES
from tests.eventer_bridge.packed.support import Types

NONE: Final = b"\x80"
ONE: Final = b"\x81"
TWO: Final = b"\x82"
HUGE: Final = encode_integer(1 << 60)
EVENT: Final = b"\x81\x81\x81" + NONE + b"\x80\x80"  # up to its source timestamp


def register(event: bytes) -> bytes:
    """A MsgRegisterReq of an event in order, and this one."""
    return b"\x82" + NONE * 3 + event


def payload(text: str | bytes) -> bytes:
    """An event with this JSON text."""
    data = text.encode() if isinstance(text, str) else text
    return NONE + NONE + ONE + ONE + encode_integer(len(data)) + data


def source_timestamp(s: int, us: int) -> bytes:
    return NONE + ONE + encode_integer(s) + encode_integer(us) + NONE


def timeseries(max_results: bytes = NONE, t_from: bytes = NONE, order: bytes = NONE) -> bytes:
    return ONE + NONE + t_from + NONE * 3 + order + NONE + max_results + NONE


def _register_req(data: bytes) -> Steps[MsgRegisterReq | RefusedReq]:
    found = yield from codec.decode_register_req(data, Types(read=codec.read_whole_type).table)
    return found if isinstance(found, RefusedReq) else MsgRegisterReq(found[:])


IN_STEPS: dict[str, Callable[[bytes], Any]] = {
    "HatEventer.MsgRegisterReq": _register_req,
    **{name: partial(codec.decode_in_steps, name) for name in codec.WITH_EVENTS},
}


def decode(name: str, data: bytes) -> Message | RefusedReq:
    """Decode a message, some in steps too: what is refused is refused alike."""
    if name in IN_STEPS:
        try:
            in_steps: Message | RefusedReq = at_once(IN_STEPS[name](data))
        except InvalidMessageError as e:
            with pytest.raises(InvalidMessageError, match=f"^{re.escape(str(e))}$"):
                codec.decode(name, data)
            raise
        assert codec.decode(name, data) == in_steps
        return in_steps
    return codec.decode(name, data)


def malformed(name: str, data: bytes) -> str:
    with pytest.raises(InvalidMessageError) as e:
        decode(name, data)
    return str(e.value)


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("MsgRegisterReq", b"", "ends too early, at byte 0"),
        ("MsgRegisterReq", b"\x01", "ends too early, at byte 1"),
        ("MsgRegisterReq", register(ONE + ONE + b"a" + ONE), "ends too early, at byte 8"),
        ("MsgRegisterReq", register(b""), "length or count 2 at byte 0, with 3 bytes after it"),
        ("MsgRegisterReq", register(payload("1") + b"xy"), "ends at byte 10, but 2 bytes follow"),
        ("MsgRegisterReq", HUGE, f"length or count {1 << 60} at byte 0, with 0 bytes after it"),
        ("MsgRegisterReq", b"\xff", "length or count -1 at byte 0, with 0 bytes after it"),
        (
            "MsgRegisterReq",
            encode_integer(1 << 63),
            "integer at byte 0 does not fit 64 bits",
        ),
        (
            "MsgRegisterReq",
            register(NONE + ONE + encode_integer(1 << 63) + NONE * 2),
            "integer at byte 6 does not fit 64 bits",
        ),
        (
            "MsgRegisterReq",
            register(HUGE + NONE * 2),
            f"length or count {1 << 60} at byte 4, with 2 bytes after it",
        ),
        (
            "MsgRegisterReq",
            register(ONE + HUGE + NONE * 2),
            f"length or count {1 << 60} at byte 5, with 2 bytes after it",
        ),
        (
            "MsgRegisterReq",
            register(ONE + ONE + b"\xff" + NONE * 2),
            "not UTF-8: invalid start byte at byte 6",
        ),
        (
            "MsgRegisterReq",
            register(payload(b'"\xed\xa0\x80"')),
            "not UTF-8: invalid continuation byte at byte 10",
        ),
        (
            "MsgRegisterReq",
            register(payload(b'"' + b"x" * 9_000 + b'\xff"')),
            "not UTF-8: invalid start byte at byte 9012",
        ),
        ("MsgRegisterReq", register(NONE + TWO + NONE), "choice 2 at byte 5, expected 0 to 1"),
        ("MsgRegisterReq", register(NONE + NONE + b"\xff"), "choice -1 at byte 6, expected 0 to 1"),
        (
            "MsgRegisterReq",
            register(NONE + NONE + ONE + TWO),
            "choice 2 at byte 7, expected 0 to 1",
        ),
        ("MsgRegisterReq", register(payload("[1,2]")[:-1]), "ends too early, at byte 13"),
        (
            "MsgRegisterReq",
            register(NONE * 2 + ONE + NONE + NONE + HUGE),
            f"length or count {1 << 60} at byte 9, with 0 bytes after it",
        ),
        (
            "MsgRegisterReq",
            register(NONE * 2 + ONE + ONE + b"\x7f\xbf" + b"1" * 20_000),
            "length or count -65 at byte 8, with 20000 bytes after it",
        ),
        (
            "MsgRegisterReq",
            register(NONE * 2 + ONE + ONE + b"\xc0" + b"1" * 64),
            "length or count -64 at byte 8, with 64 bytes after it",
        ),
        (
            "MsgRegisterReq",
            register(NONE * 2 + ONE + ONE + b"\x40\x80" + b"1" * 9_000),
            "length or count -8192 at byte 8, with 9000 bytes after it",
        ),
        ("MsgInitReq", NONE + TWO, "choice 2 at byte 1, expected 0 to 1"),
        ("MsgInitReq", NONE * 4, "ends too early, at byte 4"),
        ("MsgInitRes", b"\x82", "choice 2 at byte 0, expected 0 to 1"),
        ("MsgInitRes", b"\x80\x84", "choice 4 at byte 1, expected 0 to 3"),
        ("MsgRegisterRes", TWO, "choice 2 at byte 0, expected 0 to 1"),
        ("MsgStatusNotify", b"\x84", "choice 4 at byte 0, expected 0 to 3"),
        ("MsgEventsAck", b"\x80", "ends at byte 0, but 1 bytes follow"),
        ("MsgQueryReq", b"\x83", "choice 3 at byte 0, expected 0 to 2"),
        ("MsgQueryReq", timeseries(order=TWO), "choice 2 at byte 6, expected 0 to 1"),
        ("MsgRegisterRes", b"\x81\x80", "ends at byte 1, but 1 bytes follow"),
        ("MsgEventsNotify", HUGE, f"length or count {1 << 60} at byte 0, with 0 bytes after it"),
        # what is left out of a server's message has to be well-formed all the same
        (
            "MsgEventsNotify",
            ONE + EVENT[:-2] + encode_integer(0) + encode_integer(1_000_000) + NONE + TWO + NONE,
            "choice 2 at byte 10, expected 0 to 1",
        ),
        (
            "MsgEventsNotify",
            ONE
            + EVENT[:-2]
            + encode_integer(0)
            + encode_integer(1_000_000)
            + NONE
            + ONE
            + TWO
            + NONE,
            "choice 2 at byte 11, expected 0 to 1",
        ),
        # a server's answers have none: what is inadmissible in them counts alike
        (
            "MsgRegisterRes",
            NONE + ONE + EVENT + payload("NaN")[1:],
            "event 0: payload is not JSON: JSON is malformed: invalid character (byte 0)",
        ),
        (
            "MsgQueryRes",
            encode_integer(limits.MAX_RECEIVED_EVENTS + 1)
            + NONE * 8 * (limits.MAX_RECEIVED_EVENTS + 1),
            "1000001 events, at most 1000000 are allowed",
        ),
    ],
)
def test_malformed_message(name: str, data: bytes, text: str) -> None:
    name = f"HatEventer.{name}"
    assert malformed(name, data) == f"{name}: {text}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            NONE + NONE + encode_integer(1_000_000) + NONE + NONE,
            "timestamp out of range: s=0 us=1000000"
            " (expected a signed 64-bit s and 0 <= us < 1000000)",
        ),
        (NONE * 3 + payload("NaN")[1:], "payload is not JSON: JSON is malformed: invalid"),
        (
            NONE * 3 + payload('"\\ud800"')[1:],
            "payload is not JSON: Input data was truncated",
        ),
        (
            NONE * 3 + ONE + NONE + encode_integer(-1) + NONE,
            "timestamp out of range: s=0 us=-1",
        ),
        (
            encode_integer(66) + (ONE + b"a") * 66 + NONE * 4,
            "event type has 66 segments, at most 64 are allowed",
        ),
    ],
)
def test_inadmissible_events_of_a_server_are_left_out(content: bytes, reason: str) -> None:
    ids = [bytes((0x80 + 1, 0x80 + 2, 0x80 + i)) for i in range(1, 4)]
    good = NONE * 3 + payload('{"a": 1}')[1:]
    data = encode_integer(3) + ids[0] + good + ids[1] + content + ids[2] + good
    for name, end in (("MsgEventsNotify", b""), ("MsgQueryRes", b"\x01")):
        message: Any = decode(f"HatEventer.{name}", data + end)
        events = message.events if name == "MsgEventsNotify" else message.result.events
        assert [i.id for i in events] == [EventId(1, 2, 1), EventId(1, 2, 3)]
        assert events[0].payload == events[1].payload
        (refused,) = message.refused
        assert refused.id == EventId(1, 2, 2)
        assert refused.reason.startswith(reason)


@pytest.mark.parametrize("text", ["[" * 500 + "]" * 500, "1" * 1_001])
def test_payloads_that_a_server_stored_are_not_bounded_as_registered_ones(text: str) -> None:
    """What it accepted once can be read, by us too."""
    events = ONE + EVENT + payload(text)[1:]
    for name, end in (("MsgEventsNotify", b""), ("MsgQueryRes", b"\x01")):
        message: Any = decode(f"HatEventer.{name}", events + end)
        [event] = message.events if name == "MsgEventsNotify" else message.result.events
        assert bytes(event.payload.data) == text.encode()
        assert not message.refused
    assert isinstance(decode("HatEventer.MsgRegisterReq", register(payload(text))), RefusedReq)


@pytest.mark.parametrize("name", ["MsgInitReq", "HatEventer.Msg", "HatChatter.Ping", "", "x" * 999])
def test_unknown_type_of_message(name: str) -> None:
    assert malformed(name, b"") == f"{name[:100]!r}: not a message of the Eventer protocol"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (
            source_timestamp(0, 1_000_000),
            "event 1: timestamp out of range: s=0 us=1000000"
            " (expected a signed 64-bit s and 0 <= us < 1000000)",
        ),
        (
            source_timestamp(-5, -1),
            "event 1: timestamp out of range: s=-5 us=-1"
            " (expected a signed 64-bit s and 0 <= us < 1000000)",
        ),
        (
            NONE + ONE + NONE + b"\x40\x00\x80" + NONE,  # as many bytes as most have
            "event 1: timestamp out of range: s=0 us=-1048576"
            " (expected a signed 64-bit s and 0 <= us < 1000000)",
        ),
        (payload(""), "event 1: payload is not JSON: Input data was truncated"),
        (payload("[1"), "event 1: payload is not JSON: Input data was truncated"),
        (
            payload("1 2"),
            "event 1: payload is not JSON: JSON is malformed: trailing characters (byte 3)",
        ),
        (
            payload("[NaN]"),
            "event 1: payload is not JSON: JSON is malformed: invalid character (byte 1)",
        ),
        (
            payload('["\\udc00"]'),
            "event 1: payload is not JSON:"
            " JSON is malformed: invalid utf-16 surrogate pair (byte 8)",
        ),
        (payload("[" * 128 + "]" * 128), None),
        (payload("[" * 129 + "]" * 129), "event 1: payload: nested deeper than 128 levels"),
        (payload("[" * 9_999 + "]" * 9_999), "event 1: payload is nested too deeply"),
        (payload("1" * 1_000), None),
        (payload("1" * 1_001), "event 1: payload: a number of more than 1000 digits in a row"),
        (
            encode_integer(66) + NONE * 66 + NONE * 2,
            "event 1: event type has 66 segments, at most 64 are allowed",
        ),
        (ONE + encode_string("*") + NONE * 2, None),  # the engine refuses it
        (encode_integer(65) + NONE * 65 + NONE * 2, None),  # as a query type of 64 and "*"
    ],
)
def test_inadmissible_registration_can_be_answered(event: bytes, reason: str | None) -> None:
    decoded = decode("HatEventer.MsgRegisterReq", register(event))
    if reason is None:
        assert isinstance(decoded, MsgRegisterReq)
    else:
        assert decoded == RefusedReq(MsgRegisterReq, reason)


ZERO: Final = b"\x00"
"""What an Integer that is not negative may begin with, and needs not to."""


def test_needless_zeros_change_nothing() -> None:
    def register_with(zero: bytes, text: str) -> bytes:
        timestamp = zero + encode_integer(5) + zero + encode_integer(6)
        size = zero + encode_integer(len(text))
        content = zero + ONE + timestamp + zero + ONE + zero + ONE + size + text.encode()
        return register(zero + ONE + zero + ONE + b"a" + content)

    name = "HatEventer.MsgRegisterReq"
    decoded = decode(name, register_with(ZERO, "[1]"))
    assert isinstance(decoded, MsgRegisterReq)
    assert decoded == decode(name, register_with(b"", "[1]"))
    # nor what is allowed
    deep = "[" * 129 + "]" * 129
    refused = decode(name, register_with(ZERO, deep))
    assert refused == RefusedReq(MsgRegisterReq, "event 1: payload: nested deeper than 128 levels")


TYPES: Final = encode_integer(limits.MAX_SUBSCRIPTION_TYPES + 1) + NONE * 1_001


@pytest.mark.parametrize(
    ("request_type", "data", "reason"),
    [
        (MsgInitReq, NONE * 2 + TYPES + NONE * 2, "1001 query types, at most 1000 are allowed"),
        (MsgQueryReq, NONE + ONE + TYPES, "1001 query types, at most 1000 are allowed"),
        (
            MsgQueryReq,
            NONE + ONE + ONE + encode_integer(66) + NONE * 66,
            "event type has 66 segments, at most 64 are allowed",
        ),
        (
            MsgQueryReq,
            timeseries(max_results=ONE + b"\xff"),
            "max_results is -1, expected at least 0",
        ),
        (
            MsgQueryReq,
            TWO + ONE + b"\x00" + ONE + b"\xff" + NONE,
            "max_results is -1, expected at least 0",
        ),
        (
            MsgQueryReq,
            timeseries(t_from=ONE + NONE + b"\xff"),
            "timestamp out of range: s=0 us=-1 (expected a signed 64-bit s and 0 <= us < 1000000)",
        ),
        (
            MsgRegisterReq,
            encode_integer(limits.MAX_SESSION_EVENTS + 1) + NONE * 3 * 65_537,
            "65537 events, at most 65536 are allowed",
        ),
    ],
)
def test_inadmissible_request(
    request_type: type[MsgInitReq | MsgRegisterReq | MsgQueryReq], data: bytes, reason: str
) -> None:
    name = codec.type_name(request_type)
    assert decode(name, data) == RefusedReq(request_type, reason)


def test_how_many_events_a_message_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SESSION_EVENTS", 3)
    monkeypatch.setattr(limits, "MAX_RECEIVED_EVENTS", 3)
    for n, is_allowed in ((3, True), (4, False)):
        registration = encode_integer(n) + NONE * 3 * n
        refused = decode("HatEventer.MsgRegisterReq", registration)
        assert isinstance(refused, RefusedReq) is not is_allowed
        events = encode_integer(n) + NONE * 8 * n
        if is_allowed:
            decode("HatEventer.MsgEventsNotify", events)
        else:
            assert malformed("HatEventer.MsgEventsNotify", events).endswith(
                "4 events, at most 3 are allowed"
            )


@pytest.mark.parametrize("message", SAMPLES.values(), ids=SAMPLES)
def test_every_cut_is_noticed(message: Message) -> None:
    name, data = codec.encode(message)
    for size in range(len(data)):
        assert malformed(name, data[:size]).startswith(f"{name}: ")
    is_latest = isinstance(message, MsgQueryReq) and isinstance(message.params, QueryLatestParams)
    if is_latest or isinstance(message, MsgQueryRes):
        reason = f"ends too early, at byte {len(data) + 1}"  # something of ours may follow
    else:
        reason = f"ends at byte {len(data)}, but 1 bytes follow"
    assert malformed(name, data + b"\x80") == f"{name}: {reason}"


MEGABYTES: Final = 4 << 20


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("MsgRegisterReq", HUGE + bytes(MEGABYTES)),
        ("MsgRegisterReq", encode_integer(MEGABYTES // 3) + NONE * MEGABYTES),
        ("MsgRegisterReq", ONE + encode_integer(MEGABYTES) + NONE * (MEGABYTES + 2)),
        ("MsgRegisterReq", register(payload("[" * MEGABYTES))),
        ("MsgRegisterReq", register(payload("1" * MEGABYTES))),
        ("MsgRegisterReq", bytes(MEGABYTES) + NONE),
        ("MsgRegisterReq", register(payload('["' + "\\\\" * (MEGABYTES // 2) + '"' + "[" * 200))),
        ("MsgRegisterReq", b"\x01" * MEGABYTES),
        ("MsgInitReq", NONE * 2 + encode_integer(MEGABYTES) + NONE * (MEGABYTES + 2)),
        ("MsgQueryReq", NONE + ONE + encode_integer(MEGABYTES) + NONE * MEGABYTES),
        ("MsgEventsNotify", encode_integer(MEGABYTES) + NONE * (MEGABYTES * 2)),
    ],
    ids=range(11),
)
def test_megabytes_made_to_be_costly_are_not(name: str, data: bytes) -> None:
    name = f"HatEventer.{name}"
    begin = time.thread_time()
    assert is_refused(name, data)
    assert time.thread_time() - begin < 1  # about 0.1 s at most
    tracemalloc.start()
    try:
        assert is_refused(name, data)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(data)
    finally:
        tracemalloc.stop()


def is_refused(name: str, data: bytes) -> bool:
    try:
        return isinstance(codec.decode(name, data), RefusedReq)
    except InvalidMessageError:
        return True
