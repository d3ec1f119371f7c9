"""The end of the process: requested by a signal or a failure, and bounded whatever hangs.

A thread of its own takes SIGTERM and SIGINT, so that neither a busy event loop nor a thread blocked
by the disk can delay them. It has the loop stop the gateway in order. If the process is still there
``limits.MAX_STOP_S`` later, the thread logs what it waits for and ends it with :data:`EXIT_STUCK`.
Everything acknowledged is on disk even then. SIGHUP requests a reload. A thread that dies of an
uncaught exception stops the process in the same way, so that a supervisor restarts it, rather than
continue without a part of itself.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from mariner import limits
from mariner.gateway import logs

mlog = logging.getLogger(__name__)

EXIT_STUCK: Final = 3
"""Exit code of a process that did not stop in time."""

_US: Final = 1_000_000
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def block_signals() -> None:
    """Leave the signals to a :class:`Stopper`: on the main thread, before starting any other."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


class Stopper:
    """See the module. Block signals first (:func:`block_signals`).

    ``on_stop`` requests an orderly stop, once, and ``on_hangup`` a reload; neither on the loop's
    thread. ``waits_for`` returns what the stop waits for. ``failure``: why it stops; None: by a
    signal.
    """

    def __init__(
        self,
        on_stop: Callable[[], object],
        waits_for: Callable[[], str],
        on_hangup: Callable[[], object] = lambda: None,
    ) -> None:
        self.failure: str | None = None
        self._on_stop = on_stop
        self._waits_for = waits_for
        self._on_hangup = on_hangup
        threading.excepthook = self._on_thread_died
        threading.Thread(target=self._run, name="stopper", daemon=True).start()

    def stop(self, failure: str | None = None) -> None:
        """Request the stop, on any thread; further requests have no effect."""
        self.failure = self.failure or failure
        os.kill(os.getpid(), signal.SIGTERM)

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it is ending already
            while signal.sigwait(_SIGNALS) == signal.SIGHUP:
                self._on_hangup()
            self._on_stop()
        time.sleep(limits.MAX_STOP_S)  # normally the process ends first, and this thread with it
        try:
            _log_hang(self._waits_for())
            logs.close()
        finally:
            os._exit(EXIT_STUCK)

    def _on_thread_died(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        name = "?" if args.thread is None else args.thread.name
        try:
            mlog.critical("a thread died", extra={"thread_name": name}, exc_info=args.exc_value)
        finally:
            self.stop(f"thread {name}")


def _log_hang(waits_for: str) -> None:
    extra = {"waited_s": limits.MAX_STOP_S, "waits_for": waits_for}
    mlog.critical("the process does not stop: ending it", extra=extra)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            extra = {"thread_name": names.get(ident, "?"), "stack": _stack(frame)}
            mlog.critical("thread did not end", extra=extra)


def _stack(frame: FrameType) -> str:
    """Where a thread is, innermost first, without reading source files: the disk may hang."""
    return " < ".join(
        f"{place.f_code.co_qualname} ({Path(place.f_code.co_filename).name}:{line})"
        for place, line in traceback.walk_stack(frame)
    )


class Supervisor:
    """Tells systemd: ready, stopping, alive (sd_notify(3)); nothing if it did not ask for that.

    Belongs to the event loop's thread. ``environment`` has ``NOTIFY_SOCKET`` and, for the watchdog,
    ``WATCHDOG_USEC`` and ``WATCHDOG_PID``, as systemd sets them.
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
