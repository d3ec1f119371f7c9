"""Generates the files of each report, and the page, from events that are read once.

The events come from a store, a lake or a gateway (``sources``). Runs in the driver.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timezone, tzinfo
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
    links,
    page,
    relations,
    sources,
    top,
    views,
    zones,
)
from mariner_spark.reports import values as values_report
from mariner_spark.reports.availability import find_runs
from mariner_spark.reports.events import (
    Extent,
    Span,
    bucket_width,
    span_of,
    span_of_buckets,
    to_us,
)
from mariner_spark.reports.job import PAGE, ReportJob
from mariner_spark.reports.page import Fact, Section
from mariner_spark.reports.relations import Relation, query
from mariner_spark.reports.sources import EventSource

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


class Found(NamedTuple):
    """Reports that were computed: each with its first rows, and the totals of all.

    ``domain`` is the time of the page, ``zone`` its clock.
    """

    overview: Overview
    zone: timezone
    domain: views.Domain
    reports: Sequence[tuple[views.Report, pa.Table, views.Row]]

    @property
    def totals(self) -> dict[str, views.Row]:
        """Totals by report."""
        return {report.name: totals for report, _, totals in self.reports}


def generate(
    source: EventSource, job: ReportJob, on_step: Callable[[str, int], None]
) -> dict[str, views.Row]:
    """Generate reports, and the page; returns the totals of each.

    ``on_step`` is called at the begin of each step, with its name and the number of all steps.
    Raises MarinerSparkError, PySparkException if Spark or the source failed, duckdb.Error if DuckDB
    did, OSError if a file did.
    """
    reports = [REPORTS[name] for name in job.names or REPORTS]
    n_steps = (len(reports) + 1) * (2 if job.is_compared else 1) + 1

    def step(what: str) -> None:
        on_step(what, n_steps)

    job = job.pinned()
    found = _find(source, job, reports, step)
    before = None
    if job.is_compared:
        before = _find(source, _job_before(job, found.overview), reports, step)
    step("making the page")
    job.folder.mkdir(parents=True, exist_ok=True)
    for report, table, _ in found.reports:
        _write(table, job.folder / report.name)
    zone = found.zone
    sections = [
        Section(report, [_row(report, i, job, zone) for i in table.to_pylist()], totals)
        for report, table, totals in found.reports
    ]
    text = page.render(
        title="Event report",
        about=_about(job, found.overview, zone),
        facts=_facts(found.overview),
        sections=sections,
        domain=found.domain,
        programs=page.chart_programs(),
        zone=zones.title(job.zone, zone),
        comparison=[] if before is None else _compare(reports, found.totals, before.totals),
    )
    (job.folder / PAGE).write_text(text, encoding="utf-8")
    return found.totals


def _row(report: views.Report, row: dict[str, Any], job: ReportJob, zone: tzinfo) -> views.Row:
    """A row as the page shows it: by its clock, and with the address of its events."""
    if job.console is not None:
        with contextlib.suppress(OverflowError):  # a bucket that ends after all moments
            if (behind := report.behind(row)) is not None:
                row[views.LINK] = links.link(job.console, behind)
    return zones.row_at(row, zone)


def _job_before(job: ReportJob, overview: Overview) -> ReportJob:
    """The same for the span before, which is as long."""
    assert job.first is not None
    first = times.parse(job.first)
    last = overview.extent.span.last if job.last is None else times.parse_last(job.last)
    end = max(first - 1, times.MIN_US)
    begin = max(end - max(last - first, 0), times.MIN_US)
    is_open = job.last is None
    return job._replace(first=times.to_iso(begin), last=times.to_iso(end), is_open=is_open)


def _compare(
    reports: Sequence[views.Report], now: Mapping[str, views.Row], before: Mapping[str, views.Row]
) -> list[page.Compared]:
    found = []
    for report in reports:
        for name, title, kind in report.figures:
            new, old = now[report.name][name], before[report.name][name]
            change = (new - old) / abs(old) if new is not None and old else None
            texts = (formats.show(kind, new), formats.show(kind, old))
            shown = formats.show("growth", change)
            found.append(page.Compared(f"{report.title}: {title}", *texts, shown))
    return found


def _find(
    source: EventSource,
    job: ReportJob,
    reports: Sequence[views.Report],
    step: Callable[[str], None],
) -> Found:
    """Compute reports."""
    step("reading events")
    computed = []
    has_types = job.types is not None
    about_servers = [i for i in reports if i.is_about_servers]
    others = [i for i in reports if not i.is_about_servers]
    with contextlib.ExitStack() as stack:
        # before the events are read: later events must not make a type look silent
        end_us = sources.end_us(source, job)
        needed = _needed(others if has_types else reports)
        events = stack.enter_context(source.read(job, needed))
        everything, spans = events, []
        if has_types and about_servers:
            of_all = job._replace(types=None)
            everything = stack.enter_context(source.read(of_all, _needed(about_servers)))
            spans.append(span_of(everything))
        if len(about_servers) > 1:
            everything = stack.enter_context(relations.persisted(find_runs(everything)))
        n_unread = sources.count_unread(source, job, events) if "value" in needed else 0
        overview = _overview(events, n_unread)
        last_us = overview.extent.span.last
        zone = zones.clock(job.zone, _moment_of(job, overview))
        settings = views.ReportSettings(
            extent=overview.extent,
            end_us=last_us if end_us is None else max(end_us, last_us),
            depth=job.depth,
            with_core=has_types,
            value_path=job.number_path,
            origin_us=zones.origin_us(zone),
        )
        if job.lake is not None and REPORTS["values"] in reports:
            width_us = to_us(bucket_width(overview.extent.span, settings.origin_us))
            rollups = source.read_rollups(job, width_us, settings.origin_us)
            settings = settings._replace(rollups=rollups)
        for report in reports:
            step(report.name)
            about = everything if report.is_about_servers else events
            computed.append((report, *_compute(report, about, settings)))
    if overview.extent.events or not spans:  # else it begins in 1970
        spans.append(span_of_buckets(overview.extent.span, settings.origin_us))
    first = min(span.first for span in spans)
    last = max(settings.end_us, *(span.last for span in spans))
    begin, end = (views.ms(zones.at(times.to_datetime(us), zone)) for us in (first, last))
    return Found(overview, zone, (begin, end), computed)


def _moment_of(job: ReportJob, overview: Overview) -> int:
    """The moment whose offset from UTC the page has: of the last event, if there is one."""
    if overview.extent.events:
        return overview.extent.span.last
    bound = job.last or job.first
    return time.time_ns() // 1_000 if bound is None else times.parse(bound)


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


def _about(job: ReportJob, overview: Overview, zone: timezone) -> list[Fact]:
    def shown(us: int) -> str:
        return formats.moment(zones.at(times.to_datetime(us), zone))

    first, last = map(shown, overview.extent.span)
    types = "all" if job.types is None else ", ".join("/".join(i) for i in job.types)
    requested = (
        ("Source", job.title),
        ("Types", types),
        ("From", job.first and shown(times.parse(job.first))),
        ("To", job.last and shown(times.parse_last(job.last))),
        ("Numbers", job.number_path),
        ("Time zone", None if job.zone == "UTC" else zones.title(job.zone, zone)),
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
