"""Tree of the known event types: which of them match a subscription.

A node stands for what several types have in common at their begin; where only one goes on,
the type itself stands in its place, and where all go on alike for some segments, there is no
node in between. So there are fewer nodes than types, however long these are, and a type that
shares its segments costs no more than its entry.

A search goes down the tree with the state of each part of the subscription (``Patterns``). It
visits what may match and nothing else; below an ``*`` everything is taken.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from eventer_bridge.model import EventType
from eventer_bridge.subscription import OPEN, Patterns, Subscription

STEP_SEGMENTS: Final = 128
"""Segments that a search looks at in one step: 0.1 ms."""

STEP_TYPES: Final = 512
"""Types that it takes in one step where all match."""


class _Node:
    """Types that begin with the same segments.

    Attributes:
        size: how many segments they have in common.
        sample: one of them.
        own: the one that has no more segments.
        children: the others by their next segment.
    """

    __slots__ = ("children", "own", "sample", "size")

    def __init__(self, size: int, sample: EventType) -> None:
        self.size = size
        self.sample = sample
        self.own: EventType | None = None
        self.children: dict[str, _Node | EventType] = {}

    def put(self, child: "_Node | EventType") -> None:
        """Add what is not there yet."""
        sample, size = _measured(child)
        if size > self.size:
            self.children[sample[self.size]] = child
        else:
            assert isinstance(child, tuple)
            self.own = child


_States: TypeAlias = list[int]


class TypeTrie:
    """See the module.

    One thread adds types. Any thread may search meanwhile: nothing is removed, and what is
    new is complete before it can be found.
    """

    def __init__(self) -> None:
        self._root = _Node(0, ())

    def add(self, event_type: EventType) -> None:
        """Add a type, unless it is there."""
        node = self._root
        while len(event_type) > node.size:
            segment = event_type[node.size]
            child = node.children.get(segment)
            if child is None:
                node.children[segment] = event_type
                return
            sample, size = _measured(child)
            common = _common_size(event_type, sample, node.size + 1, size)
            if isinstance(child, _Node) and common == size:
                node = child
                continue
            if common < max(size, len(event_type)):
                between = _Node(common, sample)
                between.put(child)
                between.put(event_type)
                node.children[segment] = between
            return
        node.own = event_type

    def find(self, subscription: Subscription) -> Iterator[list[EventType]]:
        """Types that match, each once, in no particular order, in steps of some 0.1 ms.

        Between two steps others may run, and the search may be given up. Types that are added
        after it began may be among those found, or not. Where a node has many children, a
        step copies its entries first: 5 ms for a million of them.
        """
        parts = subscription.parts
        found: list[EventType] = []
        n_segments = 0
        state = [part.start() for part in parts]
        waiting: list[tuple[Iterator[_Node | EventType], int, _States]] = []
        waiting.append((iter([self._root]), 0, state))
        while waiting:
            children, begin, states = waiting[-1]
            child = next(children, None)
            if child is None:
                waiting.pop()
                continue
            sample, size = _measured(child)
            reached = _advance(parts, states, sample, begin, size)
            n_segments += size - begin + 1
            if reached is not None and reached.count(OPEN) == len(reached):
                yield found
                yield from _below(child)
                found = []
                n_segments = 0
            elif reached is not None:
                own = child if isinstance(child, tuple) else child.own
                if own is not None and all(map(_ends, parts, reached, [size] * len(parts))):
                    found.append(own)
                if isinstance(child, _Node):
                    waiting.append((_children(child, parts, reached), size, reached))
            if n_segments >= STEP_SEGMENTS:
                yield found
                found = []
                n_segments = 0
        yield found


def _below(top: _Node | EventType) -> Iterator[list[EventType]]:
    """All types from a node on, some at a time."""
    found: list[EventType] = []
    waiting = [iter([top])]
    while waiting:
        for child in waiting[-1]:
            if isinstance(child, tuple):
                found.append(child)
                if len(found) >= STEP_TYPES:
                    yield found
                    found = []
            else:
                if child.own is not None:
                    found.append(child.own)
                waiting.append(iter(list(child.children.values())))
                break
        else:
            waiting.pop()
    yield found


_ends: Final = Patterns.ends


def _measured(child: _Node | EventType) -> tuple[EventType, int]:
    """A type at or below a node's child, and how many segments all of them have in common."""
    if isinstance(child, tuple):
        return child, len(child)
    return child.sample, child.size


def _common_size(first: EventType, second: EventType, begin: int, end: int) -> int:
    """How many segments two types have in common at their begin.

    Args:
        first: a type.
        second: another one.
        begin: so many they have.
        end: more are not counted.
    """
    end = min(end, len(first))
    while begin < end and first[begin] == second[begin]:
        begin += 1
    return begin


def _advance(
    parts: tuple[Patterns, ...], states: _States, sample: EventType, begin: int, end: int
) -> _States | None:
    """States after some segments of a type; None: it cannot match any more."""
    for depth in range(begin, end):
        segment = sample[depth]
        states = [
            part.advance(state, depth, segment) for part, state in zip(parts, states, strict=True)
        ]
        if 0 in states:
            return None
        if states.count(OPEN) == len(states):
            break
    return states


def _children(
    node: _Node, parts: tuple[Patterns, ...], states: _States
) -> Iterator[_Node | EventType]:
    """Children of a node that may match, at least."""
    children = node.children
    fewest: Iterable[str] | None = None
    n_fewest = len(children)
    for part, state in zip(parts, states, strict=True):
        segments = part.next_segments(state, node.size)
        if segments is not None and len(segments) < n_fewest:
            fewest, n_fewest = segments, len(segments)
    if fewest is None:
        return iter(list(children.values()))
    return iter([children[i] for i in fewest if i in children])
