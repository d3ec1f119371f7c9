"""The clock of this machine, and what is done about one that was wrong.

Timestamps never go back (``session_ids``). A clock that was ahead for a while, and is put right,
leaves events behind that are ahead of it: all that come get the timestamp of the last of them.
As long as they are ahead by no more than ``limits.MAX_CLOCK_AHEAD_S``, that is told and nothing
else. Beyond it, registrations are refused, until the clock has got there, or the store was
restored as of a moment before (README, "When the clock was wrong").

A clock that jumps ahead is told, and retention does not follow it: see :class:`SteadyClock`.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from eventer_bridge import limits
from eventer_bridge.model import Timestamp

mlog = logging.getLogger(__name__)


class ClockWatch:
    """Knows how far a server's events are ahead of the clock. Belongs to the event loop's thread.

    Args:
        newest: the greatest timestamp that the server has given.
        on_fault: called when :attr:`fault` changed.

    Attributes:
        fault: why nothing may be registered; None while it may.
    """

    def __init__(self, newest: Callable[[], Timestamp], on_fault: Callable[[], None]) -> None:
        self.fault: str | None = None
        self._newest = newest
        self._on_fault = on_fault
        self._is_told = False
        self._offset_s = _offset_s()

    @property
    def ahead_s(self) -> float:
        """Seconds that the newest event is ahead of the clock; 0 where it is not."""
        return ahead_s(self._newest())

    async def run(self) -> None:
        """Look at it, again and again."""
        while True:
            self.look()
            await asyncio.sleep(limits.CLOCK_PERIOD_S)

    def look(self) -> None:
        """Look at it now."""
        self._look_for_jump()
        ahead = self.ahead_s
        extra = {"newest": self._newest().to_iso(), "ahead_s": round(ahead, 3)}
        if (ahead > limits.CLOCK_TOLERANCE_S) != self._is_told:
            self._is_told = not self._is_told
            if self._is_told:
                mlog.warning("events are ahead of the clock of this machine", extra=extra)
            else:
                mlog.info("events are no longer ahead of the clock of this machine")
        if (ahead > limits.MAX_CLOCK_AHEAD_S) == (self.fault is not None):
            return
        self.fault = None
        if ahead > limits.MAX_CLOCK_AHEAD_S:
            self.fault = (
                f"events up to {extra['newest']} are ahead of the clock of this machine by more"
                f" than {limits.MAX_CLOCK_AHEAD_S:.0f} s: nothing is registered until then"
            )
            mlog.error("registrations are refused", extra={"reason": self.fault})
        self._on_fault()

    def _look_for_jump(self) -> None:
        before_s, self._offset_s = self._offset_s, _offset_s()
        jump_s = self._offset_s - before_s
        if abs(jump_s) > limits.CLOCK_TOLERANCE_S:
            mlog.warning("the clock of this machine jumped", extra={"seconds": round(jump_s, 3)})


class SteadyClock:
    """The clock of this machine, as far as it does not run away: what age is measured with.

    It is ahead of the time that this process has run by ``limits.MAX_CLOCK_AHEAD_S`` at most, so
    that a clock that is wrong by years does not make everything so old that it is deleted. One
    that was put right, by more than that, counts from the next start on. Any thread.
    """

    def __init__(self) -> None:
        self._began_s = _offset_s()

    def __call__(self) -> Timestamp:
        """The moment to measure with."""
        latest_s = self._began_s + time.monotonic() + limits.MAX_CLOCK_AHEAD_S
        return min(Timestamp.now(), Timestamp.from_float(latest_s))


def ahead_s(timestamp: Timestamp) -> float:
    """Seconds that a moment is ahead of the clock of this machine; 0 where it is not."""
    now = Timestamp.now()
    return max(0.0, timestamp.s - now.s + (timestamp.us - now.us) / 1_000_000)


def _offset_s() -> float:
    """What the clock of this machine says beyond how long it has run."""
    return time.time() - time.monotonic()
