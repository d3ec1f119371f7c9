"""The core behind a server: the embedded engine, or a remote Event Server.

Servers speak to :class:`EventCore` and do not know which it is. Here is what both have in common:
who observes them, what is under way, and sources. All belongs to the event loop's thread.
"""

import abc
import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.base import ReadTypeCb, find_type
from eventer_bridge.backends.history import Departure, History
from eventer_bridge.backends.request_keys import RequestKey
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core.cursors import Cursors
from eventer_bridge.errors import EventerBridgeError, NotOperationalError
from eventer_bridge.model import (
    EventId,
    ProcessEvent,
    QueryParams,
    QueryResult,
    RegisterEvent,
    Source,
    SourceType,
    Status,
)
from eventer_bridge.packed import Batch, TypeTable, batch_of
from eventer_bridge.resources import Resource
from eventer_bridge.slices import FairGate, FairLine, Steps, WorkQueue
from eventer_bridge.subscription import EVERYTHING

mlog = logging.getLogger(__name__)


class Work(NamedTuple):
    """Work of one kind: how much is pending, and a number that changes with progress."""

    what: str
    n_waiting: int
    n_done: int


class Stalls:
    """Checks periodically whether pending work makes progress."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}  # amount done, and since when

    def look(self, every: Iterable[Work]) -> str | None:
        """Describe work without progress for ``limits.MAX_STALL_S``; None if there is none.

        The time restarts with progress, and for work that was not pending at the last check.
        """
        now = time.monotonic()
        found = None
        for what, n_waiting, n_done in every:
            before, since_s = self._seen.get(what, (None, now))
            if not n_waiting:
                self._seen.pop(what, None)
            elif before != n_done:
                self._seen[what] = n_done, now
            elif now - since_s >= limits.MAX_STALL_S:
                found = f"{n_waiting} {what}, and none was done for {now - since_s:.0f} s"
        return found


class Observer:
    """Is notified of sessions and of the status; what it ignores, a subclass need not define.

    Calls must not block. An observer that raises misses that notification, which is logged; the
    others do not.
    """

    def on_session(self, session: Batch, persisted: bool) -> None:
        """A session was registered (``persisted`` false) or is durable (true)."""

    def on_large_session(self, session: Batch, persisted: bool) -> Steps[None]:
        """As :meth:`on_session`, in steps. No other session is notified meanwhile."""
        self.on_session(session, persisted)
        yield

    def on_missed(self, session: Batch | None, persisted: bool, error: Exception) -> None:
        """:meth:`on_session` raised: close peers that may have missed the session.

        A session of None: it is not known which.
        """

    def on_status(self, status: Status) -> None:
        """The status changed."""

    def on_other_history(self, server_id: int | None) -> None:
        """Sessions from now on are of another history than those notified before.

        ``server_id``: of this server, which continues what was notified; None: of any, and nothing
        is continued. Clients must not see two histories of a server.
        """


class EventCore(Resource, abc.ABC):
    """See the module.

    Args:
        max_pending_bytes: payload bytes under way, with more of which it is full.

    Attributes:
        registers_one_by_one: whether :meth:`submit` gains nothing by several batches.
        types: of batches that are made of objects.
        pending_events: those accepted and not acknowledged yet.
        n_ended: sessions that have ended so far.
        missing: the last event of other servers that will never come, since the start.
        histories: of the servers whose events it has, as far as they are known; replaced, never
            changed.
        server_id: identifier of this server; None: it registers nothing itself.
        is_regaining: whether it takes events of its own that others have (``remote.group``).
        is_following: whether another member of its group registers, and it may be behind.
        lane: who takes in a large message of a client has it from before it is decoded, and
            for a large session until that is committed.
    """

    is_regaining = False
    is_following = False
    server_id: int | None = None

    def __init__(self, max_pending_bytes: int) -> None:
        self.lane = FairGate(limits.MAX_LARGE_SESSIONS)
        self.registers_one_by_one = True
        self.types = self.type_table(lambda text: None)
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes = 0  # of their payloads
        self.pending_events = 0
        # of large sessions, of which there are few (``limits.MAX_LARGE_SESSIONS``): these do not
        # fill it
        self._large_pending_events = self._large_pending_bytes = 0
        self.n_ended = 0
        self._waiting: FairLine[Callable[[], None]] = FairLine()
        self._is_letting_in = False
        self._observers: list[Observer] = []
        # by ``persisted``: those that hear of sessions; the lists are replaced, never changed
        self._hearing: dict[bool, list[Observer]] = {False: [], True: []}
        self._source_ids = itertools.count(1)
        self._last_status = Status.STANDBY
        self._stalls = Stalls()
        self._notifying = WorkQueue()
        self.cursors: Cursors | None = None
        self.missing: dict[int, EventId] = {}
        self.histories: Mapping[int, History] = {}

    @property
    @abc.abstractmethod
    def status(self) -> Status:
        """Current status; registrations succeed only while it is OPERATIONAL."""

    @property
    @abc.abstractmethod
    def hindrance(self) -> str | None:
        """Why it is not OPERATIONAL, for its operator; None: it is, or will be without more ado.

        In the words of the log. It may name addresses and files: it is not for clients.
        """

    @property
    def extensions(self) -> tuple[str, ...]:
        """Names of what it can do for clients beyond the specification."""
        return ()

    def text_for_client(self, error: EventerBridgeError) -> str:
        """The text of an error as clients hear it; the log has all of it."""
        return str(error)

    def type_table(self, read: ReadTypeCb) -> TypeTable:
        """The types of the batches of a wire, which ``read`` reads."""
        return TypeTable(partial(find_type, read), limits.CACHE_BYTES, {}, {})

    async def check_ready(self) -> None:
        """Look whether it could serve now; raises ``EventerBridgeError``, which says why not."""
        if self.status is not Status.OPERATIONAL:
            raise NotOperationalError(self.hindrance or "registrations are refused")
        if (stall := self._stalls.look(self._work())) is not None:
            raise NotOperationalError(stall)

    @abc.abstractmethod
    def _work(self) -> Iterable[Work]:
        """Pending work that has to make progress."""

    @property
    def is_full(self) -> bool:
        """Whether work has to wait (:meth:`wait_for_room`) before it is handed in."""
        return (
            self.pending_events - self._large_pending_events > limits.MAX_PENDING_EVENTS
            or self._pending_bytes - self._large_pending_bytes > self._max_pending_bytes
            or self._large_pending_bytes > limits.MAX_LARGE_PENDING_BYTES
        )

    def wait_for_room(self, owner: str, go_on: Callable[[], None]) -> None:
        """Call ``go_on`` once, when the core is not full and it is its owner's turn."""
        self._waiting.append(owner, go_on)

    def wait_no_longer(self, owner: str, go_on: Callable[[], None]) -> None:
        """Cancel :meth:`wait_for_room`."""
        self._waiting.remove(owner, go_on)

    def add_observer(
        self, observer: Observer, *, registered: bool = True, persisted: bool = True
    ) -> None:
        """Notify an observer from now on: of the status, and sessions (registered, durable)."""
        self._observers.append(observer)
        self.set_hearing(observer, registered=registered, persisted=persisted)

    def set_hearing(self, observer: Observer, *, registered: bool, persisted: bool) -> None:
        """Change what an observer is notified of, as by :meth:`add_observer`; of one added only."""
        is_there = observer in self._observers
        for kind, is_wanted in (False, registered), (True, persisted):
            hearing = self._hearing[kind]
            if not (is_there and is_wanted):
                self._hearing[kind] = [i for i in hearing if i is not observer]
            elif observer not in hearing:
                self._hearing[kind] = [*hearing, observer]

    def remove_observer(self, observer: Observer) -> None:
        """Notify it no longer."""
        self._observers.remove(observer)
        self.set_hearing(observer, registered=False, persisted=False)

    def create_source(self, source_type: SourceType) -> Source:
        """A source that is unique in this execution of the server."""
        return Source(source_type, next(self._source_ids))

    @abc.abstractmethod
    def announce(self, source: Source, client_name: str, *, is_connected: bool) -> None:
        """A client (its source, and its name as given) connected or disconnected; never raises."""

    @abc.abstractmethod
    def submit(self, batches: list[Batch]) -> None:
        """Register batches, each as one session, all of its events or none.

        Each has ``committed`` afterwards: its events are durable when that is done. Batches of one
        source are committed in the order of the calls. Of no events, it is done at once; of a
        refused one, it has failed; the text is for the client. What was registered before, with
        the same key, has the batch ``first``, too. If one has a ``key``, all are of one client.
        """

    def register(
        self,
        source: Source,
        register_events: Sequence[RegisterEvent | ProcessEvent],
        quota: TypeQuota | None = None,
        key: RequestKey | None = None,
    ) -> Batch:
        """Register events as one session, all or none: :meth:`submit` of one batch.

        Raises why it is refused. What is found out later fails ``committed`` instead.
        """
        batch = batch_of(register_events, self.types)
        batch.source, batch.quota, batch.key = source, quota, key
        self.submit([batch])
        if batch.committed.done() and (error := batch.committed.exception()):
            raise error
        return batch

    def servers(self) -> list[int]:
        """Servers whose events it keeps or kept."""
        return []

    def last_persisted(self, server_id: int) -> int:
        """The last session of a server that is stored; 0: none is.

        Queries find it, and observers were notified of it, or will be at once. No later session was
        notified.
        """
        return 0

    def n_deletions(self) -> int:
        """See ``Backend.n_deletions``."""
        return 0

    def departure(self, seen: EventId, followed: str | None) -> Departure | None:
        """Where a client departs from the stored history; None: it does not.

        ``seen`` is the last event of a server that it saw, of history ``followed``; None: unknown.
        """
        server_id = seen.server
        if (current := self.histories.get(server_id)) is not None:
            found = history.departure(followed, current, seen.session)
            if found is not None:
                return found._replace(reason=f"server {server_id}: {found.reason}")
        is_own = server_id == self.server_id and not self.is_regaining and not self.is_following
        if not is_own or seen.session <= self.last_persisted(server_id):
            return None  # what others have may come later
        text = f"{server_id}/{seen.session}/{seen.instance}"
        return Departure(0, f"event {text} is not stored here")  # nor is what was before it, maybe

    def check_position(self, server_id: int) -> None:
        """Raise ``NotOperationalError`` for what :meth:`departure` cannot compare yet."""
        is_own = server_id == self.server_id
        if is_own and self.is_regaining and server_id not in self.histories:
            raise NotOperationalError(
                f"start: events of server {server_id} are coming back from another one, and it is"
                " not known yet whether they are those that were followed: try again later"
            )

    async def query(self, params: QueryParams) -> QueryResult:
        """As :meth:`answer`, of a query of the server itself, which sees everything."""
        return await self.answer(VisibleQuery(params, EVERYTHING))

    @abc.abstractmethod
    async def answer(
        self,
        query: VisibleQuery,
        client: str = "",
        after: Collection[asyncio.Future[None]] = (),
        holding: ExitStack | None = None,
    ) -> QueryResult:
        """Answer a query, as far as it may be seen.

        It finds everything that was acknowledged or, as durable, notified before it, and waits for
        the commits ``after``: of what the same client registered or was notified of before. The
        rest, and what is raised: see ``Backend.answer``.
        """

    def answer_at_once(
        self, query: VisibleQuery, after: Collection[asyncio.Future[None]] = ()
    ) -> QueryResult | None:
        """As :meth:`answer`, of few rows and without waiting; see ``Backend.answer_at_once``."""
        return None

    def _add_pending(self, n_events: int, n_bytes: int) -> None:
        """So much more is under way."""
        self.pending_events += n_events
        self._pending_bytes += n_bytes

    def _end_pending(self, n_sessions: int, n_events: int, n_bytes: int) -> None:
        """Sessions have ended; :meth:`_notify_drained` is to be called then."""
        self.pending_events -= n_events
        self._pending_bytes -= n_bytes
        self.n_ended += n_sessions

    def between_notifications(self, make_steps: Callable[[], Steps[None]]) -> None:
        """Do work in slices between notifications of sessions."""
        self._notifying.add(make_steps)

    def _notify_drained(self) -> None:
        """Admit waiting work, one by one, until the core is full again."""
        if self._is_letting_in:  # what was let in has ended at once
            return
        self._is_letting_in = True
        try:
            while self._waiting.clients and not self.is_full:
                try:
                    self._waiting.pop()()
                except Exception:  # the others are to go on all the same
                    mlog.exception("who waited cannot go on")
        finally:
            self._is_letting_in = False

    def _notify_session(self, session: Batch, *, persisted: bool) -> None:
        """Notify observers of a session."""
        self._notify_sessions([session], persisted=persisted)

    def _notify_sessions(self, sessions: Sequence[Batch], *, persisted: bool) -> None:
        """Notify observers of sessions, in their order."""
        for observer in self._hearing[persisted]:
            for session in sessions:
                try:
                    observer.on_session(session, persisted)
                except Exception as e:
                    _on_missed(observer, session, persisted, e)

    def _on_unnotified(self, error: Exception, *, persisted: bool) -> None:
        """Close the clients that miss sessions which cannot be notified."""
        for observer in self._hearing[persisted]:
            _on_missed(observer, None, persisted, error)

    def _notify_in_steps(self, session: Batch, *, persisted: bool) -> Steps[None]:
        """The same, of a large session."""
        for observer in self._hearing[persisted]:
            try:
                yield from observer.on_large_session(session, persisted)
            except Exception as e:
                _on_missed(observer, session, persisted, e)

    def _notify_other_history(self, server_id: int | None = None) -> None:
        """See ``Observer.on_other_history``."""
        for observer in tuple(self._observers):
            observer.on_other_history(server_id)

    def _notify_status(self) -> None:
        """Notify observers of the status, if it changed."""
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


def _on_missed(
    observer: Observer, session: Batch | None, persisted: bool, error: Exception
) -> None:
    """An observer misses sessions; it is told before memory is needed for the log."""
    try:
        observer.on_missed(session, persisted, error)
    except Exception:  # the others are to go on all the same
        mlog.exception("an observer cannot close those who miss sessions")
    mlog.error("an observer misses sessions", exc_info=error)
