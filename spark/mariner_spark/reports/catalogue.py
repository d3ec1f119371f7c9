"""All reports by name: the functions that compute them, and their columns on the page."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame

from mariner_spark.reports import (
    activity,
    availability,
    gaps,
    latency,
    latest,
    top,
    values,
    views,
)
from mariner_spark.reports.events import Extent, Span
from mariner_spark.reports.views import View


class ReportSettings(NamedTuple):
    """Settings of a report.

    Attributes:
        extent: extent of the events.
        end_us: timestamp of the last event of any type, in microseconds.
        depth: number of segments of a type prefix.
        with_core: whether the core's own types were selected by name.
    """

    extent: Extent
    end_us: int
    depth: int
    with_core: bool

    @property
    def span(self) -> Span:
        """Span of the events."""
        return self.extent.span


class Column(NamedTuple):
    """A column of a table on the page.

    Attributes:
        name: in the data frame.
        title: on the page.
        kind: one of ``formats.FORMATS``.
    """

    name: str
    title: str
    kind: str


class Report(NamedTuple):
    """A report.

    Attributes:
        name: name on the command line, and of its files.
        title: title on the page.
        about: description on the page.
        find: computes all its rows from prepared events.
        view: computes the sentence and the charts of the page from the first rows, at least one,
            and the totals.
        columns: columns of the table on the page.
        first: selects and orders the rows of the files.
        first_are: describes that selection, for the page.
        totals: computes totals of all rows, in a row, from prepared events and all rows; None:
            the files have all rows, and the view needs no totals.
        is_about_servers: needs all events of the servers, of any type.
    """

    name: str
    title: str
    about: str
    find: Callable[[DataFrame, ReportSettings], DataFrame]
    view: Callable[[Sequence[views.Row], views.Row], View]
    columns: Sequence[Column]
    first: Callable[[DataFrame], DataFrame] = lambda found: found
    first_are: str = ""
    totals: Callable[[DataFrame, DataFrame], DataFrame] | None = None
    is_about_servers: bool = False

    def compute(self, events: DataFrame, settings: ReportSettings) -> DataFrame:
        """Compute its first rows."""
        return self.first(self.find(events, settings))


def _columns(**columns: str) -> tuple[Column, ...]:
    """Columns given as ``name="title: kind"``."""
    split = {name: text.split(": ") for name, text in columns.items()}
    return tuple(Column(name, title, kind) for name, (title, kind) in split.items())


def _find(
    report: Callable[..., DataFrame], *names: str
) -> Callable[[DataFrame, ReportSettings], Any]:
    """Adapter: calls the function of a report with the settings that it takes."""

    def find(events: DataFrame, settings: ReportSettings) -> DataFrame:
        return report(events, **{name: getattr(settings, name) for name in names})

    return find


def _of_found(totals: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame, DataFrame], Any]:
    """Adapter: totals of the rows of a report."""
    return lambda _events, found: totals(found)


def _of_events(totals: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame, DataFrame], Any]:
    """Adapter: totals of all events."""
    return lambda events, _found: totals(events)


_ALL: Final = (
    Report(
        "activity",
        "Activity",
        "How many events were registered when, by type prefix.",
        _find(activity.activity, "depth", "span"),
        views.activity,
        _columns(prefix="Type prefix: path", bucket="From: moment", events="Events: count",
                 bytes="Payload: size"),
    ),
    Report(
        "latest",
        "Latest",
        "The last event of each type.",
        _find(latest.find_latest),
        views.latest,
        _columns(type_path="Type: path", value="Value: number", timestamp="Timestamp: moment",
                 source_timestamp="Source timestamp: moment", payload="Payload: text",
                 payload_bytes="Size: size", events="Events: count"),
        first=latest.first_latest,
        first_are="those heard of last",
        totals=_of_found(latest.totals),
    ),
    Report(
        "values",
        "Values",
        "Numbers in payloads, by type and time.",
        _find(values.values, "span"),
        views.values,
        _columns(type_path="Type: path", bucket="From: moment", count="Numbers: count",
                 min="Least: number", max="Largest: number", mean="Mean: number",
                 time_mean="Mean over time: number", first="First: number", last="Last: number"),
        totals=_of_events(values.totals),
    ),
    Report(
        "gaps",
        "Gaps",
        "Types that were silent for longer than expected: for more than three times the median"
        " of their intervals.",
        _find(gaps.find_gaps, "end_us", "with_core"),
        views.gaps,
        _columns(type_path="Type: path", begin="Silent from: moment", end="Until: moment",
                 silence_s="Silence: duration", expected_s="Expected: duration",
                 ratio="Ratio: ratio", is_open="Until the end: flag"),
        first=gaps.first_gaps,
        first_are="those with the largest ratios",
        totals=_of_found(gaps.totals),
    ),
    Report(
        "latency",
        "Latency",
        "How long events took from their source timestamp into the store, by type prefix. Late:"
        " more than a minute. From the future: the source's clock was ahead.",
        _find(latency.find_latencies, "depth"),
        views.latency,
        _columns(prefix="Type prefix: path", p50_s="p50: duration", p95_s="p95: duration",
                 p99_s="p99: duration", min_s="Least: duration", max_s="Most: duration",
                 late="Late: count", future="Future: count", with_source="With source: count",
                 events="Events: count"),
        first=latency.first_latencies,
        first_are="those with most source timestamps",
        totals=_of_found(latency.totals),
    ),
    Report(
        "availability",
        "Availability",
        "Engines and clients: part of the time that they were up, from the core's own events.",
        _find(availability.find_availability),
        views.availability,
        _columns(kind="What: text", name="Client: text", server="Server: text",
                 share="Up: share", up_s="Up for: duration", down_s="Down for: duration",
                 longest_down_s="Longest down: duration", runs="Times up: count",
                 killed="Killed: count", is_up="Up at the end: flag", first="First up: moment"),
        first=availability.first_availability,
        first_are="engines, then those that were up most often",
        totals=_of_found(availability.totals_of_availability),
        is_about_servers=True,
    ),
    Report(
        "runs",
        "Runs",
        "Each time that an engine ran or a client was connected.",
        _find(availability.find_runs),
        views.runs,
        _columns(kind="What: text", name="Client: text", server="Server: text",
                 begin="Begin: moment", end="End: moment", up_s="Up for: duration",
                 ended_by="Ended by: text", is_begin_seen="Begin seen: flag"),
        first=availability.first_runs,
        first_are="those that began last",
        totals=_of_found(availability.totals_of_runs),
        is_about_servers=True,
    ),
    Report(
        "top",
        "Largest types",
        "The types with most events or bytes. Growth: events in the later half of the time,"
        " compared with the earlier half.",
        _find(top.find_top, "extent"),
        views.top,
        _columns(type_path="Type: path", events="Events: count", events_share="of all: share",
                 bytes="Payload: size", bytes_share="of all: share", growth="Growth: growth",
                 first="First: moment", last="Last: moment"),
        first=top.first_top,
        first_are="those with the largest shares",
        totals=_of_found(top.totals),
    ),
)  # fmt: skip

REPORTS: Final[Mapping[str, Report]] = {report.name: report for report in _ALL}
