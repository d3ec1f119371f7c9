"""The tree of event types, with the last event of each; those that are seen are kept up to date."""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

from nicegui import events, ui
from typing_extensions import override

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import EventType, QueryLatestParams
from mariner.cli.values import plural
from mariner.errors import MarinerError
from mariner_console import limits, texts
from mariner_console.page import parts
from mariner_console.page.parts import Columns, Panel, TextTable
from mariner_console.type_tree import Leaf, Node, TypeTree
from mariner_console.watcher import Watcher


class TypesPanel(Panel):
    """A tree, or the types that a search finds; the last event of the picked one."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._types = TypeTree()
        self._expanded: set[int] = set()
        self._picked: EventType | None = None
        self._n_loads = 0
        with ui.element("div").classes("console-grid"):
            with parts.card("Event types"):
                with ui.element("div").classes("console-form"):
                    self._pattern = parts.field("Types", "*").on("keydown.enter", self._load)
                    self._search = parts.field("Search", on_change=self._find)
                    ui.button("Load", on_click=self._load)
                self._failure = parts.failure()
                self._count = parts.note("").props("role=status")
                self._found = TextTable(_LEAVES, empty="No such type is loaded.")
                self._found.show(False)
                self._tree = ui.tree([], on_select=self._pick, on_expand=self._expand)
                self._tree.props('no-nodes-label="There is no event." selected-color=primary')
                self._tree.classes("full-width")
            with parts.card("Last event"):
                self._event = parts.unfolded()
                parts.note("Pick a type.")

    @override
    async def refresh(self) -> None:
        if not self._n_loads:
            await self._load()
        seen = [i.leaf.type for i in self._types.visible(self._expanded) if i.leaf is not None]
        if self._picked is not None:
            seen.append(self._picked)
        if not seen or self._search.value:
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
                self._event.set_text(texts.of_event(event))
        self._show()

    async def _load(self) -> None:
        self._n_loads += 1
        number = self._n_loads
        self._failure.set_text("")
        tree = TypeTree()
        try:
            params = QueryLatestParams(parts.patterns_of(self._pattern.value))
            async with aclosing(self._watcher.latest(params)) as found:
                async for event in found:
                    if not tree.put(event):
                        break
        except (InvalidEventError, MarinerError, TimeoutError) as e:
            self._failure.set_text(texts.shown(str(e) or "no answer in time"))
            return
        if number != self._n_loads:
            return  # it was asked for others meanwhile
        self._types = tree
        self._picked = None
        self._expanded = {0}
        more = "; there are more: narrow the types down" if tree.is_cut else ""
        self._count.set_text(f"{tree.root.n_types:,} {plural(tree.root.n_types, 'type')}{more}")
        self._find()
        self._show()

    def _find(self) -> None:
        text = self._search.value.strip()
        self._found.show(bool(text))
        self._tree.set_visibility(not text)
        if text:
            self._found.set(self._types.search(text))

    def _expand(self, e: events.ValueChangeEventArguments[Any]) -> None:
        self._expanded = {i for i in e.value if isinstance(i, int)}
        self._show()

    def _pick(self, e: events.ValueChangeEventArguments[Any]) -> None:
        node = self._types.find(e.value) if isinstance(e.value, int) else None
        self._picked = node.leaf.type if node is not None and node.leaf is not None else None
        self._event.set_text("")

    def _show(self) -> None:
        ids = {i.id for i in self._types.visible(self._expanded)}
        nodes = _nodes(self._types.root.sorted_children(), ids, self._expanded)
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


_LEAVES: Columns[Leaf] = {
    "Type": lambda i: texts.of_type(i.type),
    "Time (UTC)": lambda i: texts.of_moment(i.timestamp),
    "Last payload": lambda i: i.text,
}
