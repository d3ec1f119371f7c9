"""What a core has accepted and not finished yet, and who waits for there to be less of it.

Belongs to the event loop's thread.
"""

import logging
from collections.abc import Callable

from eventer_bridge import limits

mlog = logging.getLogger(__name__)


class Pending:
    """See the module.

    Args:
        max_bytes: payload bytes, with more of which nothing more should be handed in.

    Attributes:
        events: events that are under way.
        large_events: those of them that are of large sessions, of which there are few
            (``limits.MAX_LARGE_SESSIONS``): they do not fill it. Kept by the core.
        n_bytes: bytes of their payloads.
        n_ended: sessions that ended so far.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.events = 0
        self.n_bytes = 0
        self.n_ended = 0
        self.large_events = 0
        self._drained_cbs: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be handed in for now."""
        n_events = self.events - self.large_events
        return n_events > limits.MAX_PENDING_EVENTS or self.n_bytes > self._max_bytes

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, as soon as it is no longer full."""
        self._drained_cbs.append(callback)

    def add(self, events: int, n_bytes: int) -> None:
        """So much more is under way."""
        self.events += events
        self.n_bytes += n_bytes

    def remove(self, events: int, n_bytes: int) -> None:
        """So much is done; :meth:`notify_drained` is to be called then."""
        self.events -= events
        self.n_bytes -= n_bytes
        self.n_ended += 1

    def notify_drained(self) -> None:
        """Call those who wait, if it is no longer full."""
        if self._drained_cbs and not self.is_full:
            callbacks, self._drained_cbs = self._drained_cbs, []
            for callback in callbacks:
                try:
                    callback()
                except Exception:  # the others are to go on all the same
                    mlog.exception("who waited cannot go on")
