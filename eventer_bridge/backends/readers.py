"""Threads that answer queries, which share the time by turns.

``limits.READERS`` queries have a turn at a time. Each runs on a thread of its own, so that its call
stack is all the state between two turns: when its turn is over and others wait, :data:`PauseCb`
blocks until its next one. Threads are started on demand and kept.

Queries before their first turn and those after it wait in separate lines, which get half of the
time each if both are occupied. So a cheap query, which needs a single turn, does not wait behind
costly ones, and these go on, however many cheap ones come. In each line clients take turns.

rocksdict holds the interpreter's lock while it reads, even from a disk that is slow. Yet in slices
on the event loop, reading takes longer: 3,000 seeks in 260 MB that are not cached took 2.5 to 3.0 s
on a thread, with timers late by 0.4 ms (median), and 4.1 to 6.5 s on the loop, late by 3 to 5 ms.

A few large answers are in progress at a time (``limits.MAX_LARGE_ANSWERS``): a query requests one
of these places by :data:`LargeCb` when its answer gets large, and has no turn while it waits for
it. Clients get them in turn, and leave some to others. A place is kept until the answer was passed
on; what a peer does not read is bounded elsewhere (``sharing.memory``).

Cancelling the task that awaits an answer frees what the query holds: a query that did not begin
never does, others end where they pause.
"""

import asyncio
import contextlib
import enum
import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from eventer_bridge import limits
from eventer_bridge.backends.base import QueryLoad
from eventer_bridge.errors import ClosedError, EventerBridgeError, StorageError
from eventer_bridge.slices import FairLine

mlog = logging.getLogger(__name__)

T = TypeVar("T")


def yield_gil() -> None:
    """Let the event loop's thread have the interpreter, if it waits for it; costs about 50 us.

    For other threads, after some ``limits.READER_STRETCH_S`` of work. Otherwise the loop gets it
    only after ``sys.getswitchinterval()``, 5 ms: with two busy readers, the median of a
    registration is 15 ms then, and 0.8 ms so.
    """
    time.sleep(0)


class Pacer:
    """Yields the interpreter in time, and then calls ``check``, which may raise. One thread."""

    __slots__ = ("_check", "_due_s")

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._due_s = time.perf_counter() + limits.READER_STRETCH_S

    def pause(self) -> None:
        """To be called between steps of at most some 0.1 ms; costs 0.1 us if it is not time."""
        if time.perf_counter() >= self._due_s:
            yield_gil()
            self._check()
            self._due_s = time.perf_counter() + limits.READER_STRETCH_S


class Places:
    """A number of places; a client may have as many as are left to others."""

    def __init__(self) -> None:
        self.n_taken = 0
        self._n_taken_by: Counter[str] = Counter()

    def take(self, client: str, n_places: float) -> bool:
        """Take one for a client, if it may have another of that many places."""
        n_taken = self._n_taken_by.get(client, 0)
        if n_taken >= n_places - self.n_taken:
            return False
        self.n_taken += 1
        self._n_taken_by[client] = n_taken + 1
        return True

    def leave(self, client: str) -> None:
        """A client gives one back."""
        self.n_taken -= 1
        self._n_taken_by[client] -= 1
        if not self._n_taken_by[client]:
            del self._n_taken_by[client]


class QueryTurns(Generic[T]):
    """Whose turn it is; pure bookkeeping, without threads or locks.

    A query waits in ``new``, is begun by a turn, waits in ``paused`` after it any number of times,
    and gives back its place of ``begun`` at the end.
    """

    def __init__(self) -> None:
        self.new: FairLine[T] = FairLine()
        self.paused: FairLine[T] = FairLine()
        self.begun = Places()
        self._advance_s = 0.0  # by which new ones had more time than paused ones

    def next(self) -> T | None:
        """Whose turn it is; None: no query may begin or go on."""
        if self.paused.clients and self._advance_s > 0:
            return self.paused.pop()
        n_places = limits.MAX_QUERIES_BEGUN
        if self.begun.n_taken < n_places:
            for client in self.new.clients:
                if self.begun.take(client, n_places):
                    return self.new.pop(client)
        return self.paused.pop() if self.paused.clients else None

    def charge(self, seconds: float, *, is_first: bool) -> None:
        """A turn of so many seconds is over; ``is_first``: the first one of its query."""
        advance_s = self._advance_s + (seconds if is_first else -seconds)
        self._advance_s = min(max(advance_s, -limits.READER_TURN_S), limits.READER_TURN_S)


