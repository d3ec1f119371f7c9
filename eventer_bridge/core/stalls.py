"""Stall detection: periodic checks whether pending work makes progress; nothing is executed.

Belongs to the event loop's thread.
"""

import time
from collections.abc import Iterable
from typing import NamedTuple

from eventer_bridge import limits


class Work(NamedTuple):
    """Work of one kind.

    Attributes:
        what: description of the work.
        n_waiting: amount pending now.
        n_done: total amount done, in any unit: it changes with progress.
    """

    what: str
    n_waiting: int
    n_done: int


class Stalls:
    """Keeps, between checks, the progress of pending work."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}  # amount done, and since when

    def look(self, every: Iterable[Work]) -> str | None:
        """Describe work without progress for ``limits.MAX_STALL_S``; None if there is none.

        The time restarts with progress, and for work that was not pending at the last check.
        """
        now = time.monotonic()
        found = None
        for what, n_waiting, n_done in every:
            before, since_s = self._seen.get(what, (None, now))
            if not n_waiting:
                self._seen.pop(what, None)
            elif before != n_done:
                self._seen[what] = n_done, now
            elif now - since_s >= limits.MAX_STALL_S:
                found = f"{n_waiting} {what}, and none was done for {now - since_s:.0f} s"
        return found
