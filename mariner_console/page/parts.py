"""Small things that panels are made of."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from nicegui import ui

from mariner_console.texts import UNKNOWN

COLORS: Final = (
    *("#2f80c9", "#e08a1e", "#3a9d5d", "#c0504d", "#8064a2", "#4bacc6"),
    *("#b5a100", "#d46a9f", "#7f7f7f", "#5b7f3a", "#9c5221", "#3d5a98"),
)
"""Of series; told apart on light and on dark."""

_GREY: Final = "#8a949e"


class Series(NamedTuple):
    """A line of a chart: points of seconds since 1970 and values; None: a gap."""

    name: str
    points: Sequence[tuple[float, float | None]]


def card(title: str) -> ui.card:
    """A card with a heading."""
    made = ui.card().classes("console-card").props("flat bordered")
    with made:
        ui.label(title).classes("console-title").props("role=heading aria-level=2")
    return made


class Figure:
    """A figure with what it is of."""

    def __init__(self, title: str) -> None:
        with ui.element("div").classes("console-figure"):
            self._value = ui.label(UNKNOWN).classes("console-value")
            ui.label(title).classes("console-note")

    def set(self, text: str) -> None:
        """Show another value."""
        self._value.set_text(text)


class TimeChart:
    """Lines over time.

    Args:
        title: said to those who do not see it.
        unit: of the values.
        is_log: whether the axis is logarithmic.
    """

    def __init__(self, title: str, unit: str, *, is_log: bool = False) -> None:
        self._unit = unit
        self._is_log = is_log
        self._chart = ui.echart(self._options([]), renderer="svg").classes("console-chart")
        self._chart.props(f'role=img aria-label="{title}"')

    def set(self, series: Sequence[Series]) -> None:
        """Draw other lines."""
        self._chart.options.clear()
        self._chart.options.update(self._options(series))
        self._chart.update()

    def _options(self, series: Sequence[Series]) -> dict[str, Any]:
        axis = {
            "axisLabel": {"color": _GREY, "hideOverlap": True},
            "splitLine": {"lineStyle": {"color": "#8884"}},
        }
        return {
            "animation": False,
            "color": [*COLORS],
            "grid": {"left": 8, "right": 16, "top": 36, "bottom": 8, "containLabel": True},
            "legend": {"type": "scroll", "top": 0, "textStyle": {"color": _GREY}},
            # rich text is drawn, not parsed as HTML
            "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True},
            "xAxis": {"type": "time", **axis, "splitLine": {"show": False}},
            "yAxis": {
                "type": "log" if self._is_log else "value",
                "name": self._unit,
                "nameTextStyle": {"color": _GREY},
                "scale": True,
                **axis,
            },
            "series": [
                {
                    "type": "line",
                    "name": i.name,
                    "showSymbol": len(i.points) < 60,
                    "symbolSize": 4,
                    "data": [[at_s * 1000, value] for at_s, value in i.points],
                }
                for i in series
            ],
        }


class TextTable:
    """A table.

    Args:
        columns: titles by name; a name in upper case is of numbers, which are on the right.
        key: name of the column that identifies a row.
    """

    def __init__(self, columns: Mapping[str, str], *, key: str, empty: str = "Nothing.") -> None:
        self._table = ui.table(
            columns=[
                {
                    "name": name,
                    "label": title,
                    "field": name,
                    "align": "left",
                    "sortable": True,
                    "classes": "console-cell",
                }
                for name, title in columns.items()
            ],
            rows=[],
            row_key=key,
            pagination={"rowsPerPage": 25},
        ).classes("console-table")
        self._table.props(f'flat dense wrap-cells no-data-label="{empty}"')

    def set(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show other rows."""
        if self._table.rows != rows:
            self._table.rows = [dict(i) for i in rows]


def note(text: str) -> ui.label:
    """A line of small print."""
    return ui.label(text).classes("console-note")


def unfolded() -> ui.label:
    """A place for a payload in several lines."""
    return ui.label("").classes("console-unfolded").props("tabindex=0")


def field(title: str, value: str = "", **attributes: Any) -> ui.input:
    """A field for a line of text."""
    made = ui.input(title, value=value, **attributes)
    return made.props("outlined dense").classes("console-field")
