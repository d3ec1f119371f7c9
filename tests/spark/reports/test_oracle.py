"""Reports of nasty stores are what the oracle says: each cell, and each sentence of the page.

By both engines, of a store and of a lake.

Few rows count as many here, so that every report has more than it shows.
"""

import html
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from mariner_spark import limits
from mariner_spark.cli.report import NAMES
from mariner_spark.lake import maintenance
from mariner_spark.reports import formats
from mariner_spark.reports.generate import REPORTS
from tests.spark.lake.support import append
from tests.spark.reports.nasty import nasty_store
from tests.spark.reports.oracle import Asked, Oracle, Rows
from tests.spark.reports.support import COLUMNS, run_report, shape, table
from tests.spark.support import EXAMPLES, few, fill, not_simplest

pytestmark = pytest.mark.usefixtures("other_time_zone")  # moments are the same in any

_SMALL: Final = {
    "PAGE_ROWS": 5,
    "REPORT_ROWS": 9,
    "REPORT_TOP_TYPES": 7,
    "REPORT_VALUE_TYPES": 4,
    "REPORT_PREFIXES": 3,
}
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"

_asked = st.builds(
    Asked,
    st.none() | st.just((("site", "*"), ("many1", "?"), ("event", "?", "engine"))),
    st.integers(1, 3),
    st.sampled_from((("value",), ("a", "b"), ())),
)


@pytest.mark.timeout(240 + 60 * EXAMPLES)
@settings(few, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(not_simplest(st.integers(0, 2**32)), _asked)
def test_reports_say_what_the_oracle_says(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int, asked: Asked
) -> None:
    folder = tmp_path_factory.mktemp("nasty")
    events, path = nasty_store(seed), "".join(["$", *(f".{key}" for key in asked.keys)])
    fill(folder / "events", events)
    append(folder / "lake", events, path)
    maintenance.update(str(folder / "lake"))  # the numbers are taken from its rollups
    oracle = Oracle(events, asked)
    types = [f"--type={'/'.join(i)}" for i in asked.types or ()]
    for source, engine in (("store", "duckdb"), ("store", "spark"), ("lake", "duckdb")):
        origin = folder / ("events" if source == "store" else "lake")
        out = folder / f"{source}-{engine}"
        with pytest.MonkeyPatch.context() as patch:
            for name, small in _SMALL.items():
                patch.setattr(limits, name, small)
            result = run_report(
                *("all", f"--{source}", origin, "--engine", engine, "--out", out),
                *("--value-path", path, "--depth", str(asked.depth), *types),
            )
            assert result.exit_code == 0, result
            check_report(out, oracle)


def check_report(folder: Path, oracle: Oracle) -> None:
    """Whether the files of all reports, and the page, are what they should be."""
    page = (folder / "report.html").read_text(encoding="utf-8")
    for name in NAMES:
        rows = oracle.rows(name)
        n_rows = {"top": limits.REPORT_TOP_TYPES, "activity": len(rows), "values": len(rows)}
        in_files = rows[: n_rows.get(name, limits.REPORT_ROWS)]
        if name == "runs":
            in_files = first_of_each_kind(rows)
        found = table(folder, name)
        check_cells(name, found, in_files)
        check_section(name, page, found, oracle, len(rows))
        stored = pyarrow.parquet.read_table(folder / f"{name}.parquet")
        assert shape(stored.schema) == COLUMNS[name]
    check_facts(page, oracle.facts())


def first_of_each_kind(rows: Rows) -> Rows:
    """The first rows of each kind, by place: rows may be equal, and be cut between two that are."""
    counts = Counter[str]()
    found = []
    for row in rows:
        counts[row["kind"]] += 1
        if counts[row["kind"]] <= limits.REPORT_ROWS:
            found.append(row)
    return found


def check_cells(name: str, found: Rows, expected: Rows) -> None:
    """Whether a table is what it should be; means of large numbers are rounded."""
    assert len(found) == len(expected), name
    for row, right in zip(found, expected, strict=True):
        assert row.keys() == right.keys()
        largest = max(abs(right.get("min") or 0), abs(right.get("max") or 0))
        for column, value in right.items():
            where = f"{name}.{column}: {row}, expected {right}"
            if isinstance(value, float):
                assert isinstance(row[column], float), where
                assert math.isfinite(row[column]), where
                # below the least normal number no digits are left, so that rounding may take all
                apart = max(1e-9 * largest, sys.float_info.min)
                assert math.isclose(row[column], value, rel_tol=1e-9, abs_tol=apart), where
            else:
                assert row[column] == value, where


def check_section(name: str, page: str, found: Rows, oracle: Oracle, n_rows: int) -> None:
    """Whether the page says of a report what it should, and shows the begin of its table."""
    [section] = re.findall(rf'<section id="{name}">(.*?)</section>', page, re.DOTALL)
    if not n_rows:
        assert "Nothing to show." in section
        return
    assert texts(r'<p class="finding">(.*?)</p>', section) == [plain(oracle.finding(name))]
    rows = found[: limits.PAGE_ROWS]
    shown = f"{len(rows)} of " if len(rows) < n_rows else ""
    assert texts("<summary>(.*?)</summary>", section) == [
        f"Table: {shown}{n_rows:,} {'row' if n_rows == 1 else 'rows'}"
    ]
    are = REPORTS[name].first_are
    part = f"{len(found)} of {n_rows:,} rows, {are}" if len(found) < n_rows else "All rows"
    assert texts('<p class="files">(.*?)</p>', section) == [f"{part}: {name}.csv, {name}.parquet"]
    cells = texts("<td[^>]*>(.*?)</td>", section.replace("<wbr>", ""))
    columns = REPORTS[name].columns
    assert cells == [
        plain(formats.show(i.kind, str(row[i.name]) if i.kind == "text" and row[i.name] is not None
                           else row[i.name]))
        for row in rows
        for i in columns
    ]  # fmt: skip


def check_facts(page: str, expected: dict[str, str]) -> None:
    """Whether the figures at the top are what they should be."""
    [facts] = re.findall(r'<dl class="facts">(.*?)</dl>', page, re.DOTALL)
    pairs = re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", facts)
    assert {name: plain(html.unescape(text)) for name, text in pairs} == {
        name: plain(text) for name, text in expected.items()
    }


def texts(pattern: str, part: str) -> list[str]:
    """What a browser shows of what matches."""
    return list(map(plain, map(html.unescape, re.findall(pattern, part, re.DOTALL))))


def plain(text: str) -> str:
    return text.replace(_NO_BREAK, " ")


def test_the_nasty_stores_have_what_they_are_for() -> None:
    """Of some stores: every report is cut, and most of what may go wrong is there."""
    oracles = [Oracle(nasty_store(seed), Asked()) for seed in range(1, 8)]

    def share(conditions: Iterable[Any]) -> float:
        found = list(map(bool, conditions))
        return sum(found) / len(found)

    for name in ("latest", "gaps", "latency", "runs", "top"):
        assert share(len(oracle.rows(name)) > 9 for oracle in oracles) > 0.3, name
    assert share(any(i.is_unread for i in oracle.events) for oracle in oracles) > 0.5
    assert share(any(i["ended_by"] == "killed" for i in oracle.runs()) for oracle in oracles) > 0.5
    assert share(any(i["is_open"] for i in oracle.gaps()) for oracle in oracles) > 0.5
