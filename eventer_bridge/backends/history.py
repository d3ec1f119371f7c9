"""Histories: what tells the events of a server from those of a copy that went another way.

A server's ids rise, and whoever follows it goes on behind the last one that it has. That is right
as long as the server did not go back: with a store that was restored from a backup, or made anew,
it gives other events than those that were followed. So every store has a history, named by a UUID:
made with the store, kept by its backups, and made anew by ``mariner restore``. A store of before
gets one when it is first opened to be written.

The server tells by an event, which follows the first STARTED of a history in its session:
``event/<server id>/history`` with the JSON payload ::

    {"id": "6f1c…", "before": [{"id": "90a2…", "first": 1, "last": 1200}]}

It is an event like any other: every wire and every peer can subscribe to it and query it, and
who has a server's events (a replica, a lake) has with them which history they are of. The latest
event of a type is never deleted. ``before`` tells of the histories that it goes on from, oldest
first, and from which session to which one it has their events; ``id`` is null for events from
before there were histories.

Who follows compares (:func:`refusal`). Servers that tell of no history (hat-event's) are followed
as ever. Clients cannot register such events (:func:`is_history`).

Any thread.
"""

import uuid
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

from eventer_bridge import limits
from eventer_bridge.model import Event, EventType, Int64, JsonPayload, RegisterEvent

ANY_TYPE: Final[EventType] = ("event", "?", "history")
"""Query type of what all servers tell."""

_Id = Annotated[str, msgspec.Meta(max_length=limits.MAX_HISTORY_ID_CHARACTERS)]


class HistorySpan(msgspec.Struct, frozen=True, gc=False):
    """Sessions of a server that are of one history.

    Attributes:
        id: the history; None: from before there were any.
        first: session that it begins with.
        last: the last one that was gone on from.
    """

    id: _Id | None
    first: Int64
    last: Int64


class _Payload(msgspec.Struct, frozen=True, gc=False):
    id: _Id
    before: Annotated[
        tuple[HistorySpan, ...], msgspec.Meta(max_length=limits.MAX_HISTORY_SPANS)
    ] = ()


class History(msgspec.Struct, frozen=True, gc=False):
    """What a server told of its history.

    Attributes:
        id: its name.
        first: session that it begins with.
        before: histories that it goes on from, oldest first.
    """

    id: str
    first: int
    before: tuple[HistorySpan, ...] = ()

    @property
    def ids(self) -> frozenset[str | None]:
        """Names of this one and of all before it."""
        return frozenset((self.id, *(span.id for span in self.before)))


_decode: Final = msgspec.json.Decoder(_Payload).decode


def new_id() -> str:
    """Name of a history that begins."""
    return str(uuid.uuid4())


def type_of(server_id: int) -> EventType:
    """Type of the events by which a server tells of its history."""
    return ("event", str(server_id), "history")


def is_history(event_type: EventType) -> bool:
    """Whether events of a type tell of a history."""
    return len(event_type) == len(ANY_TYPE) and event_type[0::2] == ANY_TYPE[0::2]


def begin(server_id: int, history_id: str, told: History | None, last: int | None) -> RegisterEvent:
    """What a server is to register where its store has another history than it told last.

    Args:
        server_id: the server.
        history_id: of the store.
        told: what it told last.
        last: its last session that is stored; None: there is none.
    """
    before = () if told is None else told.before
    if last is not None:
        span = (
            HistorySpan(None, 0, last) if told is None else HistorySpan(told.id, told.first, last)
        )
        before = (*before, span)[-limits.MAX_HISTORY_SPANS :]
    payload = JsonPayload.of(_Payload(history_id, before))
    return RegisterEvent(type_of(server_id), None, payload)


def read(event: Event) -> History | None:
    """The history that a server tells of by an event; None: it is no such event of that server."""
    if event.type != type_of(event.id.server) or not isinstance(event.payload, JsonPayload):
        return None
    return decode(event.payload.data, event.id.session)


def decode(payload: bytes | msgspec.Raw, session: int) -> History | None:
    """The history that the JSON payload of an event tells of; None: it is not such a payload.

    Args:
        payload: the payload.
        session: of the event.
    """
    try:
        told = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return History(told.id, session, told.before)


def of_session(session: Sequence[Event]) -> History | None:
    """The history that a session of a server tells of: by one of its first two events."""
    for event in session[:2]:
        if is_history(event.type):
            return read(event)
    return None


def read_all(events: Iterable[Event]) -> dict[int, History]:
    """Histories that some events tell of, by server; of one server, that of the last event."""
    return {event.id.server: found for event in events if (found := read(event)) is not None}


def refusal(held: str | None, told: History, session: int) -> str | None:
    """Why a server's events cannot go on where they were followed to.

    Args:
        held: history that was followed; None: that is not known.
        told: what the server tells now.
        session: the last session that was followed.

    Returns:
        The reason, with both histories in it; None: what was followed is a part of it.
    """
    if held == told.id:
        return None
    if held is None:
        if session >= told.first or any(i.first <= session <= i.last for i in told.before):
            return None
        return f"session {session} is in none of the histories that {told.id} goes on from"
    spans = [span for span in told.before if span.id == held]
    if any(session <= span.last for span in spans):
        return None
    if spans:
        return (
            f"it was restored: its history {told.id} has that of before, {held}, up to session"
            f" {spans[-1].last}, and session {session} of it was followed"
        )
    return f"its history is {told.id}, and {held} was followed up to session {session}"
