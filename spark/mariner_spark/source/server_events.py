"""Events of one server on a gateway: found by cheap queries; their history, and deleted ones.

Ids of a server's events ascend, and only persisted events are queried: later events have greater
ids, and the events up to an id stay the same until retention deletes them. The ids have gaps
(failed sessions, ids reserved before a crash, events that this client may not see), so they count
nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from eventer_bridge import model
from eventer_bridge.backends import history
from eventer_bridge.backends.history import History
from eventer_bridge.model import Event, EventId, EventType
from mariner_spark import limits
from mariner_spark.errors import HistoryError, OptionError, SourceError
from mariner_spark.source.gateway import GatewayClient

ENGINE_TYPE: Final[EventType] = ("event", "?", "engine")
"""Type of the event that every server registers at its start (``event/<server id>/engine``). The
latest event of a type is never deleted."""

ANY_TYPE: Final[EventType] = ("*",)


def find_servers(
    gateway: GatewayClient, event_types: Sequence[EventType] = (ENGINE_TYPE,)
) -> set[int]:
    """Servers of the latest events of some types, as far as this client may see them."""
    return {i.id.server for i in gateway.latest(event_types)}


def after(server: int, last: EventId | None) -> model.QueryServerParams:
    """Query of the events of a server after one of them; None: all."""
    return model.QueryServerParams(server, persisted=True, last_event_id=last)


def after_session(server: int, session: int) -> model.QueryServerParams:
    """Query of the events of a server after a session."""
    return after(server, EventId(server, session, model.INT64_MAX))


def from_event(event_id: EventId) -> model.QueryServerParams:
    """Query of an event and the later ones of the same server."""
    server, session, instance = event_id.server, event_id.session, event_id.instance
    return after(server, EventId(server, session, instance - 1))


def find_last(gateway: GatewayClient, server: int, known: EventId | None) -> EventId | None:
    """Id of the last event of a server: takes about log2 of the sessions since ``known`` queries.

    None: there is no event, or none at or after the event ``known``.
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


def session_time(gateway: GatewayClient, server: int, session: int) -> model.Timestamp | None:
    """Timestamp of a session, which all its events share; None: none of them is stored."""
    first = gateway.first(after_session(server, session - 1))
    return first.timestamp if first is not None and first.id.session == session else None


def advance(
    gateway: GatewayClient, server: int, start: EventId | None, end: EventId, n_events: int
) -> tuple[EventId, int] | None:
    """Go forward by at most so many events, up to ``end``; takes as long as reading them.

    The event that was reached, and the number of events up to it; None: there was none.
    """
    reached, n_passed = start, 0
    for page in gateway.pages(after(server, start), lambda last: last.id >= end, n_events):
        n_passed += sum([i.id <= end for i in page])
        reached = min(page[-1].id, end)
    return None if reached is None or reached == start else (reached, n_passed)


