"""Generates the files of each report, and the page, from events that are read once.

The events come from a store, a lake or a gateway. Runs in the driver.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from eventer_bridge.backends.rocksdb import database
from eventer_bridge.errors import StorageError
from eventer_bridge.model import EventType
from mariner_spark import reader, schema, times, values
from mariner_spark.errors import OptionError
from mariner_spark.lake.tables import Lake, refuse_within_store, value_path_of
from mariner_spark.reports import (
    activity,
    availability,
    formats,
    gaps,
    latency,
    latest,
    page,
    top,
    views,
)
from mariner_spark.reports import values as values_report
from mariner_spark.reports.availability import find_runs
from mariner_spark.reports.events import Extent, Span, prepare, span_of, span_of_buckets
from mariner_spark.reports.page import Fact, Section
from mariner_spark.source import network, options, snapshots, store
from mariner_spark.source.options import Options, Selection

PAGE: Final = "report.html"

_FORMULA: Final = r"^[=+\-@\t\r]"
"""Text that a spreadsheet takes for a formula."""

REPORTS: Final[Mapping[str, views.Report]] = {
    i.name: i
    for i in (
        *(activity.REPORT, latest.REPORT, values_report.REPORT, gaps.REPORT, latency.REPORT),
        *(availability.AVAILABILITY, availability.RUNS, top.REPORT),
    )
}
"""All reports by name."""


class ReportJob(NamedTuple):
    """Reports to generate (no names: all), and the events that they are about.

    ``source`` are arguments of ``reader.read`` for a store, a gateway or a lake, ``types``,
    ``first`` and ``last`` those that select events. The title contains no secret. The folder is
    created, and files in it are replaced. ``value_path`` is that of the number in a payload
    (``values``); None: the lake's, or ``values.DEFAULT_PATH``. ``depth``: number of segments of a
    type prefix.
    """

    source: Mapping[str, Any]
    title: str
    folder: Path
    names: Sequence[str] = ()
    types: Sequence[EventType] | None = None
    first: str | None = None
    last: str | None = None
    value_path: str | None = None
    depth: int = 2

    @property
    def selection(self) -> dict[str, Any]:
        """Arguments of ``reader.read`` that select the events."""
        return {"types": self.types, "from_": self.first, "to": self.last}

    @property
    def lake(self) -> str | None:
        """The lake, if the source is one."""
        return self.source.get("lake")

    @property
    def path_of_lake(self) -> str | None:
        """Path in payloads of the numbers in the lake."""
        return None if self.lake is None else value_path_of(Lake(self.lake).open())

    @property
    def options(self) -> Options:
        """Options of the data source; for a lake, only those that select events count."""
        source = self.source if self.lake is None else {"store": "/"}
        return options.parse(options.to_options({**source, **self.selection}))


class Overview(NamedTuple):
    """Figures about all events; ``unread``: numbers that could not be read."""

    extent: Extent
    types: int
    servers: int
    unread: int


def check(job: ReportJob) -> None:
    """Check a job before anything is started.

    Raises MarinerSparkError if an option is wrong, there is no store or lake, or the files would be
    in a store.
    """
    if job.value_path is not None:
        values.parse(job.value_path)
    refuse_within_store(job.folder / PAGE)
    path, of_lake = job.options.path, job.path_of_lake
    if of_lake is not None:
        if job.value_path is not None and values.parse(job.value_path) != values.parse(of_lake):
            raise OptionError(
                "value_path", f"{job.value_path}: the numbers of this lake are those at {of_lake}"
            )
    elif path is not None:
        try:
            database.check_exists(path)
        except StorageError as e:
            raise OptionError("path", str(e)) from e


def generate(spark: SparkSession, job: ReportJob, on_step: Callable[[str, int], None]) -> Path:
    """Generate reports; returns the page.

    ``on_step`` is called at the begin of each step, with its name and the number of all steps.
    Raises MarinerSparkError, PySparkException if Spark or the source failed, OSError if a file did.
    """
    reports = [REPORTS[name] for name in job.names or REPORTS]

    def step(what: str) -> None:
        on_step(what, len(reports) + 2)

    step("reading events")
    overview, domain, sections = _write_reports(spark, job, reports, step)
    step("making the page")
    text = page.render(
        title="Event report",
        about=_about(job, overview),
        facts=_facts(overview),
        sections=sections,
        domain=domain,
        programs=page.chart_programs(),
    )
    path = job.folder / PAGE
    path.write_text(text, encoding="utf-8")
    return path


def _write_reports(
    spark: SparkSession,
    job: ReportJob,
    reports: Sequence[views.Report],
    step: Callable[[str], None],
) -> tuple[Overview, views.Domain, list[Section]]:
    sections = []
    has_types = job.types is not None
    with contextlib.ExitStack() as stack:
        # before the events are read: later events must not make a type look silent
        end_us = last_us(spark, job) if has_types else times.MIN_US
        events = stack.enter_context(_read(spark, job))
        everything, spans = events, []
        if has_types and any(i.is_about_servers for i in reports):
            everything = stack.enter_context(_read(spark, job._replace(types=None)))
            spans.append(span_of(everything))
        if sum(i.is_about_servers for i in reports) > 1:
            everything = stack.enter_context(_persisted(find_runs(everything)))
        overview = _overview(events)
        job.folder.mkdir(parents=True, exist_ok=True)
        settings = views.ReportSettings(
            extent=overview.extent,
            end_us=max(end_us, overview.extent.span.last),
            depth=job.depth,
            with_core=has_types,
            value_path=_value_path(job),
        )
        for report in reports:
            step(report.name)
            about = everything if report.is_about_servers else events
            table, totals = _compute(report, about, settings)
            _write(table, job.folder / report.name)
            sections.append(Section(report, table.to_pylist(), totals))
    spans.append(span_of_buckets(overview.extent.span))
    first = min(span.first for span in spans)
    last = max(settings.end_us, *(span.last for span in spans))
    return overview, (first / 1_000, last / 1_000), sections


def _compute(
    report: views.Report, events: DataFrame, settings: views.ReportSettings
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
    """A table for spreadsheets: untrusted text that would be a formula gets a ``'`` before it.

    A NUL, which many programs refuse, is escaped as on the page.
    """
    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            cells = pc.replace_substring(table.column(index), "\0", r"\x00")
            escaped = pc.binary_join_element_wise("'", cells, "")
            is_formula = pc.match_substring_regex(cells, _FORMULA)
            table = table.set_column(index, field, pc.if_else(is_formula, escaped, cells))
    return table


def _about(job: ReportJob, overview: Overview) -> list[Fact]:
    first, last = (formats.moment(times.to_datetime(us)) for us in overview.extent.span)
    types = "all" if job.types is None else ", ".join("/".join(i) for i in job.types)
    requested = (
        ("Source", job.title),
        ("Types", types),
        ("From", job.first),
        ("To", job.last),
        ("Numbers", _value_path(job)),
        ("Events", f"{first} to {last}" if overview.extent.events else None),
    )
    return [Fact(title, formats.text(text)) for title, text in requested if text is not None]


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


# --- reading the events -------------------------------------------------------------------

_NEEDED: Final = [name for name in schema.SCHEMA.names if name not in {"type", "payload_type"}]


@contextlib.contextmanager
def _read(spark: SparkSession, job: ReportJob) -> Iterator[DataFrame]:
    """Prepared events; persisted unless they come from a lake, as Parquet is as fast."""
    if job.lake is None:
        events = reader.read(
            spark,
            **job.source,
            **job.selection,
            source_out_of_range=options.CLIP,
            columns=_NEEDED,
        )
        with _persisted(prepare(events, _value_path(job))) as events:
            yield events
    else:
        events = reader.read_events(spark, job.lake, job.options.selection)
        yield prepare(values.with_unread(events, _value_path(job)))


def _value_path(job: ReportJob) -> str:
    return job.path_of_lake or job.value_path or values.DEFAULT_PATH


def last_us(spark: SparkSession, job: ReportJob) -> int:
    """Timestamp in microseconds of the last event of a job's time, of any type, to find silence.

    For a store or a gateway it takes one look-up.
    """
    time = job.options.selection.time
    if job.lake is not None:
        return span_of(reader.read_events(spark, job.lake, Selection(time=time))).last
    if job.options.path is not None:
        found = store.last_timestamp(job.options.path, snapshots.this_driver(), time)
    else:
        found = network.last_timestamp(job.options.gateway, time)
    return times.MIN_US if found is None else times.to_us(found)
