"""Metrics with one label, from values by that label."""

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def counters(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    """A counter for each value of a label.

    Args:
        name: of the metric, without ``_total``.
        text: its help.
        label: its label.
        values: the counts.
    """
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A gauge for each value of a label; see :func:`counters`."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for label_value, value in sorted(values.items()):
        family.add_metric([label_value], value)
    return family
