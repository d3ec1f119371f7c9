"""What a module is, and what it gets from the engine (000, "Module engine").

Everything here is called on the event loop's thread; what blocks it blocks the server.
"""

import abc
from collections.abc import Sequence

from hat import aio

from eventer_bridge.model import (
    Event,
    ProcessEvent,
    QueryParams,
    QueryResult,
    RegisterEvent,
    Source,
)
from eventer_bridge.subscription import Subscription


class ModuleEngine(abc.ABC):
    """What a module may ask of the engine."""

    @property
    @abc.abstractmethod
    def server_id(self) -> int:
        """Identifier of this server."""

    @abc.abstractmethod
    def create_source(self) -> Source:
        """A source identifier that nobody else has in this execution of the server."""

    @abc.abstractmethod
    def create_process_event(self, source: Source, register_event: RegisterEvent) -> ProcessEvent:
        """An event to be returned by ``ModuleSession.process`` or given to :meth:`register`.

        Args:
            source: of the module.
            register_event: type, source timestamp and payload.

        Raises:
            TypeError: a field has a value of another type than ``RegisterEvent`` says.
            InvalidEventError: the type cannot be registered, a text has no UTF-8 form, or a
                payload is no JSON, too large, or nested too deeply.
            LimitError: there are too many types.
        """

    @abc.abstractmethod
    async def register(self, process_events: Sequence[ProcessEvent]) -> Sequence[Event]:
        """Start a session of its own, and wait until it is durable.

        Not from ``create_session`` or a method of a module session: sessions are processed
        one after the other, so that it would wait for itself. Return the events from
        ``process`` instead, or register from a task of the module's group.

        Returns:
            The created events, without what modules added.

        Raises:
            NotOperationalError: the server is starting or stopping.
            ModuleError: called by a module session, or a module failed.
            InvalidEventError: a condition does not hold, or an event could not have come from
                a client.
            LimitError: a limit would be exceeded.
            StorageError: the store failed.
            OutcomeUnknownError: it did, and nobody knows whether the events are stored.
            ClosedError: the store is closed.
        """

    @abc.abstractmethod
    async def query(self, params: QueryParams) -> QueryResult:
        """Query the store; raises as ``Backend.query``."""


class ModuleSession(abc.ABC):
    """A module's view of one session."""

    @abc.abstractmethod
    async def process(self, events: Sequence[ProcessEvent]) -> Sequence[ProcessEvent]:
        """Look at what joined the session since the last call, and add to it.

        Called one call after the other, with what matches the module's subscription, from
        all sources, the module's own additions included. An exception fails the whole
        registration.

        Args:
            events: at least one, in the order in which they joined.

        Returns:
            New events, made by ``ModuleEngine.create_process_event``.
        """

    async def async_close(self, is_committed: bool) -> None:
        """The session ended; called once, always.

        A session that fails while it is processed (a module, a condition, a limit) is
        closed before the next one is processed, so that what a module noted of it can be
        taken back in time. Sessions do not wait for the commits of those before: where the
        store fails, later sessions may have been processed already, and fail as well or
        are stored without it.

        Where a commit failed and its outcome is not known, it is called when it is, and no
        session is processed meanwhile.

        Args:
            is_committed: whether its events are durable; if not, none of them is stored, or
                the server stops before that is known.
        """
        return


class Module(aio.Resource):
    """A module; made by the ``create`` of its Python module.

    One that closes by itself is left out of the sessions that follow, with an error in
    the log.
    """

    @property
    @abc.abstractmethod
    def subscription(self) -> Subscription:
        """Which events its sessions are told of; asked for once, after ``create``."""

    @abc.abstractmethod
    async def create_session(self) -> ModuleSession:
        """A session began; also if none of its events will match."""

    async def before_stop(self) -> None:
        """The server stops: register what is not registered yet.

        Called when all sessions have ended and nobody else can register any more. Until it
        returns, ``ModuleEngine.register`` works; then STOPPED is stored and the module is closed.
        It shares ``limits.STOP_TIMEOUT_S`` with the sessions before and the other modules.
        """
        return
