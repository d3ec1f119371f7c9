"""Retention: the rules of how long events are kept, and the budget for deleting them.

An event belongs to the first rule that matches its type; without one it is kept for ever. The
limits of a rule apply to all its events together. While one of them is exceeded, the oldest event
(in natural order) is deleted, with two exceptions:

- ``min_entries`` events stay, whatever the other limits are (as in hat-event);
- the latest event of every type stays, so that a query for the latest is always answered. So a rule
  keeps at least as many events as it has types, even if ``max_entries`` or ``size`` is less.
"""

import logging
import math
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from eventer_bridge import limits
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.model import EventType
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)

LIMITS: Final = ("min_entries", "max_entries", "duration", "size")
"""Keys of the limits of a rule, which has at least one."""


class RetentionRule(msgspec.Struct, frozen=True):
    """A rule, as it is configured.

    Attributes:
        subscriptions: query types; the rule applies to the types that match.
        min_entries: minimum number of events, whatever the other limits are.
        duration_s: maximum age of an event (``passed_time``).
        size_bytes: maximum size of all events (keys and values in the ``event`` family). On disk,
            compression makes it less, and the indexes make it more.
    """

    subscriptions: tuple[EventType, ...]
    min_entries: int = 0
    max_entries: int | None = None
    duration_s: float | None = msgspec.field(default=None, name="duration")
    size_bytes: int | None = msgspec.field(default=None, name="size")

    @property
    def is_counted(self) -> bool:
        """Whether the rule needs the number and size of its events."""
        return self.min_entries > 0 or self.max_entries is not None or self.size_bytes is not None


class Share:
    """The events of a rule: number of types, number and size of events.

    One thread counts registered events (``new_…``), another one stored events at the start, minus
    deleted ones (``old_…``), so that neither waits for the other. ``is_known`` is false until the
    events stored at the start are counted.
    """

    def __init__(self, rule: RetentionRule) -> None:
        self.rule = rule
        self.n_types = 0
        self.is_known = not rule.is_counted
        self.new_events = self.new_bytes = 0
        self.old_events = self.old_bytes = 0

    @property
    def n_events(self) -> int:
        """Number of events, if they are counted."""
        return self.new_events + self.old_events

    @property
    def n_bytes(self) -> int:
        """Their size."""
        return self.new_bytes + self.old_bytes

    @property
    def is_urgent(self) -> bool:
        """Whether a limit is exceeded so far that deleting does not wait for the next period."""
        if not (self.is_known and self.rule.is_counted):
            return False
        tolerance = limits.RETENTION_TOLERANCE
        most = _most(self.rule.max_entries)
        n_events = self.n_events
        return n_events > max(self.rule.min_entries, self.n_types) and (
            n_events > tolerance * max(most, self.n_types)
            or self.n_bytes > tolerance * _most(self.rule.size_bytes)
        )


class Shares:
    """The shares of all rules; the first match applies. Belongs to the thread that registers."""

    def __init__(self, rules: Sequence[RetentionRule]) -> None:
        self.all = [Share(rule) for rule in rules]
        self._subscriptions = [Subscription(rule.subscriptions) for rule in rules]

    def find(self, event_type: EventType) -> Share | None:
        """The share of a type; None: its events are kept for ever."""
        for share, subscription in zip(self.all, self._subscriptions, strict=True):
            if subscription.matches(event_type):
                return share
        return None


class Budget:
    """Decides which events of a share to delete now; call it in natural order.

    Events before the moment ``expired_before`` are older than ``duration``; None: none are.
    """

    def __init__(self, share: Share, clock: PassedTime) -> None:
        rule = share.rule
        self._least = max(rule.min_entries, share.n_types) if rule.is_counted else 0
        self._n_events: float = share.n_events if rule.is_counted else math.inf
        self._n_bytes = share.n_bytes
        self._max_events = _most(rule.max_entries)
        self._max_bytes = _most(rule.size_bytes)
        self.expired_before = clock.before(rule.duration_s)

    @property
    def is_exceeded(self) -> bool:
        """Whether even events that have not expired must be deleted."""
        return self._n_events > self._least and (
            self._n_events > self._max_events or self._n_bytes > self._max_bytes
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing may be deleted."""
        return self._n_events <= self._least or not (self.expired_before or self.is_exceeded)

    def take(self, is_expired: bool, n_bytes: int) -> bool:
        """Whether to delete the next event, which is not the latest of its type.

        If not, no later event is deleted either.
        """
        if not (self.is_exceeded or (is_expired and self._n_events > self._least)):
            return False
        self._n_events -= 1
        self._n_bytes -= n_bytes
        return True


class Progress:
    """Logs deletions: at their begin, at intervals, and at their end."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._n_events = self._n_bytes = 0
        self._began_s = self._logged_s = 0.0

    def deleted(self, n_events: int, n_bytes: int) -> None:
        """Count deleted events, and log them at intervals."""
        now_s = time.monotonic()
        if not self._n_events:
            self._began_s = self._logged_s = now_s
            mlog.info("retention begins to delete", extra={"store": self._where})
        self._n_events += n_events
        self._n_bytes += n_bytes
        if now_s - self._logged_s >= limits.RETENTION_LOG_S:
            self._logged_s = now_s
            mlog.info("retention is deleting", extra=self._figures())

    def done(self) -> None:
        """Log the end of a deletion."""
        if self._n_events:
            mlog.info("retention has deleted", extra=self._figures())
        self._n_events = self._n_bytes = 0

    def _figures(self) -> dict[str, str | int | float]:
        return {
            "store": self._where,
            "events": self._n_events,
            "size_bytes": self._n_bytes,
            "seconds": round(time.monotonic() - self._began_s, 3),
        }


def _most(limit: int | None) -> float:
    return math.inf if limit is None else limit
