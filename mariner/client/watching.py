"""Closes a connection whose server is silent, or whose user is: pings, and what nobody consumes.

Runs on the event loop's thread.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

from eventer_bridge.net.stats import CloseReason
from mariner.client.connection import ServerConnection
from mariner.client.notifications import Notifications
from mariner.wire.messages import PingReq

STALL_TIMEOUT_S: Final = 10.0
"""How long a request may wait for an answer that cannot be read because notifications are not
consumed (up to twice as long: this is also the period of the check)."""


class StallWatch:
    """Closes a connection where a request waits behind notifications that nobody consumes.

    Args:
        connection: the connection.
        pending: requests that wait for their answers, the oldest first.
    """

    def __init__(self, connection: ServerConnection, pending: Mapping[int, object]) -> None:
        self._connection = connection
        self._pending = pending
        self._mark: tuple[int, int | None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, queue: Notifications[Any]) -> None:
        """Check every ``STALL_TIMEOUT_S`` from now on, until reading goes on.

        Args:
            queue: what is not consumed.
        """
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
        self._timer = loop.call_later(STALL_TIMEOUT_S, self._check, queue)


async def keep_alive(
    connection: ServerConnection, ids: Iterator[int], delay_s: float, timeout_s: float
) -> None:
    """Ping a silent server, and close the connection if it stays silent.

    Args:
        connection: the connection.
        ids: of requests.
        delay_s: silence before a ping.
        timeout_s: silence after it.
    """
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
