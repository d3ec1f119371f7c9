"""What is known of one gateway: metrics, alarms of the module ``threshold``, problems in words.

Without I/O: filled by ``watcher``, shown by ``page``.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from eventer_bridge.model import Event, EventType, JsonPayload, Status, Timestamp
from mariner_console import limits
from mariner_console.texts import of_number, of_seconds

Labels: TypeAlias = frozenset[tuple[str, str]]

_NO_SERIES: Final[dict[Labels, float]] = {}


class Scrape(NamedTuple):
    """One reading, at a ``time.monotonic()``: values by name of the metric, and by labels."""

    at_s: float
    series: Mapping[str, Mapping[Labels, float]]

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the series of a metric with these labels; None: there is none."""
        wanted = frozenset(labels.items())
        values = [v for i, v in self.series.get(name, _NO_SERIES).items() if wanted <= i]
        return sum(values) if values else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sums of a metric's series by the values of a label."""
        found: dict[str, float] = {}
        for series, value in self.series.get(name, _NO_SERIES).items():
            if (key := dict(series).get(label)) is not None:
                found[key] = found.get(key, 0.0) + value
        return found

    def text(self, name: str, label: str) -> str | None:
        """A label of a metric's first series, as of ``mariner_build_info``."""
        return next((dict(i).get(label) for i in self.series.get(name, _NO_SERIES)), None)


def parse(text: str, at_s: float) -> Scrape:
    """Parse the text format; may run on any thread. Raises ValueError."""
    series: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return Scrape(at_s, series)


def rate(now: Scrape, before: Scrape, name: str, **labels: str) -> float | None:
    """How fast a counter rises, a second; None: it is not there, or began anew."""
    last, first = now.value(name, **labels), before.value(name, **labels)
    if last is None or first is None or last < first or now.at_s <= before.at_s:
        return None
    return (last - first) / (now.at_s - before.at_s)


def quantile(now: Scrape, before: Scrape, name: str, q: float) -> float | None:
    """A quantile of what a histogram observed between two readings, as Prometheus estimates it.

    At most the last finite bound; None: nothing was observed.
    """
    last, first = (i.by(f"{name}_bucket", "le") for i in (now, before))
    counts = sorted((float(le), count - first.get(le, 0.0)) for le, count in last.items())
    if not counts or counts[-1][1] <= 0 or min(count for _, count in counts) < 0:
        return None
    rank = q * counts[-1][1]
    lower, below = 0.0, 0.0
    for bound, count in counts:
        if count >= rank and count > below:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return lower


# --- alarms -------------------------------------------------------------------------------


class _Content(msgspec.Struct):
    state: Literal["RAISED", "CLEARED"]
    value: float | int | None = None
    limit: float | int | None = None


class Alarm(NamedTuple):
    """A raised alarm."""

    type: EventType
    since: Timestamp
    value: float | None
    limit: float | None


class Alarms:
    """The raised alarms of a gateway, as far as they fit; ``left_out`` counts events of others.

    ``is_known``: those that were raised before have been read.
    """

    def __init__(self) -> None:
        self._raised: dict[EventType, Alarm] = {}
        self._heard_of: set[EventType] = set()
        self.left_out = 0
        self.is_known = False

    def __len__(self) -> int:
        return len(self._raised)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._raised.clear()
        self._heard_of.clear()
        self.left_out = 0
        self.is_known = False

    def take(self, events: Iterable[Event]) -> None:
        """Take on events as they come; those that are no alarms are ignored."""
        for event in events:
            if len(self._heard_of) < limits.MAX_ALARMS:
                self._heard_of.add(event.type)
            self._take(event)

    def take_earlier(self, event: Event) -> None:
        """Take on an event that was there before; what came meanwhile is newer."""
        if event.type not in self._heard_of:
            self._take(event)

    def _take(self, event: Event) -> None:
        content = _content(event)
        if content is None:
            return
        if content.state == "CLEARED":
            self._raised.pop(event.type, None)
        elif event.type in self._raised or len(self._raised) < limits.MAX_ALARMS:
            alarm = Alarm(event.type, event.timestamp, content.value, content.limit)
            self._raised[event.type] = alarm
        else:
            self.left_out += 1

    def newest(self) -> list[Alarm]:
        """All of them, the newest first."""
        return sorted(self._raised.values(), key=lambda i: i.since, reverse=True)


def _content(event: Event) -> _Content | None:
    payload = event.payload
    if not isinstance(payload, JsonPayload):
        return None
    if len(memoryview(payload.data)) > limits.MAX_ALARM_BYTES:
        return None
    try:
        return msgspec.json.decode(payload.data, type=_Content)
    except (msgspec.DecodeError, UnicodeError):
        return None


