"""The end of the process: requested by a signal or a failure, and bounded whatever hangs.

A thread of its own takes SIGTERM and SIGINT, so that neither a busy event loop nor a thread
blocked by the disk can delay them. It has the loop stop the gateway in order. If the process is
still there ``limits.MAX_STOP_S`` later, the thread logs what it waits for and ends it with
:data:`EXIT_STUCK`. Everything acknowledged is on disk even then. SIGHUP, which it takes as well,
ends nothing: it requests a reload.

A thread that dies of an uncaught exception is a failure of the process: it stops in the same way,
so that a supervisor restarts it, rather than continue without a part of itself.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from mariner import limits
from mariner.gateway import logs

mlog = logging.getLogger(__name__)

EXIT_STUCK: Final = 3
"""Exit code of a process that did not stop in time."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def block_signals() -> None:
    """Leave the signals to a :class:`Stopper`.

    Call it on the main thread before starting any other: they inherit it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


class Stopper:
    """See the module. Block signals first (:func:`block_signals`).

    Args:
        on_stop: requests an orderly stop. Called once, not on the loop's thread.
        waits_for: what an orderly stop is waiting for now, for the log.
        on_hangup: requests a reload, at each SIGHUP. Called as ``on_stop``.

    Attributes:
        failure: why the process stops; None: a signal from outside requested it.
    """

    def __init__(
        self,
        on_stop: Callable[[], None],
        waits_for: Callable[[], str],
        on_hangup: Callable[[], None] = lambda: None,
    ) -> None:
        self.failure: str | None = None
        self._on_stop = on_stop
        self._waits_for = waits_for
        self._on_hangup = on_hangup
        threading.excepthook = self._on_thread_died
        threading.Thread(target=self._run, name="stopper", daemon=True).start()

    def stop(self, failure: str | None = None) -> None:
        """Request the stop, on any thread; further requests have no effect.

        Args:
            failure: the reason, if it is a failure.
        """
        self.failure = self.failure or failure
        os.kill(os.getpid(), signal.SIGTERM)

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it is ending already
            while signal.sigwait(_SIGNALS) == signal.SIGHUP:
                self._on_hangup()
            self._on_stop()
        time.sleep(limits.MAX_STOP_S)  # normally the process ends first, and this thread with it
        self._give_up()

    def _give_up(self) -> None:
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
