"""Moments as people write them, parsed alike by all command lines and options.

A moment is ISO 8601 (UTC without a zone) or seconds since 1970-01-01. Eight digits are an ISO
8601 date without hyphens (``20240501``). Four digits are refused: they look like a year. Any other
number is seconds.
"""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import Timestamp

EXPECTED: Final = (
    "expected ISO 8601 (2024-05-01T12:00:00Z) or seconds since 1970-01-01, not a year alone"
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_DAY_S: Final = 86_400
_BASIC_DATE: Final = re.compile(r"[0-9]{8}")
_YEAR: Final = re.compile(r"[0-9]{4}")


def parse(text: str) -> Timestamp:
    """Parse a moment; see the module; ``InvalidEventError``: it is none. Any thread."""
    if _YEAR.fullmatch(text):
        raise InvalidEventError(f"{text!r}: {EXPECTED}")
    try:
        if not _is_seconds(text):
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return Timestamp(*divmod((moment - _EPOCH) // _US, 1_000_000))
        return Timestamp.from_float(float(text))
    except InvalidEventError:
        raise
    except (ValueError, OverflowError) as e:
        raise InvalidEventError(f"{text!r}: {EXPECTED}") from e


def parse_last(text: str) -> Timestamp:
    """As :func:`parse`, of an inclusive end: a date is the end of its day."""
    moment = parse(text)
    return Timestamp(moment.s + _DAY_S - 1, 999_999) if _is_date(text) else moment


def _is_seconds(text: str) -> bool:
    if _BASIC_DATE.fullmatch(text):
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_date(text: str) -> bool:
    if _is_seconds(text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
