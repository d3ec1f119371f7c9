"""Reports of small frames, worked out by hand: every row and every column."""

import math
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection

from mariner_spark import limits, times
from mariner_spark.reports import relations
from mariner_spark.reports.activity import activity
from mariner_spark.reports.events import Extent, Span
from mariner_spark.reports.gaps import gaps
from mariner_spark.reports.generate import REPORTS
from mariner_spark.reports.latency import latency
from mariner_spark.reports.latest import latest
from mariner_spark.reports.relations import Relation
from mariner_spark.reports.top import top
from mariner_spark.reports.values import values
from mariner_spark.reports.views import ReportSettings
from tests.spark.reports.support import COLUMNS, HOUR, MINUTE, T0, E, S, at, frame, rows, shape


@pytest.mark.parametrize("name", REPORTS)
def test_nothing_is_reported_of_no_events_in_the_same_columns(
    duck: DuckDBPyConnection, name: str
) -> None:
    settings = ReportSettings(
        extent=Extent(Span(), 0, 0), end_us=0, depth=2, with_core=False, value_path="$"
    )
    report = REPORTS[name]
    none = relations.to_arrow(report.first(report.find(frame(duck, []), settings)))
    assert none.num_rows == 0
    assert shape(none.schema) == COLUMNS[name]


def test_activity(duck: DuckDBPyConnection) -> None:
    events = frame(
        duck,
        [
            E("a/b/c", T0 + 2 * S, '"é"'),
            E("a/b/d", T0 + 59 * S + 999_999, b"12345"),
            E("a/b", T0 + MINUTE),
            E("a", T0),
            E("a/b/c", -1, "1"),
        ],
    )
    expected = [
        ("a", at(T0), 60.0, 1, 0),
        ("a/b", at(-MINUTE), 60.0, 1, 1),
        ("a/b", at(T0), 60.0, 2, 9),
        ("a/b", at(T0 + MINUTE), 60.0, 1, 0),
    ]
    assert rows(activity(events, width=timedelta(minutes=1))) == expected
    by_first = rows(activity(events, width=timedelta(minutes=1), depth=1))
    assert by_first == [
        ("a", at(-MINUTE), 60.0, 1, 1),
        ("a", at(T0), 60.0, 3, 9),
        ("a", at(T0 + MINUTE), 60.0, 1, 0),
    ]


def test_activity_takes_small_prefixes_together(duck: DuckDBPyConnection) -> None:
    large = [E(f"t{i}", T0 + j) for i in range(limits.REPORT_PREFIXES) for j in range(2)]
    small = [E(f"s{i}", T0 + i * S, "1") for i in range(3)]
    found = rows(activity(frame(duck, large + small), width=timedelta(seconds=2)))
    assert found[:-2] == [(f"t{i}", at(T0), 2.0, 2, 0) for i in range(limits.REPORT_PREFIXES)]
    assert found[-2:] == [(None, at(T0), 2.0, 2, 2), (None, at(T0 + 2 * S), 2.0, 1, 1)]


def test_activity_chooses_the_width(duck: DuckDBPyConnection) -> None:
    found = rows(activity(frame(duck, [E("a", T0), E("a", T0 + HOUR)])))
    assert found == [("a", at(T0), 60.0, 1, 0), ("a", at(T0 + HOUR), 60.0, 1, 0)]


def test_latest(duck: DuckDBPyConnection) -> None:
    events = [
        E("a", T0 + 1, '{"value": 1}', T0, server=1, session=9, instance=9),
        # ties: the larger id is the later one
        E("a", T0 + 1, '{"value": 2}', None, server=2, session=1, instance=2),
        E("a", T0 + 1, '{"value": 3}', T0, server=2, session=1, instance=1),
        E("a", T0, '{"value": 4}', server=3),
        E("b", T0 + 2, b"12", T0 + 3, session=7),
        E("c", -5, session=8),
    ]
    assert rows(latest(frame(duck, events))) == [
        ("b", at(T0 + 2), at(T0 + 3), None, "binary", None, 2, 1, 7, 1, 1),
        ("a", at(T0 + 1), None, 2.0, "json", '{"value": 2}', 12, 2, 1, 2, 4),
        ("c", at(-5), None, None, None, None, 0, 1, 8, 1, 1),
    ]


