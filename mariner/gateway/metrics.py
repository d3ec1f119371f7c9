"""Metrics of a gateway in Prometheus form.

The hot path counts in plain integers (``ServerStats``); :class:`GatewayCollector` reads
them when it is scraped. Only durations are observed as they happen, one per commit or
query. Each gateway has a registry of its own.

Labels are names of the configuration, or our own: no peer chooses one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Final, Protocol

from prometheus_client import (
    CollectorRegistry,
    Info,
    ProcessCollector,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.backends.rocksdb.group_commit import CommitObserver
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.cursors import Cursor, Cursors
from eventer_bridge.core.engine import Engine
from eventer_bridge.model import QueryParams, Status
from eventer_bridge.remote.replication import Replication
from mariner.gateway import families, logs
from mariner.gateway.histogram import Histogram
from mariner.gateway.rsb_metrics import RsbLatency
from mariner.gateway.tracing import query_name
from mariner.version import __version__

_LATENCY_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2)
_GROUP_BOUNDS = (1, 4, 16, 64, 256, 1024, 4096)

OTHER_CLIENTS: Final = "(not configured)"
"""Whose cursors are those of clients that are configured no longer, or by another server only."""


class Metrics:
    """The registry and the durations of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        commit_seconds = Histogram(
            "mariner_commit_seconds",
            "Duration of a group commit, synced to disk",
            _LATENCY_BOUNDS_S,
        )
        commit_events = Histogram(
            "mariner_commit_events", "Events of a group commit", _GROUP_BOUNDS
        )
        sync_seconds = Histogram(
            "mariner_sync_seconds",
            "Duration of a sync to disk, the last one of each commit",
            _LATENCY_BOUNDS_S,
        )
        loop_lag_seconds = Histogram(
            "mariner_loop_lag_seconds",
            "Time by which a periodic call of the event loop was late",
            _LATENCY_BOUNDS_S,
        )
        query_seconds = Histogram(
            "mariner_query_seconds",
            "Time from a query's turn to its answer",
            _LATENCY_BOUNDS_S,
            ["type"],
        )
        for histogram in (
            commit_seconds,
            commit_events,
            sync_seconds,
            loop_lag_seconds,
            query_seconds,
        ):
            self.registry.register(histogram)
        self.on_commit = CommitObserver(
            commit_events.of().observe,
            commit_seconds.of().observe,
            sync_seconds.of().observe,
        )
        self.observe_loop_lag = loop_lag_seconds.of().observe
        self._observe_query = cache(lambda kind: query_seconds.of(query_name(kind)).observe)

        self.rsb = RsbLatency()
        self.registry.register(self.rsb)
        ProcessCollector(registry=self.registry)
        Info("mariner_build", "Version of the gateway", registry=self.registry).info(
            {"version": __version__}
        )

    def observe_query(self, params: QueryParams, seconds: float) -> None:
        """A query was answered."""
        self._observe_query(type(params))(seconds)


class RemoteServer(Protocol):
    """Follows a remote Event Server: a relay or a replication."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to it."""

    @property
    def refused_events(self) -> int:
        """Events that had to be left out, counted each time it sent them."""


class RemotesCollector(Collector):
    """Metrics of the current remote Event Servers, read when they are scraped.

    Args:
        remotes: returns the servers.
    """

    def __init__(self, remotes: Callable[[], Iterable[RemoteServer]]) -> None:
        self._remotes = remotes

    def collect(self) -> Iterable[Metric]:
        """Whether they are connected and followed, and how many of their events were left out."""
        remotes = list(self._remotes())
        connected = {remote.name: remote.is_connected for remote in remotes}
        text = "1 if there is a connection to the remote server"
        yield families.gauges("mariner_remote_connected", text, "server", connected)
        replications = [i for i in remotes if isinstance(i, Replication)]
        for name, text, values in (
            (
                "synced",
                "1 if the replication has caught up, and both lags are within their bounds",
                {i.name: i.is_synced for i in replications},
            ),
            (
                "lag_seconds",
                "Seconds since when an event of the remote server may be missing",
                {i.name: i.lag_s for i in replications},
            ),
            (
                "lag_events",
                "Events of the remote server that are known to be on their way",
                {i.name: i.lag_events for i in replications},
            ),
            (
                "clock_ahead_seconds",
                "Seconds by which the newest event kept of the server is ahead of the clock here",
                {i.name: i.ahead_s for i in replications},
            ),
        ):
            yield families.gauges(f"mariner_replication_{name}", text, "server", values)
        refused = {remote.name: remote.refused_events for remote in remotes}
        text = "Events of a remote server that were left out, each time it sent them"
        yield families.counters("mariner_remote_events_refused", text, "server", refused)


