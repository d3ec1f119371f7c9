"""A report, and its parts on the page: a sentence, a table, and charts.

Charts are Vega-Lite specifications: plain data, drawn by the page. Colours, fonts and grid lines
are the page's, which knows whether it is light or dark. Moments are milliseconds since 1970 by the
clock of the page's time zone, which the moments of its rows have; tooltips show texts of
``formats``. A mark with ``link`` leads to its events.
"""

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar, cast

from mariner_spark import times
from mariner_spark.reports import formats
from mariner_spark.reports.events import ORIGIN_US, Extent
from mariner_spark.reports.links import Behind
from mariner_spark.reports.relations import R, Relation

Row = Mapping[str, Any]
Spec = dict[str, Any]
Rows = Sequence[dict[str, Any]]
Domain = tuple[float, float]
"""The time of a page, in milliseconds: from its first to its last moment; equal: there is only one,
and charts over time have nothing to show."""
Key = TypeVar("Key", bound=Hashable)
P = ParamSpec("P")

LINK: Final = "link"
"""Of a row: the address of its events."""

N_BARS: Final = 15
"""Rows of a chart with names beside it: as many as fit on a phone."""


class ReportSettings(NamedTuple):
    """Settings of a report; ``end_us``: until when silence lasts, in microseconds.

    ``depth``: segments of a type prefix; ``with_core``: the core's own types were selected by name;
    ``value_path``: that of the numbers; ``origin_us``: where any bucket begins; ``rollups``: of a
    lake, if they have exactly its events in these buckets.
    """

    extent: Extent
    end_us: int
    depth: int
    with_core: bool
    value_path: str
    origin_us: int = ORIGIN_US
    rollups: "Relation | None" = None


class Column(NamedTuple):
    """A column of a table on the page; ``kind`` is one of ``formats.FORMATS``."""

    name: str
    title: str
    kind: str


class Chart(NamedTuple):
    """A chart by its Vega-Lite specification; the note is beside the title, which has the unit.

    ``legend``: labels and their colours; small ones of a report stand side by side.
    """

    title: str
    spec: Spec
    note: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    is_small: bool = False


class View(NamedTuple):
    """A report on the page, besides its table: the main result in a sentence, and charts."""

    finding: str
    charts: Sequence[Chart] = ()


class Report(NamedTuple):
    """A report, by its name on the command line, and of its files.

    Attributes:
        title, about: title and description on the page.
        find: computes all its rows from prepared events.
        view: computes the sentence and the charts of the page from the first rows, at least one,
            the totals, and the time of the page, which all axes of time have.
        columns: of the table on the page.
        first: selects and orders the rows of the files; ``first_are`` describes them.
        totals: computes totals of all rows, in a row, from prepared events and all rows; None:
            the files have all rows, and the view needs no totals.
        needs: columns of events (``events.prepare``) that it is computed from.
        is_about_servers: needs all events of the servers, of any type.
        figures: those of the totals that conditions may be set on (``figures``).
        behind: the events that a row is about; None: no particular ones.
    """

    name: str
    title: str
    about: str
    find: Callable[[Relation, ReportSettings], Relation]
    view: Callable[[Sequence[Row], Row, Domain], View]
    columns: Sequence[Column]
    first: Callable[[Relation], Relation] = lambda found: found
    first_are: str = ""
    totals: Callable[[Relation, Relation], Relation] | None = None
    needs: Sequence[str] = ()
    is_about_servers: bool = False
    figures: Sequence[Column] = ()
    behind: Callable[[Row], Behind | None] = lambda _: None


def columns(**columns: str) -> tuple[Column, ...]:
    """Columns given as ``name="title: kind"``."""
    split = {name: text.split(": ") for name, text in columns.items()}
    return tuple(Column(name, title, kind) for name, (title, kind) in split.items())


def first_of(find: Callable[P, R], report: Report) -> Callable[P, R]:
    """As what finds all rows of a report, but returns those of its files, in their order."""

    @functools.wraps(find)
    def first(*args: P.args, **kwargs: P.kwargs) -> R:
        return cast("R", report.first(find(*args, **kwargs)))

    return first


# --- charts -------------------------------------------------------------------------------

PALETTE: Final = (
    *("#4269d0", "#e8a33d", "#ff725c", "#3fb9a3", "#3ca951"),
    *("#ff8ab7", "#a463f2", "#7fa8f0", "#b07d5a", "#8bb32d"),
)
OTHERS: Final = "#9498a0"
"""Colour of the sum of all others."""

TICKS: Final = "max(2, width / 85)"
"""Number of moments that fit on the axis."""

