"""Notifications that wait for the user: a queue bounded in bytes.

Runs on the event loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, Self, TypeVar

from eventer_bridge.model import Event

T = TypeVar("T")

MAX_QUEUED_BYTES: Final = 16 << 20
"""Above it the client stops reading; one more message may arrive. A second of a fast gateway's
notifications, and little for a program."""

EVENT_BYTES: Final = 512
"""Size of an event besides its payload: about that of its objects in memory. A batch counts as much
besides its events, so that a server cannot fill the memory with empty ones, or with marks."""


class Notifications(Generic[T]):
    """Async iterator of batches; safe to cancel, ends after :meth:`end` when it is empty.

    Several tasks may iterate; each batch goes to one of them.

    Args:
        on_room: called when a batch is taken and the queue is at most half full.
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
        if self._size_bytes <= MAX_QUEUED_BYTES // 2:
            self._on_room()
        return item

    @property
    def is_full(self) -> bool:
        """Whether reading should pause."""
        return self._size_bytes >= MAX_QUEUED_BYTES

    def put(self, item: T, size_bytes: int) -> None:
        """Append a batch; the caller checks :attr:`is_full` afterwards.

        Args:
            item: the batch.
            size_bytes: what it holds besides itself: its events, for example.
        """
        size_bytes += EVENT_BYTES
        self._batches.append((size_bytes, item))
        self._size_bytes += size_bytes
        self._changed.set()

    def end(self) -> None:
        """End the queue; its batches can still be consumed."""
        self._is_ended = True
        self._changed.set()


def size_of(events: Sequence[Event]) -> int:
    """Bytes that events take."""
    size_bytes = EVENT_BYTES * len(events)
    for event in events:
        if event.payload is not None:
            size_bytes += len(event.payload.data)
    return size_bytes
