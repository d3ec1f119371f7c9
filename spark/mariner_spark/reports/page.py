"""The page of reports: one self-contained HTML file, for phones and desktops.

Charts are Vega-Lite, whose scripts come from the package vl-convert-python and are embedded into
the page. Contents of events are untrusted: texts are escaped (by Jinja, and in data by
:func:`_json`), expressions are interpreted and not compiled, and the page's policy (CSP) runs only
its own scripts, and loads nothing.
"""

import base64
import hashlib
import json
import math
import tempfile
from collections.abc import Sequence
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import jinja2
import vl_convert

from mariner_spark import limits
from mariner_spark.reports import formats
from mariner_spark.reports.views import LINK, Column, Domain, Report, Row, View
from mariner_spark.session import cache_folder

VEGA_LITE: Final = "6.4"
"""Version of Vega-Lite, one of those in vl-convert-python."""

_FOLDER: Final = resources.files(__package__)  # which may be in a zip file, on a cluster

_ENVIRONMENT: Final = jinja2.Environment(
    autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_RIGHT: Final = frozenset(("count", "size", "duration", "share", "growth", "number", "ratio"))


class Fact(NamedTuple):
    """A figure at the top of the page."""

    title: str
    text: str


class Compared(NamedTuple):
    """A figure, and what it was in the span before; texts."""

    title: str
    now: str
    before: str
    change: str


class Section(NamedTuple):
    """A report on the page: its first rows, as in its files, and totals of all rows."""

    report: Report
    rows: Sequence[Row]
    totals: Row

    @property
    def n_rows(self) -> int:
        """Number of all rows."""
        return int(self.totals.get("rows", len(self.rows)))


def chart_programs() -> str:
    """Vega, Vega-Lite and vega-embed as one script of 900 kB; kept: it takes a second to build."""
    kept = cache_folder() / f"charts-{version('vl-convert-python')}-{VEGA_LITE}.js"
    if kept.exists():
        return kept.read_text(encoding="utf-8")
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE)
    bundle = bundle.replace("</script", "<\\/script")  # would end the script element
    with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False, encoding="utf-8") as file:
        file.write(bundle)
    Path(file.name).replace(kept)  # another process may be building it as well
    return bundle


def render(
    *, title: str, about: Sequence[Fact], facts: Sequence[Fact], sections: Sequence[Section],
    domain: Domain, programs: str, zone: str = "UTC", comparison: Sequence[Compared] = (),
) -> str:  # fmt: skip
    """The page; without ``facts``, there are no events. ``programs``: :func:`chart_programs`.

    ``zone``: the title of the time zone of the rows' moments.
    """
    specs: dict[str, Any] = {}
    shown = [_section(section, domain, specs) for section in sections]
    scripts = (programs, _read("page.js")) if specs else ()
    template = _ENVIRONMENT.from_string(_read("page.html.jinja"))
    return template.render(
        title=title,
        about=about,
        facts=facts,
        sections=shown,
        scripts=scripts,
        policy=" ".join(map(_policy_source, scripts)) or "'none'",
        specs=_json(specs),
        nothing=formats.NOTHING,
        zone=zone,
        comparison=comparison,
    )


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _section(section: Section, domain: Domain, specs: dict[str, Any]) -> dict[str, Any]:
    """Variables of the template for a report; its charts' specifications go to ``specs``."""
    report, rows, totals = section
    view = report.view(rows, totals, domain) if rows else View("")
    charts = [(f"{report.name}-{number}", chart) for number, chart in enumerate(view.charts)]
    specs |= {name: chart.spec for name, chart in charts}
    small = [i for i in charts if i[1].is_small]  # side by side
    groups = [[i] for i in charts if not i[1].is_small] + ([small] if small else [])
    return {
        "report": report,
        "finding": view.finding,
        "charts": groups,
        "columns": [(column.title, column.kind in _RIGHT) for column in report.columns],
        "rows": [_cells(report.columns, row) for row in rows[: limits.PAGE_ROWS]],
        "n_shown": formats.count(min(len(rows), limits.PAGE_ROWS)),
        "n_rows": formats.count(section.n_rows),
        "n_in_files": formats.count(len(rows)),
    }


class _Cell(NamedTuple):
    """A cell of a table: its text, its kind, and the address that it leads to."""

    text: str
    kind: str
    link: str | None

    @property
    def is_right(self) -> bool:
        return self.kind in _RIGHT


def _cells(columns: Sequence[Column], row: Row) -> list[_Cell]:
    cells = []
    link = row.get(LINK)  # of the first cell
    for name, _, kind in columns:
        value = row[name]
        if kind == "text" and value is not None:
            value = str(value)
        cells.append(_Cell(formats.show(kind, value), kind, link))
        link = None
    return cells


def _json(value: Any) -> str:
    """JSON for HTML: it cannot end the script element, and has null for NaN and infinity."""
    text = json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(i) for key, i in value.items()}
    return [_finite(i) for i in value] if isinstance(value, list | tuple) else value


def _policy_source(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
