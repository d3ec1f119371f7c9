"""The clock of this machine, and the handling of a wrong one.

Timestamps never go back (``session``). A clock that was ahead for a while, and is corrected,
leaves events that are ahead of it: new events get the timestamp of the last of them. Up to
``limits.MAX_CLOCK_AHEAD_S`` ahead, that is only logged. Beyond it, registrations are refused
until the clock has caught up, or the store was restored as of an earlier moment
(docs/operators-guide.md, "If the clock was wrong").

A jump of the clock is logged. The backend is told what the clock says: age does not follow its
jumps (``backends.passed_time``).
"""

import asyncio
import logging
import time
from collections.abc import Callable

from eventer_bridge import limits
from eventer_bridge.backends.passed_time import boot_us
from eventer_bridge.model import Timestamp

mlog = logging.getLogger(__name__)


class ClockWatch:
    """Watches how far a server's events are ahead of the clock. Belongs to the event loop's thread.

    ``newest`` returns the server's greatest timestamp, with which ``note`` is called each time that
    the clock is looked at, and now. ``on_fault`` is called when :attr:`fault`, the reason for
    refusing registrations, changes.
    """

    def __init__(
        self,
        newest: Callable[[], Timestamp],
        on_fault: Callable[[], None],
        note: Callable[[Timestamp], None],
    ) -> None:
        self.fault: str | None = None
        self._newest = newest
        self._on_fault = on_fault
        self._note = note
        self._is_logged = False
        self._offset_s = _offset_s()
        note(newest())

    @property
    def ahead_s(self) -> float:
        """Seconds that the newest event is ahead of the clock, or 0."""
        return ahead_s(self._newest())

    async def run(self) -> None:
        """Check the clock periodically."""
        while True:
            self.look()
            await asyncio.sleep(limits.CLOCK_PERIOD_S)

    def look(self) -> None:
        """Check the clock now."""
        self._look_for_jump()
        self._note(self._newest())
        ahead = self.ahead_s
        extra = {"newest": self._newest().to_iso(), "ahead_s": round(ahead, 3)}
        if (ahead > limits.CLOCK_TOLERANCE_S) != self._is_logged:
            self._is_logged = not self._is_logged
            if self._is_logged:
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


def ahead_s(timestamp: Timestamp) -> float:
    """Seconds that a moment is ahead of the clock of this machine, or 0."""
    now = Timestamp.now()
    return max(0.0, timestamp.s - now.s + (timestamp.us - now.us) / 1_000_000)


def _offset_s() -> float:
    """Offset of the wall clock from the time that passes."""
    return time.time() - boot_us() / 1e6
