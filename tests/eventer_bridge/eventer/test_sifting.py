"""What a server takes of the events that another server tells it of."""

from collections.abc import Sequence

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.eventer.client import sift
from eventer_bridge.eventer.messages import MsgEventsAck, MsgEventsNotify, MsgQueryRes, RefusedEvent
from eventer_bridge.model import (
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    Payload,
    QueryResult,
    Timestamp,
)
from eventer_bridge.slices import at_once

MAX_PAYLOAD_BYTES = 10_000

GOOD = (
    None,
    JsonPayload.of(1),
    JsonPayload(msgspec.Raw(b"[" * 128 + b"]" * 128)),
    JsonPayload(msgspec.Raw(b"1" * 1_000)),
    JsonPayload(msgspec.Raw(b'"' + b"a" * (MAX_PAYLOAD_BYTES - 2) + b'"')),
    BinaryPayload("é", bytes(MAX_PAYLOAD_BYTES - 2)),
    BinaryPayload("\udcff", b""),
)

BAD = (
    (JsonPayload(msgspec.Raw(b"[" * 129 + b"]" * 129)), "payload: nested deeper than 128 levels"),
    (
        JsonPayload(msgspec.Raw(b"1" * 1_001)),
        "payload: a number of more than 1000 digits in a row",
    ),
    (
        JsonPayload(msgspec.Raw(b'"' + b"a" * (MAX_PAYLOAD_BYTES - 1) + b'"')),
        "payload has 10001 bytes, at most 10000 are allowed",
    ),
    (
        BinaryPayload("é", bytes(MAX_PAYLOAD_BYTES - 1)),
        "payload has 10001 bytes, at most 10000 are allowed",
    ),
    (
        BinaryPayload("a" * 10_001, b""),
        "payload has 10001 bytes, at most 10000 are allowed",
    ),
)


@pytest.fixture(autouse=True)
def small_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PAYLOAD_BYTES", MAX_PAYLOAD_BYTES)


def events_of(payloads: Sequence[Payload | None]) -> list[Event]:
    return [
        Event(EventId(1, 2, instance), ("a",), Timestamp(3, 0), None, payload)
        for instance, payload in enumerate(payloads, 1)
    ]


def test_what_may_be_registered_is_taken() -> None:
    events = events_of(GOOD * 100)
    notification = MsgEventsNotify(events)
    assert at_once(sift(notification)) == notification
    answer = MsgQueryRes(QueryResult(events, True))
    assert at_once(sift(answer)) == answer
    assert at_once(sift(MsgEventsAck())) == MsgEventsAck()


@pytest.mark.parametrize(("payload", "reason"), BAD)
def test_what_may_not_is_left_out(payload: Payload, reason: str) -> None:
    events = events_of([*GOOD, payload, *GOOD])
    bad = events[len(GOOD)]
    kept = [event for event in events if event is not bad]
    refused = [RefusedEvent(bad.id, reason, len(GOOD))]
    assert at_once(sift(MsgEventsNotify(events))) == MsgEventsNotify(kept, refused)
    answer = MsgQueryRes(QueryResult(events, True))
    assert at_once(sift(answer)) == MsgQueryRes(QueryResult(kept, True), refused)


def test_what_is_left_out_is_told_in_the_order_of_the_message() -> None:
    good, bad = GOOD[1], BAD[0][0]
    events = events_of([bad, good, bad])
    unreadable = [RefusedEvent(EventId(1, 1, i), "unreadable", i) for i in (0, 1, 3)]
    message = at_once(sift(MsgEventsNotify(events, unreadable)))
    assert isinstance(message, MsgEventsNotify)
    assert message.events == [events[1]]
    assert [i.id for i in message.refused] == [
        unreadable[0].id,
        events[0].id,
        unreadable[1].id,
        events[2].id,
        unreadable[2].id,
    ]