PauseCb: TypeAlias = Callable[[], None]
"""To be called by a query's work again and again, as ``Pacer.pause``. What it raises ends
the query and is not to be caught."""

LargeCb: TypeAlias = Callable[[], None]
"""To be called by a query's work, as :data:`PauseCb`, before it holds more of its answer than
``limits.LARGE_ANSWER_BYTES``."""


class Reading(ExitStack):
    """Holds an answer until it is closed; ``seconds`` is the time of the query's turns."""

    seconds = 0.0


class _State(enum.Enum):
    WAITING = enum.auto()  # for its first turn
    HAS_TURN = enum.auto()
    PAUSED = enum.auto()
    HELD_UP = enum.auto()  # until it may become large
    ENDED = enum.auto()


class _CancelledError(Exception):
    """The answer is no longer awaited."""


class _Query:
    """A query under way; its state is changed with the lock of the readers only."""

    def __init__(
        self, client: str, ext_fn: Callable[[PauseCb, LargeCb], Any], future: asyncio.Future[None]
    ) -> None:
        self.client = client
        self.ext_fn = ext_fn
        self.future = future
        self.state = _State.WAITING
        self.answer: Any = None
        self.is_awaited = True  # or its answer is held
        self.is_first_turn = True
        self.is_large = False
        self.began_s = 0.0  # its turn
        self.seconds = 0.0  # of turns that have ended
        self.turn = threading.Lock()  # released when it has the next one
        self.turn.acquire()


