"""Generates the files of each report, and the page, from events that are read once.

Runs in the driver.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from mariner_spark import times, values
from mariner_spark.local_path import refuse_within_store
from mariner_spark.reports import formats, page, reading
from mariner_spark.reports.availability import find_runs
from mariner_spark.reports.catalogue import REPORTS, Report, ReportSettings
from mariner_spark.reports.events import Extent, Span, prepare
from mariner_spark.reports.page import Fact, Section
from mariner_spark.reports.reading import EventSource, ReportFilter

PAGE: Final = "report.html"

_FORMULA: Final = r"^[=+\-@\t\r]"
"""Text that a spreadsheet takes for a formula."""


class ReportJob(NamedTuple):
    """Reports to generate, and their input.

    Attributes:
        names: names in ``catalogue.REPORTS``; none: all of them.
        source: source of the events.
        selection: selection of events.
        value_path: path of the number in a payload (``values``); None: the path of the lake, or
            ``values.DEFAULT_PATH``.
        depth: number of segments of a type prefix.
        folder: folder of the files; it is created, and existing files are replaced.
    """

    names: Sequence[str]
    source: EventSource
    selection: ReportFilter
    value_path: str | None
    depth: int
    folder: Path


class Overview(NamedTuple):
    """Figures about all events; ``unread``: numbers that could not be read."""

    extent: Extent
    types: int
    servers: int
    unread: int


def check(job: ReportJob) -> None:
    """Check a job before anything is started.

    Raises:
        MarinerSparkError: an option is wrong, there is no store or lake, or the files would be in
            a store.
    """
    if job.value_path is not None:
        values.parse(job.value_path)
    refuse_within_store(job.folder / PAGE)
    reading.check(job.source, job.selection, job.value_path)


def generate(spark: SparkSession, job: ReportJob, on_step: Callable[[str, int], None]) -> Path:
    """Generate reports.

    Args:
        spark: the session, with the data source ``mariner``.
        job: the job.
        on_step: called at the begin of each step, with its name and the number of all steps.

    Returns:
        The page.

    Raises:
        MarinerSparkError: there is no lake, or it cannot be read.
        PySparkException: Spark failed, as it does if the source does.
        OSError: a file cannot be written.
    """
    reports = [REPORTS[name] for name in job.names or REPORTS]

    def step(what: str) -> None:
        on_step(what, len(reports) + 2)

    step("reading events")
    overview, sections = _write_reports(spark, job, reports, step)
    step("making the page")
    text = page.render(
        title="Event report",
        about=_about(job, overview),
        facts=_facts(overview),
        sections=sections,
        programs=page.chart_programs(),
    )
    path = job.folder / PAGE
    path.write_text(text, encoding="utf-8")
    return path


def _write_reports(
    spark: SparkSession, job: ReportJob, reports: Sequence[Report], step: Callable[[str], None]
) -> tuple[Overview, list[Section]]:
    sections = []
    has_types = job.selection.types is not None
    with contextlib.ExitStack() as stack:
        # before the events are read: later events must not make a type look silent
        end_us = reading.last_us(spark, job.source, job.selection) if has_types else times.MIN_US
        events = stack.enter_context(_read(spark, job, job.selection))
        everything = events
        if has_types and any(i.is_about_servers for i in reports):
            selection = job.selection._replace(types=None)
            everything = stack.enter_context(_read(spark, job, selection))
        if sum(i.is_about_servers for i in reports) > 1:
            everything = stack.enter_context(_persisted(find_runs(everything)))
        overview = _overview(events)
        job.folder.mkdir(parents=True, exist_ok=True)
        settings = ReportSettings(
            extent=overview.extent,
            end_us=max(end_us, overview.extent.span.last),
            depth=job.depth,
            with_core=has_types,
        )
        for report in reports:
            step(report.name)
            about = everything if report.is_about_servers else events
            table, totals = _compute(report, about, settings)
            _write(table, job.folder / report.name)
            sections.append(Section(report, table.to_pylist(), totals))
    return overview, sections


def _compute(
    report: Report, events: DataFrame, settings: ReportSettings
) -> tuple[pa.Table, dict[str, Any]]:
    """First rows of a report, and the totals of all its rows, which are computed once."""
    found = report.find(events, settings)
    if report.totals is None:
        return report.first(found).toArrow(), {}
    with contextlib.nullcontext() if found is events else _persisted(found):
        # not by Arrow, which takes no null for a struct whose fields are not nullable
        [totals] = report.totals(events, found).collect()
        return report.first(found).toArrow(), totals.asDict(recursive=True)


@contextlib.contextmanager
def _read(spark: SparkSession, job: ReportJob, selection: ReportFilter) -> Iterator[DataFrame]:
    """Prepared events; persisted unless they come from a lake, as Parquet is as fast."""
    events = prepare(reading.read(spark, job.source, selection), _value_path(job))
    if job.source.lake is not None:
        yield events
        return
    with _persisted(events):
        yield events


def _value_path(job: ReportJob) -> str:
    """Path of the numbers in payloads."""
    return reading.path_of_lake(job.source) or job.value_path or values.DEFAULT_PATH


@contextlib.contextmanager
def _persisted(frame: DataFrame) -> Iterator[DataFrame]:
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield frame
    finally:
        frame.unpersist()


def _overview(events: DataFrame) -> Overview:
    row = events.agg(
        sf.count("*"),
        sf.coalesce(sf.sum("payload_bytes"), sf.lit(0)),
        sf.count_distinct("type_path"),
        sf.count_distinct("server"),
        sf.count_if("value_unread"),
        sf.unix_micros(sf.min("timestamp")),
        sf.unix_micros(sf.max("timestamp")),
    ).collect()[0]
    extent = Extent(Span(row[5] or 0, row[6] or 0), row[0], row[1])
    return Overview(extent, row[2], row[3], row[4])


def _write(table: pa.Table, path: Path) -> None:
    pa.csv.write_csv(_without_formulas(table), path.with_suffix(".csv"))
    pa.parquet.write_table(table, path.with_suffix(".parquet"), compression="zstd")


def _without_formulas(table: pa.Table) -> pa.Table:
    """A table for spreadsheets: text that they would run as a formula gets a ``'`` before it.

    Event types, client names and payloads are untrusted.
    """
    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            cells = table.column(index)
            escaped = pc.binary_join_element_wise("'", cells, "")
            is_formula = pc.match_substring_regex(cells, _FORMULA)
            table = table.set_column(index, field, pc.if_else(is_formula, escaped, cells))
    return table


def _about(job: ReportJob, overview: Overview) -> list[Fact]:
    first, last = (formats.moment(times.to_datetime(us)) for us in overview.extent.span)
    types = job.selection.types
    shown = "all" if types is None else ", ".join("/".join(i) for i in types)
    asked = (
        ("Source", job.source.title),
        ("Types", shown),
        ("From", job.selection.first),
        ("To", job.selection.last),
        ("Numbers", _value_path(job)),
        ("Events", f"{first} to {last}" if overview.extent.events else None),
    )
    return [Fact(title, formats.text(text)) for title, text in asked if text is not None]


def _facts(overview: Overview) -> list[Fact]:
    span, n_events, payload_bytes = overview.extent
    if not n_events:
        return []
    first, last = map(times.to_datetime, span)
    seconds = (last - first).total_seconds()
    rate = f"{n_events / seconds:,.3g} /s" if seconds else formats.NOTHING
    facts = [
        Fact("Events", formats.count(n_events)),
        Fact("Rate", rate),
        Fact("Types", formats.count(overview.types)),
        Fact("Servers", formats.count(overview.servers)),
        Fact("Payloads", formats.size(payload_bytes)),
        Fact("Time", formats.duration(seconds)),
    ]
    if overview.unread:
        facts.append(Fact("Numbers not read", formats.count(overview.unread)))
    return facts
