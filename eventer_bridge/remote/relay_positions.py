"""Where a relay begins, and goes on, in the events of a remote Event Server.

It tells its clients of what is registered from its first connection on: that moment is the
baseline, which holds the last event of each server whose events are there. The protocol has
no question for that. But every server registers ``event/<server id>/engine`` when it
starts; the events after that one are found by halving the range of session ids.

A server that was killed may have lost its last events, also those that it has told of, and
gives their ids again (hat-event does). One whose store is in memory, or was deleted, begins
with its ids anew. Therefore :func:`resume` looks whether the last event that clients were told
of is still there; if not, it goes back to the last one that is, or to the beginning.

Belongs to the event loop's thread.
"""

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.history import History
from eventer_bridge.core.paging import query_all
from eventer_bridge.errors import RemoteProtocolError
from eventer_bridge.eventer.client import EventerClient
from eventer_bridge.model import (
    INT64_MAX,
    Event,
    EventId,
    EventType,
    Order,
    QueryLatestParams,
    QueryTimeseriesParams,
    Timestamp,
)

mlog = logging.getLogger(__name__)

_ENGINES: Final = ("event", "?", "engine")


class RelayPosition(NamedTuple):
    """The last event of a server that clients were told of, or that is too old for that."""

    id: EventId
    timestamp: Timestamp

    @classmethod
    def of(cls, event: Event) -> "RelayPosition":
        """That event."""
        return cls(event.id, event.timestamp)


async def baseline(client: EventerClient) -> dict[int, RelayPosition]:
    """The last event of each server at this moment.

    Raises:
        EventerBridgeError: the remote server was lost, or answers what it must not.
    """
    positions = {}
    newest = QueryTimeseriesParams(order=Order.DESCENDING, max_results=1)
    for event in (await client.query(newest)).events:
        positions[event.id.server] = RelayPosition.of(event)
    for event in await _latest(client, _ENGINES):
        if event.id.server not in positions:
            positions[event.id.server] = await _last_of_server(client, event)
    return positions


async def histories(client: EventerClient) -> dict[int, History]:
    """What servers tell of their histories, whose events are there.

    Raises:
        EventerBridgeError: as :func:`baseline`.
    """
    return history.read_all(await _latest(client, history.ANY_TYPE))


def refusal(
    positions: Mapping[int, RelayPosition], held: Mapping[int, History], told: Mapping[int, History]
) -> str | None:
    """Why what servers tell does not go on from what clients were told of; None: it does.

    Args:
        positions: what they were told of.
        held: histories of these events, as far as they are known.
        told: histories of the events that are there.
    """
    for server_id in positions.keys() & told.keys():
        held_id = held[server_id].id if server_id in held else None
        session = positions[server_id].id.session
        if reason := history.refusal(held_id, told[server_id], session):
            return f"server {server_id}: {reason}"
    return None


async def resume(
    client: EventerClient, positions: Mapping[int, RelayPosition]
) -> dict[int, EventId | None]:
    """Where to go on: after the last event of each server that clients were told of.

    Args:
        client: a new connection.
        positions: what they were told of.

    Returns:
        An event that is there. None where the server was not known before, or has nothing
        any more that was there then: all of its events are new.

    Raises:
        EventerBridgeError: as :func:`baseline`.
    """
    found: dict[int, EventId | None] = {}
    for event in await _latest(client, _ENGINES):
        found[event.id.server] = None
    for server_id, position in positions.items():
        found[server_id] = await _still_there(client, position)
    return found


async def _latest(client: EventerClient, query_type: EventType) -> list[Event]:
    pages = query_all(client.query, QueryLatestParams([query_type]), limits.MAX_REMOTE_SERVERS + 1)
    events = [event async for event in pages]
    if len(events) > limits.MAX_REMOTE_SERVERS:
        raise RemoteProtocolError(f"events of more than {limits.MAX_REMOTE_SERVERS} servers")
    return events


async def _last_of_server(client: EventerClient, known: Event) -> RelayPosition:
    """The last event of a server, from one that is known."""
    server_id = known.id.server
    low, high = known, INT64_MAX  # nothing is known of sessions between
    step = 1
    while low.id.session + 1 < high:
        middle = min(low.id.session + step, (low.id.session + high) // 2)
        event = await client.first_event(server_id, middle)
        if event is None:
            high = middle
            step = max(1, step // 2)
        else:
            low = event
            step *= 2
    # all events of that session: it has ended
    return RelayPosition(EventId(server_id, low.id.session, INT64_MAX), low.timestamp)


async def _still_there(client: EventerClient, position: RelayPosition) -> EventId | None:
    """The position, or where the server forgot that event, the last one before it; or None."""
    server_id, session_id = position.id.server, position.id.session
    found = await client.first_event(server_id, session_id)
    if found is not None and (found.id.session, found.timestamp) == (
        session_id,
        position.timestamp,
    ):
        return position.id
    older = await _last_before(client, position)
    extra = {"server": server_id, "told": session_id, "goes_on_after": older}
    mlog.warning("event server no longer has the last events that it told of", extra=extra)
    return None if older is None else EventId(server_id, older, INT64_MAX)


async def _last_before(client: EventerClient, position: RelayPosition) -> int | None:
    """The last session of a server that is older than the position, by id and by time.

    Of a server's events, timestamps rise with ids: the last one is found by halving.
    """
    server_id, high = position.id.server, position.id.session  # that one is not there
    low: int | None = None
    step = 1
    while (low or 0) + 1 < high:
        # first ever further back; between, once there is one
        middle = max(1, high - step) if low is None else (low + high) // 2
        event = await client.first_event(server_id, middle)
        if event is None or event.id.session >= high or event.timestamp > position.timestamp:
            high = middle
            step *= 2
        else:
            low = event.id.session
    return low
