"""Events of sessions, from what was asked for to the backend: at once, or in steps.

Their conditions are checked, they get an id and a timestamp, and the backend gets them. Where
conditions need not be checked, several small sessions are handed over together.

Belongs to the event loop's thread.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.request_keys import RequestKey
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core import group_events
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.session import Session, SessionIdAllocator
from eventer_bridge.core.type_checks import TypeChecks
from eventer_bridge.errors import StorageError
from eventer_bridge.model import Event, ProcessEvent, RegisterEvent
from eventer_bridge.packed import Packed
from eventer_bridge.slices import Many, Steps, parts

STEP_NEW_TYPES: Final = 16
"""New types that are checked in one step: up to 0.5 ms, if they have many segments."""


def all_packed(requests: Sequence[Sequence[object]]) -> list[Packed]:
    """The requests, if all of them are packed, and are valid; else nothing."""
    packed = [i for i in requests if type(i) is Packed and i.is_valid]
    return packed if len(packed) == len(requests) else []


class HandOver:
    """See the module.

    Args:
        backend: where events are kept.
        types: those that can be registered.
        conditions: conditions of events; None: there are none.
        session_ids: of this server.
        tells_keys: whether sessions tell the other servers of a group of their request keys
            (``group_events``).
    """

    def __init__(
        self,
        backend: Backend,
        types: TypeChecks,
        conditions: Conditions | None,
        session_ids: SessionIdAllocator,
        *,
        tells_keys: bool = False,
    ) -> None:
        self._backend = backend
        self._types = types
        self._conditions = conditions
        self._session_ids = session_ids
        self._tells_keys = tells_keys
        self._told_types = {group_events.request_type(session_ids.server_id)}

    @property
    def can_tell_together(self) -> bool:
        """Whether what tells of request keys has a type with an id: then it brings no new one."""
        return self._backend.has_types(self._told_types)

    def with_key(
        self, events: Sequence[RegisterEvent | ProcessEvent], key: RequestKey | None
    ) -> Sequence[RegisterEvent | ProcessEvent]:
        """Events of a session with the one that tells of its request key, if there is to be one."""
        if key is None or not self._tells_keys:
            return events
        told = group_events.of_request(self._session_ids.server_id, key)
        return events if told is None else [*events, told]

    def at_once(
        self,
        events: Sequence[RegisterEvent | ProcessEvent],
        quota: TypeQuota | None,
        n_asked: int,
        session_id: int | None = None,
        key: RequestKey | None = None,
    ) -> tuple[list[Event], asyncio.Future[None]]:
        """Hand over events whose types are checked.

        Args:
            events: of the session.
            quota: of the client, for new event types.
            n_asked: how many of the events the client asked for, the first ones.
            session_id: of the session; None: the next one.
            key: what the client calls the request.

        Returns:
            The events, and their commit.

        Raises:
            EventerBridgeError: they are refused, or the commit failed at once.
        """
        if self._conditions is not None:
            self._conditions.check(events)
        if session_id is None:
            session_id = self._session_ids.next_sessions()
        events = self.with_key(events, key)
        created = self._session_ids.create_events(session_id, events, self._session_ids.now())
        commit = self._backend.register(created, quota, n_asked, key)
        if commit.done() and (error := commit.exception()):
            raise error
        return created, commit

    def together(
        self,
        requests: Sequence[Sequence[RegisterEvent | ProcessEvent]],
        packed: list[Packed],
        quota: TypeQuota | None,
        keys: Sequence[RequestKey],
    ) -> tuple[Sequence[Sequence[Event]], Sequence[asyncio.Future[None]]]:
        """Hand over small requests, each of which becomes a session; their types are checked.

        Args:
            requests: the events of each, with those that tell of its key.
            packed: the same, if all are (:func:`all_packed`).
            quota: of all of them, for new event types.
            keys: what the clients call them; empty: nothing.

        Returns:
            The events of each, none if all of them stay packed; and the commit of each.

        Raises:
            LimitError: there are no session ids for them.
        """
        first_id = self._session_ids.next_sessions(len(requests))
        if packed:
            server, now = self._session_ids.server_id, self._session_ids.now()
            commit = self._backend.register_packed(packed, server, first_id, now, keys)
            if commit is not None:
                return (), [commit] * len(requests)
        created = self._session_ids.create_sessions(first_id, requests)
        return created, self._backend.register_all(created, quota, keys)

    def together_in_turn(
        self,
        sessions: Sequence[Session],
        requests: Sequence[Sequence[RegisterEvent | ProcessEvent]],
        keys: Sequence[RequestKey],
    ) -> asyncio.Future[None]:
        """As :meth:`together`, a while after their types had an id; the sessions get their events.

        Returns:
            The commit of all of them.

        Raises:
            StorageError: all of them are refused, because the store failed, or lost one of their
                types meanwhile.
            LimitError: there are no session ids for them.
        """
        packed = all_packed(requests)
        if not packed:
            types = {event.type for events in requests for event in events}
            if not self._backend.has_types(types):
                raise StorageError("the event store was opened again")
        created, commits = self.together(requests, packed, None, keys)
        commit = commits[0]
        if commit.done() and (error := commit.exception()):
            raise error
        assert commits.count(commit) == len(commits)  # as all types have an id
        for session, events in zip(sessions, created, strict=False):
            session.packed, session.events = None, events
        return commit

    def in_turn(
        self,
        session: Session,
        events: Sequence[RegisterEvent | ProcessEvent],
        session_id: int | None,
        check: Callable[[], None],
    ) -> Steps[asyncio.Future[None]]:
        """The commit of a session, which gets its events; in steps, if it says so.

        Args:
            session: the session.
            events: its events.
            session_id: of the session; None: the next one.
            check: called just before; what it raises refuses the session.
        """
        if session.is_stepwise:
            created, commit = yield from self._in_steps(session, events, session_id, check)
        else:
            check()
            created, commit = self.at_once(
                events, session.quota, session.requested, session_id, session.key
            )
        session.events = created
        return commit

    def _in_steps(
        self,
        session: Session,
        events: Sequence[RegisterEvent | ProcessEvent],
        session_id: int | None,
        check: Callable[[], None],
    ) -> Steps[tuple[list[Event], asyncio.Future[None]]]:
        """As :meth:`at_once`; the types of what was asked for are checked, too."""
        events = Many(events)
        for part in parts(len(events)):
            # what modules added was checked, and does not count as the client's
            asked = events[part.start : min(part.stop, session.requested)]
            new_types = [*self._types.unchecked(asked)]
            for begin in range(0, len(new_types), STEP_NEW_TYPES):
                some = new_types[begin : begin + STEP_NEW_TYPES]
                self._types.check_new(some, session.quota)
                yield
            if self._conditions is not None:
                self._conditions.check(events[part])
            yield
        if session_id is None:
            session_id = self._session_ids.next_sessions()
        events = Many(self.with_key(events, session.key))
        created = yield from self._session_ids.create_events_in_steps(session_id, events)
        check()
        commit = yield from self._backend.register_in_steps(
            created, session.quota, session.requested, session.key
        )
        if commit.done() and (error := commit.exception()):
            raise error
        return created, commit
