"""What a person asks of a report: my clock, the events behind it, is it worse, and tell me."""

import html
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import pytest
from msgspec import Raw

from eventer_bridge.model import Event, EventId, JsonPayload, Timestamp
from mariner_spark.reports import formats
from tests.spark.reports.support import run_report, table
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
    page = make(store, tmp_path, "activity", "--time-zone", "Europe/Berlin")
    assert "Times are those of Europe/Berlin." in page
    begin = [row[1] for row in cells(page, "activity")]
    # buckets of six hours go on through the change, and are named by the clock
    place = begin.index("2025-03-30 00:00:00")
    assert begin[place : place + 2] == ["2025-03-30 00:00:00", "2025-03-30 07:00:00"]
    stored = [row["bucket"] for row in table(tmp_path, "activity")]
    assert (stored[place + 1] - stored[place]) == timedelta(hours=6)
    assert stored[place].astimezone(BERLIN).strftime("%H:%M") == "00:00"


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
