"""Holding a client back to its rates, by not reading from it: nothing is refused.

Each rate is a token bucket that holds the amount of one second, and may be overdrawn: what came is
taken, and paid for afterwards. While events or bytes are overdrawn, the client's connections are
not read from (``Pause.QUOTA``); they go on one after the other, each when what those before it sent
is paid for. While time of queries is overdrawn, its next queries do not begin.

Runs on the event loop's thread.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from eventer_bridge.net import limits
from eventer_bridge.net.stream import Pause, Stream
from eventer_bridge.resources import in_time

EVENTS: Final = "events_per_s"
BYTES: Final = "bytes_per_s"
QUERIES: Final = "query_ms_per_s"

_READING: Final = (EVENTS, BYTES)


class TokenBucket:
    """A rate, full at first; ``spent`` is the total so far. Time never goes back."""

    __slots__ = ("_at_s", "_balance", "per_s", "spent")

    def __init__(self, per_s: float, now_s: float) -> None:
        self.per_s = per_s
        self.spent = 0.0
        self._balance = per_s
        self._at_s = now_s

    def spend(self, amount: float, now_s: float) -> None:
        """Take an amount, whether it is there or not."""
        self.spent += amount
        self._balance = self.balance(now_s) - amount
        self._at_s = now_s

    def balance(self, now_s: float) -> float:
        """What is there; negative while it is overdrawn."""
        return min(self._balance + (now_s - self._at_s) * self.per_s, self.per_s)


class Throttle:
    """The rates of one client, for all its connections; see the module.

    ``rates``: amounts a second of :data:`EVENTS`, :data:`BYTES` and :data:`QUERIES` (milliseconds
    of reading); those that are missing are unlimited. ``on_hit`` is called with the name of a rate
    when it holds back a connection or a query.
    """

    def __init__(self, rates: Mapping[str, float], on_hit: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_hit = on_hit
        self._buckets: dict[str, TokenBucket] = {}
        self._held: dict[Stream[Any], None] = {}  # in the order in which they go on
        self._timer: asyncio.TimerHandle | None = None
        self._n_waiting = 0  # connections whose next query waits
        self._since_s: float | None = None
        self._earlier_s = 0.0
        self._other_rates = asyncio.Event()
        self.set_rates(rates)

    @property
    def is_holding(self) -> bool:
        """Whether anything is held back."""
        return self._since_s is not None

    @property
    def held_s(self) -> float:
        """Seconds in which anything was held back, so far."""
        return self._earlier_s + (
            0.0 if self._since_s is None else self._loop.time() - self._since_s
        )

    @property
    def spent(self) -> dict[str, float]:
        """What was taken of each rate since it was set."""
        return {name: bucket.spent for name, bucket in self._buckets.items()}

    def set_rates(self, rates: Mapping[str, float]) -> None:
        """Replace the rates. What is overdrawn is paid for at the new ones."""
        now_s, before = self._loop.time(), self._buckets
        self._buckets = {name: TokenBucket(per_s, now_s) for name, per_s in rates.items()}
        for name, bucket in self._buckets.items():
            if name in before:
                bucket.spend(bucket.per_s - before[name].balance(now_s), now_s)
        self._schedule()
        self._other_rates.set()
        self._other_rates = asyncio.Event()

    def spend(self, name: str, amount: float) -> None:
        """Take an amount of a rate, if there is one."""
        if (bucket := self._buckets.get(name)) is not None:
            bucket.spend(amount, self._loop.time())

    def check(self, stream: Stream[Any]) -> None:
        """Hold a connection back if events or bytes are overdrawn."""
        if stream in self._held or not self._wait_s(*_READING):
            return
        self._held[stream] = None
        self._begin(*_READING)
        stream.pause_reading(Pause.QUOTA)
        self._schedule()

    def forget(self, stream: Stream[Any]) -> None:
        """A connection is closed, or goes on as another client's."""
        if stream in self._held:
            del self._held[stream]
            self._end()
            stream.resume_reading(Pause.QUOTA)

    @property
    def is_paid(self) -> bool:
        """Whether a query may begin."""
        return not self._wait_s(QUERIES)

    async def until_paid(self) -> None:
        """Wait until a query may begin."""
        if self.is_paid:
            return
        self._n_waiting += 1
        self._begin(QUERIES)
        try:
            while wait_s := self._wait_s(QUERIES):
                await in_time(self._other_rates.wait(), wait_s)
        finally:
            self._n_waiting -= 1
            self._end()

    def _wait_s(self, *names: str) -> float:
        """Seconds until none of these rates is overdrawn; 0 if none is."""
        now_s = self._loop.time()
        buckets = [self._buckets[name] for name in names if name in self._buckets]
        wait_s = max((-i.balance(now_s) / i.per_s for i in buckets), default=0.0)
        return max(wait_s, limits.MIN_HELD_S) if wait_s > 0 else 0.0

    def _begin(self, *names: str) -> None:
        """Something is held back for one of these rates."""
        now_s = self._loop.time()
        if self._since_s is None:
            self._since_s = now_s
        for name in names:
            if name in self._buckets and self._buckets[name].balance(now_s) < 0:
                self._on_hit(name)

    def _end(self) -> None:
        if not self._held and not self._n_waiting and self._since_s is not None:
            self._earlier_s, self._since_s = self.held_s, None

    def _schedule(self) -> None:
        """Go on when it is paid for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self._timer = self._loop.call_later(self._wait_s(*_READING), self._go_on)

    def _go_on(self) -> None:
        """Read from the connection that waited longest, and from others in turns of the loop."""
        self._timer = None
        if self._held and not self._wait_s(*_READING):
            stream = next(iter(self._held))
            del self._held[stream]
            stream.resume_reading(Pause.QUOTA)  # and may be held at once
            self._end()
        self._schedule()
