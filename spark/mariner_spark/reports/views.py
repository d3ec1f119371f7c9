"""Views of reports for the page: a sentence and charts.

A view is computed from the few rows of a report in plain Python.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeVar

from mariner_spark.reports import charts, formats
from mariner_spark.reports.charts import Chart, ms

Row = Mapping[str, Any]
Key = TypeVar("Key", bound=Hashable)

N_BARS: Final = 15
"""Rows of a chart with names beside it: as many as fit on a phone."""


class View(NamedTuple):
    """A report on the page, besides its table.

    Attributes:
        finding: the main result, in a sentence.
        charts: the charts, in order.
    """

    finding: str
    charts: Sequence[Chart] = ()


def labels(names: Mapping[Key, str]) -> dict[Key, str]:
    """Short and distinct labels for names."""
    found: dict[Key, str] = {}
    taken: dict[str, int] = {}
    for key, name in names.items():
        short = formats.label(name)
        taken[short] = taken.get(short, 0) + 1
        found[key] = short if taken[short] == 1 else f"{short} ({taken[short]})"
    return found


def _labels_of(column: str, rows: Iterable[Row]) -> dict[str, str]:
    """Labels of the texts of a column."""
    return labels({row[column]: row[column] for row in rows if row[column] is not None})


def _width(rows: Sequence[Row]) -> str:
    return formats.duration(rows[0]["bucket_s"])


def activity(rows: Sequence[Row], _totals: Row) -> View:
    """Stacked bars over time."""
    others = "all others"
    prefixes = _labels_of("prefix", rows)
    colours = dict(zip(prefixes.values(), charts.PALETTE, strict=False))
    if any(row["prefix"] is None for row in rows):
        colours[others] = charts.OTHERS
    width_ms = rows[0]["bucket_s"] * 1_000
    totals: dict[Any, int] = {}
    marks = []
    for row in rows:
        begin = ms(row["bucket"])
        totals[row["bucket"]] = totals.get(row["bucket"], 0) + row["events"]
        marks.append(
            {
                "begin": begin,
                "end": begin + width_ms,
                "events": row["events"],
                "name": others if row["prefix"] is None else prefixes[row["prefix"]],
                "when": formats.moment(row["bucket"]),
                "shown": formats.count(row["events"]),
                "bytes": formats.size(row["bytes"]),
            }
        )
    encoding = {
        "x": charts.time_axis("begin"),
        "x2": {"field": "end"},
        "y": charts.numbers_axis("events") | {"stack": "zero"},
        "color": charts.colour("name", colours),
        "order": {"field": "name", "type": "nominal", "sort": list(colours)},
        "tooltip": charts.tooltip(type="name", begin="when", events="shown", payload="bytes"),
    }
    mark = {"type": "bar", "orient": "vertical", "binSpacing": 1}
    peak = max(totals, key=lambda bucket: (totals[bucket], bucket))
    finding = (
        f"Busiest {_width(rows)}: {formats.count(totals[peak])} events from"
        f" {formats.moment(peak)} on."
    )
    spec = charts.chart(marks, charts.CHART_PX, mark=mark, encoding=encoding)
    return View(finding, [Chart(f"Events in {_width(rows)}", spec, legend=tuple(colours.items()))])


def latest(rows: Sequence[Row], totals: Row) -> View:
    """No charts: the table is enough."""
    last = rows[0]
    n_types = _plural(totals["rows"], "type")
    return View(
        f"{n_types}; the last event is of {formats.name(last['type_path'])}, at"
        f" {formats.moment(last['timestamp'])}."
    )


def gaps(rows: Sequence[Row], totals: Row) -> View:
    """Timeline of the types with the largest gaps."""
    names = _labels_of("type_path", rows)
    shown = dict(list(names.items())[:N_BARS])
    colours = {"until the end": "#ff725c", "until the next event": "#e8a33d"}
    ended = {True: "until the end", False: "until the next event"}
    marks = [
        {
            "name": shown[row["type_path"]],
            "begin": ms(row["begin"]),
            "end": ms(row["end"]),
            "state": ended[row["is_open"]],
            "when": f"{formats.moment(row['begin'])} to {formats.moment(row['end'])}",
            "shown": formats.duration(row["silence_s"]),
            "expected": formats.duration(row["expected_s"]),
        }
        for row in rows
        if row["type_path"] in shown
    ]
    tips = charts.tooltip(type="name", silent="shown", expected="expected", from_to="when")
    longest = totals["longest"]
    finding = (
        f"{_plural(totals['rows'], 'gap')} of {_plural(totals['types'], 'type')};"
        f" the longest is of {formats.name(longest['type_path'])},"
        f" for {formats.duration(longest['silence_s'])}."
        f" Silent until the end: {formats.count(totals['open'])}."
    )
    note = _part(len(shown), totals["types"], "type")
    chart = _timeline("Silences", marks, names=shown, colours=colours, tips=tips)
    return View(finding, [chart._replace(note=note)])


def latency(rows: Sequence[Row], totals: Row) -> View:
    """Percentiles of each prefix on a line."""
    measured = [row for row in rows if row["p50_s"] is not None]
    with_source, late, future = (
        formats.count(totals[name]) for name in ("with_source", "late", "future")
    )
    finding = (
        f"{with_source} of {_plural(totals['events'], 'event')} have a source timestamp."
        f" Late: {late}. From the future: {future}."
    )
    if not measured:
        return View(finding)
    names = _labels_of("prefix", measured[:N_BARS])
    colours = {"p50": "#3fb9a3", "p95": "#e8a33d", "p99": "#ff725c"}
    marks = [
        {
            "name": names[row["prefix"]],
            "percentile": percentile,
            "value": max(row[f"{percentile}_s"], 1e-6),  # a logarithm has no zero
            "shown": formats.duration(row[f"{percentile}_s"]),
            "events": formats.count(row["with_source"]),
        }
        for row in measured[:N_BARS]
        for percentile in colours
    ]
    y = charts.names_axis("name", list(names.values()))
    tips = charts.tooltip(type="name", percentile="percentile", latency="shown", events="events")
    line = {"type": "line", "strokeWidth": 2, "opacity": 0.5}
    point = {"type": "point", "filled": True, "size": 90, "opacity": 1}
    x = charts.durations_axis("value", [mark["value"] for mark in marks])
    layer: list[charts.Spec] = [
        {"mark": line, "encoding": {"detail": {"field": "name"}, "color": {"value": "#9498a0"}}},
        {
            "mark": point,
            "encoding": {"color": charts.colour("percentile", colours), "tooltip": tips},
        },
    ]
    spec = charts.chart(
        marks, charts.ROW_PX * len(names) + 40, encoding={"y": y, "x": x}, layer=layer
    )
    note = _part(len(names), totals["rows"], "row")
    legend = tuple(colours.items())
    return View(finding, [Chart("Latency (logarithmic)", spec, note=note, legend=legend)])


def values(rows: Sequence[Row], totals: Row) -> View:
    """A small chart per type: the mean of its numbers between minimum and maximum."""
    by_type: dict[str, list[Row]] = {}
    for row in rows:
        by_type.setdefault(row["type_path"], []).append(row)
    moments = [ms(row["bucket"]) for row in rows]
    domain = (min(moments), max(moments) + rows[0]["bucket_s"] * 1_000)
    finding = (
        f"{_plural(totals['numbers'], 'number')} of {_plural(totals['types'], 'type')}: means in"
        f" {_width(rows)}, between the least and the largest."
    )
    if part := _part(len(by_type), totals["types"], "type"):
        finding += f" Shown: {part}, those with most numbers."
    return View(finding, [_band(name, found, domain) for name, found in by_type.items()])


def _band(name: str, rows: Sequence[Row], domain: tuple[float, float]) -> Chart:
    middle = timedelta(seconds=rows[0]["bucket_s"]) / 2
    marks = [
        {
            "time": ms(row["bucket"]) + middle / timedelta(milliseconds=1),
            "least": charts.drawable(row["min"]),
            "largest": charts.drawable(row["max"]),
            "mean": charts.drawable(row["mean"]),
            "when": formats.moment(row["bucket"]),
            "shown": formats.number(row["mean"]),
            "range": f"{formats.number(row['min'])} to {formats.number(row['max'])}",
            "count": formats.count(row["count"]),
        }
        for row in rows
    ]
    tips = charts.tooltip(begin="when", mean="shown", range="range", numbers="count")
    point = {"filled": True, "size": 18} if len(rows) <= 40 else False
    spec = charts.chart(
        marks,
        110,
        encoding={"x": charts.time_axis("time", domain)},
        layer=[
            {
                "mark": {"type": "area", "opacity": 0.22, "color": charts.PALETTE[0]},
                "encoding": {
                    "y": charts.numbers_axis("least", zero=False),
                    "y2": {"field": "largest"},
                    "tooltip": tips,
                },
            },
            {
                "mark": {"type": "line", "strokeWidth": 1.8, "point": point},
                "encoding": {"y": charts.numbers_axis("mean", zero=False), "tooltip": tips},
            },
        ],
    )
    last = rows[-1]["last"]
    return Chart(formats.name(name), spec, note=f"last {formats.number(last)}", is_small=True)


def availability(rows: Sequence[Row], totals: Row) -> View:
    """Bars: the part of the time that each was up."""
    shown = rows[:N_BARS]
    names = _labels_of_subjects(shown, totals)
    marks = [
        {
            "name": names[_subject(row)],
            "value": row["share"] or 0,
            "shown": formats.show("share", row["share"]),
            "up": formats.duration(row["up_s"]),
            "down": formats.duration(row["down_s"]),
            "runs": formats.count(row["runs"]),
        }
        for row in shown
    ]
    tips = charts.tooltip(what="name", up="up", down="down", runs="runs")
    engines, clients = _plural(totals["engines"], "engine"), _plural(totals["clients"], "client")
    finding = f"{engines}, killed {_plural(totals['killed'], 'time')}; {clients}."
    note = _part(len(shown), totals["rows"], "row")
    spec = charts.bars(marks, list(names.values()), tips)
    return View(finding, [Chart("Part of the time that it was up", spec, note=note)])


def runs(rows: Sequence[Row], totals: Row) -> View:
    """Timeline of the times that each was up."""
    engines_first = sorted(rows, key=lambda row: (row["kind"] != "engine", row["begin"]))
    names = _labels_of_subjects(engines_first, totals)
    shown = dict(list(names.items())[:N_BARS])
    colours = {"up": "#3ca951", "ended by being killed": "#ff725c"}
    state = {True: "ended by being killed", False: "up"}
    marks = [
        {
            "name": shown[_subject(row)],
            "begin": ms(row["begin"]),
            "end": ms(row["end"]),
            "state": state[row["ended_by"] == "killed"],
            "when": f"{formats.moment(row['begin'])} to {formats.moment(row['end'])}",
            "shown": formats.duration(row["up_s"]),
            "ended": row["ended_by"] or "still up",
        }
        for row in rows
        if _subject(row) in shown
    ]
    tips = charts.tooltip(what="name", up="shown", from_to="when", end="ended")
    longest = totals["longest"]
    finding = (
        f"{_plural(totals['rows'], 'time')} up; the longest is of"
        f" {formats.name(_name_of_subject(longest, totals))},"
        f" for {formats.duration(longest['up_s'])}."
    )
    chart = _timeline("Times up", marks, names=shown, colours=colours, tips=tips)
    return View(finding, [chart._replace(note=_part(len(shown), totals["subjects"], "row"))])


def top(rows: Sequence[Row], totals: Row) -> View:
    """The largest types by events and by bytes."""
    finding = (
        f"{formats.name(rows[0]['type_path'])} is the largest: {formats.count(rows[0]['events'])}"
        f" events ({formats.show('share', rows[0]['events_share'])}),"
        f" {formats.size(rows[0]['bytes'])} of payload"
        f" ({formats.show('share', rows[0]['bytes_share'])})."
    )
    kinds = (("events", "Events", "count"), ("bytes", "Bytes of payload", "size"))
    found = [_largest(rows, field, title, kind) for field, title, kind in kinds]
    note = _part(min(len(rows), N_BARS), totals["rows"], "type")
    return View(finding, [chart._replace(note=note) for chart in found])


def _largest(rows: Sequence[Row], field: str, title: str, kind: str) -> Chart:
    largest = sorted(rows, key=lambda row: (-row[field], row["type_path"]))[:N_BARS]
    names = _labels_of("type_path", largest)
    marks = [
        {
            "name": names[row["type_path"]],
            "value": row[field],
            "shown": formats.show(kind, row[field]),
            "share": formats.show("share", row[f"{field}_share"]),
        }
        for row in largest
    ]
    tips = charts.tooltip(type="name", size="shown", share="share")
    return Chart(title, charts.bars(marks, list(names.values()), tips), is_small=True)


def _timeline(
    title: str,
    marks: Sequence[charts.Spec],
    *,
    names: Mapping[Key, str],
    colours: Mapping[str, str],
    tips: list[charts.Spec],
) -> Chart:
    """Bars from ``begin`` to ``end``, one line per name, coloured by ``state``."""
    used = {state: colours[state] for state in colours if any(i["state"] == state for i in marks)}
    colour = charts.colour("state", used)
    encoding = {
        "y": charts.names_axis("name", list(names.values())),
        "x": charts.time_axis("begin"),
        "x2": {"field": "end"},
        "color": colour,
        "stroke": colour,
        "tooltip": tips,
    }
    # the stroke shows bars that are too short to be seen
    mark = {"type": "bar", "height": {"band": 0.6}, "strokeWidth": 1.5}
    spec = charts.chart(marks, charts.ROW_PX * len(names) + 30, mark=mark, encoding=encoding)
    return Chart(title, spec, legend=tuple(used.items()))


def _subject(row: Row) -> tuple[int, str, str | None]:
    """Key of an engine or client."""
    return row["server"], row["kind"], row["name"]


def _labels_of_subjects(rows: Sequence[Row], totals: Row) -> dict[tuple[int, str, str | None], str]:
    """Labels of engines and clients."""
    return labels({_subject(row): _name_of_subject(row, totals) for row in rows})


def _name_of_subject(row: Row, totals: Row) -> str:
    """Name of an engine or client; with its server, if there are several."""
    words = {"engine": "engine", "clients": "any client"}
    what = words[row["kind"]] if row["name"] is None else str(row["name"])
    return f"{what} of {row['server']}" if totals["servers"] > 1 else what


def _part(n_shown: int, n_all: int, one: str) -> str:
    """Text "N of ALL" if not all are shown."""
    return f"{formats.count(n_shown)} of {_plural(n_all, one)}" if n_shown < n_all else ""


def _plural(number: int, one: str) -> str:
    return f"{formats.count(number)} {one}{'' if number == 1 else 's'}"
