"""Giving way: long work on a thread lets the event loop's thread run now and then."""

import time
from collections.abc import Callable

from eventer_bridge import limits


def yield_gil() -> None:
    """Let the event loop's thread have the interpreter, if it waits for it.

    To be called by another thread after some ``limits.READER_STRETCH_S`` of work. Otherwise
    the loop gets it after ``sys.getswitchinterval()`` only, 5 ms: while two readers are
    always busy, the median of a registration is 15 ms then, and 0.8 ms so. It costs about
    50 us.
    """
    time.sleep(0)


class Pacer:
    """Gives way when it is time to. Belongs to one thread.

    Args:
        check: called whenever it gave way; what it raises ends the work.
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
