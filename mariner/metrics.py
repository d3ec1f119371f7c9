"""Metrics of a gateway in Prometheus form.

The hot path counts in plain integers (``ServerStats``); :class:`GatewayCollector` reads
them when it is scraped. Only durations are observed as they happen, one per commit or
query. Each gateway has a registry of its own.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eventer_bridge.backends.base import Backend
from eventer_bridge.engine import Engine
from eventer_bridge.model import QueryParams, Status
from mariner.server import MarinerServer

_LATENCY_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2)
_GROUP_BUCKETS = (1, 4, 16, 64, 256, 1024, 4096)


class Metrics:
    """Registry and the durations of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._commit_seconds = Histogram(
            "mariner_commit_seconds",
            "Duration of a group commit, synced to disk",
            buckets=_LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self._commit_events = Histogram(
            "mariner_commit_events",
            "Events of a group commit",
            buckets=_GROUP_BUCKETS,
            registry=self.registry,
        )
        self._query_seconds = Histogram(
            "mariner_query_seconds",
            "Time from a query's turn to its answer",
            ["type"],
            buckets=_LATENCY_BUCKETS_S,
            registry=self.registry,
        )

    def observe_commit(self, event_count: int, seconds: float) -> None:
        """A group of ``event_count`` events was committed."""
        self._commit_seconds.observe(seconds)
        self._commit_events.observe(event_count)

    def observe_query(self, params: QueryParams, seconds: float) -> None:
        """A query was answered."""
        name = type(params).__name__.removeprefix("Query").removesuffix("Params").lower()
        self._query_seconds.labels(name).observe(seconds)


class GatewayCollector(Collector):
    """Reads the counts of a gateway's parts when it is scraped, on the event loop's thread."""

    def __init__(self, engine: Engine, backend: Backend, server: MarinerServer) -> None:
        self._engine = engine
        self._backend = backend
        self._server = server

    def collect(self) -> Iterable[Metric]:
        """All metrics but the durations."""
        stats = self._server.stats
        engine = self._engine
        for name, text, value in (
            ("connections", "Open connections", stats.connections),
            ("clients", "Initialised clients", stats.clients),
            ("operational", "1 if the status is OPERATIONAL", _is_operational(engine)),
            ("pending_events", "Events that wait for their commit", engine.pending_events),
        ):
            yield GaugeMetricFamily(f"mariner_{name}", text, value)
        for name, text, value in (
            ("connections_accepted", "Connections accepted", stats.accepted),
            ("connections_declined", "Connections whose init was declined", stats.declined),
            ("events_registered", "Events acknowledged to clients", stats.events_registered),
            ("events_notified", "Events sent in notifications", stats.events_notified),
        ):
            yield CounterMetricFamily(f"mariner_{name}", text, value)
        for name, text, values in (
            ("frames", "Messages", {"in": stats.frames_in, "out": stats.frames_out}),
            ("bytes", "Bytes of messages", {"in": stats.bytes_in, "out": stats.bytes_out}),
        ):
            yield _labelled(f"mariner_{name}", text, "direction", values)
        yield _labelled(
            "mariner_registrations_rejected", "Registrations refused", "reason", stats.rejected
        )
        yield _labelled("mariner_connections_closed", "Closed connections", "reason", stats.closed)
        store = self._backend.stats()
        for name, text, value in (
            ("store_events", "Stored events, estimated", store.events),
            ("store_event_types", "Known event types", store.event_types),
            ("store_bytes", "Bytes of the store on disk", store.size_bytes),
        ):
            yield GaugeMetricFamily(f"mariner_{name}", text, value)


def _is_operational(engine: Engine) -> int:
    return int(engine.status is Status.OPERATIONAL)


def _labelled(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family
