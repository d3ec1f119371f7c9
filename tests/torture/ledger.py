"""What clients were told, and whether a store agrees with it.

Every request that is sent is numbered, and each of its events says which request it is of
and how many events that has. So whatever is found stored can be judged by itself; and it is
compared with what was acknowledged, and with every id that anybody has seen.
"""

import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from eventer_bridge import limits
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    JsonPayload,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
    natural_key,
)
from mariner.client.client import Client

SERVER_ID: Final = 1
TYPES: Final = 20
LARGE_EVENTS: Final = limits.LARGE_SESSION_EVENTS + 1_000
"""Events of a large request, which is written in several parts."""

OURS: Final = ("torture", "*")


class ViolationError(AssertionError):
    """Something that must not happen, happened."""


class Entry(NamedTuple):
    """What the payload of an event says.

    Attributes:
        request: number of the request.
        position: which of its events.
        n_events: how many it has.
    """

    request: int
    position: int
    n_events: int


def entry_of(event: Event | RegisterEvent) -> Entry:
    """What the payload says."""
    assert isinstance(event.payload, JsonPayload)
    value: dict[str, Any] = event.payload.value()
    return Entry(value["request"], value["index"], value["of"])


class Ledger:
    """See the module.

    Args:
        padding_bytes: of each event, besides what it says.
        large_every: each so many requests one is large; 0: none is.

    Attributes:
        sent: events of each request that was sent, by its number.
        acknowledged: acknowledged events, by id.
    """

    def __init__(self, padding_bytes: int = 0, *, large_every: int = 0) -> None:
        self.sent: dict[int, Sequence[RegisterEvent]] = {}
        self.acknowledged: dict[EventId, Event] = {}
        self._refused: set[int] = set()
        self._seen: dict[EventId, Entry] = {}
        self._padding = "x" * padding_bytes
        self._large_every = large_every

    @property
    def greatest_seen(self) -> int:
        """The greatest session id that anybody has seen; 0 before."""
        return max((i.session for i in self._seen), default=0)

    def request(self) -> list[RegisterEvent]:
        """The next request."""
        number = len(self.sent) + 1
        n_events = 1 + number % 4
        if self._large_every and number % self._large_every == 0:
            n_events = LARGE_EVENTS
        events = [
            RegisterEvent(
                ("torture", str((number + index) % TYPES)),
                Timestamp(-number, index) if (number + index) % 3 else None,
                JsonPayload.of(self._payload(number, index, n_events)),
            )
            for index in range(n_events)
        ]
        self.sent[number] = events
        return events

    def _payload(self, number: int, index: int, n_events: int) -> dict[str, Any]:
        # the mark stands at both ends: in the log, one of them may be cut in two by a block
        mark = f"<{number}.{index}>"
        return {
            "mark": mark,
            "request": number,
            "index": index,
            "of": n_events,
            "x": self._padding,
            "end": mark,
        }

    def saw(self, events: Iterable[Event]) -> None:
        """Somebody was told of these: as registered, stored, or acknowledged.

        Raises:
            ViolationError: an id was seen for another event before.
        """
        for event in events:
            entry = entry_of(event)
            if self._seen.setdefault(event.id, entry) != entry:
                raise ViolationError(f"{event.id} was given again: {entry}, {self._seen[event.id]}")

    def acknowledge(self, events: Sequence[Event]) -> None:
        """Somebody was told that these are stored."""
        self.saw(events)
        self.acknowledged.update({event.id: event for event in events})

    def refuse(self, request: Sequence[RegisterEvent]) -> None:
        """Somebody was told that it is not stored, and never will be."""
        self._refused.add(entry_of(request[0]).request)

    def check(self, stored: Sequence[Event]) -> None:
        """Compare with everything that is stored, in the order of ids.

        Raises:
            ViolationError: something was lost, came twice or in part, is not as it was sent, or
                was refused.
        """
        self.saw(stored)
        by_id = {event.id: event for event in stored}
        ids = list(by_id)
        if ids != sorted(ids) or len(ids) != len(stored):
            raise ViolationError("ids do not rise strictly")
        if natural := next(_disordered(stored), None):
            raise ViolationError(f"timestamps go back at {natural.id}")
        for event_id, event in self.acknowledged.items():
            if by_id.get(event_id) != event:
                raise ViolationError(f"acknowledged, but not stored: {event_id}")
        requests: dict[int, list[Event]] = {}
        for event in stored:
            requests.setdefault(entry_of(event).request, []).append(event)
        for number, events in requests.items():
            if number in self._refused:
                raise ViolationError(f"request {number} was refused, and is stored")
            if len({(i.id.session, i.timestamp) for i in events}) != 1:
                raise ViolationError(f"request {number} was stored twice, or is in two sessions")
            if [_content(i) for i in events] != [_content(i) for i in self.sent[number]]:
                raise ViolationError(
                    f"request {number} is not as it was sent: {len(events)} events"
                )


def _disordered(events: Sequence[Event]) -> Iterator[Event]:
    return (b for a, b in itertools.pairwise(events) if b.timestamp < a.timestamp)


def _content(event: Event | RegisterEvent) -> tuple[EventType, Timestamp | None, Any]:
    assert isinstance(event.payload, JsonPayload)
    # a server of another make writes the same value as another text
    return event.type, event.source_timestamp, event.payload.value()


async def read_store(client: Client) -> list[Event]:
    """Everything that is stored, after all kinds of queries were found to agree on it.

    Raises:
        ViolationError: they do not.
    """
    server = QueryServerParams(SERVER_ID, persisted=True)
    stored = [i async for i in client.query_all(server) if i.type[0] == OURS[0]]
    by_time = await _all(client.query_all(QueryTimeseriesParams([OURS], order=Order.ASCENDING)))
    _compare("timestamp", by_time, sorted(stored, key=natural_key))
    params = QueryTimeseriesParams([OURS], order=Order.ASCENDING, order_by=OrderBy.SOURCE_TIMESTAMP)
    _compare("source timestamp", await _all(client.query_all(params)), _by_source(stored))
    some = [("torture", str(i)) for i in range(3)]
    found = await _all(client.query_all(QueryTimeseriesParams(some, order=Order.ASCENDING)))
    _compare("type", found, [i for i in by_time if i.type in some])
    latest = await _all(client.query_all(QueryLatestParams([OURS])))
    expected = {i.type: i for i in by_time}
    _compare("latest", sorted(latest, key=natural_key), sorted(expected.values(), key=natural_key))
    return stored


async def _all(events: AsyncIterator[Event]) -> list[Event]:
    return [i async for i in events]


def _by_source(events: Iterable[Event]) -> list[Event]:
    ordered = sorted(events, key=natural_key)
    return [
        *sorted(
            (i for i in ordered if i.source_timestamp is not None),
            key=lambda i: i.source_timestamp or Timestamp(0, 0),
        ),
        *(i for i in ordered if i.source_timestamp is None),
    ]


def _compare(what: str, found: Sequence[Event], expected: Sequence[Event]) -> None:
    if list(found) != list(expected):
        raise ViolationError(
            f"by {what}: {len(found)} events, by id {len(expected)}, or in another order"
        )
