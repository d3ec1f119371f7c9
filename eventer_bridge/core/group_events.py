"""Events by which a server of a group publishes its state, so that another can take over.

====================================  ==========================================================
``event/<server id>/request``         the last event of each session with a request key:
                                      :class:`ToldRequest`
``event/<server id>/cursor/<digest>`` positions of a cursor, periodically: :class:`ToldCursor`
``event/<server id>/parked/<digest>`` an event that a client parked, or processed later:
                                      :class:`ToldParked`
====================================  ==========================================================

They are replicated like all events, in their order: a server with the events of a request has its
key. So nothing else needs synchronisation, however long a server was away. The digest is of the
names of client and cursor, which cannot always be part of an event type.

Clients cannot register such events (:func:`is_told`).

Pure; any thread.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from eventer_bridge import limits
from eventer_bridge.backends.request_keys import DIGEST_BYTES, RequestKey
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    HistoryId,
    JsonPayload,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.subscription import Subscription

T = TypeVar("T")

REQUEST: Final = "request"
CURSOR: Final = "cursor"
PARKED: Final = "parked"

_OF_REQUESTS: Final = ("event", "?", REQUEST)
_OF_CURSORS: Final = ("event", "?", CURSOR, "?")

UNTOLD: Final = Subscription([_OF_REQUESTS, _OF_CURSORS])
"""Events that retention deletes when they are obsolete, without a gap for readers or servers that
were away."""

_SEGMENTS: Final = {REQUEST: 3, CURSOR: 4, PARKED: 4}
_NAME_BYTES: Final = 8

_Key = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.MAX_REQUEST_KEY_CHARACTERS)]
_CursorName = Annotated[
    str, msgspec.Meta(min_length=1, max_length=limits.MAX_CURSOR_NAME_CHARACTERS)
]
_Reason = Annotated[str, msgspec.Meta(max_length=limits.MAX_PARKED_REASON_CHARACTERS)]
_Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]


class ToldRequest(msgspec.Struct, frozen=True):
    """The request key of a session; see ``RequestKey``."""

    client: str
    key: _Key
    digest: _Digest


class ToldCursor(msgspec.Struct, frozen=True):
    """A cursor of a client.

    ``seen`` is the last acknowledged event of each server (None: it was deleted), ``n_resets`` the
    number of its resets and deletions, ``acked`` when it was last acknowledged, ``histories`` as in
    ``CursorRow``; earlier versions publish none.
    """

    client: str
    cursor: _CursorName
    seen: Annotated[list[EventId], msgspec.Meta(max_length=limits.MAX_REMOTE_SERVERS)] | None
    n_resets: int = 0
    acked: Timestamp | None = None
    histories: dict[int, HistoryId] = {}


class ToldParked(msgspec.Struct, frozen=True):
    """A parked event of a cursor of a client.

    ``reason`` is why it was parked (None: it no longer is), ``at`` the time of the change,
    ``is_due``: for redelivery; ``history`` is of the event (None: unknown), ``n_resets`` of the
    cursor.
    """

    client: str
    cursor: _CursorName
    id: EventId
    reason: _Reason | None
    at: Timestamp
    is_due: bool = False
    history: HistoryId | None = None
    n_resets: int = 0


def is_told(event_type: EventType, server_id: int) -> bool:
    """Whether events of a type publish state of a server."""
    return (
        len(event_type) in {3, 4}
        and event_type[0] == "event"
        and _SEGMENTS.get(event_type[2]) == len(event_type)
        and event_type[1] == str(server_id)
    )


def retention(keys_s: float) -> tuple[RetentionRule, ...]:
    """Retention rules of these events, to precede those of users.

    Rules of users do not apply to them: one for everything would delete them before a server that
    was away has received them. Request keys and parked events bound their number. These rules only
    delete obsolete events: expired keys, and former positions of cursors.
    Request keys are kept for ``keys_s``.
    """
    return (
        RetentionRule((_OF_REQUESTS,), duration_s=keys_s, is_told=False),
        # the latest event of each type is kept, whatever the rule says
        RetentionRule((_OF_CURSORS,), max_entries=1, is_told=False),
        RetentionRule((("event", "?", PARKED, "?"),)),  # no limit: each is about another event
    )


def request_type(server_id: int) -> EventType:
    """The type of events of request keys."""
    return "event", str(server_id), REQUEST


def of_request(server_id: int, key: RequestKey) -> RegisterEvent | None:
    """The event of a request key; None: the client's name cannot be encoded."""
    told = ToldRequest(key.owner, key.key, key.digest)
    try:
        payload = JsonPayload.of(told)
    except UnicodeEncodeError:
        return None
    return RegisterEvent(request_type(server_id), None, payload)


def of_cursor(server_id: int, change: ToldCursor | ToldParked) -> RegisterEvent:
    """The event of a cursor or a parked event."""
    names = msgspec.json.encode([change.client, change.cursor])
    digest = hashlib.blake2b(names, digest_size=_NAME_BYTES).hexdigest()
    what = CURSOR if isinstance(change, ToldCursor) else PARKED
    return RegisterEvent(("event", str(server_id), what, digest), None, JsonPayload.of(change))


def request_in(session: Sequence[Event]) -> RequestKey | None:
    """The request key of another server's session; None: it has none."""
    last = session[-1]
    if last.type[-1] != REQUEST or not is_told(last.type, last.id.server):
        return None
    told = _read(last, ToldRequest)
    return None if told is None else RequestKey(told.client, told.key, told.digest)


def cursors_in(session: Sequence[Event]) -> list[ToldCursor | ToldParked]:
    """Changes of cursors that another server's session publishes."""
    changes: list[ToldCursor | ToldParked] = []
    # such sessions contain nothing else
    if len(session[0].type) == _SEGMENTS[CURSOR] and is_told(session[0].type, session[0].id.server):
        for event in session:
            found: ToldCursor | ToldParked | None
            if event.type[2:3] == (CURSOR,):
                found = _read(event, ToldCursor)
            else:
                found = _read(event, ToldParked)
            if found is not None:
                changes.append(found)
    return changes


def _read(event: Event, as_type: type[T]) -> T | None:
    """The decoded payload; None: it is no such message."""
    if not isinstance(event.payload, JsonPayload):
        return None
    try:
        return msgspec.json.decode(event.payload.data, type=as_type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
