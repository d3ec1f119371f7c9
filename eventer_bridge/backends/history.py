"""Histories: distinguish the events of a server from those of a diverged copy of its store.

A server's ids ascend, and a follower (replica, relay, stream, lake) continues after the last id
that it has. That is wrong after the server went back: with a restored or a new store, it registers
other events than those that were followed. So every store has a history, named by a UUID: created
with the store, kept by its backups, and replaced by ``mariner restore``.

The server registers an event about it, after the first STARTED of a history, in the same session:
``event/<server id>/history`` with the JSON payload ::

    {"id": "6f1c…", "before": [{"id": "90a2…", "first": 1, "last": 1200}]}

It is an ordinary event: clients of every wire can subscribe to it and query it, and a copy of a
server's events (a replica, a lake) includes their history. The latest event of a type is never
deleted. ``before`` lists the histories that it continues, oldest first, with the first and last
session of their events; ``id`` is null for events before the first history (an import).

Followers compare histories (:func:`refusal`), unless the server registers none (hat-event's). The
positions of clients are compared by the server (:func:`departure`). Clients cannot register such
events (:func:`is_history`).

Any thread.
"""

import uuid
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from eventer_bridge import limits
from eventer_bridge.model import Event, EventType, HistoryId, Int64, JsonPayload, RegisterEvent

ANY_TYPE: Final[EventType] = ("event", "?", "history")
"""Query type of the history events of all servers."""


class HistorySpan(msgspec.Struct, frozen=True, gc=False):
    """First and last session of a history (None: before the first one) that another continues."""

    id: HistoryId | None
    first: Int64
    last: Int64


class _Payload(msgspec.Struct, frozen=True, gc=False):
    id: HistoryId
    before: Annotated[
        tuple[HistorySpan, ...], msgspec.Meta(max_length=limits.MAX_HISTORY_SPANS)
    ] = ()


class History(msgspec.Struct, frozen=True, gc=False):
    """A history as its server registered it: name, first session, and those it continues."""

    id: str
    first: int
    before: tuple[HistorySpan, ...] = ()

    @property
    def ids(self) -> frozenset[str | None]:
        """Names of this history and of those it continues."""
        return frozenset((self.id, *(span.id for span in self.before)))


class Departure(NamedTuple):
    """The last common session of two histories (0: none), and why there is no other."""

    last: int
    reason: str


_decode: Final = msgspec.json.Decoder(_Payload).decode


def new_id() -> str:
    """Name for a new history."""
    return str(uuid.uuid4())


def is_own_id(name: str) -> bool:
    """Whether a name is one of :func:`new_id`; others may give their histories any."""
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


def type_of(server_id: int) -> EventType:
    """Type of the history events of a server."""
    return ("event", str(server_id), "history")


def is_history(event_type: EventType) -> bool:
    """Whether a type is that of history events."""
    return len(event_type) == len(ANY_TYPE) and event_type[0::2] == ANY_TYPE[0::2]


def begin(
    server_id: int, history_id: str, previous: History | None, last: int | None
) -> RegisterEvent:
    """The event that a server registers for a new history of its store, after ``previous``.

    ``last`` is its last stored session; None: there is none.
    """
    before = () if previous is None else previous.before
    if last is not None:
        known_id, first = (None, 0) if previous is None else (previous.id, previous.first)
        span = HistorySpan(known_id, first, last)
        before = (*before, span)[-limits.MAX_HISTORY_SPANS :]
    payload = JsonPayload.of(_Payload(history_id, before))
    return RegisterEvent(type_of(server_id), None, payload)


def read(event: Event) -> History | None:
    """The history in an event; None: it is no history event of its own server."""
    if event.type != type_of(event.id.server) or not isinstance(event.payload, JsonPayload):
        return None
    return decode(event.payload.data, event.id.session)


def decode(payload: bytes | msgspec.Raw, session: int) -> History | None:
    """The history in the payload of an event of ``session``; None: it is invalid."""
    try:
        decoded = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return History(decoded.id, session, decoded.before)


def of_session(session: Sequence[Event]) -> History | None:
    """The history that a session of a server begins: in one of its first two events."""
    for event in session[:2]:
        if is_history(event.type):
            return read(event)
    return None


def read_all(events: Iterable[Event]) -> dict[int, History]:
    """Histories in some events by server; of several, that of the last event."""
    return {event.id.server: found for event in events if (found := read(event)) is not None}


def refusal(followed: str | None, current: History, session: int) -> str | None:
    """Why a server's events do not continue those that were followed; None: they do.

    ``session`` is the last that was followed, of history ``followed`` (None: unknown).
    """
    if followed == current.id:
        return None
    if followed is None:
        if session >= current.first or any(i.first <= session <= i.last for i in current.before):
            return None
        return f"session {session} is in none of the histories that {current.id} continues"
    spans = [span for span in current.before if span.id == followed]
    if any(session <= span.last for span in spans):
        return None
    if spans:
        return (
            f"it was restored: its history {current.id} continues {followed} from session"
            f" {spans[-1].last}, but that was followed up to session {session}"
        )
    return f"its history is {current.id}, but {followed} was followed up to session {session}"


def departure(followed: str | None, current: History, session: int) -> Departure | None:
    """As :func:`refusal`, of a follower that goes on all the same, after the last common session.

    What cannot be known is no departure: nothing was followed, or a session of an unknown history
    that is older than the known ones.
    """
    known_since = min([current.first, *(i.first for i in current.before)])
    if session <= 0 or (followed is None and session < known_since):
        return None
    reason = refusal(followed, current, session)
    if reason is None:
        return None
    spans = [i for i in current.before if followed in (None, i.id) and i.last < session]
    return Departure(max([i.last for i in spans], default=0), reason)
