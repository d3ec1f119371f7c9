"""Moments by the clock of the page's time zone.

All of a page has one offset from UTC, that of its last event: so an hour that comes twice, when
clocks are set back, has two places on an axis, and all days have 24 hours.
"""

import contextlib
from datetime import UTC, datetime, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mariner_spark import times
from mariner_spark.errors import OptionError, quoted
from mariner_spark.reports.events import ORIGIN_US, to_us


def check(name: str) -> None:
    """Refuse what is no time zone; raises OptionError."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as e:
        text = f"{quoted(name)}: no such time zone, expected one as Europe/Berlin"
        raise OptionError("time_zone", text) from e


def clock(name: str, us: int) -> timezone:
    """The offset that a zone has at a moment; UTC, if that is out of range."""
    with contextlib.suppress(OverflowError):
        if offset := times.to_datetime(us).astimezone(ZoneInfo(name)).utcoffset():
            return timezone(offset)
    return UTC


def at(moment: datetime, zone: tzinfo) -> datetime:
    """The same moment by the clock of a zone; by its own, if that is out of range."""
    with contextlib.suppress(OverflowError):
        return moment.astimezone(zone)
    return moment


def row_at(row: dict[str, Any], zone: tzinfo) -> dict[str, Any]:
    """A row with all of its moments by the clock of a zone."""
    return {name: at(i, zone) if isinstance(i, datetime) else i for name, i in row.items()}


def origin_us(zone: timezone) -> int:
    """Where a bucket begins that is one of the zone's."""
    return ORIGIN_US - to_us(zone.utcoffset(None))


def title(name: str, zone: timezone) -> str:
    """What the times of a page are: ``Europe/Berlin, UTC+02:00``."""
    return "UTC" if name == "UTC" else f"{name}, {zone.tzname(None)}"
