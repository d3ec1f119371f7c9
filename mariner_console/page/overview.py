"""What a gateway tells of itself: state, rates, latencies and problems; store; alarms."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from nicegui import ui
from typing_extensions import override

from mariner_console import texts
from mariner_console.page import parts
from mariner_console.page.parts import Columns, Panel, TextTable
from mariner_console.view import Alarm, Alarms, GatewayView, Point, Problem, Scrape, find_problems


class OverviewPanel(Panel):
    """All gateways at a glance; of the one that is looked at, rates, latencies and problems."""

    def __init__(self, view: GatewayView, others: Sequence[GatewayView]) -> None:
        self._view = view
        self._others = others
        self._shown: tuple[bool, list[Problem]] | None = None
        self._drawn: Point | None = None
        if len(others) > 1:
            with parts.card("Gateways"):
                self._gateways = TextTable(_GATEWAYS)
        with parts.card(f"State of {texts.shown(view.name)}"):
            self._problems = ui.column().classes("gap-1").props("role=status")
            with ui.element("div").classes("console-figures"):
                self._figures = {title: parts.Figure(title) for title in _figures(view)}
        with ui.element("div").classes("console-grid"):
            with parts.card("Events a second"):
                self._rates = parts.TimeChart("Events a second over the last five minutes", "1/s")
            with parts.card("Latencies"):
                self._latencies = parts.TimeChart("Latencies over the last five minutes", "ms")
        parts.note("Latencies are of the last 10 s; rates of the last 2 s.")

    @override
    async def refresh(self) -> None:
        if len(self._others) > 1:
            self._gateways.set(self._others)
        for title, text in _figures(self._view).items():
            self._figures[title].set(text)
        shown = self._view.status is not None, find_problems(self._view, time.time())
        if shown != self._shown:
            self._shown = shown
            self._show(*shown)
        if self._view.point is not self._drawn:
            self._drawn = self._view.point
            self._draw()

    def _show(self, is_known: bool, found: Sequence[Problem]) -> None:
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
                parts.Series("registered", [(i.at_s, i.registered) for i in history]),
                parts.Series("notified", [(i.at_s, i.notified) for i in history]),
                parts.Series("queries", [(i.at_s, i.queries) for i in history]),
            ]
        )
        self._latencies.set(
            [
                parts.Series("commit p50", [(i.at_s, _ms(i.commit_p50_s)) for i in history]),
                parts.Series("commit p99", [(i.at_s, _ms(i.commit_p99_s)) for i in history]),
                parts.Series("query p99", [(i.at_s, _ms(i.query_p99_s)) for i in history]),
                parts.Series("loop late p99", [(i.at_s, _ms(i.loop_p99_s)) for i in history]),
            ]
        )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def state(view: GatewayView) -> str:
    """The state of a gateway in a word or two."""
    if view.status is not None:
        return view.status.name
    return "CONNECTING" if view.failure is None else "NOT CONNECTED"


def _version(view: GatewayView) -> str:
    version = view.scrape and view.scrape.text("mariner_build_info", "version")
    return texts.shown(version or texts.UNKNOWN)


_GATEWAYS: Columns[GatewayView] = {
    "Gateway": lambda i: texts.shown(i.name),
    "State": state,
    "Registered/s": lambda i: texts.of_number(i.point and i.point.registered),
    "Notified/s": lambda i: texts.of_number(i.point and i.point.notified),
    "Clients": lambda i: texts.of_number(i.scrape and i.scrape.value("mariner_clients")),
    "Version": _version,
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


class StorePanel(Panel):
    """Store, remote servers, certificates."""

    def __init__(self, view: GatewayView) -> None:
        self._view = view
        with parts.card("Store"), ui.element("div").classes("console-figures"):
            self._figures = {title: parts.Figure(title) for title in _store_figures(view.scrape)}
        with parts.card("Replication and relay"):
            self._remotes = TextTable(_REMOTES, empty="It follows no other server.")
        with parts.card("Certificates and revocation lists"):
            self._expiries = TextTable(_EXPIRIES, empty="It has none.")

    @override
    async def refresh(self) -> None:
        scrape = self._view.scrape
        for title, text in _store_figures(scrape).items():
            self._figures[title].set(text)
        self._remotes.set(parts.rows_by(scrape, "server", "remote_connected"))
        expiries = scrape.by("mariner_tls_expiry_timestamp_seconds", "key") if scrape else {}
        self._expiries.set(sorted(expiries.items(), key=lambda i: i[1]))


def _store_figures(scrape: Scrape | None) -> dict[str, str]:
    def value(name: str, unit: str = "") -> str:
        return texts.of_number(scrape and scrape.value(f"mariner_{name}"), unit)

    return {
        "can be written": _yes(scrape and scrape.value("mariner_store_writable")),
        "events": value("store_events"),
        "event types": value("store_event_types"),
        "on disk": value("store_bytes", "B"),
        "disk free": value("store_free_bytes", "B"),
        "to be compacted": value("store_compaction_bytes", "B"),
        "events to be committed": value("pending_events"),
        "queries running": value("queries_running"),
        "queries waiting": value("queries_waiting"),
    }


def _yes(value: float | None) -> str:
    return texts.UNKNOWN if value is None else "yes" if value else "NO"


_REMOTES: Columns[parts.MetricRow] = {
    "Server": lambda i: texts.shown(i.label),
    "Connected": parts.metric("remote_connected", _yes),
    "Synced": parts.metric("replication_synced", _yes),
    "Lag": parts.metric("replication_lag_seconds", texts.of_seconds),
    "Events on their way": parts.metric("replication_lag_events", texts.of_number),
    "Left out": parts.metric("remote_events_refused_total", texts.of_number),
}

_EXPIRIES: Columns[tuple[str, float]] = {
    "Configured as": lambda i: texts.shown(i[0]),
    "Expires (UTC)": lambda i: datetime.fromtimestamp(i[1], UTC).strftime("%Y-%m-%d %H:%M"),
    "Left": lambda i: texts.of_seconds(max(0.0, i[1] - time.time())),
}


class AlarmsPanel(Panel):
    """Alarms of the module ``threshold`` that are raised."""

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        with parts.card("Alarms that are raised"):
            self._table = TextTable(_ALARMS, empty="No alarm is raised.")
            self._left_out = parts.note("")
            parts.note("Those of the module threshold that this client may see; the newest first.")

    @override
    async def refresh(self) -> None:
        self._table.set(self._alarms.newest())
        more = self._alarms.left_out
        self._left_out.set_text(f"{more:,} more were raised." if more else "")


_ALARMS: Columns[Alarm] = {
    "Type": lambda i: texts.of_type(i.type),
    "Since (UTC)": lambda i: texts.of_moment(i.since),
    "Value": lambda i: texts.of_number(i.value),
    "Limit": lambda i: texts.of_number(i.limit),
}
