"""Readings of metrics: rates, quantiles, and what is not known."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from mariner_console import view
from mariner_console.view import Scrape, quantile, rate


class Exposed:
    """Metrics as a gateway exposes them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter("events", "", ["wire"], registry=self.registry)
        self.seconds = Histogram("seconds", "", buckets=(0.01, 0.1), registry=self.registry)

    def read(self, at_s: float) -> Scrape:
        return view.parse(generate_latest(self.registry).decode(), at_s)


def test_values_of_labels_are_summed() -> None:
    exposed = Exposed()
    exposed.events.labels("mariner").inc(3)
    exposed.events.labels("eventer").inc(4)
    scrape = exposed.read(0)
    assert scrape.value("events_total") == 7
    assert scrape.value("events_total", wire="mariner") == 3
    assert scrape.value("events_total", wire="rsb") is None
    assert scrape.value("others") is None
    assert scrape.by("events_total", "wire") == {"mariner": 3, "eventer": 4}
    assert scrape.by("events_total", "client") == {}


def test_a_rate_is_of_the_time_between() -> None:
    exposed = Exposed()
    exposed.events.labels("mariner").inc(3)
    first = exposed.read(10)
    exposed.events.labels("mariner").inc(30)
    second = exposed.read(12)
    assert rate(second, first, "events_total") == 15
    assert rate(first, second, "events_total") is None  # it began anew
    assert rate(second, second, "events_total") is None
    assert rate(second, first, "others") is None


def test_a_quantile_is_of_what_came_between() -> None:
    exposed = Exposed()
    for _ in range(100):
        exposed.seconds.observe(5)
    first = exposed.read(0)
    assert quantile(first, first, "seconds", 0.5) is None
    for _ in range(99):
        exposed.seconds.observe(0.005)
    exposed.seconds.observe(0.05)
    second = exposed.read(1)
    assert quantile(second, first, "seconds", 0.5) == pytest.approx(0.01 * 50 / 99)
    assert quantile(second, first, "seconds", 0.99) == pytest.approx(0.01)
    assert quantile(second, first, "seconds", 1) == pytest.approx(0.1)
    exposed.seconds.observe(5)
    assert quantile(exposed.read(2), second, "seconds", 0.5) == 0.1  # the last finite bound
    assert quantile(first, second, "seconds", 0.5) is None  # it began anew


def test_what_is_no_metrics_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"<html>"):
        view.parse("<html> 1 2 3 4", 0)
