"""Lines of the log, where the configuration does not say: JSON, or text in a terminal."""

import json
import logging
import sys
from typing import Final

from pythonjsonlogger.json import JsonFormatter
from typing_extensions import override

from eventer_bridge.model import printable
from mariner.gateway.logs.records import extra_of

_QUOTED: Final = frozenset(' "=')


def of_stderr() -> logging.Formatter:
    """Text if standard error is a terminal, else JSON."""
    if sys.stderr.isatty():
        return TextFormatter()
    return JsonFormatter(
        "{asctime}{levelname}{name}{message}",
        style="{",
        rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
        timestamp=False,
        datefmt="%Y-%m-%dT%H:%M:%S%z",
    )


class TextFormatter(logging.Formatter):
    """A line with its fields behind it, as ``name=value``: nothing in it controls the terminal."""

    default_msec_format = "%s.%03d"

    @override
    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record)} {record.levelname} {record.name}: {record.getMessage()}"
        fields = [f"{name}={_value(value)}" for name, value in extra_of(record).items()]
        trace = record.exc_text
        if trace is None and record.exc_info:
            trace = self.formatException(record.exc_info)
        return "\n".join(map(printable, (" ".join([line, *fields]), *(trace or "").splitlines())))


def _value(value: object) -> str:
    if isinstance(value, str) and value and _QUOTED.isdisjoint(value):
        return value
    return json.dumps(value, default=str, ensure_ascii=False)
