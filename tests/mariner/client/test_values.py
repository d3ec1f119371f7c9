"""What people write becomes what is sent: values, types, and the texts of errors."""

from datetime import UTC, datetime
from typing import Any, Final

import pytest

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import (
    BinaryPayload,
    EventId,
    EventType,
    JsonPayload,
    Order,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
)
from mariner.client import event, latest, timeseries
from mariner.client.values import Asked, asked, event_types_of, events_of, query_of
from mariner.errors import RemoteProtocolError

MOMENT: Final = datetime(2027, 1, 15, 8, tzinfo=UTC)
STAMP: Final = Timestamp(1_800_000_000, 0)
NAIVE: Final = MOMENT.replace(tzinfo=None)
NO_ZONE: Final = (
    "2027-01-15T08:00:00 has no time zone: expected a datetime with one, such as"
    " datetime.now(UTC) or moment.astimezone()"
)
NO_TYPE: Final = "expected a text such as 'lamp/*', or a tuple of segments, got"


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("lamp/1", ("lamp", "1")),
        (("lamp", "1"), ("lamp", "1")),
        (["lamp", "1"], ("lamp", "1")),
        ('["a/b","*"]', ("a/b", "*")),
        ((), ()),
    ],
)
def test_event_types(written: Any, sent: EventType) -> None:
    assert event_types_of([written], "types") == (sent,)
    assert event(written).type == sent


def test_a_text_is_one_event_type() -> None:
    assert event_types_of("lamp/*", "subscriptions") == (("lamp", "*"),)
    assert query_of(QueryLatestParams("lamp/*")) == QueryLatestParams((("lamp", "*"),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (5, f"types[0]: {NO_TYPE} 5"),
        (("a", 5), f"types[0]: {NO_TYPE} ('a', 5)"),
        ({"a": 1}, f"types[0]: {NO_TYPE} {{'a': 1}}"),
        ("", "types[0]: an empty event type is written as []"),
        (
            "[5]",
            "types[0]: expected a JSON array of strings: Expected `str`, got `int` - at `$[0]`",
        ),
    ],
)
def test_no_event_types(written: Any, text: str) -> None:
    with pytest.raises(InvalidEventError) as e:
        event_types_of([written], "types")
    assert str(e.value) == text


def test_events() -> None:
    on = JsonPayload.of({"on": True})
    assert event("lamp/1", {"on": True}) == RegisterEvent(("lamp", "1"), None, on)
    assert event("a", on, source_timestamp=MOMENT) == RegisterEvent(("a",), STAMP, on)
    assert event("a", source_timestamp=STAMP) == RegisterEvent(("a",), STAMP, None)
    assert event("a", JsonPayload.of(None)).payload == JsonPayload.of(None)
    assert event("a", False).payload == JsonPayload.of(False)
    binary = BinaryPayload("t", b"\x00")
    assert event("a", binary).payload is binary


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"payload": b"\x00"},
            "payload: bytes have no JSON form, expected BinaryPayload(data_type, data)",
        ),
        (
            {"payload": {"a": float("nan")}},
            "payload['a']: nan has no JSON form, expected a finite number",
        ),
        ({"source_timestamp": NAIVE}, f"source_timestamp: {NO_ZONE}"),
        (
            {"source_timestamp": 1.5},
            "source_timestamp: expected a Timestamp or a datetime with a time zone, got 1.5",
        ),
    ],
)
def test_no_events(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidEventError) as e:
        event("a", **arguments)
    assert str(e.value) == text


def test_a_payload_without_a_json_form() -> None:
    with pytest.raises(TypeError, match=r"^Encoding objects of type object is unsupported$"):
        event("a", object())


def test_events_as_they_are_made() -> None:
    sent = event("lamp/1", 5, source_timestamp=STAMP)
    loose: Any = RegisterEvent
    assert events_of([sent, loose("lamp/1", MOMENT, 5)]) == (sent, sent)
    assert events_of([sent])[0] is sent
    with pytest.raises(InvalidEventError) as e:
        events_of([sent, loose("a", NAIVE, None)])
    assert str(e.value) == f"events[1]: source_timestamp: {NO_ZONE}"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((event("a"), None, None, None), "events: expected a list of RegisterEvent, got one"),
        (
            ([("a", 5)], None, None, None),
            "events[0]: expected a RegisterEvent, as of mariner.event('lamp/1', 5), got ('a', 5)",
        ),
        (([event("a")], {"on": True}, None, None), "payload: expected with an event type only"),
        (([event("a")], "on", "key", None), "payload: expected with an event type only"),
        (
            ([event("a")], None, None, MOMENT),
            "source_timestamp: expected with an event type only",
        ),
    ],
)
def test_calls_that_mean_nothing(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(TypeError) as e:
        asked(*arguments)
    assert str(e.value) == text


def test_calls() -> None:
    one = event("a", "on")
    assert asked("a", "on", "key", None) == Asked((one,), "key", True)
    dated = event("a", "on", source_timestamp=STAMP)
    assert asked(("a",), "on", None, STAMP) == Asked((dated,), None, True)
    assert asked([one], "key", None, None) == Asked((one,), "key", False)
    assert asked([one], None, "key", None) == Asked((one,), "key", False)
    assert asked([], None, None, None) == Asked((), None, False)


def test_answers() -> None:
    many, one = Asked((), None, False), Asked((), None, True)
    assert many.answer([]) == []
    found: Any = object()
    assert one.answer([found]) is found
    with pytest.raises(RemoteProtocolError, match=r"^register_res: expected one event, got 0$"):
        one.answer([])


def test_queries() -> None:
    at = EventId(1, 2, 3)
    assert latest("a/*", ("b",)) == QueryLatestParams((("a", "*"), ("b",)))
    assert latest(last_event_id=at) == QueryLatestParams(None, at)
    assert timeseries() == QueryTimeseriesParams()
    assert timeseries(
        "a", t_from=MOMENT, t_to=STAMP, source_t_from=STAMP, source_t_to=MOMENT,
        order=Order.ASCENDING, max_results=5, last_event_id=at,
    ) == QueryTimeseriesParams(
        (("a",),), STAMP, STAMP, STAMP, STAMP, Order.ASCENDING, max_results=5, last_event_id=at
    )  # fmt: skip
    for name in ("t_from", "t_to", "source_t_from", "source_t_to"):
        wrong: Any = {name: NAIVE}
        for ask in (timeseries, lambda **i: query_of(QueryTimeseriesParams(**i))):
            with pytest.raises(InvalidEventError) as e:
                ask(**wrong)
            assert str(e.value) == f"{name}: {NO_ZONE}"


def test_queries_as_they_are_made() -> None:
    loose: Any = QueryTimeseriesParams
    times = (MOMENT, MOMENT, MOMENT, MOMENT)
    on = JsonPayload.of({"on": True})
    sent = QueryTimeseriesParams((("a", "*"),), STAMP, STAMP, STAMP, STAMP, payload=on)
    assert query_of(loose(["a/*"], *times, payload={"on": True})) == sent
    assert query_of(sent) == sent
    assert query_of(QueryServerParams(1)) == QueryServerParams(1)
