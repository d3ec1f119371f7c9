"""Measures of both sides, and the table of their ratios."""

import enum
import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table


class Bound(enum.Enum):
    """What a target bounds: our speed over theirs, our value itself, or nothing."""

    SPEED_UP = "at least so many times better than theirs"
    AT_MOST = "ours is at most so much"
    AT_LEAST = "ours is at least so much"
    NONE = "only recorded"


class Measure(msgspec.Struct):
    """One row: values of every round, in ``unit``.

    Units of a rate (``…/s``) are better when greater, all others when smaller.
    """

    name: str
    title: str
    unit: str
    target: float = 0.0
    bound: Bound = Bound.NONE
    ours: list[float] = []
    theirs: list[float] = []

    def add(self, side: str, value: float) -> None:
        """Add a round's value of ``ours`` or ``theirs``."""
        (self.ours if side == "ours" else self.theirs).append(value)

    @property
    def ratio(self) -> float | None:
        """How many times better the median of ours is; None without theirs."""
        if not self.ours or not self.theirs:
            return None
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        better, worse = (ours, theirs) if self.unit.endswith("/s") else (theirs, ours)
        return better / worse if worse > 0 else None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is no target."""
        if self.bound is Bound.NONE:
            return None
        if self.bound is Bound.AT_MOST:
            return statistics.median(self.ours) <= self.target
        if self.bound is Bound.AT_LEAST:
            return statistics.median(self.ours) >= self.target
        return self.ratio is not None and self.ratio >= self.target


def print_table(measures: Sequence[Measure], console: Console) -> None:
    """Print a row for each measure, with medians."""
    table = Table("scenario", title="ours, and hat-mariner-server + hat-event-server")
    for column in ("ours", "theirs", "unit", "ratio", "target", "met"):
        table.add_column(column, justify="left" if column == "unit" else "right", no_wrap=True)
    for i in measures:
        target = {
            Bound.SPEED_UP: f"≥ {i.target:,g}x",
            Bound.AT_MOST: f"≤ {i.target:g} {i.unit}",
            Bound.AT_LEAST: f"≥ {i.target:g} {i.unit}",
            Bound.NONE: "",
        }[i.bound]
        ratio = "" if i.ratio is None else f"{_figure(i.ratio)}x"
        met = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[i.met]
        table.add_row(i.title, _median(i.ours), _median(i.theirs), i.unit, ratio, target, met)
    console.print(table)


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
            {**msgspec.to_builtins(i), "bound": i.bound.name, "ratio": i.ratio, "met": i.met}
            for i in measures
        ],
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _median(values: list[float]) -> str:
    return _figure(statistics.median(values)) if values else ""


def _figure(value: float) -> str:
    """Three significant digits, without exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