_CLOCK: Final = {
    "year": "%Y", "quarter": "%B", "month": "%B", "week": "%b %d", "date": "%b %d",
    "day": "%b %d", "hours": "%H:%M", "minutes": "%H:%M", "seconds": "%H:%M:%S",
    "milliseconds": "%H:%M:%S.%L",
}  # fmt: skip
"""Formats of moments on an axis, by the unit that a tick begins: Vega's hours are twelve."""

MARKS: Final = 100
"""Marks that can be told apart along an axis of time: on a phone, a mark each other pixel."""

ROW_PX: Final = 26
CHART_PX: Final = 260
AXIS_PX: Final = 30
SMALL_PX: Final = 110

_LARGEST: Final = 1e307

_DURATIONS_S: Final = (
    *(digit * 10.0**power for power in range(-6, 1) for digit in (1, 2, 5)),
    *(10, 20, 60, 120, 300, 600, 1_800, 3_600, 7_200, 18_000, 43_200),
    *(86_400.0 * digit * 10**power for power in range(7) for digit in (1, 2, 5)),
)
_UNITS_OF_TIME: Final = (
    "datum.value >= 86400 ? format(datum.value / 86400, '.3~g') + ' d'"
    " : datum.value >= 3600 ? format(datum.value / 3600, '.3~g') + ' h'"
    " : datum.value >= 60 ? format(datum.value / 60, '.3~g') + ' min'"
    " : datum.value >= 1 ? format(datum.value, '.3~g') + ' s'"
    " : datum.value >= 0.001 ? format(datum.value * 1000, '.3~g') + ' ms'"
    " : format(datum.value * 1000000, '.3~g') + ' µs'"
)


def ms(moment: datetime) -> float:
    """Milliseconds of a moment by the clock of its offset, which is that of all the page."""
    return times.from_datetime(moment.replace(tzinfo=UTC)) / 1_000


def linked(row: Row) -> Spec:
    """What a mark of a row has to lead to its events."""
    return {LINK: row[LINK]} if LINK in row else {}


def href(marks: Sequence[Spec]) -> Spec:
    """Encoding of the links of marks, if they have some."""
    has_links = any(LINK in mark for mark in marks)
    return {"href": {"field": LINK, "type": "nominal"}} if has_links else {}


def drawable(number: float) -> float:
    """A number that an axis can show: the difference of the largest doubles is infinite."""
    return min(max(number, -_LARGEST), _LARGEST)


def chart(rows: Rows, height_px: int, **parts: Any) -> Spec:
    """A specification as wide as its container on the page."""
    return {
        "data": {"values": list(rows)},
        "width": "container",
        "height": height_px,
        "autosize": {"type": "fit", "contains": "padding"},
        **parts,
    }


def time_axis(field: str, domain: Domain) -> Spec:
    """Horizontal axis of moments, UTC."""
    # a plain domain becomes an expression that the interpreter of the page does not know
    scale = {"type": "utc", "domainRaw": {"signal": f"[{domain[0]!r}, {domain[1]!r}]"}}
    axis = {
        "title": None,
        "format": _CLOCK,
        "labelOverlap": "greedy",
        "labelSeparation": 8,
        "labelFlush": True,
        "tickCount": {"signal": TICKS},
    }
    return {"field": field, "type": "temporal", "scale": scale, "axis": axis}


def names_axis(names: Sequence[str]) -> Spec:
    """Vertical axis of names, in their order."""
    axis = {"title": None, "labelLimit": 160, "ticks": False, "domain": False, "grid": False}
    return {"field": "name", "type": "nominal", "sort": list(names), "axis": axis}


def durations_axis(field: str, seconds: Sequence[float]) -> Spec:
    """Horizontal, logarithmic axis of seconds, which must be positive."""
    low, high = min(seconds) / 2, max(seconds) * 2
    axis = {
        "title": None,
        "labelExpr": _UNITS_OF_TIME,
        "labelOverlap": "greedy",
        "labelSeparation": 8,
        "values": [tick for tick in _DURATIONS_S if low <= tick <= high],
    }
    scale = {"type": "log", "nice": False, "domain": [low, high]}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": axis}


def numbers_axis(field: str, bounds: Sequence[float]) -> Spec:
    """Axis of numbers of a small chart, from the least to the largest."""
    low, high = min(bounds), max(bounds)
    if low == high:
        apart = abs(low) / 10 or 1.0
        low, high = low - apart, high + apart
    label = (
        "datum.value != 0 && (abs(datum.value) >= 1e12 || abs(datum.value) < 1e-4)"
        " ? format(datum.value, '.4~g') : format(datum.value, ',.12~r')"
    )
    n_ticks = SMALL_PX // 35  # of which two are there, whatever the bounds
    return _axis(field, label, n_ticks, domain=[low, high])


