"""Readings of ``/metrics``, and what two of them tell: rates and quantiles."""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

Labels: TypeAlias = frozenset[tuple[str, str]]

_NO_SERIES: Final[dict[Labels, float]] = {}


class Scrape(NamedTuple):
    """One reading.

    Attributes:
        at_s: when, ``time.monotonic()``.
        series: values by name of the metric, and by labels.
    """

    at_s: float
    series: Mapping[str, Mapping[Labels, float]]

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the series of a metric with these labels; None: there is none."""
        wanted = frozenset(labels.items())
        values = [v for i, v in self.series.get(name, _NO_SERIES).items() if wanted <= i]
        return sum(values) if values else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sums of a metric's series by the values of a label."""
        return {key: value for (key,), value in self.by_all(name, label).items()}

    def by_all(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """As :meth:`by`, by the values of several labels."""
        found: dict[tuple[str, ...], float] = {}
        for series, value in self.series.get(name, _NO_SERIES).items():
            values = dict(series)
            if all(i in values for i in labels):
                key = tuple(values[i] for i in labels)
                found[key] = found.get(key, 0.0) + value
        return found

    def text(self, name: str, label: str) -> str | None:
        """A label of a metric's first series, as of ``mariner_build_info``."""
        return next((dict(i).get(label) for i in self.series.get(name, _NO_SERIES)), None)


def parse(text: str, at_s: float) -> Scrape:
    """Parse the text format; may run on any thread.

    Raises:
        ValueError: it is something else.
    """
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

    Args:
        now: a reading.
        before: an earlier one.
        name: of the metric, without ``_bucket``.
        q: 0 to 1.

    Returns:
        The value, at most the last finite bound; None: nothing was observed.
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
