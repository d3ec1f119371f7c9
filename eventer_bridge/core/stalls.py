"""Whether what waits goes on, found out by looking now and then; nothing is tried.

Belongs to the event loop's thread.
"""

import time
from collections.abc import Iterable
from typing import NamedTuple

from eventer_bridge import limits


class Work(NamedTuple):
    """Work of one kind.

    Attributes:
        what: what waits, and for what, in words.
        n_waiting: how much waits now.
        n_done: how much was done so far, in any unit: it changes when something was.
    """

    what: str
    n_waiting: int
    n_done: int


class Stalls:
    """Remembers from one look to the next what waited, and whether anything was done."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}  # how much was done, and since when

    def look(self, every: Iterable[Work]) -> str | None:
        """What has not gone on for ``limits.MAX_STALL_S``, in words; None: all goes on.

        What did not wait at the look before, or was another amount done, begins anew.
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
