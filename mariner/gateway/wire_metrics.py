"""Metrics of connections and their clients, by the label ``wire``."""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from eventer_bridge.errors import Refusal
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.stats import CloseReason, RefusedSlot, ServerStats
from eventer_bridge.net.stream import Stream
from eventer_bridge.rsb.transport import RsbStats
from mariner.gateway import families


class Wire(NamedTuple):
    """A kind of connections, the value of the label ``wire``.

    Attributes:
        stats: its counts.
        connections: returns the connections that exist.
        has_clients: whether they are of clients, who register and are notified.
    """

    stats: ServerStats
    connections: Callable[[], Collection[Stream[Any]]] = tuple
    has_clients: bool = True


class WiresCollector(Collector):
    """Reads the counts of all wires when it is scraped, on the event loop's thread.

    Args:
        wires: by label.
    """

    def __init__(self, wires: Mapping[str, Wire]) -> None:
        self._stats = {name: wire.stats for name, wire in wires.items()}
        self._clients = {name: wire for name, wire in wires.items() if wire.has_clients}

    def collect(self) -> Iterable[Metric]:
        """Connections; clients, with what they did and what waits for them."""
        yield from _connection_metrics(self._stats)
        of_clients = {name: self._stats[name] for name in self._clients}
        yield from _client_metrics(of_clients)
        yield from _queue_metrics(self._clients)
        for stats in of_clients.values():
            if isinstance(stats, RsbStats):
                yield from _rsb_metrics(stats)


def _connection_metrics(wires: Mapping[str, ServerStats]) -> Iterable[Metric]:
    text = "Open connections, counted from accept"
    connections = {wire: i.connections for wire, i in wires.items()}
    yield families.gauges("mariner_connections", text, "wire", connections)
    text = "Connections accepted"
    accepted = {wire: i.accepted for wire, i in wires.items()}
    yield families.counters("mariner_connections_accepted", text, "wire", accepted)
    text = "Connections refused, or closed before init to make room"
    refused = {wire: _of_all(RefusedSlot, i.refused) for wire, i in wires.items()}
    yield _by_wire("connections_refused", text, "reason", refused)
    text = "Closed connections"
    closed = {wire: _of_all(CloseReason, i.closed) for wire, i in wires.items()}
    yield _by_wire("connections_closed", text, "reason", closed)


def _client_metrics(wires: Mapping[str, ServerStats]) -> Iterable[Metric]:
    clients = {wire: i.clients for wire, i in wires.items()}
    yield families.gauges("mariner_clients", "Initialised clients", "wire", clients)
    for name, text, attribute in (
        ("connections_declined", "Connections whose init was declined", "declined"),
        ("events_registered", "Events acknowledged to clients", "events_registered"),
        ("events_notified", "Events sent in notifications", "events_notified"),
        (
            "registrations_outcome_unknown",
            "Registrations whose outcome was reported as unknown",
            "outcome_unknown",
        ),
    ):
        counts = {wire: getattr(i, attribute) for wire, i in wires.items()}
        yield families.counters(f"mariner_{name}", text, "wire", counts)
    rejected = {wire: _of_all(Refusal, i.rejected) for wire, i in wires.items()}
    text = "Registrations refused; events of RSB"
    yield _by_wire("registrations_rejected", text, "reason", rejected)
    frames = {wire: {"in": i.frames_in, "out": i.frames_out} for wire, i in wires.items()}
    yield _by_wire("frames", "Messages", "direction", frames)
    traffic = {wire: {"in": i.bytes_in, "out": i.bytes_out} for wire, i in wires.items()}
    yield _by_wire("bytes", "Bytes of messages", "direction", traffic)


def _queue_metrics(wires: Mapping[str, Wire]) -> Iterable[Metric]:
    queued: dict[str, float] = {}
    largest: dict[str, float] = {}
    behind_s: dict[str, float] = {}
    for name, wire in wires.items():
        connections = wire.connections()
        unread_bytes = [i.unread_bytes for i in connections]
        queued[name] = sum(unread_bytes)
        largest[name] = max(unread_bytes, default=0)
        blocked = [i for i in connections if i.is_write_blocked]
        behind_s[name] = max((i.behind_s for i in blocked), default=0)
    for key, text, values in (
        ("send_queue_bytes", "Bytes that clients have not read yet, of all together", queued),
        ("send_queue_largest_bytes", "Bytes that a single client has not read yet", largest),
        (
            "send_lag_seconds",
            "Seconds since the client that is furthest behind fell behind: has more than"
            f" {net_limits.SEND_HIGH_WATER_BYTES} bytes to read",
            behind_s,
        ),
    ):
        yield families.gauges(f"mariner_{key}", text, "wire", values)


def _rsb_metrics(stats: RsbStats) -> Iterable[Metric]:
    yield CounterMetricFamily(
        "mariner_rsb_relayed", "Notifications relayed, counted per receiver", stats.relayed
    )
    text = "Events not sent to the bus"
    unsent = {"nobody there": 0, "invalid": 0, **stats.unsent}
    yield families.counters("mariner_rsb_unsent", text, "reason", unsent)


def _of_all(reasons: type[StrEnum], counts: Mapping[str, int]) -> dict[str, int]:
    """The count of each reason, 0 included: else Prometheus would not see the first one."""
    return {reason.value: counts.get(reason, 0) for reason in reasons}


def _by_wire(name: str, text: str, label: str, counts: Mapping[str, Mapping[str, int]]) -> Metric:
    family = CounterMetricFamily(f"mariner_{name}", text, labels=["wire", label])
    for wire, values in counts.items():
        for value, count in sorted(values.items()):
            family.add_metric([wire, value], count)
    return family
