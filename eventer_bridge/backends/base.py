"""The contract of backends (000, "Backend engine"), and what they share.

A backend stores events and answers queries. The engine allocates ids and timestamps; the backend
keeps the events for ever, or by its retention rules. Deleted events are in no answer, but do not
lower the marks. Every implementation passes one contract test suite.

All methods are called on the event loop's thread, unless they say otherwise. Work that may block is
done on threads that the backend owns; functions that run there are named ``ext_…``. Whatever reads
raises ``ClosedError`` (the backend is closed) or ``StorageError`` (it cannot be read).
"""

import abc
import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from hat import util

from eventer_bridge import limits
from eventer_bridge.backends.request_keys import KeptRequest
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.errors import EventerBridgeError, LimitError, StorageError
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    QueryParams,
    QueryResult,
    QueryTimeseriesParams,
    Timestamp,
)
from eventer_bridge.packed import Batch, TypeTable, encode_type
from eventer_bridge.resources import Resource
from eventer_bridge.slices import Steps
from eventer_bridge.subscription import EVERYTHING

HeldCb: TypeAlias = Callable[[], Timestamp | None]
"""Since when events are not to be deleted, for now; None: all may be."""


class HighWaterMark(NamedTuple):
    """Where the ids and the clock of a server continue.

    ``session`` is the greatest that may have been allocated (stored or reserved), 0: none;
    ``timestamp`` the greatest that is stored, None: none.
    """

    session: int
    timestamp: Timestamp | None


class StoreStats(NamedTuple):
    """Size of the store, for metrics; cheap to get.

    ``events`` is an estimate; without a disk ``size_bytes`` is 0 and ``free_bytes`` None;
    ``compaction_bytes`` is what compactions have still to rewrite, estimated; ``since_commit_s``
    since the last commit was synced, None: there was none, or is no disk.
    """

    events: int
    event_types: int
    size_bytes: int
    free_bytes: int | None = None
    compaction_bytes: int = 0
    since_commit_s: float | None = None


class QueryLoad(NamedTuple):
    """Queries in progress: those that have started, and those that have not yet."""

    running: int
    waiting: int


ReadTypeCb: TypeAlias = Callable[[bytes], EventType | None]
"""Reads a type from its text on a wire; None: it is none."""


def find_type(read: ReadTypeCb, key: bytes | EventType) -> tuple[EventType, bytes] | None:
    """See ``packed.FindCb``."""
    event_type = read(key) if isinstance(key, bytes) else key
    return None if event_type is None else (event_type, encode_type(event_type))