def test_gaps_are_silences_of_three_medians(duck: DuckDBPyConnection) -> None:
    steady = [E("steady", T0 + i * S) for i in range(21)]
    # intervals 1, 1, 1, 10, 3, 1 s; both events of a moment are one
    torn = [E("torn", T0 + i * S) for i in (0, 0, 1, 2, 3, 13, 16, 17)]
    quiet = [E("quiet", T0 + i * S) for i in range(6)]
    rare = [E("rare", T0 + i * i * S) for i in range(5)]
    assert rows(gaps(frame(duck, steady + torn + quiet + rare))) == [
        ("quiet", at(T0 + 5 * S), at(T0 + 20 * S), 15.0, 1.0, 15.0, True),
        ("torn", at(T0 + 3 * S), at(T0 + 13 * S), 10.0, 1.0, 10.0, False),
    ]


def test_gaps_until_the_end_of_all_events(duck: DuckDBPyConnection) -> None:
    events = frame(duck, [E("a", T0 + i * S) for i in range(6)])
    assert rows(gaps(events)) == []
    assert rows(gaps(events, end_us=T0 + 9 * S)) == [
        ("a", at(T0 + 5 * S), at(T0 + 9 * S), 4.0, 1.0, 4.0, True)
    ]


def test_gaps_without_what_servers_tell_of_themselves(duck: DuckDBPyConnection) -> None:
    core = [
        "event/1/engine",
        "event/1/history",
        "event/1/eventer/a",
        "event/communication/connected",
    ]
    other = ["event/1/engine/a", "event/1/engine\n", "event/communication", "a/event/1/engine"]
    events = [E(name, T0 + i * S) for name in core + other for i in (0, 5)]
    interval = timedelta(seconds=2)
    assert len(rows(gaps(frame(duck, events), expected=interval))) == len(core + other)
    found = rows(gaps(frame(duck, events), expected=interval, with_core=False))
    assert {row[0] for row in found} == set(other)


def test_gaps_of_a_given_interval(duck: DuckDBPyConnection) -> None:
    events = frame(duck, [E("a", -S), E("a", S), E("b", 0), E("a", 2 * S), E("c", 4 * S)])
    assert rows(gaps(events, expected=timedelta(seconds=1.5))) == [
        ("b", at(0), at(4 * S), 4.0, 1.5, 4 / 1.5, True),
        ("a", at(-S), at(S), 2.0, 1.5, 2 / 1.5, False),
        ("a", at(2 * S), at(4 * S), 2.0, 1.5, 2 / 1.5, True),
    ]
    assert rows(gaps(events, expected=timedelta(seconds=4))) == []


def test_latency(duck: DuckDBPyConnection) -> None:
    ms = 1_000
    events = [E("a/b", T0, source=T0 - i * ms) for i in range(1, 101)]
    events += [
        E("a/b", T0, source=T0 - MINUTE),  # not more than a minute
        E("a/b", T0, source=T0 - MINUTE - 1),
        E("a/b", T0, source=T0 + 5 * S),
        E("a/b", T0, source=T0 + 1),
        E("a/b", T0),
        E("rsb/plant/motor", -1, source=-11),
        E("none", T0),
        E("future", T0, source=T0 + S),
    ]
    assert rows(latency(frame(duck, events))) == [
        # 102 events from the past: the 51st, 97th and 101st of them
        ("a/b", 105, 104, 1, 2, -5.0, 0.051, 0.097, 60.0, 60.000001),
        ("future", 1, 1, 0, 1, -1.0, None, None, None, -1.0),
        ("rsb/plant", 1, 1, 0, 0, *[0.00001] * 5),
        ("none", 1, 0, 0, 0, *[None] * 5),
    ]
    by_scope = rows(latency(frame(duck, events[-3:]), depth=3, late=timedelta(microseconds=9)))
    assert [row[:5] for row in by_scope][1] == ("rsb/plant/motor", 1, 1, 1, 0)


