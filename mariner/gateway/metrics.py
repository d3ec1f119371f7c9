"""Metrics of a gateway in Prometheus form.

:data:`FAMILIES` names the places of the tree of counts (``counts``), which is read at each scrape.
Only durations are observed as they happen, in histograms. Each gateway has a registry of its own.
Belongs to the event loop's thread.

Labels are names of the configuration, or our own: no peer chooses one.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final, TypeAlias

from prometheus_client import CollectorRegistry, Info, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from eventer_bridge.backends.rocksdb.group_commit import CommitObserver
from eventer_bridge.model import QueryParams
from eventer_bridge.net import limits as net_limits
from eventer_bridge.rsb.event import RsbEvent, Scope
from mariner import limits
from mariner.gateway import counts
from mariner.gateway.tracing import query_name
from mariner.version import __version__

_LATENCY_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2)
_RSB_BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1)
_GROUP_BOUNDS = (1, 4, 16, 64, 256, 1024, 4096)

_G, _C = GaugeMetricFamily, CounterMetricFamily
_Family: TypeAlias = tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, str]

# fmt: off
FAMILIES: Final[tuple[_Family, ...]] = (
    (_G, "operational", "core.is_operational", "1 if the status is OPERATIONAL"),
    (_G, "pending_events", "core.pending_events", "Events waiting for their commit"),
    (_C, "sessions", "core.sessions", "Sessions of events that ended"),
    (_G, "clock_ahead_seconds", "core.clock_ahead_s",
     "Seconds by which the newest event is ahead of the clock of this machine"),
    (_G, "queries_running", "store.queries_running", "Queries reading from the store"),
    (_G, "queries_waiting", "store.queries_waiting", "Queries waiting to begin"),
    (_G, "store_writable", "store.is_writable", "0 while nothing can be stored"),
    (_G, "store_events", "store.events", "Stored events, estimated"),
    (_G, "store_event_types", "store.event_types", "Known event types"),
    (_G, "store_bytes", "store.size_bytes", "Bytes of the store on disk"),
    (_G, "store_compaction_bytes", "store.compaction_bytes",
     "Bytes still to be compacted, estimated"),
    (_G, "backup_timestamp_seconds", "store.backed_up_s",
     "When the last backup was made, in seconds since 1970 UTC; 0: none yet"),
    (_G, "restore_drill_timestamp_seconds", "store.drilled_s",
     "When a backup was last restored, and found to be right, by the drill; 0: never"),
    (_G, "store_free_bytes", "store.free_bytes",
     "Bytes that are free on the disk of the store"),
    (_G, "group_active", "groups.{group}.is_active", "1 if this member is the active one"),
    (_G, "group_epoch", "groups.{group}.epoch", "Rises each time that a member becomes active"),
    (_G, "group_changed_timestamp_seconds", "groups.{group}.since_s",
     "When a member last became active, or stepped down, in seconds since 1970 UTC"),
    (_C, "group_takeovers", "groups.{group}.takeovers",
     "Times that this member became active after one that had not stepped down"),
    (_G, "group_position", "groups.{group}.position",
     "Position of the last record of the group's log that this store has"),
    (_G, "group_acknowledged_position", "groups.{group}.acknowledged",
     "Position of the last record of the log that is known to be acknowledged"),
    (_G, "group_lag_records", "groups.{group}.lag_records",
     "Acknowledged records that this store does not have yet"),
    (_G, "group_lag_seconds", "groups.{group}.lag_s",
     "Seconds for which this store has been behind the log"),
    (_G, "group_silent_seconds", "groups.{group}.silent_s",
     "Seconds since this member saw the log change: else it cannot be used, or nobody is active"),
    (_G, "group_log_records", "groups.{group}.log_records",
     "Records in the log: those that a member may not have"),
    (_G, "group_members", "groups.{group}.n_members", "Members of the group"),
    (_G, "group_member_active", "groups.{group}.members.{member}.is_active",
     "1 if a member is the active one, as this one knows"),
    (_G, "group_member_position", "groups.{group}.members.{member}.position",
     "Position of the last record of the log that a member's store has"),
    (_G, "group_member_lag_records", "groups.{group}.members.{member}.lag_records",
     "Acknowledged records that a member's store does not have yet"),
    (_G, "group_member_lag_seconds", "groups.{group}.members.{member}.lag_s",
     "Age of the first record of the log that a member's store does not have"),
    (_G, "group_member_seen_seconds", "groups.{group}.members.{member}.seen_s",
     "Seconds since a member told the group of itself, which it does each second"),
    (_G, "cursors", "cursors.{client}.cursors", "Cursors of a client"),
    (_G, "cursors_connected", "cursors.{client}.connected", "Cursors that a connection has"),
    (_G, "cursor_lag_events", "cursors.{client}.lag_events",
     "Events behind the cursor that is furthest behind, up to 1,000"),
    (_G, "cursor_lag_seconds", "cursors.{client}.lag_s",
     "Age of the oldest event that is behind a cursor"),
    (_G, "cursor_parked_events", "cursors.{client}.parked", "Events that a client parked"),
    (_C, "log_left_out", "log.left_out", "Lines not logged: too many of a kind"),
    (_C, "log_dropped", "log.dropped", "Lines not logged: the log was too slow"),
    (_G, "connections", "wires.{wire}.connections", "Open connections, counted from accept"),
    (_C, "connections_accepted", "wires.{wire}.accepted", "Connections accepted"),
    (_C, "connections_refused", "wires.{wire}.refused.{reason}",
     "Connections refused, or closed before init to make room"),
    (_C, "connections_closed", "wires.{wire}.closed.{reason}", "Closed connections"),
    (_G, "clients", "wires.{wire}.clients", "Initialised clients"),
    (_C, "connections_declined", "wires.{wire}.declined", "Connections whose init was declined"),
    (_C, "events_registered", "wires.{wire}.events_registered", "Events acknowledged to clients"),
    (_C, "events_notified", "wires.{wire}.events_notified", "Events sent in notifications"),
    (_C, "registrations_outcome_unknown", "wires.{wire}.outcome_unknown",
     "Registrations whose outcome was reported as unknown"),
    (_C, "registrations_rejected", "wires.{wire}.rejections.{reason}",
     "Registrations refused; events of RSB"),
    (_C, "frames", "wires.{wire}.frames.{direction}", "Messages"),
    (_C, "bytes", "wires.{wire}.bytes.{direction}", "Bytes of messages"),
    (_G, "send_queue_bytes", "wires.{wire}.unread_bytes",
     "Bytes that clients have not read yet, of all together"),
    (_G, "send_queue_largest_bytes", "wires.{wire}.unread_largest_bytes",
     "Bytes that a single client has not read yet"),
    (_G, "send_lag_seconds", "wires.{wire}.behind_s",
     "Seconds since the client that is furthest behind fell behind: has more than"
     f" {net_limits.SEND_HIGH_WATER_BYTES} bytes to read"),
    (_C, "rsb_relayed", "rsb.relayed", "Notifications relayed, counted per receiver"),
    (_C, "rsb_unsent", "rsb.unsent.{reason}", "Events not sent to the bus"),
    (_G, "client_held", "quotas.{wire}.{client}.is_held",
     "1 while a client is held back to a rate of its quota"),
    (_C, "client_held_seconds", "quotas.{wire}.{client}.held_s",
     "Seconds in which a client was held back: not read from, or its queries not begun"),
    (_C, "client_quota_hits", "quotas.{wire}.{client}.hits.{quota}",
     "Times that a client met a bound of its quota"),
    (_G, "remote_connected", "remotes.{server}.is_connected",
     "1 if there is a connection to the remote server"),
    (_G, "replication_synced", "remotes.{server}.is_synced",
     "1 if the replication has caught up, and both lags are within their bounds"),
    (_G, "replication_lag_seconds", "remotes.{server}.lag_s",
     "Seconds since when an event of the remote server may be missing"),
    (_G, "replication_lag_events", "remotes.{server}.lag_events",
     "Events of the remote server that are known to be on their way"),
    (_G, "replication_clock_ahead_seconds", "remotes.{server}.ahead_s",
     "Seconds by which the newest event kept of the server is ahead of the clock here"),
    (_C, "remote_events_refused", "remotes.{server}.refused_events",
     "Events of a remote server that were left out, each time it sent them"),
    (_G, "config_last_reload_successful", "is_reloaded",
     "1 unless the last reload of the configuration failed"),
    (_G, "tls_expiry_timestamp_seconds", "expiries.{key}",
     "When a certificate or revocation list in use expires, in seconds since 1970 UTC"),
)
# fmt: on
"""Kind, name (without ``mariner_`` and ``_total``), place in the tree, help. Names in braces are
labels, for all nodes at their place. A family whose fixed part of the place is None is left out."""


class CountsCollector(Collector):
    """The tree of counts of a gateway, read when it is scraped."""

    def __init__(self, gateway: counts.Counted) -> None:
        self._gateway = gateway

    def collect(self) -> Iterable[Metric]:
        """All families that the gateway has."""
        tree = counts.tree(self._gateway)
        for kind, name, place, text in FAMILIES:
            path = place.split(".")
            if (samples := _samples(tree, path)) is not None:
                labels = [i[1:-1] for i in path if i.startswith("{")]
                family = kind(f"mariner_{name}", text, labels=labels)
                for values, value in samples:
                    family.add_metric(values, value)
                yield family


def _samples(node: Any, path: Sequence[str]) -> list[tuple[list[str], float]] | None:
    """Values with those of their labels, at a path below a node; None: there is no such place."""
    for depth, part in enumerate(path):
        if node is None:
            return None
        if part.startswith("{"):
            return [
                ([key, *labels], value)
                for key in sorted(node)
                for labels, value in _samples(node[key], path[depth + 1 :]) or ()
            ]
        node = node.get(part)
    return None if node is None else [([], node)]


# --- what is observed as it happens ---------------------------------------------------------


class Observations:
    """Values observed with the same labels: numbers by bucket, not cumulative, and their sum."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Histogram(Collector):
    """A histogram of one thread: plain numbers, read when they are scraped.

    Those of ``prometheus_client`` take two locks for each observation, of which there may be
    thousands a second. The bounds of buckets ascend; one more bucket is for larger values.
    """

    def __init__(
        self, name: str, documentation: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        self._name, self._documentation = name, documentation
        self._bounds, self._labels = bounds, labels
        self._buckets = [*map(floatToGoString, (*bounds, float("inf")))]
        self._observed: dict[tuple[str, ...], Observations] = {}

    def of(self, *labels: str) -> Observations:
        """The observations with these values of the labels."""
        if labels not in self._observed:
            self._observed[labels] = Observations(self._bounds)
        return self._observed[labels]

    def describe(self) -> Iterable[Metric]:
        """The metric without series: its name must not be registered twice."""
        yield HistogramMetricFamily(self._name, self._documentation)

    def collect(self) -> Iterable[Metric]:
        """The metric, with all series."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, series in self._observed.items():
            buckets = [*zip(self._buckets, accumulate(series.counts), strict=True)]
            family.add_metric(labels, buckets, series.total)
        yield family


class RsbLatency(Histogram):
    """Latency of RSB events, tens of thousands a second, by scope and part of their way."""

    _PARTS: Final = ("create_to_send", "send_to_receive", "receive_to_deliver")
    _US: Final = 1_000_000

    def __init__(self) -> None:
        super().__init__(
            "mariner_rsb_latency_seconds",
            "Latency of RSB events by part; negative values, by differing clocks, count as 0",
            _RSB_BOUNDS_S,
            ["scope", "part"],
        )
        self._by_scope: dict[Scope, tuple[Observations, ...]] = {}

    def observe(self, listened: Scope, event: RsbEvent) -> None:
        """Observe a delivered event; parts whose begin or end is unknown are skipped.

        ``listened`` is the configured scope that includes the event's own, which any participant of
        the bus can invent.
        """
        parts = self._by_scope.get(listened)
        if parts is None:
            parts = tuple(self.of(str(listened), part) for part in self._PARTS)
            self._by_scope[listened] = parts
        meta = event.meta
        times_us = (meta.create_time, meta.send_time, meta.receive_time, meta.deliver_time)
        for part, begin_us, end_us in zip(parts, times_us, times_us[1:], strict=False):
            if begin_us is not None and end_us is not None:
                part.observe(max(0, end_us - begin_us) / self._US)


_SYNC: Final = (
    "Duration of a sync to disk, the last one of each commit; in a group, of its record to the log"
)
_LATE: Final = "Time by which a periodic call of the event loop was late"
_HISTOGRAMS: Final[tuple[tuple[str, str, Sequence[float], Sequence[str]], ...]] = (
    ("commit_seconds", "Duration of a group commit, until it is durable", _LATENCY_BOUNDS_S, ()),
    ("commit_events", "Events of a group commit", _GROUP_BOUNDS, ()),
    ("sync_seconds", _SYNC, _LATENCY_BOUNDS_S, ()),
    ("loop_lag_seconds", _LATE, _LATENCY_BOUNDS_S, ()),
    ("query_seconds", "Time from a query's turn to its answer", _LATENCY_BOUNDS_S, ["type"]),
)


class Metrics:
    """The registry and the durations of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made = [Histogram(f"mariner_{i[0]}", i[1], i[2], i[3]) for i in _HISTOGRAMS]
        commit, events, sync, loop_lag, query = made
        self.rsb = RsbLatency()
        for histogram in (*made, self.rsb):
            self.registry.register(histogram)
        self.on_commit = CommitObserver(events.of().observe, commit.of().observe, sync.of().observe)
        self._observe_loop_lag = loop_lag.of().observe
        self._observe_query = cache(lambda kind: query.of(query_name(kind)).observe)
        ProcessCollector(registry=self.registry)
        Info("mariner_build", "Version of the gateway", registry=self.registry).info(
            {"version": __version__}
        )

    def observe_query(self, params: QueryParams, seconds: float) -> None:
        """A query was answered."""
        self._observe_query(type(params))(seconds)

    async def watch_loop(self) -> None:
        """Measure how late a periodic call is; for ever."""
        while True:
            due_s = time.monotonic() + limits.LOOP_LAG_PERIOD_S
            await asyncio.sleep(limits.LOOP_LAG_PERIOD_S)
            self._observe_loop_lag(max(0.0, time.monotonic() - due_s))
