"""What a person asks of a report: my clock, the events behind it, is it worse, and tell me."""

import html
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import pytest
from msgspec import Raw

from eventer_bridge.model import Event, EventId, JsonPayload, Timestamp
from mariner_spark.reports import formats, generate
from tests.spark.reports.support import charts_of, run_report, table
from tests.spark.support import fill

BERLIN = ZoneInfo("Europe/Berlin")
CHANGE = datetime(2025, 3, 30, 3, tzinfo=BERLIN)
"""The clock went from 02:00 to 03:00."""

N_HOURS = 400


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An event an hour, before and after the change of the clock, but none for 30 hours."""
    path = tmp_path_factory.mktemp("people") / "events"
    first_s = int((CHANGE - timedelta(hours=200)).timestamp())
    hours = [i for i in range(N_HOURS) if not 250 <= i < 280]
    fill(
        path,
        [
            Event(
                EventId(7, session, 1),
                ("site", "a"),
                Timestamp(first_s + 3_600 * hour, 0),
                None,
                JsonPayload(Raw(b'{"value": %d}' % hour)),
            )
            for session, hour in enumerate(hours, 1)
        ],
    )
    return path


def make(store: Path, folder: Path, *arguments: str) -> str:
    """The page of a report."""
    result = run_report(*arguments, "--store", store, "--out", folder, "--engine", "duckdb")
    assert (result.exit_code, result.stderr) == (0, ""), result
    return (folder / "report.html").read_text(encoding="utf-8")


def cells(page: str, report: str) -> Iterator[list[str]]:
    """Rows of a table of the page."""
    [section] = re.findall(rf'<section id="{report}">(.*?)</section>', page, re.DOTALL)
    for row in re.findall("<tr>(<td.*?)</tr>", section):
        yield [html.unescape(i) for i in re.findall(r"<td[^>]*>(.*?)</td>", row)]


def test_times_are_those_of_the_zone(store: Path, tmp_path: Path) -> None:
    asked = ("activity", "--from", "2025-03-22T00:00:00", "--time-zone", "Europe/Berlin")
    page = make(store, tmp_path, *asked)
    zone = "Europe/Berlin, UTC+02:00"
    assert "<dt>From</dt><dd>2025-03-22 02:00:00</dd>" in page
    assert f"<dd>{zone}</dd>" in page
    assert f"Times are {zone} throughout." in page
    begin = [datetime.fromisoformat(f"{row[1]}+02:00") for row in cells(page, "activity")]
    stored = [row["bucket"] for row in table(tmp_path, "activity")]
    assert begin == stored[: len(begin)]
    assert {i.strftime("%H:%M") for i in begin} == {"00:00", "06:00", "12:00", "18:00"}
    assert begin[0] < CHANGE < begin[-1]


def test_an_hour_that_comes_twice_is_drawn_twice(tmp_path: Path) -> None:
    """It is the one before 01:00 UTC, and the one after."""
    begin_s = int(datetime(2025, 10, 26, 0, tzinfo=UTC).timestamp())
    moments = [Timestamp(begin_s + 600 * i, 0) for i in range(12)]
    fill(
        tmp_path / "events",
        [
            Event(EventId(7, i, 1), ("a",), moment, None, JsonPayload(Raw(b"%d" % i)))
            for i, moment in enumerate(moments, 1)
        ],
    )
    page = make(tmp_path / "events", tmp_path, "activity", "values", "--time-zone", "Europe/Berlin")
    assert "Times are Europe/Berlin, UTC+01:00 throughout" in page
    for name, field in (("activity-0", "begin"), ("values-0", "time")):
        marks = charts_of(page)[name]["data"]["values"]
        places = [mark[field] for mark in marks if "when" in mark]
        assert [later - sooner for sooner, later in pairwise(places)] == [600_000] * 11
    shown = [row[1] for row in cells(page, "activity")]
    assert shown[0] == "2025-10-26 01:00:00"
    assert shown[-1] == "2025-10-26 02:50:00"


def test_days_begin_at_midnight_of_the_zone(store: Path, tmp_path: Path) -> None:
    zone = "Asia/Kolkata"
    make(store, tmp_path, "values", "--time-zone", zone, "--from", "2025-03-24")
    for row in table(tmp_path, "values"):
        local = row["bucket"].astimezone(ZoneInfo(zone))
        assert (local.hour * 60 + local.minute) % (row["bucket_s"] / 60) == 0


def test_a_row_leads_to_its_events(store: Path, tmp_path: Path) -> None:
    at = "http://127.0.0.1:23080/?gateway=plant"
    page = make(store, tmp_path, "all", "--time-zone", "Europe/Berlin", "--console", at)
    [gap] = cells(page, "gaps")
    [address] = re.findall(
        r'<a href="([^"]+)" target="_blank" rel="noopener">site/<wbr>a</a>', gap[0]
    )
    query = parse_qs(urlsplit(html.unescape(address)).query)
    [row] = table(tmp_path, "gaps")
    assert row["end"] - row["begin"] == timedelta(hours=31)
    assert query["gateway"] == ["plant"]
    assert query["types"] == ["site/a"]
    assert query["from"] == [row["begin"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")]
    assert query["to"] == [row["end"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")]
    for name in ("activity", "latest", "values", "availability", "runs", "top"):
        assert all('<a href="http' in row[0] for row in cells(page, name)), name
    assert page.count('"href":{"field":"link"') == 5


def test_figures_are_compared_with_the_span_before(store: Path, tmp_path: Path) -> None:
    asked = ("activity", "gaps", "--from", "2025-03-31", "--to", "2025-04-02", "--compare")
    page = make(store, tmp_path, *asked).replace("\N{NO-BREAK SPACE}", " ")
    less = formats.growth(-0.42).replace("\N{NO-BREAK SPACE}", " ")
    none = formats.NOTHING
    assert list(cells(page, "comparison")) == [
        ["Activity: Events", "42", "72", less],
        ["Activity: Payload", "588 B", "1.01 kB", less],
        ["Gaps: Gaps", "1", "0", none],
        ["Gaps: Types", "1", "0", none],
        ["Gaps: Until the end", "0", "0", none],
        ["Gaps: Longest", "1 d 7 h", none, none],
    ]


def test_what_is_compared_ends_alike(tmp_path: Path) -> None:
    """Without an end, both spans do with their last event."""
    begin_s = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp())
    seconds = [86_400 * day + 600 * i for day in range(2) for i in range(100)]
    fill(
        tmp_path / "events",
        [
            Event(EventId(7, i, 1), ("a",), Timestamp(begin_s + second, 0), None, None)
            for i, second in enumerate(seconds, 1)
        ],
    )
    page = make(tmp_path / "events", tmp_path, "gaps", "--from", "2025-01-02", "--compare")
    assert ["Gaps: Until the end", "0", "0", formats.NOTHING] in list(cells(page, "comparison"))


def test_a_page_without_events_has_the_clock_of_its_time(store: Path, tmp_path: Path) -> None:
    """In January 1970, London had summer time."""
    asked = ("--from", "2025-12-01", "--time-zone", "Europe/London")
    assert "Times are Europe/London, UTC throughout." in make(store, tmp_path, "top", *asked)
    page = make(store, tmp_path, "top", *asked, "--to", "2026-06-01")
    assert "Times are Europe/London, UTC+01:00 throughout." in page


def test_a_change_of_what_is_negative_has_the_sign_of_the_difference() -> None:
    """As latencies from the future."""
    report = generate.REPORTS["latency"]
    now, before = (dict.fromkeys(i.name for i in report.figures) for _ in range(2))
    for figures, max_s in ((now, -1.0), (before, -2.0)):
        figures["max_s"] = max_s
    found = generate._compare([report], {"latency": now}, {"latency": before})
    assert [i.change for i in found if i.before != formats.NOTHING] == [formats.growth(0.5)]


def test_a_condition_that_holds_is_an_exit_code(store: Path, tmp_path: Path) -> None:
    asked = ("gaps", "values", "--store", store, "--out", tmp_path, "--engine", "duckdb")
    conditions = ("--fail-if", "gaps.longest_s > 3600", "--fail-if", "values.numbers < 1000")
    result = run_report(*asked, *conditions, "--fail-if", "gaps.open >= 1")
    assert result.exit_code == 5
    assert result.stdout == f"{tmp_path / 'report.html'}\n"
    assert result.stderr == (
        "mariner: error: gaps.longest_s > 3600: it is 111600; values.numbers < 1000: it is 370\n"
    )
    assert run_report(*asked, "--fail-if", "gaps.longest_s > 1e6").exit_code == 0
    # until the end of the time that is asked for, if it is over
    silent = run_report(*asked, "--to", "2025-05-01", "--fail-if", "gaps.longest_s > 2e6")
    [open_gap] = [row for row in table(tmp_path, "gaps") if row["is_open"]]
    assert open_gap["end"] == datetime(2025, 5, 2, tzinfo=UTC) - timedelta(microseconds=1)
    seconds = f"{open_gap['silence_s']:.6f}"
    assert silent.stderr == f"mariner: error: gaps.longest_s > 2000000: it is {seconds}\n"
    # nothing was silent that is not there
    nothing = run_report(*asked, "--type", "other", "--fail-if", "gaps.longest_s > 1")
    assert nothing.exit_code == 0
    silent = run_report(*asked, "--type", "other", "--fail-if", "values.numbers = 0")
    assert silent.exit_code == 5


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--time-zone", "Mars/Base"), "time_zone: 'Mars/Base': no such time zone, expected one as"
         " Europe/Berlin"),
        (("--console", "console:80"), "console: 'console:80': expected an address as"
         " http://127.0.0.1:23080"),
        (("--console", "http://a/\udcff"), "console: 'http://a/\\udcff': expected an address as"
         " http://127.0.0.1:23080"),
        (("--out", "o\udcff"), "out: 'o\\udcff': expected a name in UTF-8"),
        (("--time-zone", "z" * 300), f"time_zone: '{'z' * 97}...{'z' * 98}': no such time zone,"
         " expected one as Europe/Berlin"),
        (("--compare",), "compare: needs the begin of the span: give --from"),
        (("--fail-if", "top.rows > 1"), "fail_if: 'top.rows > 1': no report top, made are gaps"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_is_read(
    store: Path, tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    result = run_report("gaps", "--store", store, "--out", tmp_path / "new", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"mariner: error: {text}\n"
    assert not (tmp_path / "new").exists()
