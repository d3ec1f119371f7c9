"""Logs: JSON lines on standard error (text in a terminal), or whatever the configuration says.

Quiet by default: warnings of all packages, and the gateway's own starts and stops.

Whatever the handlers, logging never waits for them, and no peer can flood them::

    logger ─▶ rate: how often ─▶ shorten: how long ─▶ queue ─▶ thread ─▶ handlers
    audit ─▶ equal lines are counted ─▶ shorten ─────▶

Lines that were left out or dropped are reported in a line of their own and in metrics.
"""

import atexit
import contextlib
import errno
import logging.config
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from eventer_bridge.errors import ConfigurationError
from mariner import limits
from mariner.gateway.logs import audit
from mariner.gateway.logs.audit import AuditConfig
from mariner.gateway.logs.pipeline import Pipeline

DEFAULT: Final[dict[str, Any]] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"lines": {"()": "mariner.gateway.logs.lines.of_stderr"}},
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "stream": "ext://sys.stderr",
            "formatter": "lines",
        }
    },
    "loggers": {"mariner": {"level": "INFO"}, "eventer_bridge": {"level": "INFO"}},
    "root": {"level": "WARNING", "handlers": ["stderr"]},
}
"""Used if the gateway's configuration has no ``log``."""


class LogCounts(NamedTuple):
    """Lines that were not written, since the start: too many of a kind, or the log was too slow."""

    left_out: int
    dropped: int


_pipeline: Pipeline | None = None
_earlier = LogCounts(0, 0)
"""Of the pipelines before this one."""


def configure(log: Mapping[str, Any] | None, audited: AuditConfig | None = None) -> None:
    """Configure logging by ``log`` and ``audit`` of a configuration; closed when the process exits.

    Raises ConfigurationError if ``log`` cannot be used, or a file cannot be written.
    """
    global _pipeline, _earlier  # noqa: PLW0603  # like logging itself, one per process
    close()
    _earlier, _pipeline = counts(), None
    # all loggers exist already
    conf = {"disable_existing_loggers": False, **log} if log is not None else DEFAULT
    try:
        logging.config.dictConfig(conf)
    except (ValueError, OSError) as e:
        # of a handler, "Unable to configure" is all that the outer one says
        cause = e.__cause__
        why = _reason(cause) if isinstance(cause, OSError) else cause
        raise ConfigurationError(f"log: {e}" if why is None else f"log: {e}: {why}") from e
    logging.captureWarnings(True)  # they would be written to standard error at once
    try:
        _pipeline = Pipeline(audit.configure(audited))
    except OSError as e:
        raise ConfigurationError(f"audit.file: {_reason(e)}") from e
    atexit.register(_pipeline.close)


def rehearse(log: Mapping[str, Any] | None, audited: AuditConfig | None = None) -> None:
    """Configure logging, as :func:`configure`, and leave everything as it was, files as well."""
    handlers = ({} if log is None else log).get("handlers", {}).values()
    paths = [Path(i["filename"]) for i in handlers if isinstance(i.get("filename"), str)]
    if audited is not None and audited.file is not None:
        paths.append(audited.file)
    created = [file for file in paths if not os.path.lexists(file)]
    loggers = [i for i in logging.root.manager.loggerDict.values() if isinstance(i, logging.Logger)]
    before = [
        (i, i.level, i.propagate, i.disabled, [*i.handlers], [*i.filters])
        for i in (logging.root, *loggers)
    ]
    try:
        configure(log, audited)
    finally:
        close()
        logging.shutdown()  # closes the files
        logging.captureWarnings(False)
        for logger, level, propagate, disabled, of_logger, filters in before:
            logger.setLevel(level)
            logger.propagate, logger.disabled = propagate, disabled
            logger.handlers, logger.filters = of_logger, filters
        for file in created:
            if file.is_file() and not file.stat().st_size:
                file.unlink()


def reopen() -> None:
    """Open the files anew that were moved away or removed, as logrotate does. Any thread.

    Raises ConfigurationError if one cannot be opened: it goes on being written where it is.
    """
    handlers = [] if _pipeline is None else _pipeline.handlers
    for handler in handlers:
        if isinstance(handler, logging.FileHandler):
            try:
                _reopen(handler)
            except OSError as e:
                raise ConfigurationError(f"log: {_reason(e)}") from e


def _reopen(handler: logging.FileHandler) -> None:
    """Go on in a new file if the open one is not at its path any more, or raise OSError."""
    assert handler.lock is not None
    if not handler.lock.acquire(timeout=limits.LOG_CLOSE_TIMEOUT_S):
        raise OSError(errno.EBUSY, "writing to it hangs", handler.baseFilename)
    try:
        if handler.stream is None:
            return
        with contextlib.suppress(FileNotFoundError):
            there = Path(handler.baseFilename).stat()
            if os.path.samestat(there, os.fstat(handler.stream.fileno())):
                return
        before = handler.setStream(handler._open())
        if before is not None:
            before.close()
    finally:
        handler.lock.release()


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    return text if error.filename is None else f"{error.filename}: {text}"


def close() -> bool:
    """Write the waiting lines, in ``limits.LOG_CLOSE_TIMEOUT_S`` at most; returns whether all were.

    If not, a thread hangs writing to a handler: it would also block an ordinary exit.
    """
    return _pipeline is None or _pipeline.close()


def last_errors() -> list[dict[str, Any]]:
    """The last lines about errors, oldest first; may be called on any thread."""
    return [] if _pipeline is None else _pipeline.errors.last()


def counts() -> LogCounts:
    """Lines that were not written; may be called on any thread."""
    if _pipeline is None:
        return _earlier
    left_out = _earlier.left_out + _pipeline.rate.n_left_out
    return LogCounts(left_out, _earlier.dropped + _pipeline.n_dropped)
