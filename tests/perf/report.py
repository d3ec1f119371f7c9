"""What was measured, and the tables of it."""

import enum
import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table


class Bound(enum.Enum):
    """What a target bounds: our speed over theirs, our value itself, or nothing."""

    SPEED_UP = "at least so many times better than hat-*"
    AT_MOST = "ours is at most so much"
    AT_LEAST = "ours is at least so much"
    NONE = "only recorded"


class Sample(msgspec.Struct):
    """A measurement.

    Attributes:
        value: in the unit of its row.
        cpu_us: CPU time of the server's processes for each event, ping or query, in µs.
        p99_ms: 99th percentile of the times from a request to its answer.
        is_client_busy: the client computed nearly all the time, and may be what limited a rate.
    """

    value: float
    cpu_us: float | None = None
    p99_ms: float | None = None
    is_client_busy: bool = False


class Measure(msgspec.Struct):
    """One row: samples of every round of each side.

    Units of a rate (``…/s``) are better when greater, all others when smaller.
    """

    name: str
    title: str
    unit: str
    target: float = 0.0
    bound: Bound = Bound.NONE
    sides: tuple[str, ...] = ("ours",)
    samples: dict[str, list[Sample]] = {}

    def add(self, side: str, sample: Sample | float) -> None:
        """Add what a round gave."""
        assert side in self.sides
        found = self.samples.setdefault(side, [])
        found.append(sample if isinstance(sample, Sample) else Sample(sample))

    def median(self, side: str) -> Sample | None:
        """Medians of a side; None where it was not measured."""
        samples = self.samples.get(side)
        if not samples:
            return None
        return Sample(
            statistics.median(i.value for i in samples),
            _median([i.cpu_us for i in samples]),
            _median([i.p99_ms for i in samples]),
            statistics.median_low(i.is_client_busy for i in samples),
        )

    @property
    def better(self) -> float | None:
        """How many times better ours is than hat-*; None where one is missing."""
        ours, hat = self.median("ours"), self.median("hat")
        if ours is None or hat is None:
            return None
        better, worse = (ours, hat) if self.unit.endswith("/s") else (hat, ours)
        return better.value / worse.value if worse.value > 0 else None

    @property
    def is_met(self) -> bool | None:
        """Whether the target is reached; None where there is none, or nothing was measured."""
        ours = self.median("ours")
        if ours is None or self.bound is Bound.NONE:
            return None
        if self.bound is Bound.AT_MOST:
            return ours.value <= self.target
        if self.bound is Bound.AT_LEAST:
            return ours.value >= self.target
        return self.better is not None and self.better >= self.target


class Comparison(NamedTuple):
    """A table of two sides.

    Attributes:
        title: above it.
        left, right: which; rows that are measured on both are in it.
        headings: of the two, and of what is divided by what.
        is_of_cpu: CPU times are divided, not values.
        is_inverse: the right is divided by the left, not the left by the right.
    """

    title: str
    left: str
    right: str
    headings: tuple[str, str, str]
    is_of_cpu: bool = False
    is_inverse: bool = False

    def quotient(self, measure: Measure) -> float | None:
        """What is in the last column."""
        left, right = measure.median(self.left), measure.median(self.right)
        if left is None or right is None:
            return None
        values = (left.cpu_us, right.cpu_us) if self.is_of_cpu else (left.value, right.value)
        upper, lower = reversed(values) if self.is_inverse else values
        return upper / lower if upper is not None and lower else None


COMPARISONS: Final = (
    Comparison(
        "Limit: a Python server that only decodes and answers, and stores nothing",
        "ours",
        "limit",
        ("ours", "limit", "limit's CPU ÷ ours"),
        is_of_cpu=True,
        is_inverse=True,
    ),
    Comparison(
        "Redis Streams, synced before they are acknowledged (appendfsync always)",
        "ours",
        "redis",
        ("ours", "Redis", "ours ÷ Redis"),
    ),
    Comparison(
        "Registrations with a request key",
        "keyed",
        "ours",
        ("with key", "without", "CPU with ÷ without"),
        is_of_cpu=True,
    ),
    Comparison(
        "Source timestamps that go back from one request to the next",
        "backwards",
        "ours",
        ("backwards", "in order", "CPU backwards ÷ in order"),
        is_of_cpu=True,
    ),
    Comparison("TLS", "tls", "ours", ("TLS", "plain", "TLS ÷ plain")),
    Comparison(
        "One in flight, and a bare synced write of as many bytes to the same folder",
        "ours",
        "write",
        ("ours", "write", "ours ÷ write"),
    ),
    Comparison(
        "A group of two, its PostgreSQL and two standbys, all on this machine",
        "group",
        "ours",
        ("group", "single store", "group ÷ single"),
    ),
    Comparison(
        "A group, one in flight, and a bare commit of as many bytes that waits for the same quorum",
        "group",
        "insert",
        ("group", "commit", "group ÷ commit"),
    ),
    Comparison(
        "Redis, one in flight, and the same write",
        "redis",
        "write",
        ("Redis", "write", "Redis ÷ write"),
    ),
)

