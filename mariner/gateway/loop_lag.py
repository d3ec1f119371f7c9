"""How late the event loop is: what everything on it waits, besides its own work."""

import asyncio
import time
from collections.abc import Callable

from mariner import limits


async def watch(observe: Callable[[float], None]) -> None:
    """Measure how late a periodic call is; for ever.

    Args:
        observe: called with seconds, on the loop's thread.
    """
    while True:
        due_s = time.monotonic() + limits.LOOP_LAG_PERIOD_S
        await asyncio.sleep(limits.LOOP_LAG_PERIOD_S)
        observe(max(0.0, time.monotonic() - due_s))
