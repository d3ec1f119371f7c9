"""Whether retention deleted events of a server before a stream read them.

The protocol does not say, and gaps in the ids prove nothing: ids are also missing where a
registration failed, where a server was killed (the next event is then ``event/<server>/engine``),
and where this client may not see events. So two conditions must hold, for the events right after
the offset (the last event that was read) and at the end of the batch:

- ids are missing after the offset, and no restart of the server explains it;
- the oldest stored event of a type there is after the offset. Retention deletes the oldest events
  of a type first, so where one is stored from before the offset, none after it was deleted.

The second condition must hold for any type if this client seems to see everything: it sees the
event that the server registered at its start, and no ids are missing among the last events of the
batch. Otherwise it must hold for all types there, and for those right before the offset as well,
because all types after it may be new. Before the offset, an event counts as stored only if it is
not the latest of its type, which is never deleted.

So a loss stays unnoticed if none of the types that lost events occurs there, and a new type is
taken for an old one if ids happen to be missing as well.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    Order,
    QueryServerParams,
    QueryTimeseriesParams,
)
from mariner_spark.source.gateway import GatewayClient
from mariner_spark.source.server_events import after, after_session, start_type

NEAR_EVENTS: Final = 200
"""Events that are checked after the offset, and before the end."""

NEAR_SESSIONS: Final = 100
"""Sessions before the end that these events are taken from."""

BEFORE_EVENTS: Final = 200
"""Events that are checked before the offset."""

SEEN_EVENTS: Final = 10
"""Events before the end: none is missing there for a client that sees everything."""

MAX_TYPES: Final = 50
"""Types whose oldest event is queried: 0.1 ms each."""


def detect(gateway: GatewayClient, offset: EventId, end: EventId) -> bool:
    """Whether events after an offset seem to have been deleted.

    Args:
        gateway: a gateway that has those that are left.
        offset: the last event that was read.
        end: last event of the batch.

    Raises:
        MarinerError, GatewayUnavailableError: the query failed.
    """
    server = offset.server
    behind = _query_near(gateway, after(server, offset))
    if not _is_any_missing([offset, *(i.id for i in behind)], behind):
        return False
    last = _query_near(gateway, after_session(server, end.session - NEAR_SESSIONS))
    types = list(dict.fromkeys(i.type for i in [*behind, *last]))[:MAX_TYPES]
    are_unread = (_is_unread(gateway, i, offset) for i in types)
    if _sees_everything(gateway, server, last[-SEEN_EVENTS:]):
        return any(are_unread)
    return all(are_unread) and not _is_any_stored(gateway, offset, behind[0])


def _sees_everything(gateway: GatewayClient, server: int, last: Sequence[Event]) -> bool:
    """Whether this client seems to see all events of a server, given the last ones it sees."""
    if _is_any_missing([i.id for i in last], last[1:]):
        return False
    return bool([*gateway.latest([start_type(server)])])


def _is_any_stored(gateway: GatewayClient, offset: EventId, behind: Event) -> bool:
    """Whether an event up to an offset is stored that retention would delete before later ones.

    Args:
        gateway: the gateway.
        offset: the offset.
        behind: the first event after it.
    """
    params = QueryTimeseriesParams(t_to=behind.timestamp, last_event_id=behind.id)
    found = gateway.query(msgspec.structs.replace(params, max_results=BEFORE_EVENTS)).events
    before = [i for i in found if i.id.server == offset.server and i.id <= offset]
    types = list(dict.fromkeys(i.type for i in before))[:MAX_TYPES]
    if not types:
        return False
    latest = {i.type: i.id for i in gateway.latest(types)}
    return any(i.type in latest and i.id != latest[i.type] for i in before)


def _query_near(gateway: GatewayClient, params: QueryServerParams) -> Sequence[Event]:
    return gateway.query(msgspec.structs.replace(params, max_results=NEAR_EVENTS)).events


def _is_any_missing(ids: Sequence[EventId], events: Sequence[Event]) -> bool:
    """Whether ids are missing between successive ids.

    Args:
        ids: the ids.
        events: events with these ids, without the first.
    """
    for (before, event_id), event in zip(pairwise(ids), events, strict=True):
        is_next = event_id.session == before.session and event_id.instance == before.instance + 1
        is_first = event_id.session == before.session + 1 and event_id.instance == 1
        is_start = event.type == start_type(event_id.server)
        if not is_next and not is_first and not is_start:
            return True
    return False


def _is_unread(gateway: GatewayClient, event_type: EventType, offset: EventId) -> bool:
    """Whether all stored events of a type are after an offset."""
    params = QueryTimeseriesParams([event_type], order=Order.ASCENDING)
    oldest = gateway.first(params)
    return oldest is not None and oldest.id.server == offset.server and oldest.id > offset