LEGEND: Final = (
    "Medians of all rounds; ms: median of the times from a request to its answer. "
    "CPU µs: of the server, in all its threads, for each event, ping or query. "
    "≥: the client was busy all the time, and may be what limits."
)


def tables(measures: Sequence[Measure]) -> list[Table]:
    """The tables that have rows: against hat-*, against the others, ours alone."""
    alone = [i for i in measures if i.sides == ("ours",)]
    found = [_hat_table([i for i in measures if "hat" in i.sides])]
    for comparison in COMPARISONS:
        both = {comparison.left, comparison.right}
        found.append(_table(comparison, [i for i in measures if both <= {*i.sides}]))
    found.append(_alone_table(alone))
    return [i for i in found if i.row_count]


def print_tables(measures: Sequence[Measure], console: Console) -> None:
    """Print the tables, with medians."""
    for table in tables(measures):
        console.print(table)
    console.print(LEGEND)


def _hat_table(measures: Sequence[Measure]) -> Table:
    table = _new_table(
        "hat-mariner-server + hat-event-server; Eventer: hat-event-server",
        *("unit", "ours", "CPU µs", "hat", "CPU µs", "better", "target", "met"),
    )
    for i in measures:
        better = "" if i.better is None else f"{_figure(i.better)}x"
        table.add_row(i.title, i.unit, *_cells(i, "ours"), *_cells(i, "hat"), better, *_target(i))
    return table


def _table(comparison: Comparison, measures: Sequence[Measure]) -> Table:
    left, right, quotient = comparison.headings
    table = _new_table(comparison.title, "unit", left, "CPU µs", right, "CPU µs", quotient)
    for i in measures:
        cells = (*_cells(i, comparison.left), *_cells(i, comparison.right))
        table.add_row(i.title, i.unit, *cells, _figure(comparison.quotient(i)))
    return table


def _alone_table(measures: Sequence[Measure]) -> Table:
    table = _new_table("ours alone", "unit", "ours", "CPU µs", "p99 ms", "target", "met")
    for i in measures:
        ours = i.median("ours")
        p99 = "" if ours is None or i.unit == "ms" else _figure(ours.p99_ms)
        table.add_row(i.title, i.unit, *_cells(i, "ours"), p99, *_target(i))
    return table


def _new_table(title: str, *headings: str) -> Table:
    table = Table("scenario", title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "unit" else "right", no_wrap=True)
    return table


def _cells(measure: Measure, side: str) -> tuple[str, str]:
    """Value and CPU of a side."""
    sample = measure.median(side)
    if sample is None:
        return "not here", ""
    is_rate = measure.unit.endswith("/s")
    at_least = "≥ " if sample.is_client_busy and is_rate else ""
    return f"{at_least}{_figure(sample.value)}", _figure(sample.cpu_us)


def _target(measure: Measure) -> tuple[str, str]:
    """The target, and whether it is met."""
    target = {
        Bound.SPEED_UP: f"≥ {measure.target:,g}x",
        Bound.AT_MOST: f"≤ {measure.target:g} {measure.unit}",
        Bound.AT_LEAST: f"≥ {measure.target:g} {measure.unit}",
        Bound.NONE: "",
    }[measure.bound]
    return target, {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[measure.is_met]


def save(measures: Sequence[Measure], path: Path) -> None:
    """Write everything that was measured, and on what, as JSON."""
    document: dict[str, Any] = {
        "machine": {
            "cpus": os.cpu_count(),
            "architecture": platform.machine(),
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "measures": [
            {**msgspec.to_builtins(i), "bound": i.bound.name, "better": i.better, "met": i.is_met}
            for i in measures
        ],
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _median(values: Sequence[float | None]) -> float | None:
    there = [i for i in values if i is not None]
    return statistics.median(there) if there else None


def _figure(value: float | None) -> str:
    """Three significant digits, without exponent."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
