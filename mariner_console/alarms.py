"""Alarms of the module ``threshold``: those that are raised."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from eventer_bridge.model import Event, EventType, JsonPayload, Timestamp
from mariner_console import limits


class _Content(msgspec.Struct):
    state: Literal["RAISED", "CLEARED"]
    value: float | int | None = None
    limit: float | int | None = None


class Alarm(NamedTuple):
    """A raised alarm."""

    type: EventType
    since: Timestamp
    value: float | None
    limit: float | None


class Alarms:
    """The raised alarms of a gateway, as far as they fit.

    Attributes:
        left_out: events of alarms that were raised and did not fit.
    """

    def __init__(self) -> None:
        self._raised: dict[EventType, Alarm] = {}
        self._heard_of: set[EventType] = set()
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._raised)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._raised.clear()
        self._heard_of.clear()
        self.left_out = 0

    def take(self, events: Iterable[Event]) -> None:
        """Take on events as they come; those that are no alarms are ignored."""
        for event in events:
            if len(self._heard_of) < limits.MAX_ALARMS:
                self._heard_of.add(event.type)
            self._take(event)

    def take_earlier(self, event: Event) -> None:
        """Take on an event that was there before; what came meanwhile is newer."""
        if event.type not in self._heard_of:
            self._take(event)

    def _take(self, event: Event) -> None:
        content = _content(event)
        if content is None:
            return
        if content.state == "CLEARED":
            self._raised.pop(event.type, None)
        elif event.type in self._raised or len(self._raised) < limits.MAX_ALARMS:
            alarm = Alarm(event.type, event.timestamp, content.value, content.limit)
            self._raised[event.type] = alarm
        else:
            self.left_out += 1

    def newest(self) -> list[Alarm]:
        """All of them, the newest first."""
        return sorted(self._raised.values(), key=lambda i: i.since, reverse=True)


def _content(event: Event) -> _Content | None:
    payload = event.payload
    if not isinstance(payload, JsonPayload):
        return None
    if len(memoryview(payload.data)) > limits.MAX_ALARM_BYTES:
        return None
    try:
        return msgspec.json.decode(payload.data, type=_Content)
    except (msgspec.DecodeError, UnicodeError):
        return None
