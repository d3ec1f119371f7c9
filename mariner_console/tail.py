"""The newest events of a pattern, as they come.

A tail has a connection of its own, and always reads it: a browser that is slow, paused or gone is
no slow client to the gateway. What arrives too fast to be looked at is counted and forgotten.
"""

import ssl
from collections import deque
from collections.abc import Sequence

from hat import aio

from eventer_bridge.model import Event, EventType
from mariner import client
from mariner_console import limits
from mariner_console.config import WatchedGateway


class Kept:
    """The newest events, within bounds of count and bytes.

    Attributes:
        n_seen: all that came.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._size_bytes = 0
        self.n_seen = 0

    def __len__(self) -> int:
        return len(self._events)

    def put(self, events: Sequence[Event]) -> None:
        """Take on events; of many, only the newest are looked at."""
        self.n_seen += len(events)
        for event in events[-limits.MAX_TAIL_EVENTS :]:
            self._events.append(event)
            self._size_bytes += _size_bytes(event)
        while len(self._events) > limits.MAX_TAIL_EVENTS or (
            self._size_bytes > limits.MAX_TAIL_BYTES and len(self._events) > 1
        ):
            self._size_bytes -= _size_bytes(self._events.popleft())

    def newest(self) -> list[Event]:
        """All of them, the newest first."""
        return list(reversed(self._events))


class Tail(aio.Resource):
    """Follows the events of patterns. Created by :func:`follow`."""

    def __init__(self, connection: client.Client) -> None:
        self.kept = Kept()
        self._connection = connection
        self._async_group = aio.Group()
        self._async_group.spawn(aio.call_on_cancel, connection.async_close)
        self._async_group.spawn(self._run)

    @property
    def async_group(self) -> aio.Group:
        """Group of the tail's tasks."""
        return self._async_group

    @property
    def close_reason(self) -> str | None:
        """Why nothing comes any more; None: it is open."""
        return self._connection.close_reason

    async def _run(self) -> None:
        async for events in self._connection.events():
            self.kept.put(events)


async def follow(
    gateway: WatchedGateway,
    token: str | None,
    context: ssl.SSLContext | None,
    patterns: Sequence[EventType],
) -> Tail:
    """Connect to a gateway.

    Args:
        gateway: which one, as which client.
        token: of the client.
        context: for TLS; None: plain TCP.
        patterns: types of the events to follow.

    Raises:
        ConnectError, InitError: as ``mariner.client.connect``.
    """
    connection = await client.connect(
        gateway.host,
        gateway.port,
        client_name=gateway.client,
        client_token=token,
        subscriptions=patterns,
        ssl=context,
    )
    return Tail(connection)


def _size_bytes(event: Event) -> int:
    return 0 if event.payload is None else len(memoryview(event.payload.data))
