"""Trie of the known event types: which of them match a subscription.

The walk goes down the trie and the subscription's tree side by side, with the set of the
subscription's nodes that the path so far leads to. A node of the trie is visited at most
once, and only if something below it may match; below an ``*`` everything is taken.

A trie belongs to one thread at a time.
"""

from typing import Any, Final, Generic, TypeVar

from eventer_bridge.model import EventType
from eventer_bridge.subscription import Node, Subscription

T = TypeVar("T")

_VALUE: Final[Any] = None
"""Key of a node's own value: no segment, which are strings, is equal to it. A node is a
plain dict, so that a million types cost no more than their segments."""


class TypeTrie(Generic[T]):
    """Known event types, each with a value."""

    def __init__(self) -> None:
        self._root: dict[Any, Any] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, event_type: EventType, value: T) -> None:
        """Add a type, or replace its value."""
        node = self._root
        for segment in event_type:
            node = node.setdefault(segment, {})
        self._size += _VALUE not in node
        node[_VALUE] = value

    def get(self, event_type: EventType) -> T | None:
        """Value of a type, None if it is not known."""
        node = self._root
        for segment in event_type:
            if segment not in node:
                return None
            node = node[segment]
        value: T | None = node.get(_VALUE)
        return value

    def resolve(self, subscription: Subscription) -> list[T]:
        """Values of the types that match, each once, in no particular order."""
        values: list[T] = []
        waiting: list[tuple[dict[Any, Any], list[Node]]] = [(self._root, [subscription.root])]
        while waiting:
            node, patterns = waiting.pop()
            if any(i.is_open for i in patterns):
                _collect(node, values)
                continue
            if _VALUE in node and any(i.is_end for i in patterns):
                values.append(node[_VALUE])
            waiting.extend(_following(node, patterns))
        return values


def _following(
    node: dict[Any, Any], patterns: list[Node]
) -> list[tuple[dict[Any, Any], list[Node]]]:
    """Children of a trie node, each with the patterns that go on there, if any do."""
    # a node seldom has as many children as "?" asks for all of: look up the fewer ones
    any_segment = [i.children["?"] for i in patterns if "?" in i.children]
    if any_segment:
        segments = [i for i in node if i is not _VALUE]
    else:
        segments = list({s for i in patterns for s in i.children if s in node})
    result = []
    for segment in segments:
        following = [i.children[segment] for i in patterns if segment in i.children]
        if segment != "?":
            following += any_segment
        if following:
            result.append((node[segment], following))
    return result


def _collect(node: dict[Any, Any], values: list[Any]) -> None:
    waiting = [node]
    while waiting:
        for key, child in waiting.pop().items():
            if key is _VALUE:
                values.append(child)
            else:
                waiting.append(child)
