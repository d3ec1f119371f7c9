"""Small things that panels are made of."""

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlencode

import msgspec
from nicegui import ui

from eventer_bridge.errors import ConfigurationError, ControlError, InvalidEventError
from eventer_bridge.model import EventType, format_event_type, parse_event_type
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
    (
        *("Client", "Cursor", "Last payload", "Payload", "Quota", "Reason", "Subscription"),
        *("Type", "What is wrong"),
    )
)
"""Columns of long texts, which are wrapped anywhere."""

_GREY: Final = "#8a949e"

UNKNOWN: Final = "Not known."
"""In place of rows."""

_ROW: Final = """
<q-tr :props="props" :class="['console-row', props.row.style, {'console-open': props.row.is_open}]"
    tabindex="0" @click="$parent.$emit('pick', props.row.key)"
    @keydown.enter="$parent.$emit('pick', props.row.key)">
  <q-td v-for="i in props.cols" :key="i.name" :props="props">{{ i.value }}</q-td>
</q-tr>
<q-tr v-if="props.row.detail" :props="props" no-hover>
  <q-td colspan="100%">
    <div class="console-unfolded" tabindex="0">{{ props.row.detail }}</div>
  </q-td>
</q-tr>
"""
"""A row that opens; what events contain gets into it as text."""

T = TypeVar("T")

Columns: TypeAlias = Mapping[str, Callable[[T], str]]
"""Texts of an item, by the titles of their columns."""


class Panel:
    """Makes its elements when it is created; only this module says how things look.

    ``asks``: a refresh asks the gateway, and is left out while that gives no answer; what the panel
    shows is greyed then, as it is old. Others see to that themselves. ``on_state`` is to be called
    when :meth:`state` has changed.
    """

    asks: ClassVar[bool] = False
    on_state: Callable[[], None] = staticmethod(lambda: None)

    async def refresh(self) -> None:
        """Show what is known now; called once a second while it is looked at."""

    def state(self) -> dict[str, str]:
        """What a link to this view has to say."""
        return {}

    async def open(self, state: Mapping[str, str]) -> None:
        """Show what a link says, which anybody may have written: only look at things."""


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

    def set(self, text: str, *, is_old: bool) -> None:
        """Show another value."""
        self._value.set_text(text)
        show_old(self._value, is_old)


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
    ``style`` returns the class of a row. A row opens and closes by a click (or Enter) if there is
    ``on_pick``, which is called with the key of the row that is open, and None when it no longer
    is, or ``detail``, the text that is shown below it then; it depends only on the item.
    """

    def __init__(
        self,
        columns: Columns[T],
        *,
        key: Callable[[T], str] | None = None,
        empty: str = "Nothing.",
        page_rows: int = 25,
        on_pick: Callable[[str | None], Awaitable[None] | None] | None = None,
        detail: Callable[[T], str] | None = None,
        style: Callable[[T], str] = lambda _: "",
    ) -> None:
        self._texts = {"key": key or next(iter(columns.values()))}
        self._texts |= {f"column{index}": text for index, text in enumerate(columns.values())}
        self._page_rows = page_rows
        self._empty = empty
        self._on_pick = on_pick
        self._detail = detail
        self._style = style
        self._items: list[T] = []
        self._picked: str | None = None
        self._opened: tuple[T, str] | None = None  # the item that is open, and its detail
        self._table = ui.table(
            columns=[
                {
                    "name": f"column{index}",
                    "label": title,
                    "field": f"column{index}",
                    "align": "left",
                    "sortable": True,
                    ":sort": "consoleOrder",
                    "classes": "console-long" if title in _LONG else "console-short",
                }
                for index, title in enumerate(columns)
            ],
            rows=[],
            row_key="key",
            pagination={"rowsPerPage": page_rows},
        ).classes("console-table")
        self._table.props(f'flat dense wrap-cells no-data-label="{UNKNOWN}"')
        if on_pick is not None or detail is not None:
            self._table.add_slot("body", _ROW)
            self._table.on("pick", lambda e: self._toggle(e.args))
        else:
            self._table.props(':table-row-class-fn="row => row.style"')

    def texts(self, item: T) -> list[str]:
        """The texts of an item."""
        return [text(item) for name, text in self._texts.items() if name != "key"]

    def set(self, items: Iterable[T] | None) -> None:
        """Show other items; None: they are not known, and what is there stays."""
        label = UNKNOWN if items is None else self._empty
        if self._table.props["no-data-label"] != label:
            self._table.props["no-data-label"] = label
        if items is None:
            return
        self._items = [*items]
        rows = [self._row(i) for i in self._items]
        if self._table.rows != rows:
            self._table.rows = rows
            self._table.props["hide-pagination"] = len(rows) <= self._page_rows

    def pick(self, key: str | None) -> None:
        """Show the row of a key as open, and no other one."""
        self._picked = key
        self.set(self._items)

    def _row(self, item: T) -> dict[str, Any]:
        row: dict[str, Any] = {name: text(item) for name, text in self._texts.items()}
        is_open = row["key"] == self._picked
        row["detail"] = self._detail_of(item) if is_open else ""
        return {**row, "is_open": is_open, "style": self._style(item)}

    def _detail_of(self, item: T) -> str:
        if self._detail is None:
            return ""
        if self._opened is None or self._opened[0] is not item:  # it may be long
            self._opened = item, self._detail(item)
        return self._opened[1]

    async def _toggle(self, key: Any) -> None:
        if not any(i["key"] == key for i in self._table.rows):
            return  # it is gone meanwhile
        self.pick(None if key == self._picked else key)
        if self._on_pick is not None and (waiting := self._on_pick(self._picked)) is not None:
            await waiting

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


def show_old(element: ui.element, is_old: bool) -> None:
    """Grey what is in an element, or no longer, because it is not of now.

    Of what is empty it says that it is not known, until something else is shown.
    """
    if is_old is ("console-old" in element.classes):
        return
    element.classes(toggle="console-old")
    if is_old:
        for i in element.descendants():
            if isinstance(i, ui.table):
                i.props["no-data-label"] = UNKNOWN
            elif isinstance(i, ui.tree):
                i.props["no-nodes-label"] = UNKNOWN


def of_first(n_shown: int, n_all: int, what: str) -> str:
    """How many are shown: "the first 500 of 12,340 types"; nothing if all are."""
    return f"the first {n_shown:,} of {n_all:,} {what}" if n_shown < n_all else ""


def link(gateway: str, view: str, state: Mapping[str, str]) -> str:
    """The address of a view of a gateway; one that is too long opens the view without its state."""
    place = {"gateway": gateway, "view": view}
    found = f"/?{urlencode({**place, **state})}"
    return found if len(found) <= limits.MAX_LINK_CHARACTERS else f"/?{urlencode(place)}"


def pattern_text(pattern: EventType) -> str:
    """What :func:`patterns_of` takes for this pattern."""
    text = format_event_type(pattern)
    if any(map(str.isspace, text)):
        text = msgspec.json.encode(pattern).decode()
    return "".join(f"\\u{ord(i):04x}" if i.isspace() else i for i in text)


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
) -> list[MetricRow] | None:
    """A row for each value of a label that a metric has; the largest first, if ranked.

    None: there are no metrics.
    """
    if scrape is None:
        return None
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
