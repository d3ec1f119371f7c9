"""The page: what stands in it, that nothing hostile gets out of its place, that it draws.

The charts are drawn twice: by the engine that makes pictures of Vega-Lite in the package
vl-convert-python (V8), and, with all that is around them, by a real browser. The browser is
Debian's package ``chromium`` (or Chrome); a machine that has none can do without that test,
for pip has no browser.
"""

import base64
import hashlib
import re
import shutil
import subprocess
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest
import vl_convert

from mariner_spark import limits
from mariner_spark.reports import page, views
from mariner_spark.reports.generate import REPORTS
from mariner_spark.reports.page import Fact, Section
from mariner_spark.session import cache_folder
from tests.spark.reports.support import T0, at, charts_of

HOSTILE: Final = (
    "</script><script>document.title='broken'</script>",
    "<img src=x onerror=\"document.title='broken'\">/'\"&{{7*7}}",
    "a/\x00\u202e\u2028/" + "x" * 300,
)
pytestmark = pytest.mark.xdist_group("page")  # each worker would make the programs anew

BROWSER: Final = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

_MOMENT: Final = at(T0)
_BY_KIND: Final[dict[str, Any]] = {
    "count": 3,
    "size": 1_234,
    "duration": 1.5,
    "share": 0.5,
    "growth": -0.5,
    "number": 2.5,
    "ratio": 4.0,
    "flag": True,
}
_BY_NAME: Final[dict[str, Any]] = {
    "bucket_s": 60.0,
    "kind": "eventer",
    "server": 1,
    "ended_by": "killed",
}


def rows_of(name: str) -> list[dict[str, Any]]:
    """Rows of a report with hostile texts in every place that others fill."""
    rows = []
    for number, text in enumerate(HOSTILE):
        row: dict[str, Any] = dict(_BY_NAME)
        for column in REPORTS[name].columns:
            moment = _MOMENT + timedelta(minutes=number)
            values = {**_BY_KIND, "moment": moment, "path": text, "text": text}
            row.setdefault(column.name, values[column.kind])
        row["end"] = _MOMENT + timedelta(minutes=9)
        rows.append(row)
    # a lake can hold what is no number of JSON's
    beyond = {"mean": float("nan"), "time_mean": float("inf")} if name == "values" else {}
    large = {"min": -1.7e308, "max": 1.7e308} if name == "values" else {}
    return [*rows, {**rows[-1], **large, **beyond}]


TOTALS: Final[dict[str, Any]] = {
    **dict.fromkeys(("rows", "types", "events", "with_source", "numbers", "subjects"), 4),
    **dict.fromkeys(("open", "late", "future", "engines", "killed", "clients", "servers"), 2),
    **_BY_NAME,
    "longest": HOSTILE[1],
    "name": HOSTILE[1],
    "longest_s": 1,
    "up_s": 1,
}


DOMAIN: Final = (views.ms(_MOMENT), views.ms(_MOMENT + timedelta(hours=2)))
"""The time of a page."""


def render(sections: list[Section], facts: int = 1, domain: tuple[float, float] = DOMAIN) -> str:
    return page.render(
        title=HOSTILE[0],
        about=[Fact("Source", HOSTILE[1])],
        facts=[Fact("Events", "3")] * facts,
        sections=sections,
        domain=domain,
        programs=page.chart_programs(),
    )


@pytest.fixture(scope="module")
def hostile() -> str:
    return render([Section(report, rows_of(name), TOTALS) for name, report in REPORTS.items()])


