"""Our histograms tell what those of ``prometheus_client`` tell."""

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mariner.gateway.metrics import Histogram

BOUNDS = (0.001, 0.5, 1, 10)
VALUES = (0, 0.001, 0.0011, 0.5, 1, 9.5, 10, 10.5, 1e9)


def told(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [i for i in lines if "_created" not in i]


def test_without_labels() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("test_seconds", "What it takes", BOUNDS)
    ours.register(histogram)
    expected = prometheus_client.Histogram(
        "test_seconds", "What it takes", buckets=BOUNDS, registry=theirs
    )
    observe = histogram.of().observe
    assert told(ours) == told(theirs)  # 0 of each
    for value in VALUES:
        observe(value)
        expected.observe(value)
        assert told(ours) == told(theirs)


def test_with_labels() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("test_seconds", "What it takes", BOUNDS, ["kind", "part"])
    ours.register(histogram)
    expected = prometheus_client.Histogram(
        "test_seconds", "What it takes", ["kind", "part"], buckets=BOUNDS, registry=theirs
    )
    for number, value in enumerate(VALUES):
        labels = f'"{number % 2}\n', "part"
        histogram.of(*labels).observe(value)
        expected.labels(*labels).observe(value)
        assert told(ours) == told(theirs)


def test_a_name_is_registered_once() -> None:
    registry = CollectorRegistry()
    registry.register(Histogram("test_seconds", "One", BOUNDS))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(Histogram("test_seconds", "Another", BOUNDS))
