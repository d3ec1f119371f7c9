"""Events of one session, from what was asked for to the backend: at once, or in steps.

Their conditions are checked, they get an id and a timestamp, and the backend gets them.

Belongs to the event loop's thread.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.request_keys import RequestKey
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core import group_events
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.session import Session, SessionIdAllocator
from eventer_bridge.core.type_checks import TypeChecks
from eventer_bridge.model import Event, ProcessEvent, RegisterEvent
from eventer_bridge.slices import Many, Steps, parts

STEP_NEW_TYPES: Final = 16
"""New types that are checked in one step: up to 0.5 ms, if they have many segments."""


class HandOver:
    """See the module.

    Args:
        backend: where events are kept.
        types: those that can be registered.
        conditions: conditions of events; None: there are none.
        session_ids: of this server.
        tells_keys: whether sessions tell the other servers of a group of their request keys
            (``group_events``).

    Attributes:
        has_told_key: whether one of them did, so that the type of such events is known.
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
        self.has_told_key = False

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
        self.has_told_key |= key is not None
        return created, commit

    def in_steps(
        self,
        session: Session,
        events: Sequence[RegisterEvent | ProcessEvent],
        session_id: int | None,
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
        commit = yield from self._backend.register_in_steps(
            created, session.quota, session.requested, session.key
        )
        if commit.done() and (error := commit.exception()):
            raise error
        return created, commit
