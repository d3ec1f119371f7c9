"""All gateways at a glance; of the one that is looked at, rates, latencies and what is wrong."""

import time
from collections.abc import Sequence

from nicegui import ui

from mariner_console import problems, texts
from mariner_console.page.parts import Figure, Series, TextTable, TimeChart, card, note
from mariner_console.view import GatewayView, Point


class OverviewPanel:
    """The panel."""

    def __init__(self, view: GatewayView, others: Sequence[GatewayView]) -> None:
        self._view = view
        self._others = others
        self._shown: tuple[bool, list[problems.Problem]] | None = None
        self._drawn: Point | None = None
        if len(others) > 1:
            with card("Gateways"):
                columns = {
                    "name": "Gateway", "state": "State", "registered": "Registered/s",
                    "notified": "Notified/s", "clients": "Clients", "version": "Version",
                }  # fmt: skip
                self._gateways = TextTable(columns, key="name")
        with card(f"State of {texts.shown(view.name)}"):
            self._problems = ui.column().classes("gap-1").props("role=status")
            with ui.element("div").classes("console-figures"):
                self._figures = {title: Figure(title) for title in _figures(view)}
        with ui.element("div").classes("console-grid"):
            with card("Events a second"):
                self._rates = TimeChart("Events a second over the last five minutes", "1/s")
            with card("Latencies"):
                self._latencies = TimeChart("Latencies over the last five minutes", "ms")
        note("Latencies are of the last 10 s; rates of the last 2 s.")

    async def refresh(self) -> None:
        """Show what is known now."""
        if len(self._others) > 1:
            self._gateways.set([_row(i) for i in self._others])
        for title, text in _figures(self._view).items():
            self._figures[title].set(text)
        shown = self._view.status is not None, problems.find(self._view, time.time())
        if shown != self._shown:
            self._shown = shown
            self._show(*shown)
        if self._view.point is not self._drawn:
            self._drawn = self._view.point
            self._draw()

    def _show(self, is_known: bool, found: Sequence[problems.Problem]) -> None:
        self._problems.clear()
        with self._problems:
            if not found:
                ui.label("All is well." if is_known else "Connecting …").classes("console-well")
            for problem in found:
                mark, style = ("✖", "bad") if problem.is_critical else ("▲", "warning")
                ui.label(f"{mark} {texts.shown(problem.text, 400)}").classes(f"console-{style}")

    def _draw(self) -> None:
        history = [*self._view.history]
        self._rates.set(
            [
                Series("registered", [(i.at_s, i.registered) for i in history]),
                Series("notified", [(i.at_s, i.notified) for i in history]),
                Series("queries", [(i.at_s, i.queries) for i in history]),
            ]
        )
        self._latencies.set(
            [
                Series("commit p50", [(i.at_s, _ms(i.commit_p50_s)) for i in history]),
                Series("commit p99", [(i.at_s, _ms(i.commit_p99_s)) for i in history]),
                Series("query p99", [(i.at_s, _ms(i.query_p99_s)) for i in history]),
                Series("loop late p99", [(i.at_s, _ms(i.loop_p99_s)) for i in history]),
            ]
        )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def state(view: GatewayView) -> str:
    """The state of a gateway in a word or two."""
    if view.status is not None:
        return view.status.name
    return "CONNECTING" if view.failure is None else "NOT CONNECTED"


def _row(view: GatewayView) -> dict[str, str]:
    point, scrape = view.point, view.scrape
    version = scrape and scrape.text("mariner_build_info", "version")
    return {
        "name": texts.shown(view.name),
        "state": state(view),
        "registered": texts.of_number(point and point.registered),
        "notified": texts.of_number(point and point.notified),
        "clients": texts.of_number(scrape and scrape.value("mariner_clients")),
        "version": texts.shown(version or texts.UNKNOWN),
    }


def _figures(view: GatewayView) -> dict[str, str]:
    point, scrape = view.point, view.scrape

    def value(name: str, unit: str = "") -> str:
        return texts.of_number(scrape and scrape.value(name), unit)

    started_s = scrape and scrape.value("process_start_time_seconds")
    return {
        "status": state(view),
        "ping": texts.of_seconds(view.ping_s),
        "registered/s": texts.of_number(point and point.registered),
        "notified/s": texts.of_number(point and point.notified),
        "commit p99": texts.of_seconds(point and point.commit_p99_s),
        "query p99": texts.of_seconds(point and point.query_p99_s),
        "clients": value("mariner_clients"),
        "events stored": value("mariner_store_events"),
        "event types": value("mariner_store_event_types"),
        "disk free": value("mariner_store_free_bytes", "B"),
        "memory": value("process_resident_memory_bytes", "B"),
        "up for": texts.of_seconds(started_s and max(0.0, time.time() - started_s)),
    }
