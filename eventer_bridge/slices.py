"""Turns on the event loop: fair lines and gates, and costly work in slices.

Work in slices is a generator of :data:`Steps`, each of which takes about a millisecond; :func:`run`
runs it on the event loop's thread. Each iteration of the loop runs one slice of all such work.

What waits for something scarce that all clients share (a reader, the store, a processor) waits in a
:class:`FairLine`, by the name of its client, or by its address before it has one. A
:class:`FairGate` runs a few pieces of such work at a time. Both belong to one thread.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from eventer_bridge import limits
from eventer_bridge.model import Event, RegisterEvent

T = TypeVar("T")
mlog = logging.getLogger(__name__)
EventT = TypeVar("EventT", Event, RegisterEvent)


class FairLine(Generic[T]):
    """What waits, by client; one of each client in turn.

    :attr:`clients` has the waiting ones, in the order of their turns, to be read.
    """

    def __init__(self) -> None:
        self.clients: dict[str, deque[T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.clients.values()))

    def __iter__(self) -> Iterator[T]:
        for waiting in self.clients.values():
            yield from waiting

    def append(self, client: str, item: T) -> None:
        """Wait."""
        self.clients.setdefault(client, deque()).append(item)

    def pop(self, client: str | None = None, *, is_newest: bool = False) -> T:
        """Take the first, or newest, of a client, or of the next one in turn if it is None.

        The client's next turn comes after that of all others.
        """
        if client is None:
            client = next(iter(self.clients))
        waiting = self.clients.pop(client)
        item = waiting.pop() if is_newest else waiting.popleft()
        if waiting:
            self.clients[client] = waiting
        return item

    def remove(self, client: str, item: T) -> None:
        """Wait no longer."""
        waiting = self.clients[client]
        waiting.remove(item)
        if not waiting:
            del self.clients[client]


class FairGate:
    """Runs a few pieces of work at a time; those that wait are served client by client, in turn.

    At most ``n_places`` run, and ``n_of_client`` of one client; None: all of them.
    """

    def __init__(self, n_places: int, n_of_client: int | None = None) -> None:
        self._n_free = n_places
        self._n_of_client = n_places if n_of_client is None else n_of_client
        self._taken: Counter[str] = Counter()  # places, by client
        self._waiting: FairLine[asyncio.Future[None]] = FairLine()

    async def run(self, client: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run work of a client when there is a place for it.

        Work cancelled before it has a place never begins. Work that began continues, and keeps its
        place, even if its caller is cancelled: it still occupies the server.
        """
        await self.enter(client)
        task = asyncio.ensure_future(work())
        task.add_done_callback(partial(self._on_done, client))
        return await asyncio.shield(task)

    async def enter(self, client: str) -> None:
        """Wait for a place, which is to be given back by :meth:`leave`."""
        if self._may_enter(client):
            self._take(client)
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(client, place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                with contextlib.suppress(KeyError, ValueError):  # passed over already
                    self._waiting.remove(client, place)
            else:
                self.leave(client)
            raise

    @contextlib.asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        """A place of a client, for the body, which is given back at its end."""
        await self.enter(client)
        try:
            yield
        finally:
            self.leave(client)

    def leave(self, client: str) -> None:
        """Give back a place of a client, to the one whose turn it is."""
        self._n_free += 1
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]
        waiting = self._waiting
        while self._n_free:
            following = next(filter(self._may_enter, waiting.clients), None)
            if following is None:
                return
            place = waiting.pop(following)
            if not place.done():
                self._take(following)
                place.set_result(None)

    def _may_enter(self, client: str) -> bool:
        return self._n_free > 0 and self._taken[client] < self._n_of_client

    def _take(self, client: str) -> None:
        self._n_free -= 1
        self._taken[client] += 1

    def _on_done(self, client: str, task: asyncio.Future[T]) -> None:
        if not task.cancelled():
            task.exception()  # mark it as retrieved: there may be no waiter
        self.leave(client)


Steps: TypeAlias = Generator[None, None, T]
"""Work that yields after each step, and returns its result."""


