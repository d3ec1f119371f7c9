"""Raised alarms: order of what comes, what is no alarm, bounds."""

import pytest

from eventer_bridge.model import BinaryPayload, Event, JsonPayload, Payload
from mariner_console import limits
from mariner_console.view import Alarms
from tests.console.support import event


def alarm(name: str, state: str = "RAISED", s: int = 0) -> Event:
    return event(("alarm", name), JsonPayload.of({"state": state, "value": 9, "limit": 8.5}), s=s)


def names(alarms: Alarms) -> list[str]:
    return [i.type[1] for i in alarms.newest()]


def test_alarms_are_raised_and_cleared() -> None:
    alarms = Alarms()
    alarms.take([alarm("a", s=1), alarm("b", s=2), alarm("c", s=3)])
    alarms.take([alarm("b", "CLEARED", s=4)])
    assert names(alarms) == ["c", "a"]
    assert (alarms.newest()[0].value, alarms.newest()[0].limit) == (9, 8.5)
    alarms.clear()
    assert len(alarms) == 0


def test_what_came_meanwhile_is_newer_than_what_was_there() -> None:
    alarms = Alarms()
    alarms.take([alarm("a", "CLEARED")])
    alarms.take_earlier(alarm("a"))
    alarms.take_earlier(alarm("b"))
    assert names(alarms) == ["b"]


@pytest.mark.parametrize(
    "payload",
    [
        None,
        BinaryPayload("a", b"{}"),
        JsonPayload.of("RAISED"),
        JsonPayload.of({"state": "OTHER"}),
        JsonPayload.of({"state": "RAISED", "value": "<b>"}),
        JsonPayload.of({"state": "RAISED", "more": "x" * limits.MAX_ALARM_BYTES}),
    ],
)
def test_other_events_are_no_alarms(payload: Payload | None) -> None:
    alarms = Alarms()
    alarms.take([event(("alarm", "a"), payload)])
    assert len(alarms) == 0


def test_alarms_are_bounded_and_counted() -> None:
    alarms = Alarms()
    alarms.take(alarm(str(i)) for i in range(limits.MAX_ALARMS + 5))
    assert (len(alarms), alarms.left_out) == (limits.MAX_ALARMS, 5)
