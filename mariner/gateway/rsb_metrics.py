"""Latency of RSB events, by scope of the configuration and part of their way, as metrics.

It observes tens of thousands of events a second. Runs on the event loop's thread.
"""

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from eventer_bridge.rsb.event import RsbEvent, Scope
from mariner.gateway.histogram import Histogram, Observations

_PARTS: Final = ("create_to_send", "send_to_receive", "receive_to_deliver")
_US: Final = 1_000_000
_BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1)


class RsbLatency(Collector):
    """See the module."""

    def __init__(self) -> None:
        self._histogram = Histogram(
            "mariner_rsb_latency_seconds",
            "Latency of RSB events by part; negative values, by differing clocks, count as 0",
            _BOUNDS_S,
            ["scope", "part"],
        )
        self._observations: dict[Scope, tuple[Observations, ...]] = {}

    def observe(self, listened: Scope, event: RsbEvent) -> None:
        """Observe a delivered event.

        Args:
            listened: the scope of the configuration that includes that of the event, which anybody
                on the bus can invent.
            event: the event.

        Skips parts whose begin or end is unknown. A negative part, because the clocks of two
        machines differ, counts as 0.
        """
        parts = self._observations.get(listened)
        if parts is None:
            label = str(listened)
            parts = tuple(self._histogram.of(label, part) for part in _PARTS)
            self._observations[listened] = parts
        meta = event.meta
        times_us = (meta.create_time, meta.send_time, meta.receive_time, meta.deliver_time)
        for part, begin_us, end_us in zip(parts, times_us, times_us[1:], strict=False):
            if begin_us is not None and end_us is not None:
                part.observe(max(0, end_us - begin_us) / _US)

    def collect(self) -> Iterable[Metric]:
        """The histograms, in seconds."""
        return self._histogram.collect()