class Backend(Resource, abc.ABC):
    """Storage of events.

    Closing it (``async_close``) first commits everything that was accepted.

    A failed commit (a full disk, for example) does not close it: until the backend detects that the
    cause is gone, :attr:`failure` names it, and registrations and reservations fail at once.
    Queries are answered as far as possible. Committed sessions are kept; refused ones are not
    stored. Sessions that failed with ``OutcomeUnknownError`` are invisible until the backend can
    write again: then it is decided, for whole sessions, whether they are stored, and ``decided`` of
    the error says so. A store that is found damaged closes the backend.

    Attributes:
        failure: why nothing can be stored now; None: it can.
        failure_cbs: called on the loop's thread whenever that changes.
        history_id: name of the store's history (see ``history``).
        is_whole: whether it has all that it ever had, as far as it knows: from :meth:`note_whole`
            on, even when it is opened again; not of a new store, a restored one, or a copy.
        is_passive: whether it takes nothing, and only follows others.
        is_keeping: whether it keeps anything: events, request keys, cursors.
        path: the directory of its store, if it has one; errors name it.
    """

    failure: str | None = None
    failure_cbs: util.CallbackRegistry
    history_id: str
    is_whole = False
    is_keeping = True
    is_passive = False
    path: Path | None = None

    @abc.abstractmethod
    def high_water_mark(self, server_id: int) -> HighWaterMark:
        """Where the ids and the clock of a server continue."""

    async def note_whole(self) -> None:
        """Note that nothing is missing; raises ``StorageError`` if it cannot be noted."""

    @abc.abstractmethod
    async def begin_history(self, server_id: int) -> None:
        """Begin another history, as a restore does; nothing of the server is under way.

        Session ids go on far above those that it may have given. Raises as :meth:`register`.
        """

    @abc.abstractmethod
    def last_session(self, server_id: int) -> HighWaterMark:
        """The last stored session of a server, even if deleted; reservations do not count."""

    @abc.abstractmethod
    def reserve(self, server_id: int, session: int) -> asyncio.Future[None]:
        """Reserve session ids up to and including ``session``, on disk.

        The future is done when the reservation is durable. A later one replaces it, even a smaller
        one (a clean shutdown returns unused ids).
        """

    @abc.abstractmethod
    def check_types(self, event_types: Iterable[EventType], quota: TypeQuota | None = None) -> None:
        """Refuse types, known or new, that :meth:`register` could not store, before ids are given.

        ``quota``: of the registering client; None: this server, or another one. ``LimitError``: new
        types cost too much (see ``TypeBudget.check``).
        """

    def has_types(self, event_types: AbstractSet[EventType]) -> bool:
        """Whether all of these types are known, so that nobody has to pay for them."""
        return False

    def servers(self) -> list[int]:
        """Servers of which there are events, or were; at least those whose events are durable."""
        return []

    async def count_server(self, query: VisibleQuery, client: str) -> tuple[int, Timestamp | None]:
        """Number, and first timestamp, of a server's persisted events that would answer a query."""
        events = (await self.answer(query, client)).events
        return len(events), events[0].timestamp if events else None

    def find_requests(self, owner: str, names: Sequence[str]) -> list[KeptRequest | None]:
        """Stored requests of a client, by its names of them; what is under way may be found or not.

        Also raises ``StorageError`` while there is a :attr:`failure`.
        """
        return [None] * len(names)

    def may_be_deleted(self, event_id: EventId) -> bool:
        """Whether retention deleted a whole session, the same or a later one of its server."""
        return False

    def n_deletions(self) -> int:
        """``QueryResult.n_deletions`` at this moment."""
        return 0

    def note_missing(self, last: EventId) -> None:
        """Note that events of a server are missing up to this one, which never came here.

        Kept with what is handed over next; who reads on from before is told (``deleted``).
        """

    def note_newest(self, newest: Timestamp) -> None:
        """Note this server's greatest timestamp once a second: before that, nothing is old."""

    def moment_before(self, seconds: float) -> Timestamp | None:
        """The moment before which events are that old; None: none is known to be. Any thread."""
        return None

    def hold_retention(self, held_since: HeldCb) -> None:
        """Have retention keep what was not read yet; its thread calls ``held_since``."""

    def reader_rows(self, prefix: bytes) -> dict[bytes, bytes]:
        """Rows that are kept for readers (``core.cursors``) and durable, by keys with a prefix."""
        return {}

    def keep_reader_rows(self, rows: Mapping[bytes, bytes | None]) -> asyncio.Future[None]:
        """Put rows for readers, or delete them (None), in one commit; see :meth:`register`."""
        return failed(asyncio.get_running_loop().create_future(), StorageError("nothing is kept"))

    def type_table(self, read: ReadTypeCb, checked: Container[EventType]) -> TypeTable:
        """A table of types for batches that are registered here; ``read`` reads those of a wire.

        ``checked``: types that may be registered without being checked again.
        """
        return TypeTable(partial(find_type, read), limits.CACHE_BYTES, {}, checked)

    @abc.abstractmethod
    def register(self, batches: list[Batch]) -> Steps[asyncio.Future[None]]:
        """Store the events of sessions atomically, in steps; small batches may be taken at once.

        Batches are committed in the order of the calls. The future is done when the events are
        durable: they survive a power cut, and every later query finds them. Until the last step,
        the caller registers no other session of their server, and none with types that are not
        stored yet.

        Args:
            batches: one or more, each with its session and types of :meth:`type_table`: same
                server, ascending session ids (greater than any before of that server), same
                timestamp (not smaller than any before of that server), ascending instances. A
                stepwise one comes alone. In the same commit, its key is kept, and the ``quota`` of
                one that comes alone is charged for its new types that were ``requested``.

        Returns:
            A future, which batches that are committed together share: callers must not cancel it
            (await it by ``asyncio.wait`` or ``asyncio.shield`` if they may be cancelled). It fails
            with ``OutcomeUnknownError`` if the commit failed, with ``StorageError`` if it did not
            start (:attr:`failure` is set), and with ``ClosedError`` if the backend was closed.
        """

    async def query(self, params: QueryParams, holding: ExitStack | None = None) -> QueryResult:
        """As :meth:`answer`, of a query of the server itself, which sees everything."""
        return await self.answer(VisibleQuery(params, EVERYTHING), holding=holding)

    def answer_at_once(self, query: VisibleQuery) -> QueryResult | None:
        """As :meth:`answer`, of what is answered from few rows and waits for nothing.

        At most ``limits.LARGE_ANSWER_BYTES``. None: :meth:`answer` is to answer it, or to say why
        it cannot.
        """
        return None

    @abc.abstractmethod
    async def answer(
        self, query: VisibleQuery, client: str = "", holding: ExitStack | None = None
    ) -> QueryResult:
        """Answer a query.

        An answer includes all sessions that were passed to :meth:`register` before the call (it
        waits for pending commits), except that

        - it may lack large sessions and later ones until they are
          committed: no client waits for another client's large session. A caller that must find
          them waits for their commit first;
        - a server query with ``persisted`` waits for no commit.

        It never includes events that are not known to be durable.

        Ordered by timestamp or source timestamp, events of equal value are in natural
        order (reversed for descending); without source timestamp they come last in either
        order (000) and never match a bound of it.

        Rights apply to ``ids``, ``payload`` and ``unique_type``, too: the id of an invisible event
        is not found, and an invisible event does not count as the first of its type.

        The answer to a server query tells what is missing in it, at the same moment
        (``QueryResult.deleted``): what retention deleted here, and :meth:`note_missing`.

        With ``last_event_id``, a timeseries answer begins after that event; if the query without it
        would not include that event, the answer is empty (001: events are discarded until it
        occurs), as it also is if retention deleted that event. A server answer begins with greater
        ids; for a query of the latest, see ``QueryLatestParams``. Cancelling the task that awaits
        an answer ends the work on it. An answer has at most ``max_results`` and
        ``limits.MAX_RESULTS`` events (``MAX_LATEST_RESULTS`` for the latest) and
        ``limits.MAX_RESULT_BYTES`` (but at least one event), with ``more_follows`` true if there
        are more; ``max_results`` 0 returns no events.

        Args:
            query: one of the three queries, and what may be seen of its answer.
            client: whose name it is asked in; clients take turns.
            holding: closed by the caller when it no longer needs the answer: only a few large
                answers are held at a time. None: it does not hold it for long.

        Raises:
            ClosedError: the backend is closed, or was meanwhile.
            StorageError: reading failed, or the store is being reopened.
            InvalidSubscriptionError: ``*`` is not last in one of the event types.
            LimitError: too many ``ids``.
        """

    @property
    @abc.abstractmethod
    def query_load(self) -> QueryLoad:
        """Queries in progress, without those that are answered at once."""

    @property
    def query_turns(self) -> int:
        """Number of turns that queries had so far: it rises while any are in progress."""
        return 0

    async def check(self, min_free_bytes: int | None = None) -> None:
        """Raise ``StorageError`` if a session could not be stored now, without storing anything.

        ``min_free_bytes``: how much of the disk is to be free; None: ``limits.MIN_FREE_BYTES``.
        """

    def types_cost(self, owner: str) -> int:
        """What a client's types cost so far (``type_budget``), by the owner of its quota."""
        return 0

    @abc.abstractmethod
    async def flush(self) -> None:
        """Wait until all that was registered is durable, and the callbacks of its futures ran.

        Raises as those futures do.
        """

    @abc.abstractmethod
    def stats(self) -> StoreStats:
        """Current size of the store; raises ``ClosedError``."""


