"""Events of one server on a gateway, found by queries that each cost next to nothing.

Ids of a server's events ascend, and only persisted events are queried: later events have greater
ids, and the events up to an id stay the same until retention deletes them. The ids have gaps
(failed sessions, ids reserved before a crash, events that this client may not see), so they count
nothing.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from eventer_bridge.model import (
    INT64_MAX,
    EventId,
    EventType,
    QueryServerParams,
    Timestamp,
)
from mariner_spark.errors import SourceError
from mariner_spark.source.gateway import GatewayClient

ENGINE_TYPE: Final[EventType] = ("event", "?", "engine")
"""Type of the event that every server registers at its start (``event/<server id>/engine``). The
latest event of a type is never deleted."""

ANY_TYPE: Final[EventType] = ("*",)


def start_type(server: int) -> EventType:
    """Type of the event that a server registers at its start."""
    return ("event", str(server), "engine")


def find_servers(
    gateway: GatewayClient, event_types: Sequence[EventType] = (ENGINE_TYPE,)
) -> set[int]:
    """Servers of the latest events of some types, as far as this client may see them."""
    return {i.id.server for i in gateway.latest(event_types)}


def after(server: int, last: EventId | None) -> QueryServerParams:
    """Query of the events of a server after one of them; None: all."""
    return QueryServerParams(server, persisted=True, last_event_id=last)


def after_session(server: int, session: int) -> QueryServerParams:
    """Query of the events of a server after a session."""
    return after(server, EventId(server, session, INT64_MAX))


def from_event(event_id: EventId) -> QueryServerParams:
    """Query of an event and the later ones of the same server."""
    server, session, instance = event_id.server, event_id.session, event_id.instance
    return after(server, EventId(server, session, instance - 1))


def find_last(gateway: GatewayClient, server: int, known: EventId | None) -> EventId | None:
    """Id of the last event of a server: takes about log2 of the sessions since ``known`` queries.

    Args:
        gateway: the gateway.
        server: the server.
        known: an event of the server; the last one is not before it.

    Returns:
        The id; None: there is no event, or none at or after ``known``.
    """
    first = gateway.first(after(server, None) if known is None else from_event(known))
    if first is None:
        return None

    def next_session(session: int) -> int | None:
        found = gateway.first(after_session(server, session))
        return None if found is None else found.id.session

    session = _last(next_session, first.id.session)

    def next_instance(instance: int) -> int | None:
        found = gateway.first(after(server, EventId(server, session, instance)))
        return found.id.instance if found is not None and found.id.session == session else None

    instance = first.id.instance if session == first.id.session else next_instance(0)
    # the session existed a moment ago; if it was deleted meanwhile, this is not the last event
    return (
        first.id if instance is None else EventId(server, session, _last(next_instance, instance))
    )


def session_time(gateway: GatewayClient, server: int, session: int) -> Timestamp | None:
    """Timestamp of a session, which all its events share; None: none of them is stored."""
    first = gateway.first(after_session(server, session - 1))
    return first.timestamp if first is not None and first.id.session == session else None


def advance(
    gateway: GatewayClient, server: int, start: EventId | None, end: EventId, n_events: int
) -> tuple[EventId, int] | None:
    """Go forward by a number of events, up to another one; takes as long as reading them.

    Args:
        gateway: the gateway.
        server: the server.
        start: offset to start after; None: from the first event.
        end: last event.
        n_events: number of events, at most.

    Returns:
        The event that was reached, and the number of events up to it; None: there was none.
    """
    reached, n_left = start, n_events
    while n_left and reached != end:
        params = msgspec.structs.replace(after(server, reached), max_results=n_left)
        result = gateway.query(params)
        if not result.events:
            break
        n_left -= sum([i.id <= end for i in result.events])
        reached = min(result.events[-1].id, end)
        if not result.more_follows:
            break
    return None if reached is None or reached == start else (reached, n_events - n_left)


def split_sessions(first: int, last: int, n_slices: int) -> list[tuple[int, int]]:
    """Split the sessions from one to another, both included, into slices.

    Returns:
        For each slice, the last session before it and its own last one.
    """
    n_slices = min(n_slices, last - first + 1)
    edges = [first + i * (last - first + 1) // n_slices for i in range(n_slices + 1)]
    return [(i - 1, j - 1) for i, j in pairwise(edges)]


def _last(find_next: Callable[[int], int | None], low: int) -> int:
    """The greatest existing number.

    Args:
        find_next: finds the next existing number after one; None: there is none.
        low: an existing number.

    Raises:
        SourceError: it finds one that is not after that: so there would be no end.
    """

    def find(number: int) -> int | None:
        found = find_next(number)
        if found is not None and found <= number:
            raise SourceError(f"answers without progress: {found} was found after {number}")
        return found

    # double the step until nothing is found, then halve the rest
    step = 1
    while low + step <= INT64_MAX and (found := find(low + step - 1)) is not None:
        low, step = found, 2 * step
    high = low + step  # from here on, none exists
    while low + 1 < high:
        middle = (low + high) // 2
        found = find(middle - 1)
        if found is None:
            high = middle
        else:
            low = found
    return low
