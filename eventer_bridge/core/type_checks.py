"""Whether event types can be registered, looked up for each event and checked once.

Belongs to the event loop's thread.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from eventer_bridge.backends import history
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core import group_events
from eventer_bridge.core.bounded_cache import BoundedCache, type_bytes
from eventer_bridge.core.validation import check_type
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import Event, EventType, ProcessEvent, RegisterEvent


class TypeChecks:
    """See the module.

    Args:
        backend: keeps the types.
        server_id: of this server.
        may_tell_history: whether the events are those with which the server itself begins.

    Attributes:
        known: types that were checked before; always the same dict.
        telling: types of what the server itself is about to tell the others of its group
            (``group_events``).
    """

    def __init__(
        self, backend: Backend, server_id: int, may_tell_history: Callable[[], bool]
    ) -> None:
        self._backend = backend
        self._server_id = server_id
        self.telling: Collection[EventType] = ()
        self._may_tell_history = may_tell_history
        self._checked: BoundedCache[EventType, None] = BoundedCache()
        self.known: Mapping[EventType, None] = self._checked.known

    def unchecked(self, events: Iterable[RegisterEvent | ProcessEvent | Event]) -> set[EventType]:
        """Types of events that were not checked before."""
        known = self.known
        return {event.type for event in events if event.type not in known}

    def check(
        self, events: Iterable[RegisterEvent | ProcessEvent], quota: TypeQuota | None = None
    ) -> None:
        """Refuse events whose types cannot be registered.

        Args:
            events: events.
            quota: of the client that brings them.

        Raises:
            InvalidEventError: a type cannot be registered.
            LimitError: there are too many types, or too many of the client's.
        """
        if new_types := self.unchecked(events):
            self.check_new(new_types, quota)

    def check_new(self, new_types: Collection[EventType], quota: TypeQuota | None) -> None:
        """As :meth:`check`, of types that are not known."""
        for event_type in new_types:
            check_type(event_type)
            if history.is_history(event_type) and not self._may_tell_history():
                raise InvalidEventError("event/?/history is for servers, which tell of their own")
            if self._is_told(event_type) and event_type not in self.telling:
                raise InvalidEventError(f"{'/'.join(event_type[:3])} is for the server itself")
        self._backend.check_types(new_types, quota)
        for event_type in new_types:
            # these are to be refused each time
            if not (history.is_history(event_type) or self._is_told(event_type)):
                self._checked.put(event_type, None, type_bytes(event_type))

    def _is_told(self, event_type: EventType) -> bool:
        return group_events.is_told(event_type, self._server_id)
