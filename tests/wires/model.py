"""The events that are registered over every wire, and what every wire is to tell of them.

An event is told whole: identifier, type, timestamp, source timestamp and payload, in its place.
Sizes stand on both sides of each bound at which the gateway begins to cut sessions, messages,
answers or pages.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Final, NamedTuple

from eventer_bridge import limits
from eventer_bridge.model import (
    BinaryPayload,
    Event,
    EventId,
    EventType,
    JsonPayload,
    Payload,
    RegisterEvent,
    Timestamp,
)
from tests.eventer_bridge.backends.oracle import matches
from tests.support import hat_events

ROOT: Final[EventType] = ("rsb", "w")
"""First segments of all types: those that the bridge takes from RSB, and sends there: ``/w/``."""

ALL: Final[list[EventType]] = [(*ROOT, "*")]

SOME: Final[list[EventType]] = [(*ROOT, "?", "0"), (*ROOT, "?", "3", "*")]
"""What a subscriber wants that does not want all events of a session."""

FEW_TYPES: Final = 5

MakePayload = Callable[[int], Payload | None]

JSON: Final[list[MakePayload]] = [
    lambda i: JsonPayload.of({"n": i}),
    JsonPayload.of,
    lambda i: JsonPayload.of(f"žluť {i}"),
    lambda i: None,
    lambda i: JsonPayload.of([i, {"n": [None, True]}]),
    lambda i: JsonPayload.of(i + 0.5),
]
MIXED: Final[list[MakePayload]] = [
    *JSON,
    lambda i: BinaryPayload(f"t{i % 3}", i.to_bytes(4, "big")),
]
"""With binary ones, which are not packed."""


class Case(NamedTuple):
    """What one client registers, after the first request without waiting for an answer in between.

    Attributes:
        name: of the case, a segment of all of its types.
        sessions: the events of each request.
    """

    name: str
    sessions: Sequence[Sequence[RegisterEvent]]

    @property
    def n_events(self) -> int:
        """Of all sessions."""
        return sum(map(len, self.sessions))


def events(
    name: str, n: int, *, n_types: int = FEW_TYPES, payloads: Sequence[MakePayload] = JSON
) -> list[RegisterEvent]:
    """So many events of so many types, no two of which are the same."""
    return [
        RegisterEvent(
            (*ROOT, name, str(i % n_types)), source_timestamp(i), payloads[i % len(payloads)](i)
        )
        for i in range(n)
    ]


def source_timestamp(i: int) -> Timestamp | None:
    """Not in order; some have none, no two others are the same."""
    return None if i % 5 == 4 else Timestamp(1_000_000 + i * 7_919 % 4_096, i)


def with_bytes(name: str, n_events: int, n_bytes: int) -> list[RegisterEvent]:
    """Events with so many bytes of payload together, of which the last has what is left over."""
    size = n_bytes // n_events
    sizes = [*[size] * (n_events - 1), n_bytes - size * (n_events - 1)]
    payloads = [JsonPayload.of(f"{i}:".ljust(size - 2, "x")) for i, size in enumerate(sizes)]
    assert sum(len(i.data) for i in payloads) == n_bytes
    return events(name, n_events, payloads=[payloads.__getitem__])


def after_types(name: str, asked: Sequence[RegisterEvent]) -> Case:
    """A case whose types are known, so that it is packed where it can be."""
    types = dict.fromkeys(event.type for event in asked)
    return Case(name, [[RegisterEvent(i, None, None) for i in types], [*asked]])


class Expected:
    """What is to be told of sessions.

    Args:
        sessions: their events.
        of_rsb: what RSB participants get; None: what the bridge makes of the events.
    """

    def __init__(
        self, sessions: Iterable[Iterable[Event]], of_rsb: Sequence[Any] | None = None
    ) -> None:
        self.sessions = [[*i] for i in sessions]
        self._of_rsb = of_rsb
        self.events = [*chain.from_iterable(self.sessions)]

    @classmethod
    def of(cls, case: Case, answers: Sequence[Sequence[Any]]) -> "Expected":
        """Of a case, by the answers to its requests.

        From an answer is taken which session it is, and when: the first event tells. All the rest
        is as it was asked for. Sessions rise, and their times do not fall.
        """
        firsts = [answer[0] for answer in answers]
        assert all(i.id.instance == 1 for i in firsts), firsts
        sessions = [i.id.session for i in firsts]
        assert sessions == sorted(set(sessions))
        times = [Timestamp(i.timestamp.s, i.timestamp.us) for i in firsts]
        assert times == sorted(times)
        return cls(
            [
                Event(
                    EventId(first.id.server, session, n),
                    i.type,
                    time,
                    i.source_timestamp,
                    i.payload,
                )
                for n, i in enumerate(asked, 1)
            ]
            for asked, first, session, time in zip(
                case.sessions, firsts, sessions, times, strict=True
            )
        )

    def wanted(self, patterns: Sequence[EventType]) -> "Expected":
        """What a subscriber of these types is told."""
        if patterns == ALL:
            return self
        if patterns == SOME:
            return self._some
        raise ValueError(patterns)

    @cached_property
    def _some(self) -> "Expected":
        known: dict[EventType, bool] = {}
        for event in self.events:
            if event.type not in known:
                known[event.type] = matches(SOME, event.type)
        some = [[event for event in i if known[event.type]] for i in self.sessions]
        return Expected(i for i in some if i)

    @cached_property
    def of_hat(self) -> list[Any]:
        """The events as hat-event's own client gives them."""
        return [*map(hat_events.event, self.events)]

    @cached_property
    def as_read_by_hat(self) -> "Expected":
        """The same, with the JSON of its payloads written anew."""
        return Expected([map(hat_events.event_of, self.of_hat)])

    @cached_property
    def of_rsb(self) -> Sequence[Any]:
        """The events as RSB participants get them (:func:`rsb_form`)."""
        return [*map(rsb_form, self.events)] if self._of_rsb is None else self._of_rsb