class Turns:
    """A line of turns for connections that sent much, or for work in slices; owners take turns.

    Other connections do not wait for it: one waiter continues at a time, and then the event loop
    serves all others. A process has one for its connections, and one for its slices.
    """

    def __init__(self) -> None:
        self._waiting: FairLine[Callable[[], object]] = FairLine()
        self._is_scheduled = False
        self._n_reads = 0  # since it was known last that an iteration of the loop began
        self._began_s = 0.0  # connections to be read from, in this iteration of the loop

    def wait(self, resume: Callable[[], object], owner: str = "") -> None:
        """Call a function once, after all earlier ones of its owner; it may wait again."""
        self._waiting.append(owner, resume)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def is_late(self) -> bool:
        """Whether this iteration of the loop took so long that others are to wait for their turns.

        Call it for each connection before what was received is looked at. The first ones are
        not late: a single connection is not to pay for the question each time.
        """
        self._n_reads += 1
        if self._n_reads <= limits.READS_IN_TIME:
            return False
        now_s = time.perf_counter()
        if not self._began_s:
            self._began_s = now_s
            asyncio.get_running_loop().call_soon(self._begin)
        return now_s - self._began_s > limits.ITERATION_S

    def _begin(self) -> None:
        self._n_reads, self._began_s = 0, 0.0

    def _next(self) -> None:
        try:
            self._waiting.pop()()
        finally:
            self._is_scheduled = bool(self._waiting.clients)
            if self._is_scheduled:
                asyncio.get_running_loop().call_soon(self._next)


async def next_turn() -> None:
    """Wait until all other work in slices, and all received bytes, had their turn."""
    await _next_turn()


async def run(steps: Steps[T], give_way: Callable[[], Awaitable[None]] = next_turn) -> T:
    """Do work in slices of ``limits.SLICE_S``, calling ``give_way`` between them."""
    end = time.perf_counter() + limits.SLICE_S
    while True:
        try:
            next(steps)
        except StopIteration as e:
            result: T = e.value
            return result
        if time.perf_counter() >= end:
            await give_way()
            end = time.perf_counter() + limits.SLICE_S


_turns: "Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Turns]]" = WeakKeyDictionary()


def _next_turn() -> asyncio.Future[None]:
    """Done when it is the caller's turn."""
    loop = asyncio.get_running_loop()
    if loop not in _turns:
        _turns[loop] = Turns()
    future = loop.create_future()

    def resume() -> None:
        if not future.done():  # else the waiter was cancelled
            future.set_result(None)

    _turns[loop].wait(resume)
    return future


class Many(list[T]):
    """A list of many small objects, which are freed in slices, whatever holds it last.

    Freeing those of a large session at once would take 20 ms.
    """

    __slots__ = ()

    def __del__(self) -> None:
        with contextlib.suppress(RuntimeError):  # no event loop to block
            asyncio.get_running_loop().call_soon(_free_some, [*self])


def _free_some(items: list[Any]) -> None:
    del items[-limits.FREED_OBJECTS :]
    if items:
        asyncio.get_running_loop().call_soon(_free_some, items)


def at_once(steps: Steps[T]) -> T:
    """Do work without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as e:
            result: T = e.value
            return result


def event_parts(events: Sequence[EventT]) -> Iterator[Sequence[EventT]]:
    """Cut events into parts of ``limits.STEP_EVENTS`` or ``STEP_BYTES`` of payload."""
    begin = n_bytes = 0
    for end, event in enumerate(events):
        if n_bytes >= limits.STEP_BYTES or end - begin == limits.STEP_EVENTS:
            yield events[begin:end]
            begin, n_bytes = end, 0
        if event.payload is not None:
            n_bytes += len(event.payload.data)
    if begin < len(events):
        yield events[begin:]


def cut_in_steps(events: Sequence[Event]) -> Steps[deque[Sequence[Event]]]:
    """As :func:`event_parts`, for taking and freeing the parts one by one."""
    cut: deque[Sequence[Event]] = deque()
    for part in event_parts(events):
        cut.append(part)
        yield
    return cut


def parts(n_items: int) -> Iterator[slice]:
    """Cut a sequence into parts of ``limits.STEP_EVENTS`` items, one for each step."""
    for begin in range(0, n_items, limits.STEP_EVENTS):
        yield slice(begin, min(begin + limits.STEP_EVENTS, n_items))


class WorkQueue:
    """A queue of work, done in order and in slices; new work has to wait while :attr:`is_busy`.

    It ends by itself when empty. Belongs to the event loop's thread.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], Steps[None]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.is_busy = False

    def add(self, make_steps: Callable[[], Steps[None]]) -> None:
        """Queue work, which must not raise."""
        self._waiting.append(make_steps)
        self.is_busy = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        await run(self._steps())
        self._task = None
        self.is_busy = False

    def _steps(self) -> Steps[None]:
        while self._waiting:
            try:
                yield from self._waiting[0]()
            except (GeneratorExit, asyncio.CancelledError):
                raise
            except BaseException:  # a panic of RocksDB's binding is no Exception
                mlog.exception("costly work failed")
            self._waiting.popleft()
            yield
