"""What a server of a group tells the others, so that one can take over: events of its own.

====================================  ==========================================================
``event/<server id>/request``         the last event of each session with a request key:
                                      :class:`ToldRequest`
``event/<server id>/cursor/<digest>`` how far a cursor is, now and then: :class:`ToldCursor`
``event/<server id>/parked/<digest>`` an event that a client parked, or dealt with:
                                      :class:`ToldParked`
====================================  ==========================================================

They are replicated as all events are, in their order: who has the events of a request has its key.
So nothing else is to be kept in step, and it does not matter for how long a server was away. The
digest is of the names of client and cursor, which cannot always be part of an event type.

Clients cannot register such events (:func:`is_told`).

Pure; any thread.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from eventer_bridge import limits
from eventer_bridge.backends.history import HistoryId
from eventer_bridge.backends.request_keys import DIGEST_BYTES, RequestKey
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.model import Event, EventId, EventType, JsonPayload, RegisterEvent, Timestamp
from eventer_bridge.subscription import Subscription

T = TypeVar("T")

REQUEST: Final = "request"
CURSOR: Final = "cursor"
PARKED: Final = "parked"

_OF_REQUESTS: Final = ("event", "?", REQUEST)
_OF_CURSORS: Final = ("event", "?", CURSOR, "?")

UNTOLD: Final = Subscription([_OF_REQUESTS, _OF_CURSORS])
"""Those of which retention deletes what does not count any more: no reader, and no server that was
away, is told of it."""

_SEGMENTS: Final = {REQUEST: 3, CURSOR: 4, PARKED: 4}
_NAME_BYTES: Final = 8

_Key = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.MAX_REQUEST_KEY_CHARACTERS)]
_CursorName = Annotated[
    str, msgspec.Meta(min_length=1, max_length=limits.MAX_CURSOR_NAME_CHARACTERS)
]
_Reason = Annotated[str, msgspec.Meta(max_length=limits.MAX_PARKED_REASON_CHARACTERS)]
_Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]


class ToldRequest(msgspec.Struct, frozen=True):
    """A request key; of its session.

    Attributes:
        client: name of the client.
        key: what it calls the request.
        digest: see ``RequestKey``.
    """

    client: str
    key: _Key
    digest: _Digest


class ToldCursor(msgspec.Struct, frozen=True):
    """A cursor.

    Attributes:
        client: name of the client.
        cursor: name of the cursor.
        seen: the last event that was acknowledged, of each server; None: it was deleted.
        n_resets: how often people set it somewhere else, or deleted it.
        acked: when something was acknowledged last.
        histories: as those of ``CursorRow``; earlier versions tell none.
    """

    client: str
    cursor: _CursorName
    seen: Annotated[list[EventId], msgspec.Meta(max_length=limits.MAX_REMOTE_SERVERS)] | None
    n_resets: int = 0
    acked: Timestamp | None = None
    histories: dict[int, HistoryId] = {}


class ToldParked(msgspec.Struct, frozen=True):
    """A parked event.

    Attributes:
        client: name of the client.
        cursor: name of the cursor.
        id: of the event.
        reason: why; None: it is parked no more.
        at: when.
        is_due: whether it is to be redelivered.
        history: of the event; None: not known.
        n_resets: of the cursor.
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
    """Whether a type is that of such an event of a server."""
    return (
        len(event_type) in {3, 4}
        and event_type[0] == "event"
        and _SEGMENTS.get(event_type[2]) == len(event_type)
        and event_type[1] == str(server_id)
    )


def retention(keys_s: float) -> tuple[RetentionRule, ...]:
    """Rules for what need not be kept of them, to stand before those of users.

    No rule of a user applies to them: one for everything would delete them before a server that is
    away has them. How much there is of them is bounded by request keys and parked events. What
    these rules delete is missed by nobody: keys that are forgotten, and where a cursor was before.

    Args:
        keys_s: how long request keys are kept.
    """
    return (
        RetentionRule((_OF_REQUESTS,), duration_s=keys_s, is_told=False),
        # the latest event of each type is kept, whatever the rule says
        RetentionRule((_OF_CURSORS,), max_entries=1, is_told=False),
        RetentionRule((("event", "?", PARKED, "?"),)),  # without a limit: each tells of another one
    )


def request_type(server_id: int) -> EventType:
    """The type of the events of requests."""
    return "event", str(server_id), REQUEST


def of_request(server_id: int, key: RequestKey) -> RegisterEvent | None:
    """The event of a request; None: the client's name is no text that can be told."""
    told = ToldRequest(key.owner, key.key, key.digest)
    try:
        payload = JsonPayload.of(told)
    except UnicodeEncodeError:
        return None
    return RegisterEvent(request_type(server_id), None, payload)


def of_cursor(server_id: int, told: ToldCursor | ToldParked) -> RegisterEvent:
    """The event of a cursor, or of an event that is parked."""
    names = msgspec.json.encode([told.client, told.cursor])
    digest = hashlib.blake2b(names, digest_size=_NAME_BYTES).hexdigest()
    what = CURSOR if isinstance(told, ToldCursor) else PARKED
    return RegisterEvent(("event", str(server_id), what, digest), None, JsonPayload.of(told))


def request_in(session: Sequence[Event]) -> RequestKey | None:
    """The key of a session of another server; None: it has none."""
    last = session[-1]
    if last.type[-1] != REQUEST or not is_told(last.type, last.id.server):
        return None
    told = _read(last, ToldRequest)
    return None if told is None else RequestKey(told.client, told.key, told.digest)


def cursors_in(session: Sequence[Event]) -> list[ToldCursor | ToldParked]:
    """What a session of another server tells of cursors."""
    told: list[ToldCursor | ToldParked] = []
    # a server tells of cursors in sessions that have nothing else
    if len(session[0].type) == _SEGMENTS[CURSOR] and is_told(session[0].type, session[0].id.server):
        for event in session:
            found: ToldCursor | ToldParked | None
            if event.type[2:3] == (CURSOR,):
                found = _read(event, ToldCursor)
            else:
                found = _read(event, ToldParked)
            if found is not None:
                told.append(found)
    return told


def _read(event: Event, as_type: type[T]) -> T | None:
    """What an event tells; None: it was not written by such a server."""
    if not isinstance(event.payload, JsonPayload):
        return None
    try:
        return msgspec.json.decode(event.payload.data, type=as_type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
