"""What a backend promises (000, "Backend engine"; DESIGN: layers 5 to 7).

A backend stores events and answers queries. The engine gives ids and timestamps; the
backend keeps them, for ever or as long as its retention rules say (see ``retention``). What
these delete is gone from every query, but marks do not go back by it. One contract
test-suite (``tests/eventer_bridge/backends``) is passed by every implementation.

All methods are called on the event loop's thread. Work that may block is done on threads
that the backend owns; functions that run there are named ``ext_…``.
"""

import abc
import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from hat import aio, util

from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.model import Event, EventType, QueryParams, QueryResult, Timestamp
from eventer_bridge.slices import Steps
from eventer_bridge.subscription import Subscription


class HighWaterMark(NamedTuple):
    """Where the ids and the clock of a server continue.

    Attributes:
        session: the greatest session id that may have been given (stored or reserved);
            0 where there is none.
        timestamp: the greatest timestamp stored for the server, None where there is none.
    """

    session: int
    timestamp: Timestamp | None


class StoreStats(NamedTuple):
    """How much is stored; cheap to get, for metrics.

    Attributes:
        events: stored events; an estimate.
        event_types: known event types.
        size_bytes: bytes on disk, 0 for a backend that has none.
    """

    events: int
    event_types: int
    size_bytes: int


class QueryLoad(NamedTuple):
    """Queries that are under way.

    Attributes:
        running: those that began.
        waiting: those that did not begin yet.
    """

    running: int
    waiting: int


