"""Event types as a tree, with the last event of each as a line of text."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from eventer_bridge.model import Event, EventType, Timestamp
from mariner_console import limits, texts


class Leaf(NamedTuple):
    """The last event of a type."""

    type: EventType
    timestamp: Timestamp
    text: str


class Node:
    """A segment of types: ``n_types`` are at or below it, ``leaf`` ends here; ``id`` is unique."""

    __slots__ = ("_sorted", "children", "id", "leaf", "n_types", "parent", "segment")

    def __init__(self, node_id: int, segment: str, parent: "Node | None") -> None:
        self.id = node_id
        self.segment = segment
        self.parent = parent
        self.children: dict[str, Node] = {}
        self.n_types = 0
        self.leaf: Leaf | None = None
        self._sorted: list[Node] | None = None  # takes 60 ms for 20,000

    def add(self, child: "Node") -> None:
        """Add a child."""
        self.children[child.segment] = child
        self._sorted = None

    def sorted_children(self) -> list["Node"]:
        """Those that are shown, in the order of their segments."""
        if self._sorted is None:
            found = sorted(self.children.values(), key=lambda i: texts.natural(i.segment))
            self._sorted = found[: limits.MAX_CHILDREN]
        return self._sorted

    def path(self) -> list["Node"]:
        """From the first segment to this one."""
        return [] if self.parent is None else [*self.parent.path(), self]


class TypeTree:
    """A tree of at most ``limits.MAX_TYPES`` types; ``is_cut``: there are more."""

    def __init__(self) -> None:
        self.root = Node(0, "", None)
        self.is_cut = False
        self._by_id = [self.root]
        self._n_characters = 0

    def put(self, event: Event) -> bool:
        """Set the last event of a type; returns False if the type did not fit."""
        path = _path(event.type)
        nodes = [self.root]
        for segment in path:
            child = nodes[-1].children.get(segment)
            if child is None:
                break
            nodes.append(child)
        if len(nodes) <= len(path) or nodes[-1].leaf is None:
            if not self._has_room(path[len(nodes) - 1 :]):
                self.is_cut = True
                return False
            for segment in path[len(nodes) - 1 :]:
                nodes.append(self._add(nodes[-1], segment))
            for node in nodes:
                node.n_types += 1
        nodes[-1].leaf = Leaf(event.type, event.timestamp, texts.of_payload(event.payload))
        return True

    def find(self, node_id: int) -> Node | None:
        """A node by its id."""
        return self._by_id[node_id] if 0 <= node_id < len(self._by_id) else None

    def at(self, event_type: EventType) -> Node | None:
        """The node of a type, or of the beginning of types."""
        node: Node | None = self.root
        for segment in _path(event_type):
            node = node and node.children.get(segment)
        return node

    def search(self, text: str) -> list[Leaf]:
        """Types that contain a text, whatever its case, in natural order."""
        wanted = text.casefold()
        leaves = (i.leaf for i in self._by_id if i.leaf is not None)
        found = [(texts.of_type(i.type), i) for i in leaves]
        matching = [i for i in found if wanted in i[0].casefold()]
        return [leaf for _, leaf in sorted(matching, key=lambda i: texts.natural(i[0]))]

    def visible(self, expanded: Iterable[int]) -> Iterator[Node]:
        """Nodes that are seen if these are expanded, at most ``limits.MAX_NODES``."""
        is_expanded = {0, *expanded}
        left = limits.MAX_NODES
        todo = [self.root]
        while todo and left:
            node = todo.pop()
            left -= 1
            yield node
            if node.id in is_expanded:
                todo += reversed(node.sorted_children())

    def _has_room(self, segments: EventType) -> bool:
        return (
            self.root.n_types < limits.MAX_TYPES
            and len(self._by_id) + len(segments) <= limits.MAX_TREE_NODES
            and self._n_characters + sum(map(len, segments)) <= limits.MAX_TREE_CHARACTERS
        )

    def _add(self, parent: Node, segment: str) -> Node:
        node = Node(len(self._by_id), segment, parent)
        self._by_id.append(node)
        self._n_characters += len(segment)
        parent.add(node)
        return node


def _path(event_type: EventType) -> EventType:
    if len(event_type) <= limits.MAX_DEPTH:
        return event_type
    rest = "/".join(event_type[limits.MAX_DEPTH - 1 :])
    return (*event_type[: limits.MAX_DEPTH - 1], rest)
