"""The tree of event types, with the last event of each; those that are seen are kept up to date."""

import asyncio
import contextlib
import math
import time
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Any

from nicegui import events, ui
from typing_extensions import override

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    QueryLatestParams,
    QueryTimeseriesParams,
    Status,
    check_registrable,
    format_event_id,
    format_event_type,
    parse_event_type,
)
from mariner.cli.values import plural
from mariner.errors import MarinerError
from mariner_console import limits, texts
from mariner_console.page import parts
from mariner_console.page.parts import Columns, Panel, TextTable
from mariner_console.type_tree import Leaf, Node, TypeTree
from mariner_console.watcher import Watcher


class TypesPanel(Panel):
    """A tree, or the types that a search finds; the last events of the picked one."""

    asks = True

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._types = TypeTree()
        self._expanded: set[int] = set()
        self._picked: EventType | None = None  # or the beginning of types
        self._last: EventId | None = None  # of the picked type, that is shown
        self._loaded = "*"
        self._n_loads = 0
        self._is_loaded = False
        self._failed_at_s = -math.inf
        with ui.element("div").classes("console-grid"):
            with parts.card("Event types"):
                with ui.element("div").classes("console-form"):
                    self._pattern = parts.field("Types", "*").on("keydown.enter", self._load)
                    self._search = parts.field("Search", on_change=self._find)
                    self._search.props("debounce=200")
                    ui.button("Load", on_click=self._load)
                self._refusal, self._failure = parts.failure(), parts.failure()
                self._count = parts.note("").props("role=status")
                self._n_found = parts.note("").props("role=status")
                self._found = TextTable(
                    _LEAVES,
                    key=lambda i: format_event_type(i.type),
                    empty="No such type is loaded.",
                    on_pick=self._pick_found,
                )
                self._found.show(False)
                self._tree = ui.tree([], on_select=self._pick, on_expand=self._expand)
                self._tree.props("selected-color=primary")
                self._tree.props["no-nodes-label"] = parts.UNKNOWN
                self._tree.classes("full-width")
            with parts.card("What is picked"):
                self._name = ui.label("").classes("console-long")
                with ui.element("div").classes("console-form") as self._links:
                    self._query_link, self._tail_link = ui.link("Query"), ui.link("Tail")
                self._event = parts.unfolded()
                self._values = TextTable(
                    _VALUES,
                    key=lambda i: format_event_id(i.id),
                    empty="It has no event.",
                    detail=texts.of_event,
                )
                self._note = parts.note("")
        self._show_picked(None)

    @override
    def state(self) -> dict[str, str]:
        picked = "" if self._picked is None else format_event_type(self._picked)
        found = {"types": self._loaded, "search": self._search.value.strip(), "type": picked}
        return {name: text for name, text in found.items() if text}

    @override
    async def open(self, state: Mapping[str, str]) -> None:
        self._pattern.set_value(state.get("types", "*"))
        self._search.set_value(state.get("search", ""))
        if "type" in state:
            with contextlib.suppress(InvalidEventError):
                picked = parse_event_type(state["type"])
                check_registrable(picked)  # a pattern would be asked for each second
                self._picked = picked
        await self._load()

    @override
    async def refresh(self) -> None:
        # a relay closes a connection that asks while its server is away
        is_able = self._watcher.view.status is Status.OPERATIONAL
        since_failure_s = time.monotonic() - self._failed_at_s
        if not self._is_loaded and is_able and since_failure_s >= limits.TIMEOUT_S:
            await self._load()
        leaves = [i.leaf for i in self._types.visible(self._expanded)]
        seen = [i.type for i in leaves if i is not None and not self._search.value.strip()]
        if self._picked is not None and self._is_type(self._picked):
            seen.append(self._picked)
        if not seen:
            return
        try:
            async with asyncio.timeout(limits.TIMEOUT_S):
                found, _ = await self._watcher.query(QueryLatestParams(seen), len(seen))
        except (MarinerError, TimeoutError) as e:
            self._failure.set_text(texts.shown(str(e) or "no answer in time"))
            return
        self._failure.set_text("")
        for event in found:
            self._types.put(event)
            if event.type == self._picked:
                await self._show_values(event)
        self._show()

    async def _show_values(self, last: Event) -> None:
        """The last event of the picked type, and those before, if it is another one."""
        if last.id == self._last:
            return
        self._event.set_text(texts.of_event(last))
        picked = self._picked
        params = QueryTimeseriesParams([last.type], max_results=limits.LAST_VALUES + 1)
        try:
            found, has_more = await self._watcher.query(params, limits.LAST_VALUES)
        except (MarinerError, TimeoutError) as e:
            self._failure.set_text(texts.shown(str(e) or "no answer in time"))
            return
        if picked != self._picked:
            return
        self._last = last.id
        self._values.set(found)
        text = f"The newest {len(found):,} are shown; there are more: query them."
        self._note.set_text(text if has_more else "")

    async def _load(self) -> None:
        self._n_loads += 1
        number = self._n_loads
        self._refusal.set_text("")
        self._loaded = self._pattern.value.strip()
        tree = TypeTree()
        try:
            params = QueryLatestParams(parts.patterns_of(self._pattern.value))
            async with aclosing(self._watcher.latest(params)) as found:
                async for event in found:
                    if not tree.put(event):
                        break
        except (InvalidEventError, MarinerError, TimeoutError) as e:
            if number != self._n_loads:
                return
            self._failed_at_s = time.monotonic()
            self._refusal.set_text(texts.shown(str(e) or "no answer in time"))
            self._is_loaded = isinstance(e, InvalidEventError)  # else it is tried again
            return
        if number != self._n_loads:
            return  # it was asked for others meanwhile
        self._is_loaded = True
        self._types = tree
        self._expanded = {0}
        self._count.set_text(self._counted())
        self._show_picked(self._picked)
        self._find()

    def _counted(self) -> str:
        n_types = self._types.root.n_types
        if not self._types.is_cut:
            return f"{n_types:,} {plural(n_types, 'type')}"
        scrape = self._watcher.view.scrape
        n_all = scrape and scrape.value("mariner_store_event_types")
        of_all = f" of {n_all:,.0f}" if n_all and self._loaded in {"", "*"} else ""
        return f"the first {n_types:,}{of_all} types; there are more: narrow the types down"

    def _find(self) -> None:
        text = self._search.value.strip()
        self._found.show(bool(text))
        self._tree.set_visibility(not text)
        self._n_found.set_text("")
        if text:
            found = self._types.search(text)
            self._found.set(found[: limits.MAX_CHILDREN])
            told = parts.of_first(limits.MAX_CHILDREN, len(found), "that are found")
            self._n_found.set_text(told)

    def _expand(self, e: events.ValueChangeEventArguments[Any]) -> None:
        self._expanded = {i for i in e.value if isinstance(i, int)}
        self._show()

    async def _pick(self, e: events.ValueChangeEventArguments[Any]) -> None:
        node = self._types.find(e.value) if isinstance(e.value, int) else None
        if node is None:
            self._show_picked(None)
        elif node.leaf is not None:
            self._show_picked(node.leaf.type)
        else:
            self._show_picked(tuple(i.segment for i in node.path()))
        await self.refresh()

    async def _pick_found(self, text: str | None) -> None:
        self._show_picked(None if text is None else parse_event_type(text))
        await self.refresh()

    def _is_type(self, picked: EventType) -> bool:
        node = self._types.at(picked)
        return node is None or node.leaf is not None

    def _show_picked(self, picked: EventType | None) -> None:
        """Pick a type, or the beginning of types, in the tree as well; None: nothing."""
        self._picked, self._last = picked, None
        is_type = picked is not None and self._is_type(picked)
        self._links.set_visibility(picked is not None)
        self._event.set_text("")
        self._values.set([])
        self._values.set(None)
        self._values.show(is_type)
        self._note.set_text("" if picked is not None else "Pick a type, or the beginning of some.")
        self._name.set_text("" if picked is None else texts.of_type(picked))
        node = None if picked is None else self._types.at(picked)
        if node is not None:
            self._expanded |= {i.id for i in node.path()[:-1]}
            self._tree.props["expanded"] = [*self._expanded]
        self._tree.props["selected"] = None if node is None else node.id
        self._show()
        self.on_state()
        if picked is None:
            return
        at, pattern = self._watcher.config.name, picked if is_type else (*picked, "*")
        state = {"types": parts.pattern_text(pattern)}
        self._query_link.props["href"] = parts.link(at, "Query", state)
        self._tail_link.props["href"] = parts.link(at, "Tail", state)

    def _show(self) -> None:
        ids = {i.id for i in self._types.visible(self._expanded)}
        nodes = _children(self._types.root, ids, {*self._expanded, 0})
        label = "There is no event." if self._is_loaded else parts.UNKNOWN
        if self._tree.props["no-nodes-label"] != label:
            self._tree.props["no-nodes-label"] = label
        if self._tree.props["nodes"] != nodes:
            self._tree.props["nodes"] = nodes


