"""What a gateway tells of itself: state, rates, latencies and problems; store; alarms."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from nicegui import ui
from typing_extensions import override

from mariner_console import texts
from mariner_console.page import parts
from mariner_console.page.group import GroupCard, StepDownCb
from mariner_console.page.parts import Columns, Panel, TextTable
from mariner_console.view import Alarm, GatewayView, Point, Problem, Scrape, find_problems


class OverviewPanel(Panel):
    """All gateways at a glance; of the one that is looked at, rates, latencies and problems.

    ``writer`` and ``step_down`` as of ``GroupCard``.
    """

    def __init__(
        self,
        view: GatewayView,
        others: Sequence[GatewayView],
        writer: str | None = None,
        step_down: StepDownCb | None = None,
    ) -> None:
        self._view = view
        self._others = others
        self._shown: tuple[bool, list[Problem]] | None = None
        self._drawn: Point | None = None
        if len(others) > 1:
            with parts.card("Gateways, the worst first"):
                self._gateways = TextTable(
                    _GATEWAYS,
                    key=lambda i: str(others.index(i.view)),
                    on_pick=self._open_other,
                    style=lambda i: f"console-row-{i.severity}",
                )
        with parts.card(f"State of {texts.shown(view.name)}"):
            self._problems = ui.column().classes("gap-1").props("role=status")
            with ui.element("div").classes("console-figures"):
                self._figures = {title: parts.Figure(title) for title in _figures(view, 0)}
        self._group = GroupCard(view, writer, step_down)
        with ui.element("div").classes("console-grid"):
            with parts.card("Events a second"):
                self._rates = parts.TimeChart("Events a second over the last five minutes", "1/s")
            with parts.card("Latencies"):
                self._latencies = parts.TimeChart("Latencies over the last five minutes", "ms")
        parts.note("Latencies are of the last 10 s; rates of the last 2 s.")

    @override
    async def refresh(self) -> None:
        now_s, at_s = time.time(), time.monotonic()
        if len(self._others) > 1:
            states = [_State(i, find_problems(i, now_s, at_s), at_s) for i in self._others]
            self._gateways.set(sorted(states, key=lambda i: _SEVERITIES.index(i.severity)))
        is_seen, is_measured = self._view.is_seen(at_s), self._view.is_measured(at_s)
        for title, text in _figures(self._view, at_s).items():
            is_of_now = is_seen and (is_measured or title in _OF_CONNECTION)
            self._figures[title].set(text, is_old=not is_of_now)
        self._group.refresh(is_old=not (is_seen and is_measured))
        shown = is_seen, find_problems(self._view, now_s, at_s)
        if shown != self._shown:
            self._shown = shown
            self._show(*shown)
        newest = self._view.history[-1] if self._view.history else None
        if newest is not self._drawn:
            self._drawn = newest
            self._draw()

    def _open_other(self, index: str | None) -> None:
        if index is not None:
            ui.navigate.to(parts.link(self._others[int(index)].name, "Overview", {}))

    def _show(self, is_seen: bool, found: Sequence[Problem]) -> None:
        self._problems.clear()
        with self._problems:
            if not found:
                ui.label("All is well." if is_seen else "Connecting …").classes("console-well")
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


def _status(view: GatewayView, at_s: float) -> str:
    """The state of a gateway in a word or two."""
    if view.status is not None:
        return view.status.name if view.is_seen(at_s) else "NO ANSWER"
    return "CONNECTING" if view.failure is None else "NOT CONNECTED"


_SEVERITIES: Final = "bad", "warning", "unknown", "well"


class _State(NamedTuple):
    """A gateway among others, and what is wrong with it at a ``time.monotonic()``."""

    view: GatewayView
    problems: list[Problem]
    at_s: float

    @property
    def severity(self) -> str:
        """One of ``_SEVERITIES``, the worst first."""
        if self.problems:
            return "bad" if self.problems[0].is_critical else "warning"
        return "well" if self.view.is_seen(self.at_s) else "unknown"

    @property
    def told(self) -> str:
        """What is wrong, in a line."""
        return texts.shown("; ".join(i.text for i in self.problems), 400)

    @property
    def point(self) -> Point | None:
        """Rates of now."""
        return self.view.point if self.view.is_measured(self.at_s) else None

    @property
    def scrape(self) -> Scrape | None:
        """Metrics of now."""
        return self.view.scrape if self.view.is_measured(self.at_s) else None


_MARKS: Final = {"bad": "✖ ", "warning": "▲ ", "unknown": "", "well": ""}

_GATEWAYS: Columns[_State] = {
    "Gateway": lambda i: texts.shown(i.view.name),
    "State": lambda i: f"{_MARKS[i.severity]}{_status(i.view, i.at_s)}",
    "What is wrong": lambda i: i.told,
    "Registered/s": lambda i: texts.of_number(i.point and i.point.registered),
    "Notified/s": lambda i: texts.of_number(i.point and i.point.notified),
    "Clients": lambda i: texts.of_number(i.scrape and i.scrape.value("mariner_clients")),
    "Version": lambda i: texts.shown(
        (i.scrape and i.scrape.text("mariner_build_info", "version")) or texts.UNKNOWN
    ),
}

_OF_CONNECTION: Final = frozenset(("status", "ping"))
"""Figures that are not of the metrics."""


def _figures(view: GatewayView, at_s: float) -> dict[str, str]:
    point, scrape = view.point, view.scrape

    def value(name: str, unit: str = "") -> str:
        return texts.of_number(scrape and scrape.value(name), unit)

    started_s = scrape and scrape.value("process_start_time_seconds")
    return {
        "status": _status(view, at_s),
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
        self._all = ui.column().classes("console-column")
        with self._all:
            self._make(view)

    def _make(self, view: GatewayView) -> None:
        with parts.card("Store"), ui.element("div").classes("console-figures"):
            self._figures = {title: parts.Figure(title) for title in _store_figures(view.scrape)}
        with parts.card("Replication and relay"):
            self._remotes = TextTable(_REMOTES, empty="It follows no other server.")
        with parts.card("Certificates and revocation lists"):
            self._expiries = TextTable(_EXPIRIES, empty="It has none.")

    @override
    async def refresh(self) -> None:
        scrape = self._view.scrape
        at_s = time.monotonic()
        is_old = not (self._view.is_seen(at_s) and self._view.is_measured(at_s))
        parts.show_old(self._all, is_old)
        for title, text in _store_figures(scrape).items():
            self._figures[title].set(text, is_old=is_old)
        remotes = parts.rows_by(scrape, "server", "remote_connected")
        self._remotes.set(remotes or (None if is_old else []))
        expiries = scrape.by("mariner_tls_expiry_timestamp_seconds", "key") if scrape else {}
        found = sorted(expiries.items(), key=lambda i: i[1])
        self._expiries.set(found or (None if is_old else []))


def _store_figures(scrape: Scrape | None) -> dict[str, str]:
    def value(name: str, unit: str = "") -> str:
        return texts.of_number(scrape and scrape.value(f"mariner_{name}"), unit)

    def ago(name: str) -> str:
        moment_s = scrape and scrape.value(f"mariner_{name}")
        if not moment_s:
            return texts.UNKNOWN if moment_s is None else "none yet"
        return f"{texts.of_seconds(max(1.0, time.time() - moment_s))} ago"

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
        "last backup": ago("backup_timestamp_seconds"),
        "last restore drill": ago("restore_drill_timestamp_seconds"),
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

    def __init__(self, view: GatewayView) -> None:
        self._view = view
        with parts.card("Alarms that are raised") as self._card:
            self._table = TextTable(_ALARMS, empty="No alarm is raised.")
            self._left_out = parts.note("")
            parts.note("Those of the module threshold that this client may see; the newest first.")

    @override
    async def refresh(self) -> None:
        alarms = self._view.alarms
        is_old = not self._view.is_seen(time.monotonic())
        parts.show_old(self._card, is_old)
        found = alarms.newest()
        self._table.set(found or (None if is_old or not alarms.is_known else []))
        n_all = len(found) + alarms.left_out
        self._left_out.set_text(parts.of_first(len(found), n_all, "that were raised"))


_ALARMS: Columns[Alarm] = {
    "Type": lambda i: texts.of_type(i.type),
    "Since (UTC)": lambda i: texts.of_moment(i.since),
    "Value": lambda i: texts.of_number(i.value),
    "Limit": lambda i: texts.of_number(i.limit),
}
