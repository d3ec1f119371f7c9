"""Latency of RSB events, by scope and part of their way, as metrics.

It observes tens of thousands of events a second: the counts are plain integers, read when they are
scraped. Runs on the event loop's thread.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from eventer_bridge.rsb.event import RsbEvent, Scope
from mariner import limits

OTHER_SCOPES: Final = "(others)"

_PARTS: Final = ("create_to_send", "send_to_receive", "receive_to_deliver")
_US: Final = 1_000_000
_BOUNDS_US: Final = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, _US)
_BUCKETS: Final = (*(str(bound_us / _US) for bound_us in _BOUNDS_US), "+Inf")


class _Histogram:
    """Counts by bucket, and the sum."""

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * len(_BUCKETS)
        self.sum_us = 0

    def observe(self, duration_us: int) -> None:
        self.counts[bisect_left(_BOUNDS_US, duration_us)] += 1
        self.sum_us += duration_us


class RsbLatency(Collector):
    """See the module."""

    def __init__(self) -> None:
        self._histograms: dict[Scope | None, tuple[_Histogram, ...]] = {}

    def observe(self, event: RsbEvent) -> None:
        """Observe a delivered event.

        Skips parts whose begin or end is unknown. A negative part, because the clocks of two
        machines differ, counts as 0.
        """
        histograms = self._histograms.get(event.scope)
        if histograms is None:
            histograms = self._add(event.scope)
        meta = event.meta
        times_us = (meta.create_time, meta.send_time, meta.receive_time, meta.deliver_time)
        for histogram, begin_us, end_us in zip(histograms, times_us, times_us[1:], strict=False):
            if begin_us is not None and end_us is not None:
                histogram.observe(max(0, end_us - begin_us))

    def collect(self) -> Iterable[Metric]:
        """The histograms, in seconds."""
        family = HistogramMetricFamily(
            "mariner_rsb_latency_seconds",
            "Latency of RSB events by part; negative values, by differing clocks, count as 0",
            labels=["scope", "part"],
        )
        for scope, histograms in self._histograms.items():
            label = OTHER_SCOPES if scope is None else str(scope)
            for part, histogram in zip(_PARTS, histograms, strict=True):
                buckets = list(zip(_BUCKETS, accumulate(histogram.counts), strict=True))
                family.add_metric([label, part], buckets, histogram.sum_us / _US)
        yield family

    def _add(self, scope: Scope) -> tuple[_Histogram, ...]:
        """Histograms of a new scope, or of all scopes beyond the limit."""
        key = scope if len(self._histograms) < limits.MAX_METRIC_SCOPES else None
        if key not in self._histograms:
            self._histograms[key] = tuple(_Histogram() for _ in _PARTS)
        return self._histograms[key]
