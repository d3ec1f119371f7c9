"""Cuts log records to a readable length, whatever a peer sent."""

import copy
import logging
import traceback
from collections.abc import Mapping
from typing import Any, Final

from eventer_bridge import limits as core_limits
from mariner import limits

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({})))
"""Attributes that every record has; all others came as ``extra``."""


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields that came as ``extra``."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def shorten(record: logging.LogRecord) -> logging.LogRecord:
    """A copy of a record that is complete, short, and keeps nothing else alive.

    Its message includes its arguments, its exception is a text; every string in it has at most
    ``core_limits.MAX_LOG_CHARACTERS``. Call it on the thread that logs.
    """
    short = copy.copy(record)
    if isinstance(record.msg, dict):  # the JSON formatter takes it for fields
        short.msg = _cut_value(record.msg)
    else:
        short.msg, short.args = _cut(_message(record)), None
    if record.exc_info:
        short.exc_text = _traceback(record.exc_info[1])
        short.exc_info = None
    for name, value in extra_of(record).items():
        setattr(short, name, _cut_value(value))
    return short


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError) as e:  # a mistake of the caller, which must not stop it
        return f"{record.msg} ({e})"


def _traceback(error: BaseException | None) -> str:
    if error is None:
        return "no exception"
    lines = [_cut(line) for line in traceback.format_exception(error)]
    if len(lines) > limits.MAX_LOG_ITEMS:
        half = limits.MAX_LOG_ITEMS // 2
        lines[half:-half] = ["  …\n"]
    return "".join(lines).rstrip()


def _cut(text: str) -> str:
    if len(text) <= core_limits.MAX_LOG_CHARACTERS:
        return text
    return f"{text[: core_limits.MAX_LOG_CHARACTERS - 1]}…"


def _cut_value(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, Mapping):
        items = list(value.items())[: limits.MAX_LOG_ITEMS]
        return {_cut(str(key)): _cut_value(i) for key, i in items}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_cut_value(i) for i in list(value)[: limits.MAX_LOG_ITEMS]]
    return _cut(str(value))
