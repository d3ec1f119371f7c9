"""Turns of what takes long: connections that sent much, and work that is done in slices.

Whoever sent little does not wait for them: of those that wait here, one goes on at a time, and
then the event loop looks at all the others.

Runs on the event loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """See the module. One for all connections of a process, and one for all its slices."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def wait(self, go_on: Callable[[], object]) -> None:
        """Have this called once, behind all that wait already; it may wait again."""
        self._waiting.append(go_on)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next)