class ConfigurationCollector(Collector):
    """Whether the configuration in use is the one of the file, and how long it is good for.

    Args:
        expiries: returns when certificates and revocation lists in use expire, by their keys.
        is_reloaded: returns whether the last reload, if any, succeeded.
    """

    def __init__(
        self, expiries: Callable[[], Mapping[str, datetime]], is_reloaded: Callable[[], bool]
    ) -> None:
        self._expiries = expiries
        self._is_reloaded = is_reloaded

    def collect(self) -> Iterable[Metric]:
        """Whether it was reloaded, and the moments."""
        text = "1 unless the last reload of the configuration failed"
        is_reloaded = int(self._is_reloaded())
        yield GaugeMetricFamily("mariner_config_last_reload_successful", text, is_reloaded)
        moments = {key: i.timestamp() for key, i in self._expiries().items()}
        text = "When a certificate or revocation list in use expires, in seconds since 1970 UTC"
        yield families.gauges("mariner_tls_expiry_timestamp_seconds", text, "key", moments)


class GatewayCollector(Collector):
    """Reads the counts of a gateway's parts when it is scraped, on the event loop's thread.

    Args:
        core: registers events.
        backend: stores them; None: a relay has none.
        clients: returns the names of configured clients.
    """

    def __init__(
        self, core: EventCore, backend: Backend | None, clients: Callable[[], Collection[str]]
    ) -> None:
        self._core = core
        self._backend = backend
        self._clients = clients

    def collect(self) -> Iterable[Metric]:
        """State of the core, the store and the log."""
        core = self._core
        is_operational = int(core.status is Status.OPERATIONAL)
        for name, text, value in (
            ("operational", "1 if the status is OPERATIONAL", is_operational),
            ("pending_events", "Events waiting for their commit", core.pending_events),
        ):
            yield GaugeMetricFamily(f"mariner_{name}", text, value)
        yield CounterMetricFamily("mariner_sessions", "Sessions of events that ended", core.n_ended)
        if isinstance(core, Engine):
            text = "Seconds by which the newest event is ahead of the clock of this machine"
            yield GaugeMetricFamily("mariner_clock_ahead_seconds", text, core.clock_ahead_s)
        if self._backend is not None:
            yield from _store_metrics(self._backend)
        if core.cursors is not None:
            yield from _cursor_metrics(core.cursors, self._clients())
        yield from _log_metrics()


def _log_metrics() -> Iterable[Metric]:
    counts = logs.counts()
    for name, text, value in (
        ("log_left_out", "Lines not logged: too many of a kind", counts.left_out),
        ("log_dropped", "Lines not logged: the log was too slow", counts.dropped),
    ):
        yield CounterMetricFamily(f"mariner_{name}", text, value)


def _cursor_metrics(cursors: Cursors, clients: Collection[str]) -> Iterable[Metric]:
    """By client, as clients choose the names of cursors; the lag is looked at now and then."""
    of_clients: dict[str, list[Cursor]] = {}
    for cursor in cursors:
        client = cursor.client if cursor.client in clients else OTHER_CLIENTS
        of_clients.setdefault(client, []).append(cursor)
    for name, text, total in (
        ("cursors", "Cursors of a client", len),
        ("cursors_connected", "Cursors that a connection has", _n_connected),
        (
            "cursor_lag_events",
            "Events behind the cursor that is furthest behind, up to 1,000",
            lambda found: max(i.lag_events for i in found),
        ),
        (
            "cursor_lag_seconds",
            "Age of the oldest event that is behind a cursor",
            lambda found: max(i.lag_s for i in found),
        ),
        (
            "cursor_parked_events",
            "Events that a client parked",
            lambda found: sum(i.n_parked for i in found),
        ),
    ):
        values = {client: total(found) for client, found in of_clients.items()}
        yield families.gauges(f"mariner_{name}", text, "client", values)


def _n_connected(cursors: Iterable[Cursor]) -> int:
    return sum(i.holder is not None for i in cursors)


def _store_metrics(backend: Backend) -> Iterable[Metric]:
    load = backend.query_load
    for name, text, value in (
        ("queries_running", "Queries reading from the store", load.running),
        ("queries_waiting", "Queries waiting to begin", load.waiting),
    ):
        yield GaugeMetricFamily(f"mariner_{name}", text, value)
    store = backend.stats()
    for name, text, value in (
        ("writable", "0 while nothing can be stored", int(backend.failure is None)),
        ("events", "Stored events, estimated", store.events),
        ("event_types", "Known event types", store.event_types),
        ("bytes", "Bytes of the store on disk", store.size_bytes),
        ("compaction_bytes", "Bytes still to be compacted, estimated", store.compaction_bytes),
    ):
        yield GaugeMetricFamily(f"mariner_store_{name}", text, value)
    if isinstance(backend, RocksDbBackend) and backend.control is not None:
        text = "When the last backup was made, in seconds since 1970 UTC; 0: none since the start"
        moment = backend.control.backed_up_s
        yield GaugeMetricFamily("mariner_backup_timestamp_seconds", text, moment)
    if store.free_bytes is not None:
        text = "Bytes that are free on the disk of the store"
        yield GaugeMetricFamily("mariner_store_free_bytes", text, store.free_bytes)
