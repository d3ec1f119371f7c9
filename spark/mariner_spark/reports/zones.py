"""Moments by the clock of the page's time zone.

A moment has the offset that its zone has at that moment, and not the zone itself: so its fields are
those of the clock, and differences are right over a change of the clock.
"""

import contextlib
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mariner_spark import times
from mariner_spark.errors import OptionError
from mariner_spark.reports.events import ORIGIN_US, to_us


def check(name: str) -> None:
    """Refuse what is no time zone; raises OptionError."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as e:
        text = f"{name!r}: no such time zone, expected one as Europe/Berlin"
        raise OptionError("time_zone", text) from e


def at(moment: datetime, zone: tzinfo) -> datetime:
    """The same moment by the clock of a zone; by its own, if that is out of range."""
    with contextlib.suppress(OverflowError):
        local = moment.astimezone(zone)
        return local.replace(tzinfo=timezone(local.utcoffset() or timedelta()))
    return moment


def row_at(row: dict[str, Any], zone: tzinfo) -> dict[str, Any]:
    """A row with all of its moments by the clock of a zone."""
    return {name: at(i, zone) if isinstance(i, datetime) else i for name, i in row.items()}


def origin_us(us: int, zone: tzinfo) -> int:
    """Where a bucket begins that is one of the zone's, by its offset at a moment."""
    return ORIGIN_US - to_us(at(times.to_datetime(us), zone).utcoffset() or timedelta())
