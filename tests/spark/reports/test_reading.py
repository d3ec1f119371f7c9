"""Which events reports are about: of a lake, by types; and of a store, read as often as needed."""

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import mariner_spark
from eventer_bridge.model import EventType
from eventer_bridge.subscription import Subscription
from mariner_spark import times, type_path
from mariner_spark.reader import matches, type_bounds
from mariner_spark.reports import relations, sources
from mariner_spark.reports.events import Span, extent_of, prepare
from mariner_spark.reports.generate import REPORTS
from mariner_spark.reports.job import ReportJob
from mariner_spark.reports.views import ReportSettings
from tests.spark.lake.support import append
from tests.spark.reports.support import N_EVENTS, Reported, S, table
from tests.spark.support import event_types, few, not_simplest, plain_events

_segments: Final = st.sampled_from(("", "a", "b", "/", "~", "?"))
_patterns: Final = st.builds(
    lambda segments, end: (*segments, *end),
    st.lists(_segments, max_size=3),
    st.sampled_from(((), ("*",))),
)
_few_types: Final = st.lists(_segments.filter(lambda i: i != "?"), max_size=4).map(tuple)


@few
@given(
    not_simplest(st.lists(_few_types | event_types, min_size=40, max_size=60)),
    st.lists(_patterns, min_size=30, max_size=40),
)
def test_types_are_chosen_as_by_subscriptions(
    spark: SparkSession, types: list[EventType], patterns: list[EventType]
) -> None:
    rows = [(list(i), type_path.encode(i)) for i in types]
    frame = spark.createDataFrame(rows, "type array<string>, type_path string").coalesce(1)
    columns = [matches([pattern]) for pattern in patterns] + [matches(patterns)]
    found = [tuple(row) for row in frame.select(*columns).collect()]
    chosen = [Subscription([pattern]) for pattern in patterns] + [Subscription(patterns)]
    expected = [tuple(i.matches(event_type) for i in chosen) for event_type in types]
    assert found == expected
    # a file with just this type
    for (_, path), matched in zip(rows, expected, strict=True):
        for pattern, does_match in zip(patterns, matched[:-1], strict=True):
            assert type_bounds([pattern])(path, path) or not does_match


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_the_same_of_events_that_are_not_kept(
    spark: SparkSession, reported: Reported, name: str
) -> None:
    """It reads its events several times, with filters of its own."""
    events = prepare(mariner_spark.read(spark, store=reported.store, partitions=1))
    stored = [times.exact_us(i.timestamp) for i in plain_events(N_EVENTS)]
    extent = extent_of(events)
    assert extent.span == Span(stored[0], stored[-1])
    settings = ReportSettings(
        extent=extent, end_us=extent.span.last, depth=2, with_core=False, value_path="$.value"
    )
    report = REPORTS[name]
    found = relations.rows(report.first(report.find(events, settings)))
    # the command keeps them, in files that DuckDB reads
    assert found == table(reported.folder, name)
    assert found or name == "gaps"


def test_the_last_event_of_all(reported: Reported, tmp_path: Path) -> None:
    stored = plain_events(N_EVENTS)
    append(tmp_path / "lake", stored)
    last = times.to_us(stored[-1].timestamp)
    for source in (
        {"store": reported.store},
        {"lake": str(tmp_path / "lake")},
    ):
        for bound, expected in ((None, last), ("2025-01-01T00:00:59", last - 240 * S)):
            job = ReportJob(source, "", tmp_path, types=[("no", "such")], last=bound)
            with sources.open_duckdb(0) as reader:
                assert sources.last_us(reader, job) == expected
