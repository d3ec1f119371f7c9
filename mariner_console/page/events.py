"""Events: those of a query, those that come, and one that a user registers."""

import logging
from collections.abc import Mapping, Sequence

import msgspec
from nicegui import ui
from typing_extensions import override

from eventer_bridge import model, moments
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import Event, RegisterEvent, format_event_id, parse_event_type
from mariner.cli.values import counted, parse_event_id, plural
from mariner.errors import MarinerError
from mariner_console import limits, texts
from mariner_console.page import parts
from mariner_console.page.parts import Columns, Panel, TextTable
from mariner_console.watcher import Kept, Tail, Watcher

mlog = logging.getLogger(__name__)


class QueryPanel(Panel):
    """A form, the events in a table, one of them unfolded, their numbers in a chart."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._events: list[Event] = []
        self._paths: list[str] = []
        self._has_more_paths = False
        self._asked: dict[str, str] = {}
        with parts.card("Query"):
            with ui.element("div").classes("console-form"):
                self._types = parts.field("Types", "*")
                self._from = parts.field("From, as -1h or 2026-11-21T10:00Z")
                self._to = parts.field("To")
                self._ids = parts.field("Ids, as 1/42/1")
                self._limit = ui.number("At most", value=100, min=1, max=limits.MAX_QUERY_ROWS)
                self._limit.props("outlined dense")
                orders = {"new": "newest first", "old": "oldest first"}
                self._order = ui.select(orders, value="new").props(
                    'outlined dense aria-label="Order"'
                )
                self._button = ui.button("Query", on_click=self.query)
            self._fields = {"types": self._types, "from": self._from}
            self._fields |= {"to": self._to, "ids": self._ids}
            for i in (*self._fields.values(), self._limit):
                i.on("keydown.enter", self.query)
            self._failure = parts.failure()
            self._count = parts.note("").props("role=status")
        self._numbers = parts.card("Numbers")
        self._numbers.set_visibility(False)
        with self._numbers:
            self._path = ui.select([], on_change=self._draw).props("outlined dense")
            self._path.props('aria-label="Which number of the payloads"')
            self._chart = parts.TimeChart("Numbers of the payloads over time", "")
            self._left_out = parts.note("")
        self._found = parts.card("Events")
        self._found.set_visibility(False)
        with self._found:
            self._table = TextTable(_FOUND, empty="No events.", detail=texts.of_event)

    @override
    def state(self) -> dict[str, str]:
        return self._asked

    @override
    async def open(self, state: Mapping[str, str]) -> None:
        for name, field in self._fields.items():
            field.set_value(state.get(name, field.value))
        if (limit := state.get("limit", "")[:9]).isdecimal():
            self._limit.set_value(min(int(limit), limits.MAX_QUERY_ROWS))
        if state.get("order") == "old":
            self._order.set_value("old")
        if state:
            await self.query()

    async def query(self) -> None:
        """Query what the form says."""
        asked = {name: i.value.strip() for name, i in self._fields.items()}
        asked |= {"limit": f"{self._limit.value or 1:.0f}", "order": self._order.value}
        self._asked = {name: text for name, text in asked.items() if text}
        self.on_state()
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
        self._count.set_text(self._told(has_more))
        self._found.set_visibility(True)
        self._table.set(self._events)
        self._choose_number()

    def _told(self, has_more: bool) -> str:
        count = f"{len(self._events):,} {plural(len(self._events), 'event')}"
        if not has_more:
            return count
        first = "newest" if self._order.value == "new" else "oldest"
        text = f"the {first} {count}; there are more"
        if len(self._events) < min(self._limit.value or 1, limits.MAX_QUERY_ROWS):
            return f"{text}: their payloads have {limits.MAX_QUERY_BYTES >> 20} MiB"
        if len(self._events) == limits.MAX_QUERY_ROWS:
            return f"{text}: at most {limits.MAX_QUERY_ROWS:,} are shown"
        return text

    def _read(self) -> tuple[model.QueryTimeseriesParams, int]:
        limit = max(1, min(int(self._limit.value or 1), limits.MAX_QUERY_ROWS))
        t_from, t_to = self._from.value.strip(), self._to.value.strip()
        if len(self._ids.value) > limits.MAX_INPUT_CHARACTERS:
            raise InvalidEventError("that is too long")
        now = model.Timestamp.now()
        params = model.QueryTimeseriesParams(
            parts.patterns_of(self._types.value),
            t_from=moments.parse(t_from, now=now) if t_from else None,
            t_to=moments.parse_last(t_to, now=now) if t_to else None,
            ids=[parse_event_id(i) for i in self._ids.value.split()] or None,
            order=model.Order.DESCENDING if self._order.value == "new" else model.Order.ASCENDING,
            max_results=limit + 1,
        )
        return params, limit

    def _choose_number(self) -> None:
        paths = {path: None for i in self._events for path in texts.numbers(i.payload)}
        self._has_more_paths = len(paths) > limits.MAX_NUMBERS
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
            return
        series = _series(self._events, self._paths[index])
        self._chart.set(series[: limits.MAX_SERIES])
        n_large = sum(texts.is_large(i.payload) for i in self._events)
        told = [
            parts.of_first(limits.MAX_SERIES, len(series), "types are drawn"),
            f"only the first {limits.MAX_NUMBERS} numbers of payloads can be drawn"
            if self._has_more_paths
            else "",
            f"{counted(n_large, 'payload')} too large to be drawn" if n_large else "",
        ]
        self._left_out.set_text("; ".join(filter(None, told)))


def _source_moment(event: Event) -> str:
    source = event.source_timestamp
    return "" if source is None else texts.of_moment(source)


_FOUND: Columns[Event] = {
    "Id": lambda i: format_event_id(i.id),
    "Time (UTC)": lambda i: texts.of_moment(i.timestamp),
    "Source time": _source_moment,
    "Type": lambda i: texts.of_type(i.type),
    "Payload": lambda i: texts.of_payload(i.payload),
}


def _series(events: Sequence[Event], path: str) -> list[parts.Series]:
    """The numbers at a path by type, those that have the most of them first."""
    points: dict[str, list[tuple[float, float | None]]] = {}
    for event in events:
        number = texts.numbers(event.payload).get(path)
        if number is not None:
            moment_s = event.timestamp.to_float()
            points.setdefault(texts.of_type(event.type), []).append((moment_s, number))
    most = sorted(points.items(), key=lambda i: -len(i[1]))
    return [parts.Series(name, sorted(found)) for name, found in most]


class TailPanel(Panel):
    """Follows events from the press of a button until the page is closed."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._tail: Tail | None = None
        self._n_requests = 0  # how often something else was asked for
        self._followed = ""
        self._is_paused = False
        self._frozen: list[Event] = []
        with parts.card("Events as they come"):
            with ui.element("div").classes("console-form"):
                self._pattern = parts.field("Types", "*").on("keydown.enter", self._start)
                self._filter = parts.field("Show only what contains")
                ui.button("Follow", on_click=self._start)
                self._pause = ui.button("Pause", on_click=self._toggle_pause).props("outline")
                ui.button("Stop", on_click=self._stop).props("outline")
            parts.note("'?' stands for one segment, '*' at the end for any number of them.")
            self._failure = parts.failure()
            self._interrupted = ui.label("").classes("console-warning").props("role=status")
            self._count = parts.note("")
            self._table = TextTable(
                _TAIL,
                key=lambda i: format_event_id(i.id),
                empty="Nothing came yet.",
                page_rows=limits.MAX_SHOWN_EVENTS,
                on_pick=self._pick,
                detail=texts.of_event,
            )
        ui.context.client.on_delete(self._stop)

    @override
    def state(self) -> dict[str, str]:
        if self._tail is None:
            return {}
        return {"types": self._followed, "contains": self._filter.value}

    @override
    async def open(self, state: Mapping[str, str]) -> None:
        self._filter.set_value(state.get("contains", ""))
        if "types" in state:
            self._pattern.set_value(state["types"])
            await self._start()

    @override
    async def refresh(self) -> None:
        tail = self._tail
        if tail is None:
            return
        self._interrupted.set_text(_interruption(tail))
        self._show(tail.kept)
        if tail.refusal is not None:
            self._failure.set_text(texts.shown(f"Not followed any more: {tail.refusal}", 400))
            await self._stop()

    async def _start(self) -> None:
        number = self._n_requests + 1
        await self._stop()
        self._failure.set_text("")
        self._followed = self._pattern.value.strip()
        try:
            tail = await self._watcher.follow(parts.patterns_of(self._followed))
        except (InvalidEventError, MarinerError) as e:
            self._failure.set_text(texts.shown(str(e)))
            return
        if number == self._n_requests:
            self._n_requests += 1  # the first one stays, of several that were begun together
            self._tail = tail
            self.on_state()
        else:  # it is too late, and the page may be closed
            await tail.async_close()

    async def _stop(self) -> None:
        self._n_requests += 1
        tail, self._tail = self._tail, None
        if tail is not None:
            await tail.async_close()

    def _toggle_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._pause.set_text("Go on" if self._is_paused else "Pause")
        # what comes meanwhile is counted, and kept like before
        self._frozen = self._tail.kept.newest() if self._tail and self._is_paused else []
        if not self._is_paused:
            self._table.pick(None)

    def _show(self, kept: Kept) -> None:
        events = self._frozen if self._is_paused else kept.newest()
        wanted = self._filter.value.casefold()
        found = [i for i in events if not wanted or self._contains(i, wanted)]
        self._table.set(found[: limits.MAX_SHOWN_EVENTS])
        told = [f"{kept.n_seen:,} so far", *(["paused"] if self._is_paused else [])]
        if wanted:
            told.append(f"{len(found):,} of the newest {len(events):,} contain that")
        n_shown = min(len(found), limits.MAX_SHOWN_EVENTS)
        if n_shown < (len(found) if wanted or self._is_paused else kept.n_seen):
            told.append(f"the newest {n_shown:,} are shown")
        self._count.set_text(", ".join(told))

    def _contains(self, event: Event, wanted: str) -> bool:
        return any(wanted in text.casefold() for text in self._table.texts(event))

    def _pick(self, event_id: str | None) -> None:
        if event_id is not None and not self._is_paused:
            self._toggle_pause()  # what is open stays where it is


