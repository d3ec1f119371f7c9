"""All reports, by name: how they are made, and how a page shows their columns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame

from mariner_spark.reports import views
from mariner_spark.reports.activity import activity
from mariner_spark.reports.availability import availability, runs
from mariner_spark.reports.events import Span
from mariner_spark.reports.gaps import gaps
from mariner_spark.reports.latency import latency
from mariner_spark.reports.latest import latest
from mariner_spark.reports.top import top
from mariner_spark.reports.values import values
from mariner_spark.reports.views import View


class Settings(NamedTuple):
    """What a report is told.

    Attributes:
        span: of the events.
        depth: number of segments of a type prefix.
        with_core: whether the core's own types were asked for by name.
    """

    span: Span
    depth: int
    with_core: bool


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
        name: what it is called on the command line, and its files.
        title: what a page calls it.
        about: what it tells, for the page.
        make: makes it of prepared events.
        view: what a page shows of its rows, of which there is one at least.
        columns: those that a page shows.
        is_about_servers: needs all events of the servers, whatever types were asked for.
    """

    name: str
    title: str
    about: str
    make: Callable[[DataFrame, Settings], DataFrame]
    view: Callable[[Sequence[views.Row]], View]
    columns: Sequence[Column]
    is_about_servers: bool = False


def _columns(**columns: str) -> tuple[Column, ...]:
    """Columns given as ``name="title: kind"``."""
    split = {name: text.split(": ") for name, text in columns.items()}
    return tuple(Column(name, title, kind) for name, (title, kind) in split.items())


def _make(report: Callable[..., DataFrame], *names: str) -> Callable[[DataFrame, Settings], Any]:
    """Call a report with those settings that it takes."""

    def make(events: DataFrame, settings: Settings) -> DataFrame:
        return report(events, **{name: getattr(settings, name) for name in names})

    return make


_ALL: Final = (
    Report(
        "activity",
        "Activity",
        "How many events were registered when, by type prefix.",
        _make(activity, "depth", "span"),
        views.activity,
        _columns(prefix="Type prefix: path", bucket="From: moment", events="Events: count",
                 bytes="Payload: size"),
    ),
    Report(
        "latest",
        "Latest",
        "The last event of each type.",
        _make(latest),
        views.latest,
        _columns(type_path="Type: path", value="Value: number", timestamp="Timestamp: moment",
                 source_timestamp="Source timestamp: moment", payload="Payload: text",
                 payload_bytes="Size: size", events="Events: count"),
    ),
    Report(
        "values",
        "Values",
        "What the numbers of the payloads did.",
        _make(values, "span"),
        views.values,
        _columns(type_path="Type: path", bucket="From: moment", count="Numbers: count",
                 min="Least: number", max="Largest: number", mean="Mean: number",
                 time_mean="Mean over time: number", first="First: number", last="Last: number"),
    ),
    Report(
        "gaps",
        "Gaps",
        "Types that were silent for longer than expected: for more than three times the median"
        " of their intervals.",
        _make(gaps, "span", "with_core"),
        views.gaps,
        _columns(type_path="Type: path", begin="Silent from: moment", end="Until: moment",
                 silence_s="Silence: duration", expected_s="Expected: duration",
                 ratio="Ratio: ratio", is_open="Until the end: flag"),
    ),
    Report(
        "latency",
        "Latency",
        "How long events took from their source timestamp into the store, by type prefix. Late:"
        " more than a minute. From the future: the source's clock was ahead.",
        _make(latency, "depth"),
        views.latency,
        _columns(prefix="Type prefix: path", p50_s="p50: duration", p95_s="p95: duration",
                 p99_s="p99: duration", min_s="Least: duration", max_s="Most: duration",
                 late="Late: count", future="Future: count", with_source="With source: count",
                 events="Events: count"),
    ),
    Report(
        "availability",
        "Availability",
        "Engines and clients: part of the time that they were up, as the core's own events tell.",
        _make(availability),
        views.availability,
        _columns(kind="What: text", name="Client: text", server="Server: text",
                 share="Up: share", up_s="Up for: duration", down_s="Down for: duration",
                 longest_down_s="Longest down: duration", runs="Times up: count",
                 killed="Killed: count", is_up="Up at the end: flag", first="First up: moment"),
        is_about_servers=True,
    ),
    Report(
        "runs",
        "Runs",
        "Each time that an engine ran or a client was connected.",
        _make(runs),
        views.runs,
        _columns(kind="What: text", name="Client: text", server="Server: text",
                 begin="Begin: moment", end="End: moment", up_s="Up for: duration",
                 ended_by="Ended by: text", is_begin_seen="Begin seen: flag"),
        is_about_servers=True,
    ),
    Report(
        "top",
        "Largest types",
        "What the store is full of. Growth: events in the later half of the time, against the"
        " earlier half.",
        _make(top, "span"),
        views.top,
        _columns(type_path="Type: path", events="Events: count", events_share="of all: share",
                 bytes="Payload: size", bytes_share="of all: share", growth="Growth: growth",
                 first="First: moment", last="Last: moment"),
    ),
)  # fmt: skip

REPORTS: Final[Mapping[str, Report]] = {report.name: report for report in _ALL}