def split_sessions(first: int, last: int, n_slices: int) -> list[tuple[int, int]]:
    """Split sessions into slices: for each, the last session before it and its own last one."""
    n_slices = min(n_slices, last - first + 1)
    edges = [first + i * (last - first + 1) // n_slices for i in range(n_slices + 1)]
    return [(i - 1, j - 1) for i, j in pairwise(edges)]


def _last(find_next: Callable[[int], int | None], low: int) -> int:
    """The greatest existing number; ``low`` exists, and ``find_next`` finds the next one, or None.

    Raises SourceError if it finds one that is not after that: so there would be no end.
    """

    def find(number: int) -> int | None:
        found = find_next(number)
        if found is not None and found <= number:
            raise SourceError(f"answers without progress: {found} was found after {number}")
        return found

    # double the step until nothing is found, then halve the rest
    step = 1
    while low + step <= model.INT64_MAX and (found := find(low + step - 1)) is not None:
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


# --- histories ----------------------------------------------------------------------------
#
# A stream remembers the history (``eventer_bridge.backends.history``) of the events that it read of
# a server, and the last session. Nothing is compared if the client may not see history events, or
# the server registers none.


class ServerHistory(NamedTuple):
    """History of a server on a gateway, and the last session of the server there."""

    gateway: str
    history: History
    session: int


def find_histories(gateway: GatewayClient) -> dict[int, History]:
    """Histories that a gateway reports, by server."""
    return history.read_all(gateway.latest([history.ANY_TYPE]))


def history_error(
    gateway: str, server: int, history_id: str | None, current: History | None, session: int
) -> HistoryError | None:
    """The error of a gateway whose current history does not continue the one that was read.

    ``session`` is the last one that was read, or is to be read. None: the history is not known.
    """
    reason = None if current is None else history.refusal(history_id, current, session)
    if reason is None:
        return None
    return HistoryError(
        f"server {server}: {gateway} does not go on from the events that were read: {reason}."
        " Begin a new query, with a new checkpoint and a new sink; startingOffsets tells"
        " where, if not at the beginning"
    )


def merge_histories(known: dict[int, ServerHistory], server: int, found: ServerHistory) -> None:
    """Add the history of a server on another gateway; the one that continues the other is kept.

    Raises OptionError if neither does.
    """
    other = known.get(server, found)
    for newer, older in ((other, found), (found, other)):
        if history.refusal(older.history.id, newer.history, older.session) is None:
            known[server] = newer
            return
    names = " and ".join(sorted((other.gateway, found.gateway)))
    raise OptionError(
        "host",
        f"{names} have different histories of server {server}, {other.history.id} and"
        f" {found.history.id}: one store was restored or made anew, and the other gateway has not"
        " followed; name those that have the same",
    )


def history_ids(known: Mapping[int, ServerHistory]) -> dict[int, str]:
    """Names of histories, by server."""
    return {server: i.history.id for server, i in known.items()}


# --- deleted events -----------------------------------------------------------------------


def is_any_lost(gateway: GatewayClient, offset: EventId, end: EventId) -> bool:
    """Whether retention seems to have deleted events of a server before a stream read them.

    ``offset`` is the last event that was read, ``end`` the last one of the batch.

    The protocol does not say, and gaps in the ids prove nothing: ids are also missing where a
    registration failed, where a server was killed (the next event is then
    ``event/<server>/engine``), and where this client may not see events. So two conditions must
    hold, for the events right after the offset and at the end of the batch:

    - ids are missing after the offset, and no restart of the server explains it;
    - the oldest stored event of a type there is after the offset. Retention deletes the oldest
      events of a type first, so where one is stored from before the offset, none after it was
      deleted.

    The second condition must hold for any type if this client seems to see everything: it sees the
    event that the server registered at its start, and no ids are missing among the last events of
    the batch. Otherwise it must hold for all types there, and for those right before the offset as
    well, because all types after it may be new. Before the offset, an event counts as stored only
    if it is not the latest of its type, which is never deleted.

    So a loss stays unnoticed if none of the types that lost events occurs there, and a new type is
    taken for an old one if ids happen to be missing as well.
    """
    server = offset.server
    later = _query(gateway, after(server, offset), limits.NEAR_EVENTS)
    if not _is_any_missing([offset, *(i.id for i in later)], later):
        return False
    from_session = after_session(server, end.session - limits.NEAR_SESSIONS)
    last = _query(gateway, from_session, limits.NEAR_EVENTS)
    are_unread = (_is_unread(gateway, i, offset) for i in _types([*later, *last]))
    if _sees_everything(gateway, server, last[-limits.SEEN_EVENTS :]):
        return any(are_unread)
    return all(are_unread) and not _is_any_stored(gateway, offset, later[0])


def _sees_everything(gateway: GatewayClient, server: int, last: Sequence[Event]) -> bool:
    """Whether this client seems to see all events of a server, given the last ones it sees."""
    if _is_any_missing([i.id for i in last], last[1:]):
        return False
    return bool([*gateway.latest([_start_type(server)])])


def _is_any_stored(gateway: GatewayClient, offset: EventId, later: Event) -> bool:
    """Whether an event up to an offset is stored that retention would delete before later ones.

    ``later`` is the first event after the offset.
    """
    params = model.QueryTimeseriesParams(t_to=later.timestamp, last_event_id=later.id)
    found = _query(gateway, params, limits.BEFORE_EVENTS)
    before = [i for i in found if i.id.server == offset.server and i.id <= offset]
    types = _types(before)
    if not types:
        return False
    latest = {i.type: i.id for i in gateway.latest(types)}
    return any(i.type in latest and i.id != latest[i.type] for i in before)


def _query(
    gateway: GatewayClient,
    params: model.QueryServerParams | model.QueryTimeseriesParams,
    n_events: int,
) -> Sequence[Event]:
    return gateway.query(msgspec.structs.replace(params, max_results=n_events)).events


def _types(events: Sequence[Event]) -> list[EventType]:
    return list(dict.fromkeys(i.type for i in events))[: limits.MAX_CHECKED_TYPES]


def _is_any_missing(ids: Sequence[EventId], events: Sequence[Event]) -> bool:
    """Whether ids are missing between successive ones; ``events`` have them, without the first."""
    for (before, event_id), event in zip(pairwise(ids), events, strict=True):
        is_next = event_id.session == before.session and event_id.instance == before.instance + 1
        is_first = event_id.session == before.session + 1 and event_id.instance == 1
        is_start = event.type == _start_type(event_id.server)
        if not is_next and not is_first and not is_start:
            return True
    return False


def _is_unread(gateway: GatewayClient, event_type: EventType, offset: EventId) -> bool:
    oldest = gateway.first(model.QueryTimeseriesParams([event_type], order=model.Order.ASCENDING))
    return oldest is not None and oldest.id.server == offset.server and oldest.id > offset


def _start_type(server: int) -> EventType:
    return ("event", str(server), "engine")
