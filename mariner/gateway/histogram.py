"""Histograms that cost little where something is observed thousands of times a second.

Those of ``prometheus_client`` may be used by any thread, for which each observation takes two
locks. These belong to one thread, the event loop's: plain numbers, read when they are scraped.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Observations:
    """What was observed with the same labels.

    Args:
        bounds: see :class:`Histogram`.

    Attributes:
        counts: number of observations by bucket, not cumulative.
        total: the sum of what was observed.
    """

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
    """See the module.

    Args:
        name: of the metric.
        documentation: its one line of text.
        bounds: upper bounds of the buckets, ascending; one more has what is above.
        labels: names of the labels.
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
