"""One connection of the RSB socket transport, on a :class:`~eventer_bridge.net.stream.Stream`.

Events go to a callback, synchronously and in order, in batches as they arrive. A connection's
turn ends after a number of events, or of bytes to relay.

Shutdown is as RSB peers expect: we send the end of stream, wait for the peer's, and close. If
the peer sends it first, we close at once, because it waits for that.

Runs on the event loop's thread.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from hat import aio

from eventer_bridge.net import Quota, Slot
from eventer_bridge.net.liveness import Liveness
from eventer_bridge.net.sockets import keep_alive
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Stream
from eventer_bridge.rsb import codec, limits
from eventer_bridge.rsb.event import RsbEvent, now_us
from eventer_bridge.rsb.protocol import RsbProtocol
from eventer_bridge.rsb.stats import RsbStats


class Received(NamedTuple):
    """A received event.

    Attributes:
        event: the event, as sent.
        notification: the received bytes, to be relayed.
        time_us: receive time, in microseconds since 1970-01-01 UTC.
    """

    event: RsbEvent
    notification: bytes
    time_us: int


EventsCb: TypeAlias = "Callable[[RsbConnection, Sequence[Received]], None]"
"""Called with a batch of events; must not block."""


class RsbConnection(Stream[bytes], aio.Resource):
    """See the module. Created by ``connect`` and ``listen`` (``transport``).

    Args:
        on_events: see :data:`EventsCb`.
        stats: counters.
        quota: of the bus' connections.
        connections: the server's connections; None for an outgoing one.
        slot: of an accepted connection.

    Attributes:
        ready: whether the handshake succeeded; done when that is known.
        forget: called when it closes: what waits for it is not needed any more.
    """

    mlog = logging.getLogger(__name__)
    ends_first = True
    reads_while_blocked = True  # a participant may not read until we do

    def __init__(
        self,
        on_events: EventsCb,
        stats: RsbStats,
        quota: Quota | None = None,
        connections: "set[RsbConnection] | None" = None,
        slot: Slot | None = None,
    ) -> None:
        self._protocol = RsbProtocol(is_server=slot is not None)
        liveness = Liveness(None, math.inf)  # RSB has no pings
        super().__init__(self._protocol, stats, liveness, slot, connections)
        self._on_events = on_events
        self._connections = connections
        self._quota = quota
        self._received_us = 0
        self._async_group = aio.Group()
        self.ready: asyncio.Future[bool] = self._loop.create_future()
        self.forget: Callable[[], None] | None = None

    @property
    def async_group(self) -> aio.Group:
        """Group of the connection; it closes when the connection does."""
        return self._async_group

    # --- Stream -------------------------------------------------------------------------

    def on_open(self) -> None:
        """See :class:`Stream`."""
        keep_alive(self._transport.get_extra_info("socket"))
        self._async_group.spawn(aio.call_on_cancel, self._stop)
        if self._slot is None:
            self._async_group.spawn(self.sweep_alone)
            self._stats.accepted += 1
            self._stats.connections += 1
        elif self._slot.establish(self._quota):  # RSB has no names: all are known
            self.clear_first_deadline()
            self.write(codec.HANDSHAKE, n_frames=0)
            self.flush()
            self._set_ready()
        else:
            self.abort(CloseReason.TOO_MANY_CONNECTIONS)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        self._received_us = now_us()
        super().data_received(data)

    def take_turn(self) -> None:
        """See :class:`Stream`; events that arrive together are delivered together."""
        while self.may_take:
            batch: list[Received] = []
            try:
                is_all = self._decode(batch)
            finally:  # events before a broken one are delivered
                self.n_messages += len(batch)
                self._stats.frames_in += len(batch)
                if batch:
                    self._on_events(self, batch)
            if is_all:
                break
            if not self.has_ended:
                self.yield_turn()

    def on_closing(self) -> None:
        """See :class:`Stream`."""
        if self.forget is not None:
            self.forget()
            self.forget = None
        if not self.ready.done():
            self.ready.set_result(False)
        elif not self.ready.cancelled() and self.ready.result():
            self._stats.clients -= 1
        self._async_group.close()

    def on_closed(self, reason: CloseReason) -> None:
        """See :class:`Stream`."""
        if self._slot is None:
            self._stats.connections -= 1

    # --- internals ----------------------------------------------------------------------

    def _set_ready(self) -> None:
        self._stats.clients += 1
        self.ready.set_result(True)

    def _decode(self, batch: list[Received]) -> bool:
        """Decode at most one turn's events into ``batch``; returns whether that was all.

        Each event is relayed to all others.
        """
        n_others = len(self._connections) if self._connections else 1
        n_events = max(1, min(limits.RSB_TURN_EVENTS, limits.RSB_TURN_FRAMES // n_others))
        n_bytes_left = min(limits.RSB_TURN_BYTES, limits.RSB_TURN_RELAYED_BYTES // n_others)
        while len(batch) < n_events and n_bytes_left > 0:
            notification = self._protocol.next_message()
            if self._protocol.is_ready and not self.ready.done():
                self._set_ready()
            if notification is None:
                return True
            n_bytes_left -= len(notification)
            batch.append(Received(codec.decode(notification), notification, self._received_us))
        return False

    async def _stop(self) -> None:
        self.close()  # if the user closed the group
        await self.wait_lost()
