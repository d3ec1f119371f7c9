"""Subscriptions: sets of query types (000, "type").

In a query type ``?`` matches one segment and ``*``, which may only be the last, matches
zero or more. Two facts keep everything here small and safe with hostile input:

* Two query types have in common what **one** query type matches, or nothing. So an
  intersection is made pair by pair, and never larger than the product of its parts.
* Query types are kept in a tree. Matching walks down it with the *set* of nodes that the
  segments so far lead to: at most as many as there are query types, however ``?`` overlap.

Values are immutable and may be used on any thread.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from eventer_bridge import limits
from eventer_bridge.errors import InvalidSubscriptionError
from eventer_bridge.excerpts import quoted_type
from eventer_bridge.model import EventType


class Node:
    """A node of the tree: what may follow, and whether a query type ends here.

    Attributes:
        children: next nodes by segment; ``?`` is one of them.
        is_end: a query type ends here.
        is_open: a query type ends here with ``*``: everything below matches.
    """

    __slots__ = ("children", "is_end", "is_open")

    def __init__(self) -> None:
        self.children: dict[str, Node] = {}
        self.is_end = False
        self.is_open = False


class Subscription:
    """Set of event types, given by query types.

    Args:
        query_types: what is matched; any of them is enough.

    Raises:
        InvalidSubscriptionError: ``*`` is not the last segment, a query type is too long,
            or there are too many (``limits``).
    """

    __slots__ = ("_query_types", "_root")

    def __init__(self, query_types: Iterable[Sequence[str]]) -> None:
        self._set(_checked(query_types))

    def _set(self, query_types: Iterable[EventType]) -> "Subscription":
        self._query_types = _sanitized(set(query_types))
        self._root = Node()
        for query_type in self._query_types:
            _add(self._root, query_type)
        return self

    @property
    def query_types(self) -> tuple[EventType, ...]:
        """The query types, sorted, without those that one ending with ``*`` includes."""
        return self._query_types

    @property
    def root(self) -> Node:
        """Root of the tree, for walks beside it (see ``type_trie``); not to be changed."""
        return self._root

    @property
    def is_everything(self) -> bool:
        """Whether every event type matches."""
        return self._root.is_open

    @property
    def is_empty(self) -> bool:
        """Whether no event type matches."""
        return not self._query_types

    def matches(self, event_type: EventType) -> bool:
        """Whether an event type is in the set."""
        nodes = [self._root]
        for segment in event_type:
            following = []
            for node in nodes:
                if node.is_open:
                    return True
                if child := node.children.get(segment):
                    following.append(child)
                if segment != "?" and (child := node.children.get("?")):
                    following.append(child)
            if not following:
                return False
            nodes = following
        return any(node.is_end or node.is_open for node in nodes)

    def union(self, *others: "Subscription") -> "Subscription":
        """What is in any of them."""
        return Subscription(())._set(i for each in (self, *others) for i in each.query_types)

    def intersection(self, *others: "Subscription") -> "Subscription":
        """What is in all of them."""
        result = self
        for other in others:
            if other.is_everything:
                continue
            if result.is_everything:
                result = other
                continue
            common = (_common(i, j) for i in result.query_types for j in other.query_types)
            # as many as the product of the parts, whose sizes were checked
            result = Subscription(())._set(i for i in common if i is not None)
        return result

    def isdisjoint(self, other: "Subscription") -> bool:
        """Whether nothing is in both."""
        return all(_common(i, j) is None for i in self.query_types for j in other.query_types)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subscription) and self._query_types == other._query_types

    def __hash__(self) -> int:
        return hash(self._query_types)

    def __repr__(self) -> str:
        return f"Subscription({[list(i) for i in self._query_types]})"


def _checked(query_types: Iterable[Sequence[str]]) -> Iterator[EventType]:
    for number, query_type in enumerate(query_types, 1):
        if "*" in query_type[:-1]:
            raise InvalidSubscriptionError(
                f"query type {quoted_type(tuple(query_type))}: '*' is allowed only as the last"
                " segment"
            )
        if len(query_type) > limits.MAX_TYPE_SEGMENTS + 1:
            raise InvalidSubscriptionError(
                f"query type has {len(query_type)} segments, at most"
                f" {limits.MAX_TYPE_SEGMENTS + 1} are allowed"
            )
        if number > limits.MAX_SUBSCRIPTION_TYPES:
            raise InvalidSubscriptionError(
                f"more than {limits.MAX_SUBSCRIPTION_TYPES} query types in one subscription"
            )
        yield tuple(query_type)


def _sanitized(unique: set[EventType]) -> tuple[EventType, ...]:
    open_types = {i[:-1] for i in unique if i and i[-1] == "*"}
    return tuple(sorted(i for i in unique if not _is_included(i, open_types)))


def _is_included(query_type: EventType, open_types: set[EventType]) -> bool:
    """Whether another one, which ends with ``*``, has a prefix of the same segments."""
    is_open = bool(query_type) and query_type[-1] == "*"
    longest = len(query_type) - 2 if is_open else len(query_type)
    return any(query_type[:size] in open_types for size in range(longest + 1))


def _add(root: Node, query_type: EventType) -> None:
    node = root
    for segment in query_type:
        if segment == "*":
            node.is_open = True
            return
        node = node.children.setdefault(segment, Node())
    node.is_end = True


def _common(first: EventType, second: EventType) -> EventType | None:
    """The query type that matches what both match; None if that is nothing."""
    first_is_open = bool(first) and first[-1] == "*"
    second_is_open = bool(second) and second[-1] == "*"
    first_size = len(first) - first_is_open
    second_size = len(second) - second_is_open
    if first_size < second_size and not first_is_open:
        return None
    if second_size < first_size and not second_is_open:
        return None
    segments = []
    for i, j in zip(first[:first_size], second[:second_size], strict=False):
        if i != j and "?" not in {i, j}:
            return None
        segments.append(j if i == "?" else i)
    longer = first[:first_size] if first_size > second_size else second[:second_size]
    segments.extend(longer[len(segments) :])
    if first_is_open and second_is_open:
        segments.append("*")
    return tuple(segments)


EVERYTHING: Final = Subscription([("*",)])
"""Matches every event type."""

NOTHING: Final = Subscription([])
"""Matches no event type."""
