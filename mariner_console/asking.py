"""Answers of a gateway by its control socket, which all pages share."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from mariner_console import limits

T = TypeVar("T")


class RecentAnswer(Generic[T]):
    """An answer that is not old, with the rates since the one before; asked only if someone looks.

    ``ask`` asks anew, ``with_rates`` makes the later of two answers one with rates.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]], with_rates: Callable[[T, T], T]) -> None:
        self._ask = ask
        self._with_rates = with_rates
        self._lock = asyncio.Lock()
        self._at_s = -math.inf
        self._answers: list[T] = []  # the last two

    async def get(self) -> T:
        """The answer; raises as ``ask``."""
        async with self._lock:
            if time.monotonic() - self._at_s >= limits.SCRAPE_PERIOD_S:
                found = await self._ask()
                self._answers = [*self._answers[-1:], found]
                self._at_s = time.monotonic()
        return self._with_rates(self._answers[0], self._answers[-1])

    async def forget(self) -> None:
        """The next answer is one that is asked for from now on."""
        async with self._lock:
            self._at_s = -math.inf