class Readers:
    """See the module. Created on the event loop's thread, closed by :meth:`ext_close`.

    ``check`` is called on a query's thread when it pauses, to end it by what it raises;
    ``n_turns`` is the number of turns that ended so far.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self._loop = asyncio.get_running_loop()
        self._check = check
        self._lock = threading.Lock()
        self._turns: QueryTurns[_Query] = QueryTurns()
        self._n_free = limits.READERS
        self._large = Places()
        self._held_up: FairLine[_Query] = FairLine()
        self._begun: queue.SimpleQueue[_Query | None] = queue.SimpleQueue()
        self._n_idle = 0  # threads that wait for one
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self.n_turns = 0

    @property
    def load(self) -> QueryLoad:
        """Queries that are under way, and those whose answers are held."""
        return QueryLoad(self._turns.begun.n_taken, len(self._turns.new))

    @property
    def is_whole(self) -> bool:
        """Whether every thread that was started lives."""
        return all(thread.is_alive() for thread in self._threads)

    async def run(
        self, client: str, ext_fn: Callable[[PauseCb, LargeCb], T], holding: ExitStack | None = None
    ) -> T:
        """Answer a query, by ``ext_fn`` on a reader thread. On the event loop's thread.

        Clients take turns. The answer is held until ``holding`` is closed; None: until it is
        returned; a :class:`Reading` gets the time it took. Raises as ``ext_fn``, ``ClosedError``
        (not begun when the readers were closed) or ``StorageError`` (it failed in an unexpected
        way).
        """
        query = _Query(client, ext_fn, self._loop.create_future())
        with self._lock:
            if self._is_closed:
                raise _closed()
            self._turns.new.append(client, query)
            self._dispatch()
        try:
            await query.future
        except BaseException:
            self._release(query)
            raise
        finally:
            if isinstance(holding, Reading):
                holding.seconds += query.seconds
        if holding is None:
            self._release(query)
        else:
            holding.callback(self._release, query)
        answer: T = query.answer
        query.answer = None
        return answer

    def ext_close(self) -> None:
        """Wait until all that began have ended, for which ``check`` is to raise."""
        with self._lock:
            self._is_closed = True
            for query in self._turns.new:
                query.state = _State.ENDED
                query.is_awaited = False
                self._deliver(query, _closed())
            self._turns.new = FairLine()
            self._dispatch()
            for _ in self._threads:
                self._begun.put(None)
        for thread in self._threads:
            thread.join()

    def _release(self, query: _Query) -> None:
        """The answer is neither awaited nor held any more."""
        with self._lock:
            if not query.is_awaited:  # it will never begin
                return
            query.is_awaited = False
            if query.state is _State.WAITING:
                query.state = _State.ENDED
                self._turns.new.remove(query.client, query)
            elif query.state is _State.PAUSED:
                self._turns.paused.remove(query.client, query)
                query.turn.release()  # to end, for which it needs no turn
            elif query.state is _State.HELD_UP:
                self._held_up.remove(query.client, query)
                query.turn.release()
            elif query.state is _State.ENDED:
                self._free(query)

    # with the lock

    def _dispatch(self) -> None:
        """Give away places for large answers, and turns, while there are any."""
        held_up = self._held_up
        while (client := next(filter(self._take_place, held_up.clients), None)) is not None:
            large = held_up.pop(client)
            large.is_large = True
            large.state = _State.PAUSED
            self._turns.paused.append(client, large)
        while self._n_free and (query := self._turns.next()) is not None:
            self._n_free -= 1
            query.began_s = time.perf_counter()
            is_new = query.state is _State.WAITING
            query.state = _State.HAS_TURN
            if not is_new:
                query.turn.release()
            elif self._n_idle:
                self._n_idle -= 1
                self._begun.put(query)
            else:
                self._start_thread(query)

    def _start_thread(self, query: _Query) -> None:
        name = f"store-reader-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._ext_run, args=(query,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as e:  # the system has no more of them
            self._deliver(query, StorageError(f"no thread for a query: {e}"))
            self._end_turn(query, _State.ENDED)
        else:
            self._threads.append(thread)

    def _end_turn(self, query: _Query, state: _State) -> None:
        """It goes on to another state, from its turn (or, to end, from any other)."""
        if query.state is _State.HAS_TURN:
            seconds = time.perf_counter() - query.began_s
            self._turns.charge(seconds, is_first=query.is_first_turn)
            query.seconds += seconds
            query.is_first_turn = False
            self._n_free += 1
            self.n_turns += 1
        query.state = state
        if state is _State.PAUSED:
            self._turns.paused.append(query.client, query)
        elif state is _State.HELD_UP:
            self._held_up.append(query.client, query)
        elif not query.is_awaited:
            self._free(query)

    def _free(self, query: _Query) -> None:
        """It has ended, and its answer is gone."""
        self._turns.begun.leave(query.client)
        if query.is_large:
            self._large.leave(query.client)
        self._dispatch()

    def _take_place(self, client: str) -> bool:
        n_places = math.inf if self._is_closed else limits.MAX_LARGE_ANSWERS
        return self._large.take(client, n_places)

    # on a reader thread

    def _ext_run(self, first: _Query) -> None:
        query: _Query | None = first
        while query is not None:
            error = self._ext_answer(query)
            with self._lock:
                self._n_idle += 1
                self._end_turn(query, _State.ENDED)
                self._dispatch()
            self._deliver(query, error)  # last, when no lock is held
            del query, error
            query = self._begun.get()

    def _ext_answer(self, query: _Query) -> EventerBridgeError | None:
        """Do a query's work; returns why it failed."""
        try:
            self._ext_check(query)  # it may have waited for long
            pause = Pacer(partial(self._ext_look, query)).pause
            query.answer = query.ext_fn(pause, partial(self._ext_become_large, query))
        except _CancelledError:
            pass
        except EventerBridgeError as e:
            # what it was raised by would keep iterators, and so the database, alive
            e.__context__ = e.__cause__ = None
            return e.with_traceback(None)
        except BaseException as e:  # nothing may end the thread: RocksDB's panics are such
            mlog.exception("query failed")
            return StorageError(f"query failed: {type(e).__name__}: {e}")
        return None

    def _ext_look(self, query: _Query) -> None:
        self._ext_check(query)
        if time.perf_counter() - query.began_s >= limits.READER_TURN_S:
            with self._lock:
                self._end_turn(query, _State.PAUSED)
                self._dispatch()
            query.turn.acquire()
            self._ext_check(query)

    def _ext_become_large(self, query: _Query) -> None:
        with self._lock:
            if query.is_large:
                return
            if self._take_place(query.client):
                query.is_large = True
                return
            self._end_turn(query, _State.HELD_UP)
            self._dispatch()
        query.turn.acquire()
        self._ext_check(query)

    def _ext_check(self, query: _Query) -> None:
        if not query.is_awaited:
            raise _CancelledError
        self._check()

    def _deliver(self, query: _Query, error: EventerBridgeError | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(_resolve, query.future, error)


def _resolve(future: asyncio.Future[None], error: EventerBridgeError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _closed() -> ClosedError:
    return ClosedError("the event store is closed")
