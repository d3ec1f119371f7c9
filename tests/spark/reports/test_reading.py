"""Which events reports are about: of a lake, by types; and of a store, read as often as needed."""

import contextlib
import time
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import mariner_spark
from eventer_bridge.model import Event, EventId, EventType, JsonPayload, Timestamp
from eventer_bridge.subscription import Subscription
from mariner_spark import limits, times, type_path
from mariner_spark.conditions import matches, type_bounds
from mariner_spark.errors import LakeError
from mariner_spark.lake import maintenance
from mariner_spark.reports import relations, sources
from mariner_spark.reports.events import Span, extent_of, prepare
from mariner_spark.reports.generate import REPORTS, generate
from mariner_spark.reports.job import ReportJob
from mariner_spark.reports.views import ReportSettings
from tests.spark.lake.support import append
from tests.spark.reports.support import N_EVENTS, T0, Reported, S, at, table
from tests.spark.support import event_types, few, not_simplest, plain_events

_segments: Final = st.sampled_from(("", "a", "b", "/", "~", "?", "\U0010ffff" * 4))
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
    spark: SparkSession,
    duck: DuckDBPyConnection,
    types: list[EventType],
    patterns: list[EventType],
) -> None:
    paths = [type_path.encode(i) for i in types]
    wanted = [*([pattern] for pattern in patterns), patterns[::2], patterns]
    frame = spark.createDataFrame([(i,) for i in paths], "type_path string").coalesce(1)
    rows = duck.from_arrow(pa.table({"type_path": paths}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "EXPRESSION_CHARACTERS", len(types))
        columns = [sf.expr(matches(i)) for i in wanted]
        by_duckdb = ", ".join(f"({matches(i, relations.duckdb_text)})" for i in wanted)
    found = [tuple(row) for row in frame.select(*columns).collect()]
    assert rows.project(by_duckdb).fetchall() == found
    chosen = [Subscription(i) for i in wanted]
    expected = [tuple(i.matches(event_type) for i in chosen) for event_type in types]
    assert found == expected
    # a file with just this type
    for path, matched in zip(paths, expected, strict=True):
        for pattern, does_match in zip(patterns, matched, strict=False):
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


def test_silence_lasts_until_the_end_of_the_time_or_the_last_event_of_all(
    reported: Reported, tmp_path: Path
) -> None:
    stored = plain_events(N_EVENTS)
    append(tmp_path / "lake", stored)
    last = times.to_us(stored[-1].timestamp)
    ends = ("2025-01-01T00:00:59.5", "2025-02-02")  # before and after it
    store, lake = (
        ReportJob(source, "", tmp_path, types=[("no", "such")])
        for source in ({"store": reported.store}, {"lake": str(tmp_path / "lake")})
    )
    with sources.open_duckdb(0) as reader:
        for job in (store, lake):
            assert sources.end_us(reader, job) == last
            assert sources.end_us(reader, job._replace(types=None)) is None
        for end in ends:
            assert sources.end_us(reader, store._replace(last=end)) == times.parse_last(end)
        # it may lack what followed
        in_time = [sources.end_us(reader, lake._replace(last=end)) for end in ends]
        assert in_time == [T0 + 50 * S, last]
        before_us = time.time_ns() // 1_000
        found = sources.end_us(reader, store._replace(last="9999-12-31"))
        assert found is not None
        assert before_us <= found <= time.time_ns() // 1_000


def test_files_that_a_vacuum_deleted_are_told_of(spark: SparkSession, tmp_path: Path) -> None:
    for n_events in (10, 20):
        append(tmp_path, plain_events(n_events))
    job = ReportJob({"lake": str(tmp_path)}, "", tmp_path).pinned()
    maintenance.compact(str(tmp_path), grace_hours=0)
    with sources.open_duckdb(0) as reader:
        for source in (reader, sources.SparkSource(spark)):
            with pytest.raises(LakeError, match="events: files of this version are deleted, as by"):
                source.read_lake(job)


def test_a_report_is_about_one_version_of_a_lake(tmp_path: Path) -> None:
    """However much is ingested while it is made."""
    lake = tmp_path / "lake"
    n_events = 60

    def ingest(_step: str = "", _n_steps: int = 0) -> None:
        nonlocal n_events
        n_events += 60
        append(lake, plain_events(n_events))
        maintenance.update(str(lake))

    ingest()
    job = ReportJob({"lake": str(lake)}, "", tmp_path / "out", types=[("*",)])
    with sources.open_duckdb(0) as reader:
        totals = generate(reader, job, ingest)
    assert totals["activity"]["events"] == 120
    numbers = sum(row["count"] for row in table(tmp_path / "out", "values"))
    assert numbers == totals["values"]["numbers"] > 0
    assert table(tmp_path / "out", "latest")[0]["timestamp"] == at(T0 + 110 * S)


@pytest.mark.parametrize("engine", ["spark", "duckdb"])
def test_numbers_of_a_lake_that_cannot_be_read_are_counted(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str
) -> None:
    """Only if numbers are asked for; texts with digits are none."""
    unread = ("1e999", '{"value": -1.5E+400}', f'{{"value":{"9" * 400}}}')
    others = ('{"value": "1e999"}', '{"id": "0x1e999 deadbeef1e123"}', "null", '{"value": 1e99}')
    append(
        tmp_path,
        [
            Event(EventId(1, i, 1), ("a",), Timestamp(i, 0), None, JsonPayload(Raw(text.encode())))
            for i, text in enumerate((*unread, *others), 1)
        ],
    )
    job = ReportJob({"lake": str(tmp_path)}, "", tmp_path / "out", ["top"])
    with contextlib.ExitStack() as stack:
        source: sources.EventSource = (
            sources.SparkSource(request.getfixturevalue("spark"))
            if engine == "spark"
            else stack.enter_context(sources.open_duckdb(0))
        )
        generate(source, job, lambda _step, _n_steps: None)
        page = tmp_path / "out" / "report.html"
        assert "Numbers not read" not in page.read_text(encoding="utf-8")
        generate(source, job._replace(names=["values"]), lambda _step, _n_steps: None)
        assert "<dt>Numbers not read</dt><dd>3</dd>" in page.read_text(encoding="utf-8")


def test_events_of_a_store_are_kept_only_while_they_are_read(
    reported: Reported, tmp_path: Path
) -> None:
    job = ReportJob({"store": reported.store}, "", tmp_path)
    with sources.open_duckdb(0) as reader:
        for _ in range(2):  # with --compare
            with reader.read(job, ["type_path"]) as events:
                assert len(relations.rows(events)) == N_EVENTS
                assert list(reader.folder.rglob("*.parquet"))
            assert not list(reader.folder.rglob("*.parquet"))
