"""The page: a header, and a panel for each thing to look at.

Text of events gets into elements as text (labels, cells of tables), and into options of components
as a value, never as a key.
"""

import importlib.resources
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import quote

from fastapi import Request
from nicegui import ui

from mariner_console import limits, texts
from mariner_console.gate import LOGIN, UserSession
from mariner_console.page import clients, connections, events, overview
from mariner_console.page.parts import Panel
from mariner_console.page.types import TypesPanel
from mariner_console.watcher import Watcher

_CSS: Final = (importlib.resources.files(__package__) / "page.css").read_text("utf-8")

_LOG_OUT: Final = '<form id="logout" method="post" action="/logout" hidden></form>'

_n_pages = 0


def install(watchers: Sequence[Watcher]) -> None:
    """Make the page of NiceGUI's application, of which a process has one."""

    @ui.page("/", response_timeout=10)
    def page(request: Request, gateway: str = "") -> None:
        chosen = next((i for i in watchers if i.config.name == gateway), watchers[0])
        _Frame(request.scope[LOGIN], chosen, watchers)


def _panels(
    login: UserSession, watcher: Watcher, watchers: Sequence[Watcher]
) -> dict[str, Callable[[], Panel]]:
    writer = login.user.name if login.user.may_register else None
    made: dict[str, Callable[[], Panel]] = {
        "Overview": lambda: overview.OverviewPanel(watcher.view, [i.view for i in watchers]),
        "Clients": lambda: clients.ClientsPanel(watcher),
        "Connections": lambda: connections.ConnectionsPanel(watcher, writer),
        "Cursors": lambda: clients.CursorsPanel(watcher, writer),
        "Types": lambda: TypesPanel(watcher),
        "Tail": lambda: events.TailPanel(watcher),
        "Query": lambda: events.QueryPanel(watcher),
        "Store": lambda: overview.StorePanel(watcher.view),
        "Alarms": lambda: overview.AlarmsPanel(watcher.view.alarms),
    }
    if writer is not None:
        made["Register"] = lambda: events.RegisterPanel(watcher, writer)
    return made


class _Frame:
    def __init__(self, login: UserSession, watcher: Watcher, watchers: Sequence[Watcher]) -> None:
        global _n_pages  # noqa: PLW0603  # NiceGUI's pages are of the process
        self._login = login
        self._client = ui.context.client
        self._panels: dict[str, Panel] = {}
        ui.add_css(_CSS)
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
            with ui.tabs().props("dense no-caps align=left") as tabs:
                for title in makers:
                    ui.tab(title)
        with ui.tab_panels(tabs, value=next(iter(makers)), animated=False) as self._chosen:
            for title, make in makers.items():
                with ui.tab_panel(title):
                    self._panels[title] = make()
        ui.timer(1.0, self._refresh)

    def _header(self, watcher: Watcher, watchers: Sequence[Watcher]) -> None:
        ui.label("⚓ Mariner console").classes("console-name")
        if len(watchers) > 1:
            names = [i.config.name for i in watchers]
            choice = ui.select(
                {index: texts.shown(name) for index, name in enumerate(names)},
                value=names.index(watcher.config.name),
                on_change=lambda e: ui.navigate.to(f"/?gateway={quote(names[e.value])}"),
            )
            choice.props('dense dark options-dense aria-label="Gateway"')
        ui.element("div").classes("console-grow")
        dark = ui.button(icon="contrast", on_click=self._toggle_dark)
        dark.props('flat dense color=white aria-label="Light or dark"')
        ui.html(_LOG_OUT, sanitize=False)
        name = texts.shown(self._login.user.name, 40)
        ui.button(f"Log out ({name})").props(
            "flat dense no-caps color=white type=submit form=logout"
        )

    async def _toggle_dark(self) -> None:
        is_dark = await ui.run_javascript("document.body.classList.contains('body--dark')")
        self._dark.set_value(not is_dark)

    async def _refresh(self) -> None:
        if self._login.is_valid:
            await self._panels[self._chosen.value].refresh()
        else:
            ui.navigate.to("/login")
            self._client.remove_all_elements()  # a browser may stay


def _count_out() -> None:
    global _n_pages  # noqa: PLW0603
    _n_pages -= 1
