"""Session ids, which are never reused, even after a crash, and a clock that never goes back.

Ids are reserved on disk ahead of use (``limits.RESERVED_SESSIONS``), because an observer may
see one before its commit: none that anybody has seen is reused, even after kill -9.

Belongs to the event loop's thread.
"""

import asyncio
from collections.abc import Iterable, Sequence

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend
from eventer_bridge.errors import LimitError
from eventer_bridge.model import Event, EventId, ProcessEvent, RegisterEvent, Timestamp
from eventer_bridge.slices import Many, Steps, parts


class SessionIdAllocator:
    """See the module.

    Args:
        backend: where ids are reserved.
        server_id: whose ids they are.
    """

    def __init__(self, backend: Backend, server_id: int) -> None:
        self._backend = backend
        self._server_id = server_id
        mark = backend.high_water_mark(server_id)
        self._session = mark.session
        self._ceiling = mark.session  # session ids up to here are reserved durably
        self._asked_ceiling = mark.session
        self._timestamp = mark.timestamp or Timestamp(0, 0)

    def next_session(self) -> int:
        """A session id, greater than all before.

        Raises:
            LimitError: none is reserved on disk (the disk is slow, or failed).
        """
        if self._session + limits.RESERVED_SESSIONS // 2 >= self._asked_ceiling:
            self.reserve()
        if self._session >= self._ceiling:
            raise LimitError("session ids are not reserved on disk yet, try again")
        self._session += 1
        return self._session

    @property
    def newest(self) -> Timestamp:
        """The greatest timestamp given."""
        return self._timestamp

    def now(self) -> Timestamp:
        """The wall clock, or the greatest timestamp given before where that is later."""
        self._timestamp = timestamp = max(self._timestamp, Timestamp.now())
        return timestamp

    def create_events(
        self, session: int, register_events: Iterable[RegisterEvent | ProcessEvent]
    ) -> list[Event]:
        """Events of a session: one timestamp, instances from 1."""
        server, timestamp = self._server_id, self.now()
        return [
            Event(
                EventId(server, session, instance), i.type, timestamp, i.source_timestamp, i.payload
            )
            for instance, i in enumerate(register_events, 1)
        ]

    def create_events_in_steps(
        self, session: int, register_events: Sequence[RegisterEvent | ProcessEvent]
    ) -> Steps[list[Event]]:
        """As :meth:`create_events`."""
        server, timestamp = self._server_id, self.now()
        events: list[Event] = Many()
        for part in parts(len(register_events)):
            events += [
                Event(
                    EventId(server, session, instance),
                    i.type,
                    timestamp,
                    i.source_timestamp,
                    i.payload,
                )
                for instance, i in enumerate(register_events[part], part.start + 1)
            ]
            yield
        return events

    def reserve(self) -> asyncio.Future[None]:
        """Reserve ids ahead; done when that is durable."""
        ceiling = self._asked_ceiling = self._session + limits.RESERVED_SESSIONS
        future = self._backend.reserve(self._server_id, ceiling)

        def on_done(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and not future.exception():
                self._ceiling = max(self._ceiling, ceiling)
            elif self._asked_ceiling == ceiling:
                self._asked_ceiling = self._ceiling  # to be asked for again

        if future.done():
            on_done(future)
        else:
            future.add_done_callback(on_done)
        return future

    def release(self) -> asyncio.Future[None]:
        """Give back what was reserved and not used; no id can be given any more."""
        self._ceiling = self._session
        return self._backend.reserve(self._server_id, self._session)
