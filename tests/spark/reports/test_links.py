"""Links to events in the console."""

from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import parse_qs, urlsplit

import pytest

from mariner_console.page.parts import patterns_of
from mariner_spark.errors import OptionError
from mariner_spark.reports import links
from mariner_spark.reports.links import Behind

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def query_of(behind: Behind, console: str = "http://console:23080") -> dict[str, str]:
    parts = urlsplit(links.link(console, behind))
    assert f"{parts.scheme}://{parts.netloc}{parts.path}" == "http://console:23080/"
    return {name: text for name, [text] in parse_qs(parts.query, strict_parsing=True).items()}


def test_a_link_asks_for_the_events_behind_a_row() -> None:
    end = NOON.astimezone(timezone(timedelta(hours=2))) + timedelta(microseconds=5)
    assert query_of(links.of_type("site/a", NOON, end)) == {
        "view": "Query",
        "types": "site/a",
        "from": "2026-01-02T12:00:00.000000Z",
        "to": "2026-01-02T12:00:00.000005Z",
        "limit": "1000",
        "order": "old",
    }
    of_gateway = query_of(Behind(("*",)), "http://console:23080/?gateway=plant+1")
    assert of_gateway["gateway"] == "plant 1"
    assert "from" not in of_gateway


@pytest.mark.parametrize(
    "pattern", [("a", "b"), ("a b", "c/d", "*"), ("", "x"), ("a\u2028b",), ("[", "&=#")]
)
def test_the_console_reads_the_pattern(pattern: tuple[str, ...]) -> None:
    assert patterns_of(query_of(Behind(pattern))["types"]) == [pattern]


@pytest.mark.parametrize(
    "text",
    [
        *("javascript:alert(1)", "console:80", "http://", "http://[::1", "https://a/#b"),
        *("http://me:secret@a/", "http://me@a/", "http://a:0/", "http://a:65536/", "http://a:b/"),
    ],
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    links.check("https://console.example/m/?gateway=a")
    with pytest.raises(OptionError, match=r"expected an address as http://127\.0\.0\.1:23080"):
        links.check(text)