def test_latencies_of_the_ends_of_time(duck: DuckDBPyConnection) -> None:
    events = frame(duck, [E("a", times.MAX_US, source=times.MIN_US)])
    longest = (times.MAX_US - times.MIN_US) / 1e6
    assert rows(latency(events)) == [("a", 1, 1, 1, 0, *[longest] * 5)]


@pytest.mark.parametrize("engine", ["spark", "duck"])
def test_percentiles_are_exact(request: pytest.FixtureRequest, engine: str) -> None:
    """Latencies of 1, 2, 3, … microseconds, out of order: each is its rank."""
    numbers = {"few": (99, 7), "many": (30_001, 11)}  # with factors that have no common divisor
    latencies = [
        (name, 1 + i * factor % n_events)
        for name, (n_events, factor) in numbers.items()
        for i in range(n_events)
    ]
    moment = pa.timestamp("us", "UTC")
    table = pa.table(
        {
            "type_path": [name for name, _ in latencies],
            "timestamp": pa.array([T0] * len(latencies), moment),
            "source_timestamp": pa.array([T0 - us for _, us in latencies], moment),
        }
    )
    target = request.getfixturevalue(engine)
    is_spark = engine == "spark"
    events = target.createDataFrame(table).repartition(3) if is_spark else target.from_arrow(table)
    found = {row[0]: row[1:] for row in rows(latency(events))}
    for name, (n_events, _) in numbers.items():
        assert found[name][0] == n_events
        ranks = [round(i * 1e6) for i in found[name][5:8]]
        assert ranks == [math.ceil(part * n_events / 100) for part in (50, 95, 99)]


def number(at_us: int, value: float, **fields: Any) -> E:
    return E("a", at_us, f'{{"value": {value}}}', **fields)


def test_values(duck: DuckDBPyConnection) -> None:
    events = frame(
        duck,
        [
            number(T0 + 10 * S, 1),
            number(T0 + 20 * S, 4),
            E("a", T0 + 30 * S, '"nothing"'),
            # ties: by id; the first of them holds for no time
            number(T0 + 50 * S, 100, server=2, session=2),
            number(T0 + 50 * S, 0, server=2, session=3),
            number(T0 + 140 * S, 6),
            E("a", T0 + 150 * S, '{"value": 8, "unit": "kW"}'),
            E("b", T0, "7"),
            E("c", T0, b"7"),
        ],
    )
    minute = timedelta(minutes=1)
    assert rows(values(events, width=minute)) == [
        # 1 for 10 s, 4 for 30 s, 0 for 10 s; nothing is known of the first 10 s
        ("a", at(T0), 60.0, 4, 0.0, 100.0, 26.25, 1.0, 0.0, pytest.approx(130 / 50), "kW"),
        # 0 from before for 20 s, 6 for 10 s; nothing is known of the last 30 s
        ("a", at(T0 + 2 * MINUTE), 60.0, 2, 6.0, 8.0, 7.0, 6.0, 8.0, pytest.approx(2.0), "kW"),
        ("b", at(T0), 60.0, 1, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, None),
    ]


def test_values_of_the_types_that_have_most(duck: DuckDBPyConnection) -> None:
    n_types = limits.REPORT_VALUE_TYPES
    events = [E(f"t{i:02}", T0 + j, "1") for i in range(n_types) for j in range(2)]
    events += [E("a", T0, "1"), E("b", T0, "1")]
    found = rows(values(frame(duck, events)))
    assert [row[0] for row in found] == [f"t{i:02}" for i in range(n_types)]


LARGEST = 1.7976931348623157e308