def _nodes(found: Iterable[Node], ids: set[int], expanded: set[int]) -> list[dict[str, Any]]:
    return [
        {"id": node.id, "label": _label(node), "children": _children(node, ids, expanded)}
        for node in found
        if node.id in ids
    ]


def _children(node: Node, ids: set[int], expanded: set[int]) -> list[dict[str, Any]]:
    if not node.children:
        return []
    if node.id not in expanded:
        return [{"id": f"below {node.id}", "label": "…", "children": []}]
    made = _nodes(node.sorted_children(), ids, expanded)
    more = len(node.children) - len(made)
    if more:
        label = f"{more:,} more: search, or narrow the types down"
        made.append({"id": f"more {node.id}", "label": label, "children": []})
    return made


def _label(node: Node) -> str:
    segment = texts.shown(node.segment) or "(empty)"
    count = f" ({node.n_types:,})" if node.children else ""
    if node.leaf is None:
        return f"{segment}{count}"
    moment = texts.of_moment(node.leaf.timestamp)[11:19]
    return f"{segment}{count}: {node.leaf.text} ({moment})"


_VALUES: Columns[Event] = {
    "Time (UTC)": lambda i: texts.of_moment(i.timestamp),
    "Payload": lambda i: texts.of_payload(i.payload),
}

_LEAVES: Columns[Leaf] = {
    "Type": lambda i: texts.of_type(i.type),
    "Time (UTC)": lambda i: texts.of_moment(i.timestamp),
    "Last payload": lambda i: i.text,
}
