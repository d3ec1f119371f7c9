"""Moments as people write them, parsed alike by all command lines and options.

A moment is ISO 8601 (UTC without a zone) or seconds since 1970-01-01. Eight digits are an ISO
8601 date without hyphens (``20240501``). Four digits are refused: they look like a year. Any other
number is seconds. Where somebody asks about the past, in commands and on the console's page, it may
also be ``now`` or how long ago: ``-30m``, ``-1h``, ``-2d``.
"""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import Timestamp

EXPECTED: Final = (
    "expected ISO 8601 (2024-05-01T12:00:00Z) or seconds since 1970-01-01, not a year alone"
)
EXPECTED_OF_PAST: Final = f"expected now, how long ago (-30m, -1h, -2d), {EXPECTED[9:]}"
"""The same, where moments may be relative."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_DAY_S: Final = 86_400
_BASIC_DATE: Final = re.compile(r"[0-9]{8}")
_YEAR: Final = re.compile(r"[0-9]{4}")
_AGO: Final = re.compile(r"-([0-9]{1,9})([smhdw])")
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": _DAY_S, "w": 7 * _DAY_S}


def parse(text: str, *, now: Timestamp | None = None) -> Timestamp:
    """Parse a moment; see the module; ``InvalidEventError``: it is none. Any thread.

    ``now`` is what it may be relative to; None: it may not be relative.
    """
    expected = EXPECTED if now is None else EXPECTED_OF_PAST
    if now is not None and text == "now":
        return now
    if now is not None and (ago := _AGO.fullmatch(text)):
        return Timestamp(now.s - int(ago[1]) * _UNITS_S[ago[2]], now.us)
    if _YEAR.fullmatch(text):
        raise InvalidEventError(f"{text!r}: {expected}")
    try:
        if not _is_seconds(text):
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return Timestamp(*divmod((moment - _EPOCH) // _US, 1_000_000))
        return Timestamp.from_float(float(text))
    except InvalidEventError:
        raise
    except (ValueError, OverflowError) as e:
        raise InvalidEventError(f"{text!r}: {expected}") from e


def parse_last(text: str, *, now: Timestamp | None = None) -> Timestamp:
    """As :func:`parse`, of an inclusive end: a date is the end of its day."""
    moment = parse(text, now=now)
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
