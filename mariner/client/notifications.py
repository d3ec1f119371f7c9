"""Notifications that wait for the user, in a queue bounded in bytes. On the event loop's thread.

A connection whose user does not consume them is closed, as is one whose server is silent.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from eventer_bridge.model import Event
from eventer_bridge.net.stats import CloseReason
from mariner import limits
from mariner.client.connection import ServerConnection
from mariner.wire.messages import PingReq

T = TypeVar("T")


class Notifications(Generic[T]):
    """Async iterator of batches; safe to cancel, ends after :meth:`end` when it is empty.

    Several tasks may iterate; each batch goes to one of them. ``on_room`` is called when a batch is
    taken and the queue is at most half full.
    """

    def __init__(self, on_room: Callable[[], None]) -> None:
        self._on_room = on_room
        self._batches: deque[tuple[int, T]] = deque()
        self._size_bytes = 0
        self._changed = asyncio.Event()
        self._is_ended = False
        self.taken = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._batches:
            if self._is_ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        size_bytes, item = self._batches.popleft()
        self._size_bytes -= size_bytes
        self.taken += 1
        if self._size_bytes <= limits.MAX_NOTIFICATIONS_BYTES // 2:
            self._on_room()
        return item

    @property
    def is_full(self) -> bool:
        """Whether reading should pause."""
        return self._size_bytes >= limits.MAX_NOTIFICATIONS_BYTES

    def put(self, item: T, size_bytes: int) -> None:
        """Append a batch of so many bytes; the caller checks :attr:`is_full` afterwards."""
        size_bytes += limits.EVENT_BYTES
        self._batches.append((size_bytes, item))
        self._size_bytes += size_bytes
        self._changed.set()

    def end(self) -> None:
        """End the queue; its batches can still be consumed."""
        self._is_ended = True
        self._changed.set()


def size_of(events: Sequence[Event]) -> int:
    """Bytes that events take."""
    size_bytes = limits.EVENT_BYTES * len(events)
    for event in events:
        if event.payload is not None:
            size_bytes += len(event.payload.data)
    return size_bytes


class StallWatch:
    """Closes a connection where a request waits behind notifications that nobody consumes."""

    def __init__(self, connection: ServerConnection, pending: Mapping[int, object]) -> None:
        self._connection = connection
        self._pending = pending
        self._mark: tuple[int, int | None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, queue: Notifications[Any]) -> None:
        """Check every ``limits.STALL_TIMEOUT_S`` from now on, until reading goes on."""
        if self._timer is None:
            self._check(queue)

    def end(self) -> None:
        """The client is closed."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self, queue: Notifications[Any]) -> None:
        connection = self._connection
        if not connection.is_reading_paused or connection.close_reason is not None:
            self._timer = self._mark = None
            return
        oldest_request = next(iter(self._pending), None)
        mark = (queue.taken, oldest_request)
        if oldest_request is not None and mark == self._mark:
            connection.abort(
                CloseReason.SLOW_CONSUMER,
                text="notifications are not consumed, and a request waits for its answer behind"
                " them",
            )
            return
        self._mark = mark
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limits.STALL_TIMEOUT_S, self._check, queue)


async def keep_alive(
    connection: ServerConnection, ids: Iterator[int], delay_s: float, timeout_s: float
) -> None:
    """Ping a server after some silence, and close the connection if it stays silent."""
    while True:
        if await _has_received_within(connection, delay_s):
            continue
        connection.send(PingReq(next(ids)))
        if not await _has_received_within(connection, timeout_s):
            text = f"no answer to a ping within {timeout_s:g} s"
            connection.abort(CloseReason.PING_TIMEOUT, text=text)
            return


async def _has_received_within(connection: ServerConnection, duration_s: float) -> bool:
    # nothing can arrive while reading is paused
    connection.has_received = False
    await asyncio.sleep(duration_s)
    return connection.has_received or connection.is_reading_paused