def rsb_form(event: Event) -> tuple[str, str, bytes, int]:
    """Scope, schema, data and create time of an event that was not registered over RSB."""
    scope = "".join(f"/{i}" for i in event.type[1:]) + "/"
    moment = event.source_timestamp or event.timestamp
    return scope, *_rsb_data(event.payload), moment.s * 1_000_000 + moment.us


def _rsb_data(payload: Payload | None) -> tuple[str, bytes]:
    if payload is None:
        return "void", b""
    if isinstance(payload, BinaryPayload):
        return payload.data_type, payload.data
    value = payload.value()
    if isinstance(value, str):
        return "utf-8-string", value.encode()
    if isinstance(value, int):
        return "int64", value.to_bytes(8, "little", signed=True)
    if isinstance(value, float):
        return "double", struct.pack("<d", value)
    return "utf-8-string", bytes(payload.data)


def difference(found: Sequence[Any], expected: Sequence[Any]) -> str:
    """Where two lists differ, in few words; empty: nowhere."""
    if found == expected:
        return ""
    pairs = enumerate(zip(found, expected, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(found), len(expected)))
    at = [repr(i[first])[:500] if first < len(i) else "nothing" for i in (found, expected)]
    return f"{len(found)} of {len(expected)}, [{first}] is {at[0]}, not {at[1]}"


# --- the cases ----------------------------------------------------------------------------

MakeCase = Callable[[str], Case]
"""A case of this name, whose types nobody else has."""

_LARGE: Final = limits.LARGE_SESSION_EVENTS
_BYTES: Final = limits.LARGE_SESSION_BYTES
_TYPES: Final = limits.MANY_NEW_TYPES


def _sized(n: int, payloads: Sequence[MakePayload] = JSON) -> MakeCase:
    return lambda name: after_types(name, events(name, n, payloads=payloads))


def _bytes(n_events: int, n_bytes: int) -> MakeCase:
    return lambda name: after_types(name, with_bytes(name, n_events, n_bytes))


def _new_types(n: int, n_types: int) -> MakeCase:
    return lambda name: Case(name, [events(name, n, n_types=n_types)])


def _sessions(*sizes: int) -> MakeCase:
    return lambda name: Case(name, [events(name, n) for n in sizes])


SMALL: Final[dict[str, MakeCase]] = {
    **{f"{n} events": _sized(n) for n in (1, 2, 255, 256, 257, 1_024, 1_025, _LARGE - 1, _LARGE)},
    "some binary": _sized(300, MIXED),
    "fewer bytes": _bytes(3, _BYTES - 1),
    "bytes": _bytes(40, _BYTES),
    "new types": _new_types(_TYPES + 1, _TYPES),
    # more than are gathered at a time
    "together": _sessions(3, *[1, 2, 3, 1] * 40),
}
"""Sessions that are dealt with at once, which may be packed."""

LARGE: Final[dict[str, MakeCase]] = {
    **{f"{n} events": _sized(n) for n in (_LARGE + 1, limits.MAX_RESULTS + 1)},
    "many, some binary": _sized(_LARGE + 2, MIXED),
    "more bytes": _bytes(3, _BYTES + 1),
    "3 times the bytes": _bytes(700, 3 * _BYTES),
    "more new types": _new_types(2 * _TYPES, _TYPES + 1),
    "small ones around": _sessions(2, 2, 2, _LARGE + 1, 3, 3, 1),
}
"""Sessions that are dealt with in slices, and small ones that come with them."""

LARGEST: Final[dict[str, MakeCase]] = {
    "65536 events": _sized(limits.MAX_SESSION_EVENTS),
    # more than one answer holds
    "18 MiB": lambda name: Case(name, [with_bytes(name, 5, 9 << 20)] * 2),
}
"""The largest that there are."""
