"""Timestamps of events as Spark timestamps: microseconds since 1970-01-01 UTC.

Spark's TIMESTAMP covers the years 1 to 9999; timestamps of events reach some hundred billion years
further. Those outside are clipped to the first or last moment of Spark, also in filters.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eventer_bridge import moments
from eventer_bridge.model import Timestamp

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_SECOND: Final = 1_000_000


def from_datetime(moment: datetime) -> int:
    """Exact microseconds of an aware datetime."""
    return (moment - EPOCH) // _US


def to_datetime(us: int) -> datetime:
    """The opposite of :func:`from_datetime`."""
    return EPOCH + us * _US


def to_iso(us: int) -> str:
    """ISO 8601, in UTC, with all microseconds and four digits of the year."""
    moment = to_datetime(us)
    return f"{moment.year:04}{moment:-%m-%dT%H:%M:%S.%fZ}"  # %Y has fewer digits before 1000


MIN_US: Final = from_datetime(datetime.min.replace(tzinfo=UTC))
MAX_US: Final = from_datetime(datetime.max.replace(tzinfo=UTC))


def to_us(timestamp: Timestamp) -> int:
    """Microseconds of an event's timestamp, clipped to Spark's range."""
    return min(max(exact_us(timestamp), MIN_US), MAX_US)


def exact_us(timestamp: Timestamp) -> int:
    """Microseconds of an event's timestamp, even outside of Spark's range."""
    return timestamp.s * _SECOND + timestamp.us


def to_timestamp(us: int) -> Timestamp:
    """The opposite of :func:`exact_us`."""
    return Timestamp(*divmod(us, _SECOND))


def all_to_us(s: NDArray[np.int64], us: NDArray[Any]) -> NDArray[np.int64]:
    """:func:`to_us` of many timestamps, given as seconds and microseconds."""
    # clipped before the multiplication, so that nothing overflows
    bounded = np.clip(s, MIN_US // _SECOND - 1, MAX_US // _SECOND + 1)
    return np.clip(bounded * _SECOND + us.astype(np.int64), MIN_US, MAX_US)


def parse(text: str) -> int:
    """Microseconds of a moment as users write it (``moments``); raises InvalidEventError."""
    return to_us(moments.parse(text))


def parse_last(text: str) -> int:
    """As :func:`parse`, for an upper bound: a date is the end of its day."""
    return to_us(moments.parse_last(text))


class Interval(NamedTuple):
    """Moments from ``first`` to ``last``, both included, in Spark's range; None: no bound."""

    first: int | None = None
    last: int | None = None

    def intersection(self, other: "Interval") -> "Interval":
        """Moments in both intervals."""
        firsts = [i for i in (self.first, other.first) if i is not None]
        lasts = [i for i in (self.last, other.last) if i is not None]
        return Interval(max(firsts, default=None), min(lasts, default=None))

    @property
    def is_empty(self) -> bool:
        """Whether no moment is in it."""
        first = MIN_US if self.first is None else max(self.first, MIN_US)
        last = MAX_US if self.last is None else min(self.last, MAX_US)
        return first > last

    @property
    def is_everything(self) -> bool:
        """Whether every moment is in it."""
        return self.timestamps() == (None, None)

    def timestamps(self) -> tuple[Timestamp | None, Timestamp | None]:
        """First and last timestamp of events in it; None: no bound.

        Spark's first and last moment also stand for all timestamps beyond.
        """
        no_first = self.first is None or self.first <= MIN_US
        no_last = self.last is None or self.last >= MAX_US
        return (
            None if no_first or self.first is None else to_timestamp(self.first),
            None if no_last or self.last is None else to_timestamp(self.last),
        )

    def contains(self, us: int) -> bool:
        """Whether a moment is in it."""
        return (self.first is None or self.first <= us) and (self.last is None or us <= self.last)


EVER: Final = Interval()
"""Every moment."""

SAFE: Final = Interval(
    from_datetime(datetime(1678, 1, 1, tzinfo=UTC)),
    from_datetime(datetime(2262, 1, 1, tzinfo=UTC)) - 1,
)
"""Moments that Python and pandas can hold: 64 bits of nanoseconds since 1970 begin in 1677 and end
in 2262. Whole years, because pandas shifts moments to the time zone of the session."""