def counts_axis(field: str, largest: int) -> Spec:
    """Axis of whole numbers from 0 on."""
    label = "datum.value < 1e6 ? format(datum.value, ',d') : format(datum.value, '.6~s')"
    n_ticks = CHART_PX // 50
    spec = _axis(field, label, n_ticks, zero=True)
    if largest < n_ticks:  # else there would be ticks between
        spec["axis"]["values"] = list(range(largest + 1))
    return spec


def _axis(field: str, label: str, n_ticks: int, **scale: Any) -> Spec:
    axis = {"title": None, "labelExpr": label, "tickCount": n_ticks}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": axis}


def shares_axis(field: str) -> Spec:
    """Horizontal axis of parts of a whole, with room for texts at its end."""
    axis = {"title": None, "values": [0, 0.25, 0.5, 0.75, 1], "format": ".0%", "grid": True}
    scale = {"domain": [0, 1.35]}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": axis}


def colour(field: str, colours: dict[str, str]) -> Spec:
    """Colours by name; the legend is the page's."""
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": field, "type": "nominal", "scale": scale, "legend": None}


def tooltip(**fields: str) -> list[Spec]:
    """Tooltip of a mark: fields by title."""
    return [
        {"field": field, "type": "nominal", "title": title.replace("_", " ")}
        for title, field in fields.items()
    ]


def bars(rows: Rows, names: Sequence[str], tips: list[Spec], axis: Spec | None = None) -> Spec:
    """Horizontal bars: rows with ``name``, ``value`` and the text ``shown`` at their ends."""
    # room for the texts
    largest = max((row["value"] for row in rows), default=0) or 1
    scale = {"domain": [0, largest * 1.4]}
    plain = {"field": "value", "type": "quantitative", "axis": None, "scale": scale}
    encoding = {"y": names_axis(names), "x": axis or plain, **href(rows)}
    mark = {"type": "bar", "cornerRadiusEnd": 3, "height": {"band": 0.7}, "tooltip": True}
    text = {"type": "text", "align": "left", "dx": 5}
    layer = [
        {"mark": mark, "encoding": {"tooltip": tips}},
        {"mark": text, "encoding": {"text": {"field": "shown", "type": "nominal"}}},
    ]
    height_px = ROW_PX * len(names) + (AXIS_PX if axis else 0)
    return chart(rows, height_px, encoding=encoding, layer=layer)


def timeline(
    title: str,
    marks: Sequence[Spec],
    *,
    names: Mapping[Key, str],
    colours: Mapping[str, str],
    tips: list[Spec],
    domain: Domain,
    note: str,
) -> list[Chart]:
    """Bars from ``begin`` to ``end``, one line per name, coloured by ``state``.

    None if the page has only one moment.
    """
    if domain[0] == domain[1]:
        return []
    used = {state: colours[state] for state in colours if any(i["state"] == state for i in marks)}
    shade = colour("state", used)
    encoding = {
        "y": names_axis(list(names.values())),
        "x": time_axis("begin", domain),
        "x2": {"field": "end"},
        "color": shade,
        "stroke": shade,
        "tooltip": tips,
        **href(marks),
    }
    # the stroke shows bars that are too short to be seen
    mark = {"type": "bar", "height": {"band": 0.6}, "strokeWidth": 1}
    spec = chart(marks, ROW_PX * len(names) + AXIS_PX, mark=mark, encoding=encoding)
    return [Chart(title, spec, note, legend=tuple(used.items()))]


# --- texts --------------------------------------------------------------------------------


def labels(names: Mapping[Key, str]) -> dict[Key, str]:
    """Short and distinct labels for names."""
    found: dict[Key, str] = {}
    taken: dict[str, int] = {}
    for key, name in names.items():
        short = formats.label(name)
        taken[short] = taken.get(short, 0) + 1
        found[key] = short if taken[short] == 1 else f"{short} ({taken[short]})"
    return found


def labels_of(column: str, rows: Iterable[Row]) -> dict[str, str]:
    """Labels of the texts of a column."""
    return labels({row[column]: row[column] for row in rows if row[column] is not None})


def width_of(rows: Sequence[Row]) -> str:
    """Width of the buckets."""
    return formats.duration(rows[0]["bucket_s"])


def part_of(n_shown: int, n_all: int, one: str) -> str:
    """Text "N of ALL" if not all are shown."""
    return f"{formats.count(n_shown)} of {plural(n_all, one)}" if n_shown < n_all else ""


def plural(number: int, one: str) -> str:
    """Text "N types"."""
    return f"{formats.count(number)} {one}{'' if number == 1 else 's'}"