# --- the view -----------------------------------------------------------------------------


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
    """What is known of a gateway; a ``status`` is the last known one, None while not connected.

    ``failure`` and ``scrape_failure``: why there is no connection, or no metrics; None: there are,
    or it was not tried yet. ``hindrance``: why it is not OPERATIONAL, as it tells; None:
    that is not known. ``answered_s``: when it answered last, and ``answered``: this in seconds
    since 1970; None: it never did. ``scrape`` and ``point``: the last reading of its metrics, and
    rates and latencies then, however old; None: not known. ``history``: rates and latencies, the
    oldest first.

    Times named ``at_s`` are of ``time.monotonic()``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.status: Status | None = None
        self.failure: str | None = None
        self.hindrance: str | None = None
        self.ping_s: float | None = None
        self.answered_s: float | None = None
        self.answered: float | None = None
        self.scrape: Scrape | None = None
        self.point: Point | None = None
        self.scrape_failure: str | None = None
        self.history: deque[Point] = deque(maxlen=limits.MAX_HISTORY_POINTS)
        self.alarms = Alarms()
        self._scrapes: deque[Scrape] = deque(maxlen=limits.WINDOW_SCRAPES)

    def follows(self, at_s: float) -> bool:
        """Whether it is STANDBY because another member of its group is active."""
        scrape = self.scrape
        return (
            scrape is not None
            and self.is_measured(at_s)
            and scrape.value("mariner_group_active") == 0
            and bool(scrape.value("mariner_group_member_active"))
            and not is_log_silent(scrape)
        )

    def silent_s(self, at_s: float) -> float:
        """For how long it has not answered."""
        return math.inf if self.answered_s is None else at_s - self.answered_s

    def is_seen(self, at_s: float) -> bool:
        """Whether what is known of it is of the last seconds."""
        return self.status is not None and self.silent_s(at_s) < limits.SILENT_S

    def is_measured(self, at_s: float) -> bool:
        """Whether its metrics are of the last seconds."""
        return self.scrape is not None and at_s - self.scrape.at_s < limits.OLD_METRICS_S

    def on_lost(self, reason: str) -> None:
        """There is no connection."""
        self.status = self.ping_s = self.hindrance = None
        self.failure = reason

    def on_answer(self, status: Status, at_s: float, now_s: float) -> None:
        """It answered, with this status; ``now_s`` is in seconds since 1970."""
        self.status = status
        self.answered_s = at_s
        self.answered = now_s
        self.failure = None
        if status is Status.OPERATIONAL:
            self.hindrance = None

    @property
    def is_hindered(self) -> bool:
        """Whether it answers, and is not OPERATIONAL."""
        return self.status not in {None, Status.OPERATIONAL}

    def on_hindrance(self, reason: str | None) -> None:
        """It told why it is not OPERATIONAL; None: it did not."""
        self.hindrance = reason if self.is_hindered else None

    def on_scrape(self, scrape: Scrape, at_s: float) -> None:
        """Metrics were read, at a time in seconds since 1970."""
        self.scrape_failure = None
        name = "process_start_time_seconds"
        if self.scrape is not None and scrape.value(name) != self.scrape.value(name):
            self._interrupt(at_s)  # it was restarted
            self.point = None
        self.scrape = scrape
        self._scrapes.append(scrape)
        if len(self._scrapes) > 1:
            self.point = _point(self._scrapes, at_s)
            self.history.append(self.point)

    def on_scrape_failed(self, reason: str, at_s: float) -> None:
        """Metrics could not be read, at a time in seconds since 1970."""
        self.scrape_failure = reason
        self._interrupt(at_s)

    def _interrupt(self, at_s: float) -> None:
        """Rates are of readings without a gap, which is seen in the history."""
        if self._scrapes and self.history:
            self.history.append(Point(at_s, *[None] * (len(Point._fields) - 1)))
        self._scrapes.clear()


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


# --- problems -----------------------------------------------------------------------------


class Problem(NamedTuple):
    """Something that is wrong; ``is_critical`` if clients are not served."""

    is_critical: bool
    text: str


def outage(view: GatewayView, at_s: float) -> str | None:
    """Why nothing is known of a gateway now; None: something is, or it is asked for the first time.

    ``at_s`` is of ``time.monotonic()``.
    """
    if view.failure is not None:
        return f"not connected: {view.failure}"
    if view.status is None or view.answered is None or view.is_seen(at_s):
        return None
    return f"no answer since {datetime.fromtimestamp(view.answered, UTC):%H:%M:%S} UTC"


def find_problems(view: GatewayView, now_s: float, at_s: float) -> list[Problem]:
    """What is wrong, the worst first: the alerts for Prometheus that need no history.

    The bounds are those of ``deploy/prometheus/alerts.yml``. Of what is known, only that of the
    last seconds counts. ``now_s`` is in seconds since 1970, ``at_s`` of ``time.monotonic()``.
    """
    if (reason := outage(view, at_s)) is not None:
        return [Problem(True, reason)]
    found = [*_of_connection(view, at_s)]
    if view.scrape is not None and view.is_measured(at_s):
        found += _of_group(view.scrape)
        found += _of_store(view.scrape)
        found += _of_load(view, view.scrape)
        found += _of_operation(view.scrape, now_s)
    return sorted(found, key=lambda i: not i.is_critical)


def _of_connection(view: GatewayView, at_s: float) -> Iterator[Problem]:
    if view.status is not None and view.is_hindered and not view.follows(at_s):
        why = "" if view.hindrance is None else f": {view.hindrance}"
        yield Problem(True, f"status {view.status.name}: nothing can be registered{why}")
    if view.scrape_failure is not None:
        yield Problem(False, f"no metrics: {view.scrape_failure}")
    elif view.scrape is not None and not view.is_measured(at_s):
        yield Problem(False, f"no metrics for more than {limits.OLD_METRICS_S:.0f} s")
    if len(view.alarms):
        yield Problem(False, f"alarms raised: {len(view.alarms) + view.alarms.left_out}")


def is_log_silent(scrape: Scrape) -> bool:
    """Whether the log of its group cannot be used, or has no active member."""
    return (scrape.value("mariner_group_silent_seconds") or 0) > 30


def member_problem(scrape: Scrape, member: str) -> str | None:
    """What is wrong with a member of a group; None: nothing."""
    lag_s, lag_records, seen_s = (
        scrape.value(f"mariner_group_member_{i}", member=member) or 0
        for i in ("lag_seconds", "lag_records", "seen_seconds")
    )
    if seen_s > 120:
        return f"has not been seen for {of_seconds(seen_s)}"
    if lag_s > 60 or lag_records > 10_000:
        return f"is {of_seconds(lag_s)}, {of_number(lag_records)} records behind"
    return None


def _of_group(scrape: Scrape) -> Iterator[Problem]:
    if (group := scrape.text("mariner_group_active", "group")) is None:
        return
    if is_log_silent(scrape):
        silent_s = scrape.value("mariner_group_silent_seconds")
        yield Problem(True, f"the log of group {group} has not changed for {of_seconds(silent_s)}")
    elif not scrape.value("mariner_group_active") and not scrape.value(
        "mariner_group_member_active"
    ):
        yield Problem(True, f"no member of group {group} is active")
    for member in scrape.by("mariner_group_member_active", "member"):
        if (text := member_problem(scrape, member)) is not None:
            yield Problem(False, f"member {member} of group {group} {text}")
    records = scrape.value("mariner_group_log_records") or 0
    if records > 100_000:
        yield Problem(False, f"the log of group {group} holds {records:,.0f} records")


def _of_store(scrape: Scrape) -> Iterator[Problem]:
    if scrape.value("mariner_store_writable") == 0:
        yield Problem(True, "the store cannot be written")
    free = scrape.value("mariner_store_free_bytes")
    if free is not None and free < 1e9:
        yield Problem(True, f"the disk of the store has only {of_number(free, 'B')} left")
    types = scrape.value("mariner_store_event_types") or 0
    if types > 900_000:
        yield Problem(False, f"{types:,.0f} event types of at most 1,000,000")


def _of_load(view: GatewayView, scrape: Scrape) -> Iterator[Problem]:
    for wire, lag_s in scrape.by("mariner_send_lag_seconds", "wire").items():
        if lag_s > 30:
            yield Problem(False, f"a client of {wire} is {of_seconds(lag_s)} behind")
    for client, held in scrape.by("mariner_client_held", "client").items():
        if held:
            yield Problem(False, f"client {client} is held back by its quota")
    waiting = scrape.value("mariner_queries_waiting") or 0
    if waiting > 50:
        yield Problem(False, f"{waiting:.0f} queries wait")
    late_s = view.point.loop_p99_s if view.point else None
    if late_s is not None and late_s > 0.1:
        yield Problem(False, f"the event loop is late by {of_seconds(late_s)} (p99)")
    used, most = scrape.value("process_open_fds"), scrape.value("process_max_fds")
    if used is not None and most and used / most > 0.8:
        yield Problem(False, f"{used:.0f} of {most:.0f} files are open")


def _of_operation(scrape: Scrape, now_s: float) -> Iterator[Problem]:
    if scrape.value("mariner_config_last_reload_successful") == 0:
        yield Problem(False, "the last reload of the configuration failed")
    for key, moment_s in scrape.by("mariner_tls_expiry_timestamp_seconds", "key").items():
        left_s = moment_s - now_s
        if left_s < 14 * 86_400:
            when = f"expires in {of_seconds(left_s)}" if left_s > 0 else "is expired"
            yield Problem(left_s < 3 * 86_400, f"{key} {when}")
    for server, is_connected in scrape.by("mariner_remote_connected", "server").items():
        if not is_connected:
            yield Problem(False, f"no connection to the remote server {server}")
    for server, lag_s in scrape.by("mariner_replication_lag_seconds", "server").items():
        if lag_s > 60:
            yield Problem(False, f"the replication of {server} is {of_seconds(lag_s)} behind")
    ahead_s = scrape.value("mariner_clock_ahead_seconds") or 0
    if ahead_s > 60:
        yield Problem(False, f"timestamps are {of_seconds(ahead_s)} ahead of the clock")
