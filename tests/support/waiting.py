"""Waiting for states, with a bound: what does not come is a failure that says what was missing."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

TIMEOUT_S: Final = 60.0
"""For what takes a second, and some times that on a busy machine. Below the limit of a test, which
ends the whole process."""


@contextlib.asynccontextmanager
async def within(what: str, timeout_s: float = TIMEOUT_S) -> AsyncIterator[None]:
    """Bound what is done inside; it fails with ``what`` was waited for."""
    try:
        async with asyncio.timeout(timeout_s) as timeout:
            yield
    except TimeoutError:
        if not timeout.expired():
            raise
        raise AssertionError(f"waited {timeout_s:g} s in vain for {what}") from None


async def until(
    is_so: Callable[[], object | Awaitable[object]],
    *,
    pause_s: float = 0.005,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Wait for a state.

    Args:
        is_so: looks whether it is there; its source says what was waited for.
        pause_s: between two looks; 0: other work has one turn.
        timeout_s: after which it fails.
    """
    async with within(_source(is_so), timeout_s):
        while True:
            found = is_so()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(pause_s)


def _source(is_so: Callable[[], object]) -> str:
    try:
        return inspect.getsource(is_so).strip()
    except (OSError, TypeError):
        return repr(is_so)
