"""Generates the files of each report, and the page, from events that are read once.

The events come from a store, a lake or a gateway (``sources``). Runs in the driver.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from mariner_spark import times
from mariner_spark.reports import (
    activity,
    availability,
    formats,
    gaps,
    latency,
    latest,
    page,
    relations,
    sources,
    top,
    views,
)
from mariner_spark.reports import values as values_report
from mariner_spark.reports.availability import find_runs
from mariner_spark.reports.events import Extent, Span, span_of, span_of_buckets
from mariner_spark.reports.job import PAGE, ReportJob
from mariner_spark.reports.page import Fact, Section
from mariner_spark.reports.relations import Relation, query
from mariner_spark.reports.sources import Source

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


class Overview(NamedTuple):
    """Figures about all events; ``unread``: numbers that could not be read."""

    extent: Extent
    types: int
    servers: int
    unread: int


def generate(source: Source, job: ReportJob, on_step: Callable[[str, int], None]) -> Path:
    """Generate reports; returns the page.

    ``on_step`` is called at the begin of each step, with its name and the number of all steps.
    Raises MarinerSparkError, PySparkException if Spark or the source failed, duckdb.Error if DuckDB
    did, OSError if a file did.
    """
    reports = [REPORTS[name] for name in job.names or REPORTS]

    def step(what: str) -> None:
        on_step(what, len(reports) + 2)

    step("reading events")
    overview, domain, sections = _write_reports(source, job, reports, step)
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
    source: Source,
    job: ReportJob,
    reports: Sequence[views.Report],
    step: Callable[[str], None],
) -> tuple[Overview, views.Domain, list[Section]]:
    sections = []
    has_types = job.types is not None
    about_servers = [i for i in reports if i.is_about_servers]
    others = [i for i in reports if not i.is_about_servers]
    with contextlib.ExitStack() as stack:
        # before the events are read: later events must not make a type look silent
        end_us = sources.last_us(source, job) if has_types else times.MIN_US
        needed = _needed(others if has_types else reports)
        events = stack.enter_context(source.read(job, needed))
        everything, spans = events, []
        if has_types and about_servers:
            of_all = job._replace(types=None)
            everything = stack.enter_context(source.read(of_all, _needed(about_servers)))
            spans.append(span_of(everything))
        if len(about_servers) > 1:
            everything = stack.enter_context(relations.persisted(find_runs(everything)))
        overview = _overview(events, sources.count_unread(source, job, events))
        job.folder.mkdir(parents=True, exist_ok=True)
        settings = views.ReportSettings(
            extent=overview.extent,
            end_us=max(end_us, overview.extent.span.last),
            depth=job.depth,
            with_core=has_types,
            value_path=job.number_path,
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


_OVERVIEW_NEEDS: Final = ("server", "type_path", "timestamp", "payload_bytes")


def _needed(reports: Sequence[views.Report]) -> set[str]:
    """Columns of events that some reports and the overview are computed from."""
    found = {*_OVERVIEW_NEEDS, *(name for report in reports for name in report.needs)}
    return found | ({"value_unread"} if "value" in found else set())


def _compute(
    report: views.Report, events: Relation, settings: views.ReportSettings
) -> tuple[pa.Table, dict[str, Any]]:
    """First rows of a report, and the totals of all its rows, which are computed once."""
    found = report.find(events, settings)
    if report.totals is None:
        return relations.to_arrow(report.first(found)), {}
    with contextlib.nullcontext(found) if found is events else relations.persisted(found) as found:
        totals = relations.row(report.totals(events, found))
        return relations.to_arrow(report.first(found)), totals


def _overview(events: Relation, n_unread: int) -> Overview:
    sql = """
        SELECT count(*) AS events, CAST(coalesce(sum(payload_bytes), 0) AS BIGINT) AS bytes,
            count(DISTINCT type_path) AS types, count(DISTINCT server) AS servers,
            unix_micros(min(timestamp)) AS first, unix_micros(max(timestamp)) AS last
        FROM {events}
    """
    row = relations.row(query(sql, events=events))
    extent = Extent(Span(row["first"] or 0, row["last"] or 0), row["events"], row["bytes"])
    return Overview(extent, row["types"], row["servers"], n_unread)


def _write(table: pa.Table, path: Path) -> None:
    pa.csv.write_csv(_without_formulas(table), path.with_suffix(".csv"))
    pa.parquet.write_table(table, path.with_suffix(".parquet"), compression="zstd")


def _without_formulas(table: pa.Table) -> pa.Table:
    """A table for spreadsheets: untrusted text that would be a formula gets a ``'`` before it."""
    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            cells = table.column(index)
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
        ("Numbers", job.number_path),
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
