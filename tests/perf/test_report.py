"""The tables say what was measured, and what is divided by what."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.perf import report
from tests.perf.client import Job, Outcome
from tests.perf.report import Bound, Measure, Sample
from tests.perf.sides import REDIS, sample_of

pytestmark = pytest.mark.perf


def measured(measure: Measure, **values: list[float | Sample]) -> Measure:
    """With values of sides."""
    measure.sides = tuple(values)
    for side, samples in values.items():
        for sample in samples:
            measure.add(side, sample)
    return measure


@pytest.mark.parametrize(
    ("row", "values", "better", "is_met"),
    [
        (("events/s", 20, Bound.SPEED_UP), {"ours": [4e4], "hat": [2e3]}, 20, True),
        (("events/s", 20, Bound.SPEED_UP), {"ours": [2e3], "hat": [4e4]}, 0.05, False),
        (("ms", 2, Bound.SPEED_UP), {"ours": [9, 0.5, 0.4], "hat": [1]}, 2, True),
        (("ms", 2, Bound.SPEED_UP), {"ours": [1], "hat": [1]}, 1, False),
        (("ms", 2, Bound.SPEED_UP), {"hat": [1]}, None, None),
        (("MB", 300, Bound.AT_MOST), {"ours": [300]}, None, True),
        (("MB", 300, Bound.AT_MOST), {"ours": [301], "hat": [1]}, 1 / 301, False),
        (("x", 0.8, Bound.AT_LEAST), {"ours": [0.8]}, None, True),
        (("x", 0.8, Bound.AT_LEAST), {"ours": [0.7]}, None, False),
        (("B",), {"ours": [100], "hat": [500]}, 5, None),
    ],
)
def test_better_says_how_many_times_better_ours_is(
    row: tuple[Any, ...],
    values: dict[str, list[float | Sample]],
    better: float | None,
    is_met: bool | None,
) -> None:
    measure = measured(Measure("", "", *row), **values)
    assert measure.is_met is is_met
    assert measure.better == (None if better is None else pytest.approx(better))


def rows_of(*measures: Measure) -> dict[str, list[str]]:
    """Cells of the row of each table, by the table's last heading but those of targets."""
    sink = io.StringIO()
    report.print_tables(measures, Console(file=sink, width=140))
    rows: dict[str, list[str]] = {}
    heading = ""
    for line in sink.getvalue().splitlines():
        cells = [i.strip() for i in line.strip("│┃ ").replace("┃", "│").split("│")]
        if cells[0] == "scenario":
            heading = next(i for i in reversed(cells) if i not in {"target", "met"})
        elif len(cells) > 1:
            rows[heading] = cells
    return rows


def test_tables_tell_medians_and_quotients() -> None:
    measure = measured(
        Measure("a", "some", "events/s", 3, Bound.SPEED_UP),
        ours=[Sample(1_000, 10), Sample(1_200, 20), Sample(9, 90)],
        hat=[Sample(250, 100)],
        limit=[Sample(50_000, 4, is_client_busy=True)],
        redis=[Sample(4_000, 3)],
        tls=[Sample(800, 25)],
    )
    latency = measured(
        Measure("b", "one", "ms"), ours=[Sample(0.4, 200)], redis=[Sample(0.3, 90)], write=[0.2]
    )
    alone = measured(
        Measure("c", "alone", "events/s", 1e3, Bound.AT_LEAST), ours=[Sample(2_000, 5, 7)]
    )
    assert rows_of(measure, latency, alone) == {
        "better": ["some", "events/s", "1,000", "20", "250", "100", "4x", "≥ 3x", "yes"],
        "limit's CPU ÷ ours": ["some", "events/s", "1,000", "20", "≥ 50,000", "4", "0.2"],
        "ours ÷ Redis": ["one", "ms", "0.4", "200", "0.3", "90", "1.33"],
        "Redis ÷ write": ["one", "ms", "0.3", "90", "0.2", "", "1.5"],
        "TLS ÷ plain": ["some", "events/s", "800", "25", "1,000", "20", "0.8"],
        "ours ÷ write": ["one", "ms", "0.4", "200", "0.2", "", "2"],
        "p99 ms": ["alone", "events/s", "2,000", "5", "7", "≥ 1000 events/s", "yes"],
    }


def test_what_this_machine_does_not_have_is_told() -> None:
    measure = measured(Measure("a", "some", "events/s"), ours=[Sample(1_000, 10)], redis=[])
    assert rows_of(measure) == {"ours ÷ Redis": ["some", "events/s", "1,000", "10", "not here"]}


def test_redis_need_not_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not REDIS.is_there
    program = tmp_path / "redis-server"
    program.touch(mode=0o755)
    assert REDIS.is_there


def test_file_tells_every_value(tmp_path: Path) -> None:
    measure = measured(
        Measure("a", "some", "ms", 2, Bound.SPEED_UP), ours=[1, 2, 900], hat=[8, 7, 9]
    )
    path = tmp_path / "perf.json"
    report.save([measure], path)
    saved = json.loads(path.read_text())
    [found] = saved["measures"]
    assert [i["value"] for i in found["samples"]["ours"]] == [1, 2, 900]
    assert found["better"] == 4
    assert found["met"] is True
    assert saved["machine"]["cpus"] > 0


@pytest.mark.parametrize(("client_cpu_s", "is_busy"), [(1.7, False), (1.9, True)])
def test_sample_tells_rate_cpu_and_a_busy_client(client_cpu_s: float, is_busy: bool) -> None:
    job = Job("", 0, "register", requests=100, connections=8, events_per_request=10)
    outcome = Outcome(2, 0.004, 0.009, server_cpu_s=0.96, client_cpu_s=client_cpu_s)
    assert sample_of(job, outcome, "events/s") == Sample(480, 1_000, 9, is_busy)
    assert sample_of(job, outcome, "ms").value == 4