class Elements(HTMLParser):
    """Elements of a page, and its texts by element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append((self.found[-1][0] if self.found else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_hostile_texts_stay_texts(hostile: str) -> None:
    elements = Elements(hostile)
    assert [attributes.get("type") for attributes in elements.all("script")] == [
        "application/json",
        None,
        None,
    ]
    assert not elements.all("img")
    attributes = {name for _, attributes in elements.found for name in attributes}
    assert not {name for name in attributes if name.startswith("on")}
    assert "{{7*7}}" in hostile
    cells = "".join(text for _, text in elements.texts)
    assert "\x00" not in cells
    assert "\u202e" not in cells


def test_only_scripts_of_the_page_may_run_and_nothing_be_loaded(hostile: str) -> None:
    elements = Elements(hostile)
    [policy] = [i["content"] for i in elements.all("meta") if "http-equiv" in i]
    scripts = re.findall(r"<script>(.*?)</script>", hostile, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(i.encode()).digest()).decode() for i in scripts]
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{digests[0]}' 'sha256-{digests[1]}';"
        " style-src 'unsafe-inline'; img-src data:"
    )
    links = [i.get("src") or i.get("href") for _, i in elements.found if "src" in i or "href" in i]
    assert links == [f"#{name}" for name in REPORTS]


def test_the_chart_programs_are_kept() -> None:
    first = page.chart_programs()
    [kept] = cache_folder().glob("charts-*")
    assert kept.read_text(encoding="utf-8") == first
    kept.write_text("kept", encoding="utf-8")
    assert page.chart_programs() == "kept"
    kept.write_text(first, encoding="utf-8")


def test_a_page_is_small_enough_for_a_phone(hostile: str) -> None:
    assert len(hostile.encode()) < 1_200_000


def test_every_chart_is_drawn_by_the_engine_for_pictures(hostile: str) -> None:
    charts = charts_of(hostile)
    assert {name.split("-")[0] for name in charts} == REPORTS.keys() - {"latest"}
    for name, spec in charts.items():
        svg = vl_convert.vegalite_to_svg({**spec, "width": 400}, vl_version=page.VEGA_LITE)
        marks = re.findall(r'aria-roledescription="(?:bar|line mark|area mark|point)"', svg)
        assert marks, name
        assert "NaN" not in svg, name


def drawn(text: str, chart: str, width: int = 400) -> str:
    """The picture of a chart of a page."""
    spec = {**charts_of(text)[chart], "width": width}
    svg: str = vl_convert.vegalite_to_svg(spec, vl_version=page.VEGA_LITE)
    return svg


def labels_of(svg: str) -> list[str]:
    """The texts that are seen in a picture."""
    return re.findall(r'<text[^>]* opacity="1"[^>]*>([^<]+)</text>', svg)


def test_an_axis_of_time_has_24_hours() -> None:
    begin = views.ms(_MOMENT + timedelta(hours=13))
    rows = [row | {"bucket": _MOMENT + timedelta(hours=13)} for row in rows_of("activity")]
    section = Section(REPORTS["activity"], rows, TOTALS)
    text = render([section], domain=(begin, begin + 2 * 3_600_000))
    assert {"13:00", "13:30", "14:00", "15:00"} <= set(labels_of(drawn(text, "activity-0", 600)))
    text = render([section], domain=(begin, begin + 10_000))
    assert "13:00:10" in labels_of(drawn(text, "activity-0", 600))


def test_all_charts_over_time_have_the_time_of_the_page(hostile: str) -> None:
    axes = {
        name: spec["encoding"]["x"]["scale"]["domainRaw"]["signal"]
        for name, spec in charts_of(hostile).items()
        if spec["encoding"]["x"]["type"] == "temporal"
    }
    assert {name.split("-")[0] for name in axes} == {"activity", "values", "gaps", "runs"}
    assert set(axes.values()) == {f"[{DOMAIN[0]!r}, {DOMAIN[1]!r}]"}


def test_events_of_one_moment_have_no_charts_over_time() -> None:
    names = ("activity", "values", "gaps", "runs")
    sections = [Section(REPORTS[name], rows_of(name), TOTALS) for name in names]
    # nor a share of no time, nor of one type
    sections.append(Section(REPORTS["availability"], [one_row("availability", share=None)], TOTALS))
    sections.append(Section(REPORTS["top"], rows_of("top")[:1], TOTALS))
    text = render(sections, domain=(DOMAIN[0], DOMAIN[0]))
    assert "<figure>" not in text
    assert text.count("<details open>") == len(sections)


def test_runs_that_cannot_be_told_apart_are_told_together() -> None:
    """On two hours: ten connections of 0.3 s in a minute, a killed one later, and a long one."""
    rows = []
    for at_s, length_s in (*((i * 6, 0.3) for i in range(10)), (300, 0.3), (3_600, 3_600)):
        begin = _MOMENT + timedelta(seconds=at_s)
        row = {"server": 1, "kind": "eventer", "name": "a", "begin": begin, "is_begin_seen": True}
        row |= {"end": begin + timedelta(seconds=length_s), "up_s": length_s, "ended_by": None}
        rows.append(row)
    rows[10]["ended_by"] = "killed"
    rows.reverse()
    section = Section(REPORTS["runs"], rows, {**TOTALS, "rows": 1_200, "subjects": 1})
    text = render([section])
    spec = charts_of(text)["runs-0"]
    found = [(i["state"], i["times"], i["shown"]) for i in spec["data"]["values"]]
    assert [(state, times, plain(shown)) for state, times, shown in found] == [
        ("several short times up", "10", "3 s"),
        ("ended by being killed", "1", "300 ms"),
        ("up", "1", "1 h"),
    ]
    assert plain(f"{section.n_rows:,} times up") in text
    assert "<span>of each kind the latest 1,000 times</span>" in text
    svg = drawn(text, "runs-0", 330)
    bars = re.findall(r'aria-roledescription="bar" d="M([\d.]+),[\d.]+h([\d.]+)', svg)
    (several, n_several), (killed, n_killed), _ = ((float(x), float(w)) for x, w in bars)
    assert several + n_several + 1 < killed  # a stroke and the card between them
    assert n_killed < 1


def test_a_line_of_values_breaks_where_there_are_none() -> None:
    template = rows_of("values")[0]
    minutes = (*range(50), 60, *range(70, 75))
    ends = {"min": 2.0, "max": 3.0}
    rows = [template | ends | {"bucket": _MOMENT + timedelta(minutes=i)} for i in minutes]
    text = render([Section(REPORTS["values"], rows, TOTALS)])
    svg = drawn(text, "values-0")
    [line] = re.findall(r'aria-roledescription="line mark"[^>]* d="([^"]*)"', svg)
    assert [part.count("L") for part in line.split("M")[1:]] == [49, 0, 4]
    # of the bucket that is alone there is no line
    assert svg.count('aria-roledescription="point"') == 1
    assert svg.count('aria-roledescription="rule mark"') == 1


def one_row(name: str, **values: Any) -> dict[str, Any]:
    return rows_of(name)[0] | {"type_path": "a", "prefix": "a"} | values


def ticks(svg: str, axis: str) -> list[str]:
    """Labels of an axis."""
    [found] = re.findall(rf'aria-label="{axis}-axis(.*?)role-axis-domain', svg, re.DOTALL)
    return labels_of(found)


def test_numbers_have_units_and_ticks_that_say_how_much() -> None:
    same = dict.fromkeys(("min", "max", "mean", "first", "last"), 0.25)
    rows = [one_row("values", **same, unit="<b>°C")]
    text = render([Section(REPORTS["values"], rows, TOTALS)])
    assert "<span>last 0.25 &lt;b&gt;°C</span>" in text
    [mark, _] = charts_of(text)["values-0"]["data"]["values"]
    assert (mark["shown"], mark["range"]) == ("0.25 <b>°C", "0.25 to 0.25 <b>°C")
    shown = ticks(drawn(text, "values-0"), "Y")
    assert len(shown) > 1
    assert {"0.24", "0.26"} <= set(shown)
    rows = [one_row("values", **same | {"min": 20.4, "max": 21.2}, unit=None)]
    text = render([Section(REPORTS["values"], rows, TOTALS)])
    assert len(ticks(drawn(text, "values-0"), "Y")) > 1


def test_counts_are_whole_numbers() -> None:
    one = dict.fromkeys(("events", "with_source"), 1)
    names = ("activity", "top", "latency")
    rows = {name: [one_row(name, **one)] for name in names}
    text = render([Section(REPORTS[name], rows[name], {**TOTALS, **one}) for name in names])
    assert ticks(drawn(text, "activity-0"), "Y") == ["0", "1"]
    text = plain(text)
    assert "Busiest 1 min: 1 event from" in text
    assert "a is the largest: 1 event (" in text
    assert "1 of 1 event has a source timestamp." in text
    assert "1 events" not in text
    rows["activity"][0]["events"] = 1_234
    text = render([Section(REPORTS["activity"], rows["activity"], TOTALS)])
    assert "1,000" in ticks(drawn(text, "activity-0"), "Y")


def test_percentiles_that_are_equal_are_all_seen() -> None:
    rows = [one_row("latency", p50_s=1.0, p95_s=2.0, p99_s=2.0)]
    svg = drawn(render([Section(REPORTS["latency"], rows, TOTALS)]), "latency-0")
    points = re.findall(r'aria-roledescription="point"[^>]* d="M([\d.]+),', svg)
    assert sorted(points, key=float, reverse=True) == points  # each lies on a larger one
    assert len(set(points)) == 3


def test_availability_has_an_axis(hostile: str) -> None:
    assert ticks(drawn(hostile, "availability-0"), "X") == ["0%", "25%", "50%", "75%", "100%"]


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_without_events_the_page_says_so() -> None:
    text = render([Section(report, [], {}) for report in REPORTS.values()], facts=0)
    elements = Elements(text)
    said = [text for _, text in elements.texts if text.strip()]
    assert "No events: nothing that was asked for is there." in said
    assert said.count("Nothing to show.") == len(REPORTS)
    assert not elements.all("script")
    [policy] = [i["content"] for i in elements.all("meta") if "http-equiv" in i]
    assert policy == (
        "default-src 'none'; script-src 'none'; style-src 'unsafe-inline'; img-src data:"
    )


def test_tables_show_the_first_rows() -> None:
    rows = [
        {
            "type_path": f"t/{i}",
            "value": 1.5,
            "timestamp": _MOMENT,
            "source_timestamp": None,
            "payload": "1.5",
            "payload_bytes": 1_500,
            "events": 1_000,
        }
        for i in range(limits.PAGE_ROWS + 2)
    ]
    text = render([Section(REPORTS["latest"], rows, {"rows": len(rows) + 1_000})])
    cells = re.findall(r"<td[^>]*>(.*?)</td>", text)
    assert len(cells) == 7 * limits.PAGE_ROWS
    assert cells[:7] == [
        *(
            "t/<wbr>0",
            "1.5",
            "2025-01-01 00:00:00",
            "\N{EN DASH}",
            "1.5",
            "1.5\N{NO-BREAK SPACE}kB",
            "1,000",
        )
    ]
    assert "Table: 50 of 1,052 rows" in text
    assert "52 of 1,052 rows, those heard of last: latest.csv, latest.parquet" in text
    assert "1,052 types; the last event is of t/0, at" in text
    assert '<nav aria-label="Reports">' not in text


@pytest.mark.skipif(
    BROWSER is None,
    reason="no Chromium here, and pip has none (Debian: apt-get install chromium);"
    " the charts themselves are drawn by vl-convert above",
)
@pytest.mark.parametrize("width", [500, 1_200])  # it makes no window that is less wide
def test_a_browser_draws_it_all_and_runs_nothing_else(
    hostile: str, tmp_path: Path, width: int
) -> None:
    path = tmp_path / "report.html"
    path.write_text(hostile, encoding="utf-8")
    dom, log = browse(path, width)
    assert 'data-drawn="all"' in dom
    assert "broken" not in re.findall(r"<title>(.*?)</title>", dom)
    # a violation of the policy, or an error of a script, is a line of the console
    assert [line for line in log.splitlines() if "CONSOLE" in line] == []
    drawn = re.findall(r'<svg[^>]* class="marks"[^>]*>', dom)
    assert len(drawn) == len(charts_of(hostile))
    widths = [float(i) for svg in drawn for i in re.findall(r' width="([\d.]+)"', svg)]
    assert len(widths) == len(drawn)
    assert 200 < min(widths) <= max(widths) <= width


def browse(path: Path, width: int) -> tuple[str, str]:
    """What a browser makes of a page, and what it logged."""
    options = (
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update", "--disable-quic"),
        *("--enable-logging=stderr", f"--window-size={width},2000", "--virtual-time-budget=20000"),
        f"--user-data-dir={path.parent / 'browser'}",
    )
    done = subprocess.run(
        [str(BROWSER), *options, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout, done.stderr


def test_moments_far_from_now_are_drawn() -> None:
    rows = rows_of("activity")
    for row, year in zip(rows, (1, 1969, 2025, 9_999), strict=True):
        row["bucket"] = datetime(year, 1, 1, tzinfo=_MOMENT.tzinfo)
        row["bucket_s"] = 72_800 * 86_400.0
    [spec] = charts_of(render([Section(REPORTS["activity"], rows, {})])).values()
    svg = vl_convert.vegalite_to_svg({**spec, "width": 400}, vl_version=page.VEGA_LITE)
    assert svg.count('aria-roledescription="bar"') == 4
