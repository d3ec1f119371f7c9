"""Whether a remote server continues the events that are kept here.

The server publishes its history (``history``), and the kept events have one as well. If they do
not, or have the same, the events are compared as far as possible: a store can be set back by other
means than ``mariner restore``, such as a copy of its directory.

Belongs to the event loop's thread.
"""

from collections.abc import Sequence

from eventer_bridge.backends import history
from eventer_bridge.backends.history import History
from eventer_bridge.core.engine import Engine
from eventer_bridge.core.paging import query_all
from eventer_bridge.eventer.client import EventerClient
from eventer_bridge.model import (
    INT64_MAX,
    Event,
    EventId,
    EventType,
    QueryLatestParams,
    QueryServerParams,
    Timestamp,
    natural_key,
)
from eventer_bridge.remote import limits


class Following:
    """See the module.

    Args:
        engine: keeps the events.
        remote_id: the server whose events they are.
    """

    def __init__(self, engine: Engine, remote_id: int) -> None:
        self._engine = engine
        self._remote_id = remote_id
        self._type = history.type_of(remote_id)
        self._history: History | None = None
        self._session = 0

    async def begin(
        self, client: EventerClient, session_id: int, timestamp: Timestamp | None
    ) -> str | None:
        """Compare when a connection begins.

        Args:
            client: a connection to the remote server.
            session_id: the last session kept here.
            timestamp: of that session; None: no session is kept.

        Returns:
            Why the server cannot be followed; None: it can.

        Raises:
            EventerBridgeError: the connection was lost, or the store here failed.
        """
        latest = (await client.query(QueryLatestParams([self._type]))).events
        self._history = history.read_all(latest).get(self._remote_id)
        self._session = session_id
        if timestamp is None:
            return None
        kept = await self._engine.known_history(self._remote_id)
        followed = None if kept is None else kept.id
        if self._history is not None:
            reason = history.refusal(followed, self._history, session_id)
            if reason is not None and await self._is_rest_deleted(followed, self._history):
                reason = None
        else:
            reason = None if followed is None else f"it has no history, but {followed} was followed"
        if reason is None and not await self._has_events(client, session_id, timestamp):
            reason = f"session {session_id}, the last one here, is a different one there"
        return reason

    def goes_on(self, session: Sequence[Event]) -> str | None:
        """Compare a session that the server sent.

        A server that only passes on the events of another may switch to another history of it at
        any time.

        Returns:
            Why neither it nor any later one can be kept; None: it can.
        """
        found = history.of_session(session)
        if found is not None and (self._history is None or found.id not in self._history.ids):
            followed = None if self._history is None else self._history.id
            if reason := history.refusal(followed, found, self._session):
                return reason
            self._history = found
        self._session = session[0].id.session
        return None

    async def _is_rest_deleted(self, followed: str | None, current: History) -> bool:
        """Whether nothing is kept here any more of what the server does not continue.

        Retention deleted it: so another server that has its events could not give it back either.
        """
        spans = [span for span in current.before if span.id == followed]
        if not spans:
            return False
        last = EventId(self._remote_id, spans[-1].last, INT64_MAX)
        params = QueryServerParams(self._remote_id, max_results=1, last_event_id=last)
        return not (await self._engine.query(params)).events

    async def _has_events(
        self, client: EventerClient, session_id: int, timestamp: Timestamp
    ) -> bool:
        """Whether the server's events are consistent with the last session kept here."""
        event = await client.first_event(self._remote_id, session_id)
        if event is not None:
            if event.id.session == session_id:
                return event.timestamp == timestamp
            # that session was deleted there, or never existed
            return event.timestamp >= timestamp and await self._has_latest(client, session_id)
        # Nothing so new is there. It may have been deleted, if other servers' events of its types
        # are newer; but not the last event of this type, of which each start registers one.
        engine = ("event", str(self._remote_id), "engine")
        started = (await client.query(QueryLatestParams([engine]))).events
        return bool(started) and started[0].timestamp <= timestamp

    async def _has_latest(self, client: EventerClient, session_id: int) -> bool:
        """Whether no type has an event here that is later than all of its events there.

        The latest event of a type is never deleted. Checks the types of the last sessions.
        """
        first = max(session_id - limits.COMPARED_SESSIONS, 0)
        params = QueryServerParams(
            self._remote_id, last_event_id=EventId(self._remote_id, first, INT64_MAX)
        )
        kept: dict[EventType, Event] = {}
        for event in (await self._engine.query(params)).events:
            kept[event.type] = event
        types = list(kept)[-limits.COMPARED_TYPES :]
        if not types:
            return True
        found = query_all(client.query, QueryLatestParams(types))
        latest = {event.type: event async for event in found}
        return all(
            # servers other than ours may not keep the latest event of every type
            self._history is None if i not in latest else not _is_before(latest[i], kept[i])
            for i in types
        )


def _is_before(event: Event, kept: Event) -> bool:
    if event.id.server == kept.id.server:
        return event.id < kept.id
    return natural_key(event) < natural_key(kept)
