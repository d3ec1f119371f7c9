"""Logs: JSON lines on standard error, or whatever ``log`` of the configuration says.

Quiet by default: warnings of all packages, and what the gateway tells of its own life.
"""

import logging.config
from collections.abc import Mapping
from typing import Any, Final

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


def configure(log: Mapping[str, Any] | None) -> None:
    """Configure logging of this process.

    Args:
        log: ``log`` of the gateway's configuration (``logging.config.dictConfig``), or None.
    """
    logging.config.dictConfig(dict(log) if log is not None else DEFAULT)
