"""A query: a form, its events in a table, one of them unfolded, their numbers in a chart."""

from collections.abc import Sequence

from nicegui import ui

from eventer_bridge import moments
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import Event, Order, QueryTimeseriesParams
from mariner.cli.values import plural
from mariner.errors import MarinerError
from mariner_console import limits, texts
from mariner_console.page.parts import (
    Series,
    TextTable,
    TimeChart,
    card,
    failure,
    field,
    note,
    patterns_of,
    unfolded,
)
from mariner_console.watcher import Watcher

_COLUMNS = {
    "id": "Id", "time": "Time (UTC)", "source": "Source time", "type": "Type",
    "payload": "Payload",
}  # fmt: skip


class QueryPanel:
    """The panel."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._events: list[Event] = []
        self._paths: list[str] = []
        with card("Query"):
            with ui.element("div").classes("console-form"):
                self._types = field("Types", "*")
                self._from = field("From, as 2026-11-21T10:00Z")
                self._to = field("To")
                self._limit = ui.number("At most", value=100, min=1, max=limits.MAX_QUERY_ROWS)
                self._limit.props("outlined dense")
                orders = {"new": "newest first", "old": "oldest first"}
                self._order = ui.select(orders, value="new").props(
                    'outlined dense aria-label="Order"'
                )
                self._button = ui.button("Query", on_click=self.query)
            for i in (self._types, self._from, self._to, self._limit):
                i.on("keydown.enter", self.query)
            self._failure = failure()
            self._count = note("").props("role=status")
        self._numbers = card("Numbers")
        self._numbers.set_visibility(False)
        with self._numbers:
            self._path = ui.select([], on_change=self._draw).props("outlined dense")
            self._path.props('aria-label="Which number of the payloads"')
            self._chart = TimeChart("Numbers of the payloads over time", "")
        with card("Events"):
            self._picked = unfolded()
            self._table = TextTable(_COLUMNS, key="id", empty="No events.", on_pick=self._pick)

    async def refresh(self) -> None:
        """Nothing here changes by itself."""

    async def query(self) -> None:
        """Query what the form says."""
        self._failure.set_text("")
        self._button.disable()
        try:
            params, limit = self._read()
            self._events, has_more = await self._watcher.query(params, limit)
        except (InvalidEventError, MarinerError, TimeoutError) as e:
            self._failure.set_text(texts.shown(str(e) or "no answer in time", 400))
            return
        finally:
            self._button.enable()
        more = ", and there are more" if has_more else ""
        self._count.set_text(f"{len(self._events):,} {plural(len(self._events), 'event')}{more}")
        self._table.set([_row(i) for i in self._events])
        self._pick(None)
        self._choose_number()

    def _read(self) -> tuple[QueryTimeseriesParams, int]:
        limit = max(1, min(int(self._limit.value or 1), limits.MAX_QUERY_ROWS))
        t_from, t_to = self._from.value.strip(), self._to.value.strip()
        params = QueryTimeseriesParams(
            patterns_of(self._types.value),
            t_from=moments.parse(t_from) if t_from else None,
            t_to=moments.parse_last(t_to) if t_to else None,
            order=Order.DESCENDING if self._order.value == "new" else Order.ASCENDING,
            max_results=limit + 1,
        )
        return params, limit

    def _pick(self, event_id: str | None) -> None:
        found = (i for i in self._events if texts.of_id(i.id) == event_id)
        event = next(found, None)
        self._picked.set_text("" if event is None else texts.of_event(event))

    def _choose_number(self) -> None:
        paths = {path: None for i in self._events for path in texts.numbers(i.payload)}
        self._paths = [*paths][: limits.MAX_NUMBERS]
        # by their places: what events contain is no key of anything
        named = {index: path or "the payload" for index, path in enumerate(self._paths)}
        self._numbers.set_visibility(bool(named))
        self._path.set_options(named, value=0 if named else None)
        self._draw()

    def _draw(self) -> None:
        index = self._path.value
        if index is None or index >= len(self._paths):
            self._chart.set([])
        else:
            self._chart.set(_series(self._events, self._paths[index]))


def _row(event: Event) -> dict[str, str]:
    source = event.source_timestamp
    return {
        "id": texts.of_id(event.id),
        "time": texts.of_moment(event.timestamp),
        "source": "" if source is None else texts.of_moment(source),
        "type": texts.of_type(event.type),
        "payload": texts.of_payload(event.payload),
    }


def _series(events: Sequence[Event], path: str) -> list[Series]:
    """The numbers at a path, of the types that have the most of them."""
    points: dict[str, list[tuple[float, float | None]]] = {}
    for event in events:
        number = texts.numbers(event.payload).get(path)
        if number is not None:
            moment_s = event.timestamp.to_float()
            points.setdefault(texts.of_type(event.type), []).append((moment_s, number))
    most = sorted(points.items(), key=lambda i: -len(i[1]))[: limits.MAX_SERIES]
    return [Series(name, sorted(found)) for name, found in most]
