"""What serves the clients of a server: the embedded engine, or a remote Event Server.

Servers (Mariner, Eventer) speak to :class:`EventCore` and do not know which it is. What both
have in common is here: who observes them, what is under way, and sources.

Everything here belongs to the event loop's thread.
"""

import abc
import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from typing import Protocol, runtime_checkable

from hat import aio

from eventer_bridge import limits
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.pending import Pending
from eventer_bridge.core.session import Session
from eventer_bridge.core.stalls import Stalls, Work
from eventer_bridge.errors import NotOperationalError
from eventer_bridge.model import (
    QueryParams,
    QueryResult,
    RegisterEvent,
    Source,
    SourceType,
    Status,
)
from eventer_bridge.slices import Steps
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)


class Observer(Protocol):
    """Who wants to hear of sessions and of the status. Calls must not block.

    One that raises misses what it was told, and costs the others nothing.
    """

    def on_session(self, session: Session, persisted: bool) -> None:
        """A session was registered (``persisted`` false) or is durable (true)."""

    def on_status(self, status: Status) -> None:
        """The status changed."""


@runtime_checkable
class PatientObserver(Observer, Protocol):
    """One that takes its time for a large session."""

    def on_large_session(self, session: Session, persisted: bool) -> Steps[None]:
        """As :meth:`on_session`, in steps. No other session is told of meanwhile."""


@runtime_checkable
class HistoryObserver(Observer, Protocol):
    """One whose clients are not to hear of two histories of a server."""

    def on_other_history(self) -> None:
        """What is told of from now on does not go on from what was told of before."""


class EventCore(aio.Resource, abc.ABC):
    """See the module.

    Args:
        max_pending_bytes: payload bytes under way, with more of which it is full.

    Attributes:
        lane: who takes in a large message of a client has it from before it is decoded, and
            for a large session until that is committed.
    """

    def __init__(self, max_pending_bytes: int) -> None:
        self.lane = asyncio.Semaphore(limits.MAX_LARGE_SESSIONS)
        self._pending = Pending(max_pending_bytes)
        self._observers: list[Observer] = []
        self._source_ids = itertools.count(1)
        self._last_status = Status.STANDBY
        self._stalls = Stalls()

    @property
    @abc.abstractmethod
    def status(self) -> Status:
        """Current status; registrations succeed only while it is OPERATIONAL."""

    async def check_ready(self) -> None:
        """Look whether it could serve now. Nothing is registered or queried for that.

        Raises:
            EventerBridgeError: it could not; the text says why.
        """
        if self.status is not Status.OPERATIONAL:
            raise NotOperationalError("registrations are refused")
        if (stall := self._stalls.look(self._work())) is not None:
            raise NotOperationalError(stall)

    @abc.abstractmethod
    def _work(self) -> Iterable[Work]:
        """What waits and is to go on."""

    @property
    def pending_events(self) -> int:
        """Events that were accepted and are not acknowledged yet."""
        return self._pending.events

    @property
    def is_full(self) -> bool:
        """Whether callers should stop handing in work until :meth:`when_drained` calls."""
        return self._pending.is_full

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, as soon as the core is no longer full."""
        self._pending.when_drained(callback)

    def add_observer(self, observer: Observer) -> None:
        """Tell ``observer`` of every session and status from now on."""
        self._observers.append(observer)

    def remove_observer(self, observer: Observer) -> None:
        """Tell it no longer."""
        self._observers.remove(observer)

    def create_source(self, source_type: SourceType) -> Source:
        """A source that nobody else has in this execution of the server."""
        return Source(source_type, next(self._source_ids))

    @abc.abstractmethod
    def announce(self, source: Source, client_name: str, *, is_connected: bool) -> None:
        """A client connected or disconnected; never raises.

        Args:
            source: its connection.
            client_name: as the client gave it.
            is_connected: which of the two.
        """

    @abc.abstractmethod
    def register(
        self,
        source: Source,
        register_events: Sequence[RegisterEvent],
        quota: TypeQuota | None = None,
    ) -> Session:
        """Register events as one session, all or none.

        Args:
            source: who asks.
            register_events: the events.
            quota: of a client, for event types that it brings; None: it has none.

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
        self,
        params: QueryParams,
        subscription: Subscription | None = None,
        client: str = "",
        after: Collection[asyncio.Future[None]] = (),
        holding: ExitStack | None = None,
    ) -> QueryResult:
        """Answer a query.

        It finds everything that was acknowledged or, as durable, notified before it.

        Args:
            params: which of the three queries.
            subscription: rights; only events whose type matches are seen. None: all.
            client: name of who asks, with whose other queries it shares the time.
            after: commits of what else it has to find: what the same client registered or
                was notified of before.
            holding: see ``Backend.query``.

        Raises:
            EventerBridgeError: it cannot be answered; see ``Backend.query``.
        """

    def _notify_session(self, session: Session, *, persisted: bool) -> None:
        """Tell observers of a session."""
        for observer in self._observers:
            try:
                observer.on_session(session, persisted)
            except Exception:
                mlog.exception("an observer failed")

    def _notify_in_steps(self, session: Session, *, persisted: bool) -> Steps[None]:
        """The same, of a large session."""
        for observer in tuple(self._observers):
            try:
                if isinstance(observer, PatientObserver):
                    yield from observer.on_large_session(session, persisted)
                else:
                    observer.on_session(session, persisted)
                    yield
            except Exception:
                mlog.exception("an observer failed")

    def _notify_other_history(self) -> None:
        """Tell observers that what they were told of is not what is gone on from."""
        for observer in tuple(self._observers):
            if isinstance(observer, HistoryObserver):
                observer.on_other_history()

    def _notify_status(self) -> None:
        """Tell observers of the status, if it is another than they were told last."""
        status = self.status
        if status is self._last_status:
            return
        self._last_status = status
        mlog.info("status changed", extra={"status": status.name})
        for observer in self._observers:
            try:
                observer.on_status(status)
            except Exception:
                mlog.exception("an observer failed")
