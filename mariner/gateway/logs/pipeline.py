"""A bounded queue and a thread between loggers and handlers.

Each configured handler is replaced by one that puts records into the queue, or drops and counts
them while it is full. The thread passes them on, so that a handler that blocks (nobody reads
standard error, the disk hangs) blocks nothing else.
"""

import contextlib
import logging
import queue
import threading
import time
from typing import Any, Final, TypeAlias

from mariner import limits
from mariner.gateway.logs.audit import NAME as AUDIT
from mariner.gateway.logs.audit import AuditRate
from mariner.gateway.logs.records import LastErrors, LogRate, shorten

mlog = logging.getLogger(__name__)

_VERDICT: Final = "_is_admitted"
"""Attribute of a record, which may pass several handlers: whether it is admitted."""

_Item: TypeAlias = tuple[logging.Handler, logging.LogRecord]


class Pipeline:
    """See the module. Takes effect when it is created. ``n_dropped``: the queue was full."""

    def __init__(self, audit: AuditRate | None = None) -> None:
        self.n_dropped = 0
        self._audit = audit
        self.rate = LogRate()
        self.errors = LastErrors()
        self._reported_dropped = 0
        self._logged_s = time.monotonic()
        self._queue: queue.Queue[_Item | None] = queue.Queue(limits.MAX_LOG_QUEUE_LINES)
        self._is_closing = False
        self._replaced: list[tuple[logging.Logger, logging.Handler, logging.Handler]] = []
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()
        for logger in (logging.root, *logging.root.manager.loggerDict.values()):
            if isinstance(logger, logging.Logger):
                for handler in tuple(logger.handlers):
                    self._replace(logger, handler)
        logging.root.addHandler(self.errors)

    def close(self) -> bool:
        """See ``logs.close``."""
        self._is_closing = True
        logging.root.removeHandler(self.errors)
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(limits.LOG_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            return False
        for logger, handler, queueing in self._replaced:
            logger.removeHandler(queueing)
            logger.addHandler(handler)
        self._replaced.clear()
        return True

    @property
    def handlers(self) -> list[logging.Handler]:
        """The configured handlers, each once."""
        return [*dict.fromkeys(handler for _, handler, _ in self._replaced)]

    def admits(self, record: logging.LogRecord) -> bool:
        """Whether a record is admitted; the same for each of its handlers."""
        attributes = vars(record)
        if _VERDICT not in attributes:
            attributes[_VERDICT] = record.name == AUDIT or self.rate.admits(record)
        return bool(attributes[_VERDICT])

    def put(self, handler: logging.Handler, record: logging.LogRecord) -> None:
        """Queue a record for a handler; never waits."""
        if threading.current_thread() is self._thread:
            handler.handle(record)
            return
        try:
            self._queue.put_nowait((handler, record))
        except queue.Full:
            self.n_dropped += 1

    def _replace(self, logger: logging.Logger, handler: logging.Handler) -> None:
        queueing = _Queueing(self, handler)
        logger.removeHandler(handler)
        logger.addHandler(queueing)
        self._replaced.append((logger, handler, queueing))

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=limits.LOG_WAKE_S)
            except queue.Empty:
                item = None
            if item is not None:
                handler, record = item
                try:
                    handler.handle(record)
                except Exception:  # handlers handle their own errors
                    self.n_dropped += 1
            self._report(is_last=item is None and self._is_closing)
            if item is None and self._is_closing:
                return

    def _report(self, *, is_last: bool) -> None:
        """Log now and then what was not logged."""
        if self._audit is not None:
            for message, fields in self._audit.take(is_last=is_last):
                logging.getLogger(AUDIT).info(message, extra=fields)
        now_s = time.monotonic()
        if now_s - self._logged_s < limits.LOG_SUMMARY_PERIOD_S and not is_last:
            return
        self._logged_s = now_s
        left_out, n_dropped = self.rate.take_left_out(), self.n_dropped - self._reported_dropped
        self._reported_dropped += n_dropped
        if left_out:
            extra: dict[str, Any] = {"lines": sum(left_out.values()), "left_out": left_out}
            mlog.warning("lines left out: too many of a kind", extra=extra)
        if n_dropped:
            mlog.warning("lines dropped: the log is too slow", extra={"lines": n_dropped})


class _Queueing(logging.Handler):
    """Takes the place of a handler, see the module."""

    def __init__(self, pipeline: Pipeline, handler: logging.Handler) -> None:
        super().__init__(handler.level)
        self._pipeline = pipeline
        self._handler = handler

    def emit(self, record: logging.LogRecord) -> None:
        """Called by :mod:`logging`, on the thread that logs."""
        if self._pipeline.admits(record):
            short = shorten(record)
            del vars(short)[_VERDICT]
            self._pipeline.put(self._handler, short)
