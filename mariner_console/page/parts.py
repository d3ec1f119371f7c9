"""Small things that panels are made of."""

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from nicegui import ui

from eventer_bridge.errors import ConfigurationError, ControlError, InvalidEventError
from eventer_bridge.model import EventType, parse_event_type
from eventer_bridge.subscription import Subscription
from mariner.gateway.status import GatewayStatus
from mariner_console import limits, texts
from mariner_console.view import Scrape
from mariner_console.watcher import Watcher

COLORS: Final = (
    *("#2f80c9", "#e08a1e", "#3a9d5d", "#c0504d", "#8064a2", "#4bacc6"),
    *("#b5a100", "#d46a9f", "#7f7f7f", "#5b7f3a", "#9c5221", "#3d5a98"),
)
"""Of series; told apart on light and on dark."""

_LONG: Final = frozenset(
    ("Client", "Cursor", "Last payload", "Payload", "Quota", "Reason", "Subscription", "Type")
)
"""Columns of long texts, which are wrapped anywhere."""

_GREY: Final = "#8a949e"


T = TypeVar("T")

Columns: TypeAlias = Mapping[str, Callable[[T], str]]
"""Texts of an item, by the titles of their columns."""


class Panel:
    """Makes its elements when it is created; only this module says how things look."""

    async def refresh(self) -> None:
        """Show what is known now; called once a second while it is looked at."""


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
            self._value = ui.label(texts.UNKNOWN).classes("console-value")
            ui.label(title).classes("console-note")

    def set(self, text: str) -> None:
        """Show another value."""
        self._value.set_text(text)


class TimeChart:
    """Lines over time; the title is for screen readers."""

    def __init__(self, title: str, unit: str) -> None:
        self._unit = unit
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
            # beside the unit of the axis, which is at the top left
            "legend": {"type": "scroll", "top": 0, "left": 88, "textStyle": {"color": _GREY}},
            # rich text is drawn, not parsed as HTML
            "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True},
            "xAxis": {"type": "time", **axis, "splitLine": {"show": False}},
            "yAxis": {
                "type": "value",
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


class TextTable(Generic[T]):
    """A table of items; ``key`` returns what identifies one, else its first text does.

    ``empty`` is shown without rows: ours, not from events. ``page_rows`` are seen at a time.
    ``on_pick`` is called with the key of the row that is picked, and None when it no longer is;
    else rows cannot be.
    """

    def __init__(
        self,
        columns: Columns[T],
        *,
        key: Callable[[T], str] | None = None,
        empty: str = "Nothing.",
        page_rows: int = 25,
        on_pick: Callable[[str | None], Awaitable[None] | None] | None = None,
    ) -> None:
        self._texts = {"key": key or next(iter(columns.values()))}
        self._texts |= {f"column{index}": text for index, text in enumerate(columns.values())}
        self._page_rows = page_rows
        self._table = ui.table(
            columns=[
                {
                    "name": f"column{index}",
                    "label": title,
                    "field": f"column{index}",
                    "align": "left",
                    "sortable": True,
                    "classes": "console-long" if title in _LONG else "console-short",
                }
                for index, title in enumerate(columns)
            ],
            rows=[],
            row_key="key",
            pagination={"rowsPerPage": page_rows},
            selection="single" if on_pick else None,
            on_select=lambda e: on_pick and on_pick(e.selection[0]["key"] if e.selection else None),
        ).classes("console-table")
        self._table.props(f'flat dense wrap-cells no-data-label="{empty}"')

    def row(self, item: T) -> dict[str, str]:
        """The key and the texts of an item."""
        return {name: text(item) for name, text in self._texts.items()}

    def set(self, items: Iterable[T]) -> None:
        """Show other items."""
        rows = [self.row(i) for i in items]
        if self._table.rows != rows:
            picked = {i["key"] for i in self._table.selected}
            self._table.rows = rows
            self._table.props["hide-pagination"] = len(rows) <= self._page_rows
            self._table.selected = [i for i in rows if i["key"] in picked]

    def show(self, is_shown: bool) -> None:
        """Show or hide it."""
        self._table.set_visibility(is_shown)


def note(text: str) -> ui.label:
    """A line of small print."""
    return ui.label(text).classes("console-note")


def failure() -> ui.label:
    """A place for what went wrong; read aloud where pages are."""
    return ui.label("").classes("console-bad").props("role=alert")


def unfolded() -> ui.label:
    """A place for a payload in several lines."""
    return ui.label("").classes("console-unfolded").props("tabindex=0")


async def is_confirmed(question: str, what: str, button: str) -> bool:
    """Ask a second time: ``what`` is to be done, in lines; ``button`` is for yes, not focused."""
    with ui.dialog() as dialog, ui.card():
        ui.label(question)
        ui.label(what).classes("console-unfolded")
        with ui.row():
            ui.button(button, on_click=lambda: dialog.submit(True))
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("outline autofocus")
    is_yes = await dialog is True
    dialog.delete()
    return is_yes


def field(title: str, value: str = "", **attributes: Any) -> ui.input:
    """A field for a line of text."""
    made = ui.input(title, value=value, **attributes)
    return made.props("outlined dense").classes("console-field")


def patterns_of(text: str) -> list[EventType]:
    """Event types with wildcards, as they are typed: separated by blanks; nothing: all.

    Raises InvalidEventError if one is wrong.
    """
    if len(text) > limits.MAX_INPUT_CHARACTERS:
        raise InvalidEventError("that is too long")
    patterns = [parse_event_type(i) for i in text.split()] or [("*",)]
    Subscription(patterns)  # checks that '*' is last
    return patterns


class MetricRow(NamedTuple):
    """A value of a label, and values of metrics (without ``mariner_``) by this label."""

    label: str
    by: Callable[[str], Mapping[str, float]]


def metric(name: str, show: Callable[[float | None], str]) -> Callable[[MetricRow], str]:
    """A column with a metric."""
    return lambda row: show(row.by(name).get(row.label))


def rows_by(
    scrape: Scrape | None, label: str, first: str, *, is_ranked: bool = False
) -> list[MetricRow]:
    """A row for each value of a label that a metric has; the largest first, if ranked."""
    if scrape is None:
        return []
    by = functools.cache(lambda name: scrape.by(f"mariner_{name}", label))
    found = by(first)
    return [
        MetricRow(i, by) for i in (sorted(found, key=lambda i: -found[i]) if is_ranked else found)
    ]


async def status_of(watcher: Watcher, failed: ui.label) -> GatewayStatus | None:
    """What the control socket tells; None: nothing, and the label says why."""
    try:
        status = await watcher.status()
    except (ConfigurationError, ControlError) as e:
        failed.set_text(texts.shown(str(e), 400))
        return None
    failed.set_text("")
    return status
