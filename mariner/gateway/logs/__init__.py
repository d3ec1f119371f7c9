"""Logs: JSON lines on standard error, or whatever ``log`` of the configuration says.

Quiet by default: warnings of all packages, and what the gateway tells of its own life.

Whatever handlers there are, nobody who logs waits for them, and no peer fills them::

    logger ─▶ rate: how often ─▶ shorten: how long ─▶ queue ─▶ thread ─▶ handlers

What was left out, by either, is told in a line of its own and in metrics.
"""

import atexit
import logging.config
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

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
"""Configuration that is used where the gateway's has no ``log``."""


class LogCounts(NamedTuple):
    """Lines that were not written, since the start.

    Attributes:
        left_out: there were too many of one kind (see ``rate``).
        dropped: the queue was full: whoever reads them is too slow, or stuck.
    """

    left_out: int
    dropped: int


_pipeline: Pipeline | None = None


def configure(log: Mapping[str, Any] | None) -> None:
    """Configure logging of this process. At its end it is closed.

    Args:
        log: ``log`` of the gateway's configuration (``logging.config.dictConfig``), or None.
    """
    global _pipeline  # noqa: PLW0603  # as logging itself, it is the process'
    close()
    logging.config.dictConfig(dict(log) if log is not None else DEFAULT)
    logging.captureWarnings(True)  # they would be written to standard error at once
    _pipeline = Pipeline()
    atexit.register(_pipeline.close)


def close() -> bool:
    """Write what waits, for ``limits.LOG_CLOSE_TIMEOUT_S`` at most.

    Returns:
        Whether all was written. If not, a thread hangs in writing to a handler: it would
        hold up an ordinary end of the process, too.
    """
    return _pipeline is None or _pipeline.close()


def counts() -> LogCounts:
    """What was not written; may be asked on any thread."""
    if _pipeline is None:
        return LogCounts(0, 0)
    return LogCounts(_pipeline.rate.n_left_out, _pipeline.n_dropped)
