"""Waiting in a fair line: one of each client in turn, so that nobody comes first by asking more.

Whatever waits for something scarce that all clients share (a reader, the store, a processor) waits
in a :class:`FairLine`, by the name of its client, or by its address before it has one. A
:class:`FairGate` runs a few pieces of such work at a time.

Belongs to one thread, usually that of the event loop.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class FairLine(Generic[T]):
    """What waits, by client; one of each client in turn.

    Attributes:
        clients: those who wait, in the order of their turns, each with what waits. To be read.
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
        """Take the first of a client, whose next turn comes after that of all others.

        Args:
            client: one who waits; None: the one whose turn it is.
            is_newest: take its last in place of the first.
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

    Args:
        n_places: how many may run at a time.
        n_of_client: how many of one client; None: all of them.
    """

    def __init__(self, n_places: int, n_of_client: int | None = None) -> None:
        self._n_free = n_places
        self._n_of_client = n_places if n_of_client is None else n_of_client
        self._taken: Counter[str] = Counter()  # places, by client
        self._waiting: FairLine[asyncio.Future[None]] = FairLine()

    async def run(self, client: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run work of a client when there is a place for it.

        Work cancelled before it has a place never begins. Work that began goes on, and keeps its
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
            task.exception()  # mark it as retrieved: maybe nobody waits
        self.leave(client)