class Backend(aio.Resource, abc.ABC):
    """Storage of events.

    Closing it (``async_close``) first commits everything that was accepted.

    A commit that fails (a full disk, for example) does not close it: until the cause is
    gone, which the backend finds out by itself, :attr:`failure` says what it is, and
    registrations and reservations fail at once. Queries are answered as far as that is
    possible. What was committed is kept; what was refused is not stored. What failed with
    ``OutcomeUnknownError`` is seen by nobody until the backend can write again: then it is
    decided whether it is stored, whole sessions only, and ``decided`` of the error says so. A
    store that is found damaged closes the backend.
    """

    @property
    @abc.abstractmethod
    def failure(self) -> str | None:
        """Why nothing can be stored now; None while it can."""

    @abc.abstractmethod
    def register_failure_cb(self, cb: Callable[[], None]) -> util.RegisterCallbackHandle:
        """Call ``cb`` on the loop's thread whenever :attr:`failure` changed.

        Returns:
            A handle; ``cancel`` ends it.
        """

    @abc.abstractmethod
    def high_water_mark(self, server_id: int) -> HighWaterMark:
        """Where the ids and the clock of a server continue.

        Raises:
            ClosedError: the backend is closed.
            StorageError: it cannot be read.
        """

    @property
    @abc.abstractmethod
    def history_id(self) -> str:
        """Name of the store's history (see ``history``)."""

    @abc.abstractmethod
    def last_session(self, server_id: int) -> HighWaterMark:
        """The last session of a server that was stored, whatever is reserved or was deleted.

        Raises:
            ClosedError: the backend is closed.
            StorageError: it cannot be read.
        """

    @abc.abstractmethod
    def reserve(self, server_id: int, session: int) -> asyncio.Future[None]:
        """Note on disk that ids of sessions up to and including ``session`` may be given.

        The future is done when the note is durable. A later note replaces it, also by a
        smaller one (a clean shut-down gives back what was not used).
        """

    @abc.abstractmethod
    def check_types(self, event_types: Iterable[EventType], quota: TypeQuota | None = None) -> None:
        """Refuse types that :meth:`register` could not store, before ids are given.

        Args:
            event_types: types, known ones and new ones.
            quota: of who brings the new ones; None: this server, or another one.

        Raises:
            LimitError: new types cost too much (see ``TypeBudget.check``).
        """

    @abc.abstractmethod
    def register(
        self, events: Sequence[Event], quota: TypeQuota | None = None, n_asked: int = 0
    ) -> asyncio.Future[None]:
        """Store the events of one session, whole or not at all.

        Sessions are committed in the order of the calls. The future is done when the
        events are durable: a power cut does not take them back; after that every query
        sees them.

        Args:
            events: the events of one session (at least one): same server, same session
                id (greater than of any before of that server), same timestamp (not
                smaller than of any before of that server), instances rising.
            quota: of who asked for it, where it is a client. The types that it brings count
                as its, in the same commit.
            n_asked: so many of the events, the first ones, it asked for.

        Returns:
            A future, which may be shared by sessions that are committed together, so that
            nobody may cancel it (wait with ``asyncio.wait`` or ``asyncio.shield`` where
            that could happen). It fails with ``OutcomeUnknownError`` if the commit failed,
            with ``StorageError`` if it was not begun (one before it failed, :attr:`failure` is
            set), and with ``ClosedError`` if the backend was closed.
        """

    def register_in_steps(
        self, events: Sequence[Event], quota: TypeQuota | None = None, n_asked: int = 0
    ) -> Steps[asyncio.Future[None]]:
        """As :meth:`register`, for a large session (``slices``).

        Until it is done, no session of its server is handed over, and none of types that
        are not stored yet.
        """
        yield
        return self.register(events, quota, n_asked)

    @abc.abstractmethod
    async def query(
        self,
        params: QueryParams,
        subscription: Subscription | None = None,
        client: str = "",
        holding: ExitStack | None = None,
    ) -> QueryResult:
        """Answer a query.

        An answer holds everything that was handed to :meth:`register` before the call (it
        waits for the commit of what is pending), except that

        - it may lack large sessions (:meth:`register_in_steps`) and what was handed over after
          them, as long as their commit is not done: nobody waits for somebody else's large
          session. Who has to find them waits for their commit first;
        - a server query with ``persisted`` waits for no commit.

        It never holds what is not durable, or not known to be.

        Ordered by timestamp or source timestamp, events of equal value are in natural
        order (reversed for descending); without source timestamp they come last in either
        order (000) and never match a bound of it.

        ``ids``, ``payload`` and ``unique_type`` are as ``QueryTimeseriesParams`` says.
        Rights bound them, too: an id of an event that may not be seen is not found, and an
        event that may not be seen does not stand for its type.

        With ``last_event_id`` a timeseries answer begins after that event; if the query
        without it would not contain that event, the answer is empty (001: events are
        discarded until it occurs). So it is where retention has deleted that event, which
        may happen to who pages from the oldest events upwards. A server answer begins with
        greater ids, one for the latest as ``QueryLatestParams`` says. When the task that waits for
        an answer is cancelled, work on it ends. An answer is cut at ``max_results``,
        ``limits.MAX_RESULTS`` (``MAX_LATEST_RESULTS`` for the latest) and
        ``limits.MAX_RESULT_BYTES`` (but never below one event), with ``more_follows`` true if
        there are more; ``max_results`` 0 gives no events.

        Args:
            params: which of the three queries.
            subscription: rights; only events whose type matches are seen. None: all.
            client: who asks. What one client asks shares the time with what others ask,
                and does not come before it, however much it is.
            holding: to be closed when the answer is not needed any more: a few large answers
                are held at a time, and others wait. None: who gets it does not hold it for
                long.

        Raises:
            ClosedError: the backend is closed, or was meanwhile.
            StorageError: reading failed, or the store is being opened again.
            InvalidSubscriptionError: ``*`` is not last in one of the event types.
            LimitError: too many ``ids``.
        """

    @property
    @abc.abstractmethod
    def query_load(self) -> QueryLoad:
        """Queries that are under way, beyond what is answered at once."""

    @property
    def query_turns(self) -> int:
        """Turns that queries had so far: while some are under way, it rises."""
        return 0

    async def check(self) -> None:
        """Look whether something could be stored now; nothing is stored for that.

        Raises:
            StorageError: it could not; the text says why.
        """

    @abc.abstractmethod
    async def flush(self) -> None:
        """Wait until everything that was handed to :meth:`register` is durable.

        The callbacks of its futures were called then.

        Raises:
            StorageError: it could not be made durable.
            OutcomeUnknownError: whether it was is not known.
        """

    @abc.abstractmethod
    def stats(self) -> StoreStats:
        """How much is stored now.

        Raises:
            ClosedError: the backend is closed.
        """
