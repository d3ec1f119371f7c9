"""What is known of one gateway: pure, filled by ``watcher``, shown by ``page``."""

from collections import deque
from typing import NamedTuple

from eventer_bridge.model import Status
from mariner_console import limits
from mariner_console.alarms import Alarms
from mariner_console.metrics import Scrape, quantile, rate


class Point(NamedTuple):
    """Rates (a second) and latencies (seconds) at a time (seconds since 1970); None: unknown."""

    at_s: float
    registered: float | None
    notified: float | None
    queries: float | None
    commit_p50_s: float | None
    commit_p99_s: float | None
    query_p99_s: float | None
    loop_p99_s: float | None


class GatewayView:
    """What is known of a gateway.

    Attributes:
        name: its name.
        status: what it told last; None: not connected.
        failure: why it is not connected; None: it is, or it was not tried yet.
        ping_s: the last round trip; None: unknown.
        scrape_failure: why there are no metrics; None: there are, or they were not read yet.
        history: rates and latencies, the oldest first.
        alarms: raised ones.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.status: Status | None = None
        self.failure: str | None = None
        self.ping_s: float | None = None
        self.scrape_failure: str | None = None
        self.history: deque[Point] = deque(maxlen=limits.MAX_HISTORY_POINTS)
        self.alarms = Alarms()
        self._scrapes: deque[Scrape] = deque(maxlen=limits.WINDOW_SCRAPES)

    @property
    def scrape(self) -> Scrape | None:
        """The last reading of metrics; None: the last attempt failed."""
        return self._scrapes[-1] if self._scrapes else None

    @property
    def point(self) -> Point | None:
        """Rates and latencies now; None: unknown."""
        return self.history[-1] if self.history and len(self._scrapes) > 1 else None

    def on_lost(self, reason: str) -> None:
        """There is no connection."""
        self.status = self.ping_s = None
        self.failure = reason
        self.alarms.clear()

    def on_connected(self, status: Status) -> None:
        """There is a connection, or the status changed."""
        self.status = status
        self.failure = None

    def on_scrape(self, scrape: Scrape, at_s: float) -> None:
        """Metrics were read.

        Args:
            scrape: them.
            at_s: when, in seconds since 1970.
        """
        self.scrape_failure = None
        if self._scrapes and _has_restarted(scrape, self._scrapes[-1]):
            self._scrapes.clear()
        self._scrapes.append(scrape)
        if len(self._scrapes) > 1:
            self.history.append(_point(self._scrapes, at_s))

    def on_scrape_failed(self, reason: str) -> None:
        """Metrics could not be read."""
        self.scrape_failure = reason
        self._scrapes.clear()


def _has_restarted(now: Scrape, before: Scrape) -> bool:
    name = "process_start_time_seconds"
    return now.value(name) != before.value(name)


def _point(scrapes: deque[Scrape], at_s: float) -> Point:
    oldest, before, now = scrapes[0], scrapes[-2], scrapes[-1]
    return Point(
        at_s,
        rate(now, before, "mariner_events_registered_total"),
        rate(now, before, "mariner_events_notified_total"),
        rate(now, before, "mariner_query_seconds_count"),
        quantile(now, oldest, "mariner_commit_seconds", 0.5),
        quantile(now, oldest, "mariner_commit_seconds", 0.99),
        quantile(now, oldest, "mariner_query_seconds", 0.99),
        quantile(now, oldest, "mariner_loop_lag_seconds", 0.99),
    )
