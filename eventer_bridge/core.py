"""What serves the clients of a server: the embedded engine, or a remote Event Server.

Servers (Mariner, Eventer) speak to :class:`EventCore` and do not know which it is.

Everything here belongs to the event loop's thread.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Protocol

from hat import aio

from eventer_bridge.model import (
    QueryParams,
    QueryResult,
    RegisterEvent,
    Source,
    SourceType,
    Status,
)
from eventer_bridge.session import Session
from eventer_bridge.subscription import Subscription


class Observer(Protocol):
    """Who wants to hear of sessions and of the status. Calls must not block or raise."""

    def on_session(self, session: Session, persisted: bool) -> None:
        """A session was registered (``persisted`` false) or is durable (true)."""

    def on_status(self, status: Status) -> None:
        """The status changed."""


class EventCore(aio.Resource, abc.ABC):
    """See the module."""

    @property
    @abc.abstractmethod
    def status(self) -> Status:
        """Current status; registrations succeed only while it is OPERATIONAL."""

    @property
    @abc.abstractmethod
    def pending_events(self) -> int:
        """Events that were accepted and are not acknowledged yet."""

    @property
    @abc.abstractmethod
    def is_full(self) -> bool:
        """Whether callers should stop handing in work until :meth:`when_drained` calls."""

    @abc.abstractmethod
    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, as soon as the core is no longer full."""

    @abc.abstractmethod
    def add_observer(self, observer: Observer) -> None:
        """Tell ``observer`` of every session and status from now on."""

    @abc.abstractmethod
    def remove_observer(self, observer: Observer) -> None:
        """Tell it no longer."""

    @abc.abstractmethod
    def create_source(self, source_type: SourceType) -> Source:
        """A source that nobody else has in this execution of the server."""

    @abc.abstractmethod
    def announce(self, source: Source, client_name: str, *, is_connected: bool) -> None:
        """A client connected or disconnected; never raises.

        Args:
            source: its connection.
            client_name: as the client gave it.
            is_connected: which of the two.
        """

    @abc.abstractmethod
    def register(self, source: Source, register_events: Sequence[RegisterEvent]) -> Session:
        """Register events as one session, all or none.

        Returns:
            The session; its events are durable when its ``committed`` is done. Sessions of
            one source are committed in the order of the calls. Of no events, it is done
            at once.

        Raises:
            EventerBridgeError: it is refused; the text is for the client. What is found
                out later fails ``committed`` instead.
        """

    @abc.abstractmethod
    async def query(
        self, params: QueryParams, subscription: Subscription | None = None
    ) -> QueryResult:
        """Answer a query.

        Args:
            params: which of the three queries.
            subscription: rights; only events whose type matches are seen. None: all.

        Raises:
            EventerBridgeError: it cannot be answered; see ``Backend.query``.
        """