def _interruption(tail: Tail) -> str:
    if tail.lost_s is None:
        return ""
    lost = texts.of_moment(model.Timestamp.from_float(tail.lost_s))[11:19]
    if tail.refusal is not None:
        return f"▲ Interrupted at {lost} UTC."
    if tail.back_s is None:
        return f"▲ Interrupted since {lost} UTC: it goes on by itself."
    back = texts.of_moment(model.Timestamp.from_float(tail.back_s))[11:19]
    return f"▲ Interrupted from {lost} to {back} UTC: query what came meanwhile."


_TAIL: Columns[Event] = {
    "Time (UTC)": lambda i: texts.of_moment(i.timestamp)[11:],
    "Type": lambda i: texts.of_type(i.type),
    "Payload": lambda i: texts.of_payload(i.payload),
}


class RegisterPanel(Panel):
    """Registers an event: it is asked twice, and kept in the log with the name of the user."""

    def __init__(self, watcher: Watcher, user: str) -> None:
        self._watcher = watcher
        self._user = user
        with parts.card("Register an event"):
            with ui.element("div").classes("console-form"):
                self._type = parts.field("Type")
            self._payload = ui.textarea("Payload (JSON; empty: none)").props("outlined dense")
            self._payload.classes("full-width")
            ui.button("Register …", on_click=self._confirm)
            self._failure = parts.failure()
            self._done = ui.label("").classes("console-well").props("role=status")
            parts.note("The gateway refuses what its client, this console, may not register.")

    async def _confirm(self) -> None:
        self._failure.set_text("")
        self._done.set_text("")
        try:
            event = _parse(self._type.value, self._payload.value)
        except InvalidEventError as e:
            self._failure.set_text(texts.shown(str(e)))
            return
        question = f"Register this on {texts.shown(self._watcher.config.name)}?"
        text = f"{texts.of_type(event.type)}\n{texts.unfolded(event.payload)}"
        if await parts.is_confirmed(question, text, "Register"):
            await self._register(event)

    async def _register(self, event: RegisterEvent) -> None:
        at = self._watcher.config.name
        extra = {"user": self._user, "gateway": at, "event_type": texts.of_type(event.type)}
        try:
            registered = await self._watcher.register(event)
        except (MarinerError, TimeoutError) as e:
            reason = str(e) or "no answer in time: it may be registered all the same"
            mlog.warning("event not registered", extra={**extra, "reason": reason})
            self._failure.set_text(texts.shown(reason))
            return
        event_id = format_event_id(registered.id)
        mlog.info("event registered", extra={**extra, "id": event_id})
        self._done.set_text(f"Registered as {event_id}.")


def _parse(event_type: str, payload: str) -> RegisterEvent:
    if len(event_type) + len(payload) > limits.MAX_INPUT_CHARACTERS:
        raise InvalidEventError("that is too long")
    parsed = parse_event_type(event_type)
    model.check_registrable(parsed)
    if not payload.strip():
        return RegisterEvent(parsed, None, None)
    try:
        data = msgspec.json.decode(payload, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise InvalidEventError(f"payload: expected JSON: {e}") from e
    return RegisterEvent(parsed, None, model.JsonPayload(data))
