"""The page: a header, and a panel for each thing to look at.

Text of events gets into elements as text (labels, cells of tables), and into options of components
as a value, never as a key.
"""

import importlib.resources
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from fastapi import Request
from nicegui import background_tasks, ui

from mariner_console import limits, texts
from mariner_console.gate import LOGIN, UserSession
from mariner_console.page import clients, connections, events, overview, parts
from mariner_console.page.parts import Panel
from mariner_console.page.types import TypesPanel
from mariner_console.view import outage
from mariner_console.watcher import Watcher

_CSS: Final = (importlib.resources.files(__package__) / "page.css").read_text("utf-8")
_JS: Final = (importlib.resources.files(__package__) / "page.js").read_text("utf-8")

_LOG_OUT: Final = '<form id="logout" method="post" action="/logout" hidden></form>'

_n_pages = 0


def install(watchers: Sequence[Watcher]) -> None:
    """Make the page of NiceGUI's application, of which a process has one."""

    @ui.page("/", response_timeout=10)
    def page(request: Request) -> None:
        link = dict(request.query_params)
        name = link.pop("gateway", "")
        chosen = next((i for i in watchers if i.config.name == name), watchers[0])
        _Frame(request.scope[LOGIN], chosen, watchers, link)


def _panels(
    login: UserSession, watcher: Watcher, watchers: Sequence[Watcher]
) -> dict[str, Callable[[], Panel]]:
    writer = login.user.name if login.user.may_register else None
    may_step_down = writer is not None and watcher.config.control is not None
    step_down = watcher.request_step_down if may_step_down else None
    views = [i.view for i in watchers]
    made: dict[str, Callable[[], Panel]] = {
        "Overview": lambda: overview.OverviewPanel(watcher.view, views, writer, step_down),
        "Clients": lambda: clients.ClientsPanel(watcher),
        "Connections": lambda: connections.ConnectionsPanel(watcher, writer),
        "Cursors": lambda: clients.CursorsPanel(watcher, writer),
        "Types": lambda: TypesPanel(watcher),
        "Tail": lambda: events.TailPanel(watcher),
        "Query": lambda: events.QueryPanel(watcher),
        "Store": lambda: overview.StorePanel(watcher.view),
        "Alarms": lambda: overview.AlarmsPanel(watcher.view),
    }
    if writer is not None:
        made["Register"] = lambda: events.RegisterPanel(watcher, writer)
    return made


class _Frame:
    """The header, and the panel that is looked at; ``link`` is what the address says of it."""

    def __init__(
        self,
        login: UserSession,
        watcher: Watcher,
        watchers: Sequence[Watcher],
        link: Mapping[str, str],
    ) -> None:
        global _n_pages  # noqa: PLW0603  # NiceGUI's pages are of the process
        self._login = login
        self._client = ui.context.client
        self._view = watcher.view
        self._panels: dict[str, Panel] = {}
        self._places: dict[str, ui.element] = {}
        self._busy: set[str] = set()  # panels that are being refreshed
        ui.add_css(_CSS)
        ui.add_head_html(f"<script>{_JS}</script>")
        if _n_pages >= limits.MAX_PAGES:
            ui.label("Too many pages are open: close some, and load this one again.")
            return
        _n_pages += 1
        self._client.on_delete(_count_out)
        self._dark = ui.dark_mode(None)
        makers = _panels(login, watcher, watchers)
        ui.colors(primary="#1f5f9e")
        with ui.header().classes("console-header"):
            self._header(watcher, watchers)
            with ui.tabs().props("dense no-caps align=left outside-arrows mobile-arrows") as tabs:
                for title in makers:
                    ui.tab(title)
        self._outage = ui.label("").classes("console-outage").props("role=alert")
        view = link.get("view", "")
        first = view if view in makers else next(iter(makers))
        with ui.tab_panels(tabs, value=first, animated=False) as self._chosen:
            for title, make in makers.items():
                with ui.tab_panel(title) as self._places[title]:
                    self._panels[title] = make()
                    self._panels[title].on_state = self._show_address
        self._link = link
        self._to_open: str | None = first
        self._shown = first
        self._address = ""
        self._chosen.on_value_change(self._refresh)
        ui.timer(1.0, self._refresh)

    def _header(self, watcher: Watcher, watchers: Sequence[Watcher]) -> None:
        ui.label("⚓").classes("console-name").props("aria-hidden=true")
        ui.label("Mariner console").classes("console-name console-wide")
        if len(watchers) > 1:
            names = [i.config.name for i in watchers]
            choice = ui.select(
                {index: texts.shown(name, 40) for index, name in enumerate(names)},
                value=names.index(watcher.config.name),
                on_change=lambda e: ui.navigate.to(
                    parts.link(names[e.value], self._chosen.value, {})
                ),
            )
            choice.props('dense dark options-dense aria-label="Gateway"')
        ui.element("div").classes("console-grow")
        dark = ui.button(icon="contrast", on_click=self._toggle_dark)
        dark.props('flat dense color=white aria-label="Light or dark"')
        ui.html(_LOG_OUT, sanitize=False)
        ui.label(texts.shown(self._login.user.name, 40)).classes("console-wide")
        ui.button("Log out").props("flat dense no-caps color=white type=submit form=logout")

    async def _toggle_dark(self) -> None:
        is_dark = await ui.run_javascript("document.body.classList.contains('body--dark')")
        self._dark.set_value(not is_dark)

    async def _refresh(self) -> None:
        if not self._login.is_valid:
            ui.navigate.to(f"/login{self._address[1:]}")
            self._client.remove_all_elements()  # a browser may stay
            return
        title, at_s = self._chosen.value, time.monotonic()
        reason, is_seen = outage(self._view, at_s), self._view.is_seen(at_s)
        # the overview has it among what is wrong
        self._outage.set_text("" if reason is None or title == "Overview" else self._told(reason))
        panel = self._panels[title]
        if panel.asks:
            parts.show_old(self._places[title], not is_seen)
        self._show_address()
        if title not in self._busy and (is_seen or not panel.asks):
            self._busy.add(title)
            background_tasks.create(self._refresh_panel(title, panel), name=f"refresh {title}")

    async def _refresh_panel(self, title: str, panel: Panel) -> None:
        """Apart from the rest, which is not to wait for a gateway's answer."""
        try:
            with self._places[title]:
                if self._to_open == title:
                    if self._outage.is_deleted:
                        return  # a tail that is begun now would never be stopped
                    self._to_open = None
                    state = {k: i for k, i in self._link.items() if k != "view"}
                    await panel.open(state)
                await panel.refresh()
        finally:
            self._busy.remove(title)

    def _told(self, reason: str) -> str:
        text = f"✖ {texts.shown(reason, 400)}"
        if self._view.answered is None:
            return text
        moment = datetime.fromtimestamp(self._view.answered, UTC)
        return f"{text}. What is shown is of {moment:%Y-%m-%d %H:%M:%S} UTC."

    def _show_address(self) -> None:
        """Have the browser show the link to what is looked at."""
        title = self._chosen.value
        if self._to_open is not None:
            if self._to_open == title:
                return  # what the link says is not to be seen yet
            self._to_open = None
        address = parts.link(self._view.name, title, self._panels[title].state())
        if address == self._address:
            return
        change = ui.navigate.history.replace if title == self._shown else ui.navigate.history.push
        self._shown, self._address = title, address
        change(address)


def _count_out() -> None:
    global _n_pages  # noqa: PLW0603
    _n_pages -= 1