def check_ids(params: QueryParams) -> None:
    """Raise ``LimitError`` for a query of more than ``limits.MAX_QUERY_IDS`` ids."""
    if isinstance(params, QueryTimeseriesParams) and params.ids is not None:
        n_ids = len(params.ids)
        if n_ids > limits.MAX_QUERY_IDS:
            raise LimitError(
                f"{n_ids} ids in one query, at most {limits.MAX_QUERY_IDS} are allowed"
            )


def result_limit(max_results: int | None) -> int:
    """Events in an answer to a timeseries or server query, at most."""
    return limits.MAX_RESULTS if max_results is None else min(max_results, limits.MAX_RESULTS)


NO_WAY_ON: Final = QueryResult((), True)
"""Answer to a query for the latest that is to go on from an event that is not there."""


def failed(future: asyncio.Future[None], error: EventerBridgeError) -> asyncio.Future[None]:
    """Fail a future that nobody has to await.

    It does not keep the traceback, with which it would refer to what refers to it: batches.
    """
    future.set_exception(error.with_traceback(None))
    future.exception()  # counts as looked at: no warning when it is dropped
    return future


def take(events: Iterable[Event], max_events: int) -> QueryResult:
    """An answer of the first events, cut at a number and ``limits.MAX_RESULT_BYTES``."""
    taken: list[Event] = []
    n_bytes = 0
    for event in events:
        if event.payload is not None:
            n_bytes += len(event.payload.data)
        if len(taken) >= max_events or (n_bytes > limits.MAX_RESULT_BYTES and taken):
            return QueryResult(taken, True)
        taken.append(event)
    return QueryResult(taken, False)
