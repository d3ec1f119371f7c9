"""Who may be connected: places of a process, for new connections and for known ones.

A connection is new from ``accept`` on; where its wire has names, it is known when its ``init``
succeeded. Of new ones there are few, so that their memory is bounded, and nobody owns a place
among them. When all are taken, the next connection gets the place

* of one of its own address, if that address has its share already,
* of one of the address that has most of them, if its own has fewer,
* of one of the address that has most, or where none has two, of the oldest of all,

but only from one that had a moment for its handshake, except from an address with more than
its own share. Of an address it is the oldest from which nothing came, or if there is none, the
oldest: who connects says something at once, so that in the first case a silent one needs no
moment more. If there is none: a connection from an address that has no place yet is to wait
(in the kernel, with those behind it), any other is refused. So neither one peer nor many that
stay silent keep others out, and a thousand honest ones that come at once (a network is back)
do not drive out each other.

Runs on the event loop's thread.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from eventer_bridge import limits
from eventer_bridge.net.backoff import LoginBackoff
from eventer_bridge.net.buffers import Buffer, Buffers
from eventer_bridge.net.newcomers import Newcomers
from eventer_bridge.net.quota import Bounds, Quota, address_of
from eventer_bridge.net.stats import ServerStats
from eventer_bridge.slices import Turns

FOR_ANOTHER: Final = "place needed for another"
"""Why a new connection was closed, for logs and metrics."""

TOO_MUCH_BUFFERED: Final = "too much is buffered"
"""Why the connection that held most for its peer was closed."""

_ADDRESS_FULL: Final = "too many new connections of the address"
_ALL_FULL: Final = "too many new connections"


class RefusedError(Exception):
    """A connection gets no place; the text is a reason for logs and metrics."""


class Place:
    """A connection's place. Made by :meth:`Admission.enter`, given back by :meth:`release`.

    Attributes:
        peer: the peer's address and port, as logs name it.
        address: what it is counted by.
        accepted_at: when the connection came, by ``time.monotonic()``.
        has_sent: tells whether anything came from the peer.
        was_taken: whether it had to go for another connection.
        buffer: what it holds for its peer.
        turns: where it waits when it sent much.
    """

    __slots__ = (
        "_admission",
        "_close",
        "_held_until",
        "_is_known",
        "_is_released",
        "_quota",
        "_stats",
        "accepted_at",
        "address",
        "buffer",
        "has_sent",
        "peer",
        "turns",
        "was_taken",
    )

    def __init__(
        self,
        admission: "Admission",
        peer: str,
        address: str,
        stats: ServerStats,
        has_sent: Callable[[], bool],
    ) -> None:
        self._admission = admission
        self._stats = stats
        self._close: Callable[[], object] | None = None
        self._is_known = False
        self._is_released = False
        self._quota: Quota | None = None
        self._held_until = 0.0
        self.peer = peer
        self.address = address
        self.accepted_at = time.monotonic()
        self.has_sent = has_sent
        self.was_taken = False
        self.buffer = Buffer(admission.buffers)
        self.turns = admission.turns

    def when_taken(self, close: Callable[[], object]) -> None:
        """Have the connection closed by this if its place goes to another, or did already."""
        self._close = close
        if self.was_taken:
            close()

    def establish(self, quota: Quota | None = None) -> bool:
        """It is known from now on.

        Args:
            quota: of its wire, besides that of the process.

        Returns:
            False if there are too many that are, or if it was closed meanwhile.
        """
        if quota is not None and not quota.take(self.address):
            return False
        if not self._admission._establish(self):
            if quota is not None:
                quota.give_back(self.address)
            return False
        self._is_known = True
        self._quota = quota
        self._close = None  # its place is its own now
        return True

    def login_failed(self) -> float:
        """It gave a wrong name or token.

        Returns:
            Seconds after which it may be told. Until then it has its place, even if it
            leaves: to ask again on another connection is no quicker.
        """
        now = time.monotonic()
        delay_s = self._admission._backoff.failed(self.address, now)
        self._held_until = now + delay_s
        return delay_s

    def release(self) -> None:
        """The connection is gone; later calls do nothing."""
        if self._is_released:
            return
        self._is_released = True
        self.buffer.close()
        self._close = None
        self._stats.connections -= 1
        if self._is_known:
            self._admission._known.give_back(self.address)
            if self._quota is not None:
                self._quota.give_back(self.address)
            return
        held_s = self._held_until - time.monotonic()
        if held_s > 0:
            asyncio.get_running_loop().call_later(held_s, self._admission._leave, self)
        else:
            self._admission._leave(self)

    def _give_up(self) -> None:
        self.was_taken = True
        self._stats.refused[FOR_ANOTHER] += 1
        if self._close is not None:
            self._close()


class Admission:
    """See the module. One for all listeners of a process.

    Args:
        bounds: how many connections there may be.
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = Bounds.usual() if bounds is None else bounds
        self.buffers = Buffers(limits.MAX_BUFFERED_BYTES)
        self.turns = Turns()
        self._new: Newcomers[Place] = Newcomers(lambda place: place.has_sent())
        self._known = Quota(self.bounds.known, self.bounds.known_per_address)
        self._has_room = asyncio.Event()
        self._backoff = LoginBackoff()

    async def enter(
        self, host: str, peer: str, stats: ServerStats, has_sent: Callable[[], bool]
    ) -> Place:
        """A connection was accepted; wait until it has a place.

        Args:
            host: of the peer, numeric.
            peer: it as logs are to name it.
            stats: of the listener; the connection is counted there.
            has_sent: tells whether anything came from the peer.

        Raises:
            RefusedError: it is to be closed.
        """
        address = address_of(host)
        while wait_s := self._make_room(address):
            self._has_room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._has_room.wait()
        place = Place(self, peer, address, stats, has_sent)
        self._new.add(place, address)
        stats.connections += 1
        return place

    def _make_room(self, address: str) -> float:
        """Seconds until there is room; 0: there is."""
        new = self._new
        count = new.count(address)
        if count >= self.bounds.new_per_address:
            victim = new.first_to_go(address)
            if victim.has_sent() and self._grace_s(victim) > 0:
                raise RefusedError(_ADDRESS_FULL)
        elif len(new) < self.bounds.new:
            return 0.0
        elif new.largest_count > count + 1:
            victim = new.first_to_go_of_largest()
        else:
            victim = new.oldest() if new.largest_count == 1 else new.first_to_go_of_largest()
            if (wait_s := self._grace_s(victim)) > 0:
                if count:
                    raise RefusedError(_ALL_FULL)
                return wait_s
        new.remove(victim)
        victim._give_up()
        return 0.0

    @staticmethod
    def _grace_s(place: Place) -> float:
        return place.accepted_at + limits.NEW_CONNECTION_GRACE_S - time.monotonic()

    def _establish(self, place: Place) -> bool:
        if place not in self._new or not self._known.take(place.address):
            return False
        self._leave(place)
        return True

    def _leave(self, place: Place) -> None:
        if place in self._new:
            self._new.remove(place)
            self._has_room.set()
