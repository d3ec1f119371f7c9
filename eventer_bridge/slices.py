"""Costly work in slices of a few milliseconds, so that it does not block the event loop.

Such work is a generator of :data:`Steps`, each of which takes about a millisecond; :func:`run`
runs it on the event loop's thread. Others continue between two slices: each iteration of the
loop runs one slice of all such work.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from eventer_bridge import limits
from eventer_bridge.model import Event, RegisterEvent
from eventer_bridge.sharing.fairness import FairLine

mlog = logging.getLogger(__name__)

T = TypeVar("T")
EventT = TypeVar("EventT", Event, RegisterEvent)

Steps: TypeAlias = Generator[None, None, T]
"""Work that yields after each step, and returns its result."""


class Turns:
    """A line of turns for connections that sent much, or for work in slices; owners take turns.

    Other connections do not wait for it: one waiter continues at a time, and then the event
    loop serves all others. A process has one for its connections, and one for its slices.
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

        To be asked for each connection before what was received is looked at. The first ones are
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
    """Do work in slices of ``limits.SLICE_S``; raises what it raises.

    Args:
        steps: the work.
        give_way: called between two slices.
    """
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
    """A queue of work, done in order and in slices.

    It ends by itself when empty. Belongs to the event loop's thread.

    Attributes:
        is_busy: whether new work has to wait.
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
