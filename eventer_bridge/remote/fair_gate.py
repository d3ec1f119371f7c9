"""Runs a few pieces of work at a time; those that wait are served client by client, in turn.

Belongs to the event loop's thread.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from eventer_bridge.backends.turns import QueryLine

T = TypeVar("T")


class FairGate:
    """See the module.

    Args:
        n_places: how many may run at a time.
    """

    def __init__(self, n_places: int) -> None:
        self._n_free = n_places
        self._waiting: QueryLine[asyncio.Future[None]] = QueryLine()

    async def run(self, client: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run work of a client when there is a place for it.

        Work cancelled before it has a place never begins. Work that began goes on, and keeps its
        place, even if its caller is cancelled: it still occupies the server.
        """
        if self._n_free:
            self._n_free -= 1
        else:
            await self._wait(client)
        task = asyncio.ensure_future(work())
        task.add_done_callback(self._on_done)
        return await asyncio.shield(task)

    async def _wait(self, client: str) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(client, place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                with contextlib.suppress(KeyError, ValueError):  # passed over already
                    self._waiting.remove(client, place)
            else:
                self._leave()
            raise

    def _on_done(self, task: asyncio.Future[T]) -> None:
        if not task.cancelled():
            task.exception()  # mark it as retrieved: maybe nobody waits
        self._leave()

    def _leave(self) -> None:
        while self._waiting.clients:
            place = self._waiting.pop()
            if not place.done():
                place.set_result(None)
                return
        self._n_free += 1
