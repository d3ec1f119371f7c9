"""Tells systemd how the process is: ready, stopping, and alive (sd_notify(3)).

Where systemd did not ask for that, nothing is told. Belongs to the event loop's thread.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

_US: Final = 1_000_000


class Supervisor:
    """See the module.

    Args:
        environment: ``NOTIFY_SOCKET`` and, for the watchdog, ``WATCHDOG_USEC`` and
            ``WATCHDOG_PID``, as systemd sets them.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._watchdog_s = 0.0
        pid = environment.get("WATCHDOG_PID", str(os.getpid()))
        if pid == str(os.getpid()):
            self._watchdog_s = int(environment.get("WATCHDOG_USEC", "0")) / _US

    def ready(self) -> None:
        """It serves clients."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """It is about to end."""
        self._tell("STOPPING=1")

    async def stay_alive(self) -> None:
        """Tell that the event loop turns, as often as systemd wants; for ever, if it does."""
        while self._address and self._watchdog_s:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / 2)

    def _tell(self, text: str) -> None:
        if not self._address:
            return
        # a supervisor that is gone or busy must not hold up the process
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to, contextlib.suppress(OSError):
            to.setblocking(False)
            to.sendto(text.encode(), self._address)
