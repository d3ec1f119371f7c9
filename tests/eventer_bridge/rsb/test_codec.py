"""Frames and notifications: against plain ``protobuf``, cut anywhere, and broken."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventer_bridge.errors import (
    FrameError,
    InvalidEventError,
    InvalidMessageError,
    RemoteProtocolError,
)
from eventer_bridge.rsb import codec, limits
from eventer_bridge.rsb.event import MetaData, RsbEvent, RsbEventId, Scope
from tests.eventer_bridge.rsb.oracle import Notification
from tests.eventer_bridge.rsb.samples import events, sample

EVENT = sample(378)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def as_oracle(event: RsbEvent) -> Any:
    """The notification that plain protobuf makes of an event."""
    meta = event.meta
    times = ("create_time", "send_time", "receive_time", "deliver_time")
    optional: dict[str, Any] = {}
    if event.schema:
        optional["wire_schema"] = _bytes(event.schema)
    if event.method is not None:
        optional["method"] = _bytes(event.method)
    meta_data: dict[str, Any] = {
        name: getattr(meta, name) for name in times if getattr(meta, name) is not None
    }
    if meta.user_times:
        meta_data["user_times"] = [
            {"key": _bytes(key), "timestamp": value} for key, value in meta.user_times.items()
        ]
    if meta.user_infos:
        meta_data["user_infos"] = [
            {"key": _bytes(key), "value": _bytes(value)} for key, value in meta.user_infos.items()
        ]
    if meta_data:
        optional["meta_data"] = meta_data
    return Notification(
        scope=str(event.scope).encode(),
        data=event.data,
        causes=[_oracle_id(cause) for cause in event.causes],
        event_id=_oracle_id(event.event_id),
        **optional,
    )


def _oracle_id(event_id: RsbEventId) -> dict[str, Any]:
    return {"sender_id": event_id.sender.bytes, "sequence_number": event_id.sequence}


def test_a_frame_byte_for_byte() -> None:
    sender = bytes(range(16))
    event = RsbEvent(RsbEventId(UUID(bytes=sender), 300), Scope(("a",)), "bool", b"\x01", "GET")
    fields = [  # tag (number << 3 | wire type), size, content
        b"\x32\x03/a/",
        b"\x3a\x04bool",
        b"\x4a\x01\x01",
        b"\x72\x03GET",
        b"\xe2\x06\x15\x0a\x10" + sender + b"\x10\xac\x02",
    ]
    notification = b"".join(fields)
    assert codec.encode(event) == notification
    assert codec.encode_frame(notification) == b"\x2b\x00\x00\x00" + notification
    assert len(notification) == 0x2B
    assert codec.decode(notification) == event


@given(events())
@example(EVENT)
def test_ours_and_plain_protobuf_understand_each_other(event: RsbEvent) -> None:
    encoded = codec.encode(event)
    assert Notification.FromString(encoded) == as_oracle(event)
    assert codec.decode(as_oracle(event).SerializeToString()) == event
    assert codec.decode(encoded) == event


@given(st.lists(events(), max_size=4), st.data())
def test_a_stream_can_be_cut_anywhere(sent: list[RsbEvent], data: st.DataObject) -> None:
    stream = b"".join(codec.encode_frame(codec.encode(event)) for event in sent)
    decoder = codec.NotificationDecoder()
    came = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        decoder.feed(stream[:size])
        stream = stream[size:]
        while (frame := decoder.next_frame()) is not None:
            came.append(codec.decode(frame))
    assert came == sent
    assert decoder.buffered_bytes == 0


def test_byte_by_byte() -> None:
    decoder = codec.NotificationDecoder()
    frame = codec.encode_frame(codec.encode(EVENT))
    for count, byte in enumerate(frame[:-1], 1):
        decoder.feed(bytes([byte]))
        assert decoder.next_frame() is None
        assert decoder.buffered_bytes == count
    decoder.feed(frame[-1:] + frame[:2])
    assert decoder.next_frame() == codec.encode(EVENT)
    assert decoder.next_frame() is None
    assert decoder.buffered_bytes == 2


def test_a_frame_is_bounded_before_it_comes() -> None:
    decoder = codec.NotificationDecoder()
    decoder.feed((limits.MAX_NOTIFICATION_BYTES + 1).to_bytes(4, "little"))
    with pytest.raises(FrameError, match="frame of 16777217 bytes announced, at most 16777216"):
        decoder.next_frame()
    with pytest.raises(InvalidEventError, match="notification of 16777217 bytes"):
        codec.encode_frame(bytes(limits.MAX_NOTIFICATION_BYTES + 1))


def test_the_largest_frame_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_NOTIFICATION_BYTES", 5)
    frame = codec.encode_frame(b"12345")
    decoder = codec.NotificationDecoder(5)
    decoder.feed(frame)
    assert decoder.next_frame() == b"12345"
    smaller = codec.NotificationDecoder(4)
    smaller.feed(frame)
    with pytest.raises(FrameError, match=r"^frame of 5 bytes announced, at most 4 are allowed$"):
        smaller.next_frame()


def test_what_is_left_out_is_none() -> None:
    message = Notification(scope=b"/", event_id=_oracle_id(EVENT.event_id))
    event = codec.decode(message.SerializeToString())
    assert event == RsbEvent(EVENT.event_id, Scope(()), schema="", data=b"", method=None)
    assert event.meta == MetaData()


def test_an_unknown_field_does_no_harm() -> None:
    # number 99: a varint, a string, a group
    for field in (b"\x98\x06\x2a", b"\x9a\x06\x02hi", b"\x9b\x06\x08\x01\x9c\x06"):
        assert codec.decode(field + codec.encode(EVENT) + field) == EVENT


def _oracle(**changes: Any) -> bytes:
    message = as_oracle(EVENT)
    for name, value in changes.items():
        if value is None:
            message.ClearField(name)
        else:
            setattr(message, name, value)
    return bytes(message.SerializePartialToString())


def _many(field: str, count: int = limits.MAX_NOTIFICATION_ITEMS + 1) -> bytes:
    message = Notification()
    message.CopyFrom(as_oracle(EVENT))
    if field == "causes":
        message.causes.extend([message.event_id] * count)
        del message.causes[:2]
    else:
        items = getattr(message.meta_data, field)
        items.extend([items[0]] * count)
        del items[:2]
    return bytes(message.SerializeToString())


def _short_id() -> bytes:
    message = as_oracle(EVENT)
    message.event_id.sender_id = b"short"
    return bytes(message.SerializeToString())


def _short_cause() -> bytes:
    message = as_oracle(EVENT)
    message.causes[-1].sender_id = b"short"
    return bytes(message.SerializeToString())


def _empty_id() -> bytes:
    message = as_oracle(EVENT)
    message.event_id.Clear()
    return bytes(message.SerializePartialToString())


@pytest.mark.parametrize(
    ("notification", "reason"),
    [
        (b"", "event_id: missing"),
        (_empty_id(), ".sender_id, event_id.sequence_number: missing"),
        (_oracle(event_id=None), "event_id: missing"),
        (b"\xff", "not in the form of protocol buffers"),
        (codec.encode(EVENT)[:-1], "not in the form of protocol buffers"),
        (_oracle(scope=None), "scope ''"),
        (_oracle(scope=b"/a"), "scope '/a': expected"),
        (_oracle(scope=b"/\xff/"), "expected '/', or '/a/b/' of letters"),
        (_oracle(scope=b"/" * 2000), "scope has 2000 characters"),
        (_short_id(), "event_id.sender_id: 5 bytes, expected 16"),
        (_short_cause(), "notification: causes.sender_id: 5 bytes, expected 16"),
        (_many("causes"), "causes: 1025 items, at most 1024"),
        (_many("user_times"), "user_times: 1025 items"),
        (_many("user_infos"), "user_infos: 1025 items"),
        (b"\x9b\x06" * 5000, "not in the form of protocol buffers"),  # nested without end
    ],
)
def test_broken_notifications(notification: bytes, reason: str) -> None:
    with pytest.raises(InvalidMessageError) as raised:
        codec.decode(notification)
    assert reason in str(raised.value)
    assert str(raised.value).startswith("notification: ")


@pytest.mark.parametrize("field", ["causes", "user_times", "user_infos"])
def test_as_many_items_as_are_allowed(field: str) -> None:
    event = codec.decode(_many(field, limits.MAX_NOTIFICATION_ITEMS))
    items = event.causes if field == "causes" else getattr(event.meta, field)
    assert len(items) == (limits.MAX_NOTIFICATION_ITEMS if field == "causes" else 1)


@given(st.binary(max_size=60), st.integers(0, 100), st.binary(max_size=3))
def test_whatever_comes_is_decoded_or_refused(junk: bytes, place: int, patch: bytes) -> None:
    encoded = codec.encode(EVENT)
    for data in (junk, encoded[:place] + patch + encoded[place + len(patch) :]):
        try:
            event = codec.decode(data)
        except RemoteProtocolError:
            continue
        assert codec.decode(codec.encode(event)) == event