def test_means_of_numbers_as_large_as_doubles_get(duck: DuckDBPyConnection) -> None:
    numbers = {
        "a": [LARGEST, LARGEST, LARGEST],
        "b": [1e308, 1e308, -1e308, -1e308, 5.0],
        "c": [-1e308, -1e308, -1e308],
        "d": [5e-324],
        "e": [-LARGEST, -LARGEST, LARGEST],
        "f": [1e-300, 3e-300],
    }
    events = [
        E(name, T0 + i * S, f'{{"value": {number!r}}}')
        for name, of_type in numbers.items()
        for i, number in enumerate(of_type)
    ]
    found = {row[0]: row for row in rows(values(frame(duck, events), width=timedelta(seconds=9)))}
    for name, of_type in numbers.items():
        near = 1e-9 * max(map(abs, of_type))
        mean = float(sum(map(Fraction, of_type)) / len(of_type))
        held = of_type[:-1] or of_type
        time_mean = float(sum(map(Fraction, held)) / len(held))
        assert found[name][6] == pytest.approx(mean, abs=near), name
        assert found[name][9] == pytest.approx(time_mean, abs=near), name
    assert found["a"][3:-1] == (3, *[LARGEST] * 6)
    # rounded, the weighted ones are more than a double holds
    large = [E("a", T0 + i * S, f'{{"value": {LARGEST!r}}}') for i in (0, 1, 2, 3, 7, 9)]
    [first, _] = rows(values(frame(duck, large), width=timedelta(seconds=9)))
    assert first[9] == LARGEST


def test_buckets_at_the_first_moment_of_all_end_where_they_should(duck: DuckDBPyConnection) -> None:
    width = timedelta(days=364)
    monday = 4 * 24 * HOUR
    year = width // timedelta(microseconds=1)
    end = monday + (times.MIN_US - monday) // year * year + year
    days = 10 * 24 * HOUR
    events = [number(times.MIN_US, 1), number(end - days, 3), number(end + days, 0)]
    [first, second] = rows(values(frame(duck, events), width=width))
    assert first[9] == pytest.approx(1 + 2 * days / (end - times.MIN_US))
    assert second[9] == pytest.approx(3)


def test_top(duck: DuckDBPyConnection) -> None:
    events = frame(
        duck,
        [
            E("many", T0, "1"),
            E("many", T0 + S, "1"),
            E("many", T0 + 2 * S, "1"),
            E("many", T0 + 3 * S, "1"),
            E("many", T0 + 4 * S, "1"),
            E("large", T0 + 2 * S, b"x" * 94),
            E("late", T0 + 3 * S, "2"),
            E("empty", T0),
        ],
    )
    assert rows(top(events)) == [
        ("large", 1, 94, 0.125, 0.94, at(T0 + 2 * S), at(T0 + 2 * S), -1.0),
        ("many", 5, 5, 0.625, 0.05, at(T0), at(T0 + 4 * S), pytest.approx(2 / 3 - 1)),
        ("empty", 1, 0, 0.125, 0.0, at(T0), at(T0), -1.0),
        ("late", 1, 1, 0.125, 0.01, at(T0 + 3 * S), at(T0 + 3 * S), None),
    ]


def test_top_of_one_moment_without_payloads(duck: DuckDBPyConnection) -> None:
    assert rows(top(frame(duck, [E("a", -7), E("a", -7)]))) == [
        ("a", 2, 0, 1.0, None, at(-7), at(-7), None)
    ]


LARGE: list[tuple[Callable[..., Relation], int]] = [
    (latest, limits.REPORT_ROWS),
    (latency, limits.REPORT_ROWS),
    (top, limits.REPORT_TOP_TYPES),
]


@pytest.mark.parametrize(("report", "n_rows"), LARGE)
def test_reports_have_a_bounded_number_of_rows(
    duck: DuckDBPyConnection, report: Callable[..., Relation], n_rows: int
) -> None:
    events = frame(duck, [E(f"type {i}", T0) for i in range(limits.REPORT_ROWS + 1)])
    assert len(rows(report(events))) == n_rows
