"""Where a relay begins, and continues, in the events of a remote Event Server.

It notifies its clients of events registered after its first connection: that moment is the
baseline, the last event of each server whose events are there. The protocol has no query for
that. But every server registers ``event/<server id>/engine`` when it starts; the events after
that one are found by bisecting the range of session ids.

A server that was killed may have lost its last events, even some it has sent, and reuses their
ids (hat-event does). A server whose store is in memory, or was deleted, begins with its ids
anew. So :func:`resume` checks whether the last event that clients were notified of is still
there; if not, it goes back to the last one that is, or to the beginning.

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
    """The last event of a server that clients were notified of, or the last of the baseline."""

    id: EventId
    timestamp: Timestamp

    @classmethod
    def of(cls, event: Event) -> "RelayPosition":
        """The position of that event."""
        return cls(event.id, event.timestamp)


async def baseline(client: EventerClient) -> dict[int, RelayPosition]:
    """The last event of each server at this moment.

    Raises:
        EventerBridgeError: the connection was lost, or an answer breaks the protocol.
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
    """The histories of the servers whose events are there, by server.

    Raises:
        EventerBridgeError: as :func:`baseline`.
    """
    return history.read_all(await _latest(client, history.ANY_TYPE))


def refusal(
    positions: Mapping[int, RelayPosition],
    followed: Mapping[int, History],
    current: Mapping[int, History],
) -> str | None:
    """Why servers do not continue the events that clients were notified of; None: they do.

    Args:
        positions: the last of these events.
        followed: histories of these events, as far as they are known.
        current: histories of the events that are there.
    """
    for server_id in positions.keys() & current.keys():
        followed_id = followed[server_id].id if server_id in followed else None
        session = positions[server_id].id.session
        if reason := history.refusal(followed_id, current[server_id], session):
            return f"server {server_id}: {reason}"
    return None


async def resume(
    client: EventerClient, positions: Mapping[int, RelayPosition]
) -> dict[int, EventId | None]:
    """Where to continue: after the last event of each server that clients were notified of.

    Args:
        client: a new connection.
        positions: the last of these events.

    Returns:
        An event that is there, by server. None if the server was unknown before, or has none of
        its earlier events any more: all of its events are new.

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
    """The last event of a server, starting from a known one."""
    server_id = known.id.server
    low, high = known, INT64_MAX  # sessions between are unknown
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
    """The position; if the server lost that event, the last one before it; or None."""
    server_id, session_id = position.id.server, position.id.session
    found = await client.first_event(server_id, session_id)
    if found is not None and (found.id.session, found.timestamp) == (
        session_id,
        position.timestamp,
    ):
        return position.id
    older = await _last_before(client, position)
    extra = {"server": server_id, "session": session_id, "continues_after": older}
    mlog.warning("event server no longer has the last events it sent", extra=extra)
    return None if older is None else EventId(server_id, older, INT64_MAX)


async def _last_before(client: EventerClient, position: RelayPosition) -> int | None:
    """The last session of a server that is older than the position, by id and by time.

    The timestamps of a server's events rise with their ids, so bisecting finds it.
    """
    server_id, high = position.id.server, position.id.session  # which is not there
    low: int | None = None
    step = 1
    while (low or 0) + 1 < high:
        # first further and further back; in between, once there is one
        middle = max(1, high - step) if low is None else (low + high) // 2
        event = await client.first_event(server_id, middle)
        if event is None or event.id.session >= high or event.timestamp > position.timestamp:
            high = middle
            step *= 2
        else:
            low = event.id.session
    return low
