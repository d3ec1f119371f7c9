"""The newest events of a pattern, as they come: pause, filter, payloads unfolded."""

from collections.abc import Sequence

from nicegui import ui

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import Event
from mariner.errors import MarinerError
from mariner_console import limits, texts
from mariner_console.page.parts import TextTable, card, failure, field, note, patterns_of, unfolded
from mariner_console.tail import Tail
from mariner_console.watcher import Watcher


class TailPanel:
    """The panel; it follows events from the press of a button until the page is closed."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._tail: Tail | None = None
        self._n_asked = 0  # how often something else was asked for
        self._is_paused = False
        self._frozen: list[Event] = []
        with card("Events as they come"):
            with ui.element("div").classes("console-form"):
                self._pattern = field("Types", "*").on("keydown.enter", self._start)
                self._filter = field("Show only what contains")
                ui.button("Follow", on_click=self._start)
                self._pause = ui.button("Pause", on_click=self._toggle_pause).props("outline")
                ui.button("Stop", on_click=self._stop).props("outline")
            note("'?' stands for one segment, '*' at the end for any number of them.")
            self._failure = failure()
            self._count = note("")
            self._picked = unfolded()
            columns = {"time": "Time (UTC)", "type": "Type", "payload": "Payload"}
            self._table = TextTable(
                columns,
                key="id",
                empty="Nothing came yet.",
                page_rows=limits.MAX_SHOWN_EVENTS,
                on_pick=self._pick,
            )
        ui.context.client.on_delete(self._stop)

    async def refresh(self) -> None:
        """Show what came."""
        if self._tail is None:
            return
        if self._tail.close_reason is not None:
            self._failure.set_text(texts.shown(f"Stopped: {self._tail.close_reason}"))
        kept = self._tail.kept
        paused = ", paused" if self._is_paused else ""
        self._count.set_text(f"{kept.n_seen:,} so far{paused}")
        self._show(self._frozen if self._is_paused else kept.newest())

    async def _start(self) -> None:
        number = self._n_asked + 1
        await self._stop()
        self._failure.set_text("")
        try:
            tail = await self._watcher.follow(patterns_of(self._pattern.value))
        except (InvalidEventError, MarinerError) as e:
            self._failure.set_text(texts.shown(str(e)))
            return
        if number == self._n_asked:
            self._n_asked += 1  # the first one stays, of several that were begun together
            self._tail = tail
        else:  # it is too late, and the page may be closed
            await tail.async_close()

    async def _stop(self) -> None:
        self._n_asked += 1
        tail, self._tail = self._tail, None
        if tail is not None:
            await tail.async_close()

    def _toggle_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._pause.set_text("Go on" if self._is_paused else "Pause")
        # what comes meanwhile is counted, and kept like before
        self._frozen = self._tail.kept.newest() if self._tail and self._is_paused else []

    def _show(self, events: Sequence[Event]) -> None:
        wanted = self._filter.value.casefold()
        rows = [row for row in map(_row, events) if not wanted or _contains(row, wanted)]
        self._table.set(rows[: limits.MAX_SHOWN_EVENTS])

    def _pick(self, event_id: str | None) -> None:
        # it stays to be read when newer ones have taken its place
        kept = [] if self._tail is None else self._tail.kept.newest()
        for event in (*self._frozen, *kept):
            if texts.of_id(event.id) == event_id:
                self._picked.set_text(texts.of_event(event))
                return


def _row(event: Event) -> dict[str, str]:
    return {
        "id": texts.of_id(event.id),
        "time": texts.of_moment(event.timestamp)[11:],
        "type": texts.of_type(event.type),
        "payload": texts.of_payload(event.payload),
    }


def _contains(row: dict[str, str], wanted: str) -> bool:
    return any(wanted in text.casefold() for text in row.values())
