"""Sharing time: among the queries that wait, and between their threads and the event loop.

Queries that had no turn yet and those that had one wait in lines of their own. Each line
gets half of the time if both have somebody in it. So a cheap query, which needs a single
turn, does not wait behind costly ones, however many they are; and these go on, however
many cheap ones come. In each line clients take turns: nobody comes first by asking more.

Lines and turns are pure bookkeeping, without threads or locks.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

from eventer_bridge import limits
from eventer_bridge.slices import FairLine

T = TypeVar("T")


def yield_gil() -> None:
    """Let the event loop's thread have the interpreter, if it waits for it.

    To be called by another thread after some ``limits.READER_STRETCH_S`` of work. Otherwise
    the loop gets it after ``sys.getswitchinterval()`` only, 5 ms: while two readers are
    always busy, the median of a registration is 15 ms then, and 0.8 ms so. It costs about
    50 us.
    """
    time.sleep(0)


class Pacer:
    """Yields the interpreter when it is time to. Belongs to one thread.

    Args:
        check: called whenever it did; what it raises ends the work.
    """

    __slots__ = ("_check", "_due_s")

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._due_s = time.perf_counter() + limits.READER_STRETCH_S

    def pause(self) -> None:
        """To be called between steps of at most some 0.1 ms; costs 0.1 us if it is not time."""
        if time.perf_counter() >= self._due_s:
            yield_gil()
            self._check()
            self._due_s = time.perf_counter() + limits.READER_STRETCH_S


class Places:
    """A number of places, of which a client may have as many as are left to others.

    Attributes:
        n_taken: by all clients.
    """

    def __init__(self) -> None:
        self.n_taken = 0
        self._n_taken_by: Counter[str] = Counter()

    def take(self, client: str, n_places: float) -> bool:
        """Take one for a client, if it may have another of that many places."""
        n_taken = self._n_taken_by.get(client, 0)
        if n_taken >= n_places - self.n_taken:
            return False
        self.n_taken += 1
        self._n_taken_by[client] = n_taken + 1
        return True

    def leave(self, client: str) -> None:
        """A client gives one back."""
        self.n_taken -= 1
        self._n_taken_by[client] -= 1
        if not self._n_taken_by[client]:
            del self._n_taken_by[client]


class QueryTurns(Generic[T]):
    """See the module.

    A query waits in ``new``, is begun by a turn, waits in ``paused`` after it any number of
    times, and gives back its place of ``begun`` at the end.

    Attributes:
        new: those that had no turn.
        paused: those that had one, and wait for another.
        begun: those that had one, and did not end.
    """

    def __init__(self) -> None:
        self.new: FairLine[T] = FairLine()
        self.paused: FairLine[T] = FairLine()
        self.begun = Places()
        self._advance_s = 0.0  # by which new ones had more time than paused ones

    def next(self) -> T | None:
        """Whose turn it is; None where nobody waits who may begin or go on."""
        if self.paused.clients and self._advance_s > 0:
            return self.paused.pop()
        n_places = limits.MAX_QUERIES_BEGUN
        if self.begun.n_taken < n_places:
            for client in self.new.clients:
                if self.begun.take(client, n_places):
                    return self.new.pop(client)
        return self.paused.pop() if self.paused.clients else None

    def charge(self, seconds: float, *, is_first: bool) -> None:
        """A turn of so many seconds is over; ``is_first``: the first one of its query."""
        advance_s = self._advance_s + (seconds if is_first else -seconds)
        self._advance_s = min(max(advance_s, -limits.READER_TURN_S), limits.READER_TURN_S)
