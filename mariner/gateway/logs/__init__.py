"""Logs: JSON lines on standard error, or whatever ``log`` of the configuration says.

Quiet by default: warnings of all packages, and the gateway's own starts and stops.

Whatever the handlers, logging never waits for them, and no peer can flood them::

    logger ─▶ rate: how often ─▶ shorten: how long ─▶ queue ─▶ thread ─▶ handlers
    audit ─▶ equal lines are counted ─▶ shorten ─────▶

Lines that were left out or dropped are reported in a line of their own and in metrics.
"""

import atexit
import logging.config
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mariner.gateway.logs import audit
from mariner.gateway.logs.audit import AuditConfig
from mariner.gateway.logs.pipeline import Pipeline

DEFAULT: Final[dict[str, Any]] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "json": {
            "()": "pythonjsonlogger.json.JsonFormatter",
            "fmt": "{asctime}{levelname}{name}{message}",
            "style": "{",
            "rename_fields": {"asctime": "time", "levelname": "level", "name": "logger"},
            "timestamp": False,
            "datefmt": "%Y-%m-%dT%H:%M:%S%z",
        }
    },
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "stream": "ext://sys.stderr",
            "formatter": "json",
        }
    },
    "loggers": {"mariner": {"level": "INFO"}, "eventer_bridge": {"level": "INFO"}},
    "root": {"level": "WARNING", "handlers": ["stderr"]},
}
"""Used if the gateway's configuration has no ``log``."""


class LogCounts(NamedTuple):
    """Lines that were not written, since the start.

    Attributes:
        left_out: there were too many of one kind (see ``rate``).
        dropped: the queue was full: the reader of the log is too slow, or stuck.
    """

    left_out: int
    dropped: int


_pipeline: Pipeline | None = None
_earlier = LogCounts(0, 0)
"""Of the pipelines before this one."""


def configure(log: Mapping[str, Any] | None, audited: AuditConfig | None = None) -> None:
    """Configure logging of this process; closed when it exits.

    Args:
        log: ``log`` of the gateway's configuration (``logging.config.dictConfig``), or None.
        audited: ``audit`` of it.

    Raises:
        ValueError: ``log`` cannot be used.
        OSError: a file cannot be written.
    """
    global _pipeline, _earlier  # noqa: PLW0603  # like logging itself, one per process
    close()
    _earlier, _pipeline = counts(), None
    # all loggers exist already
    conf = {"disable_existing_loggers": False, **log} if log is not None else DEFAULT
    logging.config.dictConfig(conf)
    logging.captureWarnings(True)  # they would be written to standard error at once
    _pipeline = Pipeline(audit.configure(audited))
    atexit.register(_pipeline.close)


def close() -> bool:
    """Write the waiting lines, for at most ``limits.LOG_CLOSE_TIMEOUT_S``.

    Returns:
        Whether all were written. If not, a thread hangs writing to a handler: it would also
        block an ordinary exit of the process.
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
