"""What a module is, and what it gets from the engine (000, "Module engine").

Everything here is called on the event loop's thread: blocking it blocks the server.
"""

import abc
from collections.abc import Sequence
from typing import Any, Final

from eventer_bridge import model
from eventer_bridge.resources import Resource
from eventer_bridge.subscription import Subscription


class ModuleEngine(abc.ABC):
    """The engine, as far as a module may use it."""

    @property
    @abc.abstractmethod
    def server_id(self) -> int:
        """Identifier of this server."""

    @abc.abstractmethod
    def create_source(self) -> model.Source:
        """A source identifier, unique in this execution of the server."""

    @abc.abstractmethod
    def create_process_event(
        self, source: model.Source, register_event: model.RegisterEvent
    ) -> model.ProcessEvent:
        """An event to return from ``ModuleSession.process`` or to pass to :meth:`register`.

        Raises:
            TypeError: the value of a field has another type than ``RegisterEvent`` declares.
            InvalidEventError: the type cannot be registered, a text has no UTF-8 form, or a
                payload is not JSON, too large, or nested too deeply.
            LimitError: there are too many types.
        """

    @abc.abstractmethod
    async def register(self, process_events: Sequence[model.ProcessEvent]) -> Sequence[model.Event]:
        """Register events in a session of their own, and wait until they are durable.

        Do not call it from ``create_session`` or a method of a module session: sessions are
        processed one after the other, so it would wait for itself. Return the events from
        ``process`` instead, or register from a task of the module's group.

        Returns the created events, without what modules added.

        Raises:
            NotOperationalError: the server is starting or stopping.
            ModuleError: called by a module session, or a module failed.
            InvalidEventError: a condition is not met, or no client could register the event.
            LimitError: a limit would be exceeded.
            StorageError: the store failed.
            OutcomeUnknownError: the store failed, and may or may not have the events.
            ClosedError: the store is closed.
        """

    @abc.abstractmethod
    async def query(self, params: model.QueryParams) -> model.QueryResult:
        """Query the store; raises as ``Backend.query``."""


class ModuleSession(abc.ABC):
    """A module's view of one session."""

    @abc.abstractmethod
    async def process(self, events: Sequence[model.ProcessEvent]) -> Sequence[model.ProcessEvent]:
        """Process the events that joined the session since the last call, and add to it.

        One call ends before the next begins. The events are those that match the module's
        subscription, from all sources, the module's own additions included: at least one, in the
        order in which they joined. New ones are created by ``ModuleEngine.create_process_event``.
        An exception fails the whole registration.
        """

    async def async_close(self, is_committed: bool) -> None:
        """Called exactly once, when the session has ended.

        A session that fails while it is processed (a module, a condition, a limit) is closed
        before the next one is processed, so that a module can take back in time what it noted.
        Sessions do not wait for the commits of earlier ones: if the store fails, later sessions
        may already be processed, and fail as well or are stored without this one.

        If a commit fails and its outcome is unknown, this is called once it is known, and no
        session is processed meanwhile.

        If it is not committed, none of its events is stored, or the server stops before that is
        known.
        """
        return


class Module(Resource):
    """A module, created by ``create`` of its Python module.

    A module that closes by itself takes no part in later sessions; the log has an error.
    """

    @property
    @abc.abstractmethod
    def subscription(self) -> Subscription:
        """The events that its sessions process; read once, after ``create``."""

    @abc.abstractmethod
    async def create_session(self) -> ModuleSession:
        """Called when a session begins, even if none of its events will match."""

    async def before_stop(self) -> None:
        """Called when the server stops: register what is not registered yet.

        All sessions have ended and no one else can register any more. Until this returns,
        ``ModuleEngine.register`` works; then STOPPED is stored and the module is closed.
        ``limits.STOP_TIMEOUT_S`` covers the ending sessions and all modules together.
        """
        return


QUERY_TYPES: Final[dict[str, Any]] = {
    "description": 'query types; "?" matches one segment, "*" at the end any number',
    "type": "array",
    "minItems": 1,
    "maxItems": 1_000,
    "items": {"type": "array", "items": {"type": "string"}},
}

EVENT_TYPE: Final[dict[str, Any]] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 32,
    "items": {
        "description": 'a segment that is not "?" or "*"',
        "type": "string",
        "not": {"enum": ["?", "*"]},
    },
}
