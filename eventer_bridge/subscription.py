"""Subscriptions: sets of query types.

In a query type ``?`` matches one segment and ``*``, which must be the last, matches zero or
more. Hostile query types cost no more than others:

* All query types of a set are matched at once: each is a bit, and each segment clears those
  that it rules out. So a match costs a few operations per segment, however many query types
  overlap, and however many ``?`` they have.
* An intersection keeps the sets that it is formed of: a type is in it if it is in all of them.
  Their common query types could be as many as the product of their sizes; they are computed
  only on demand, with a bound.

Values are immutable and may be used on any thread.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from eventer_bridge import limits
from eventer_bridge.errors import InvalidSubscriptionError
from eventer_bridge.model import EventType, quoted_type

OPEN: Final = -1
"""State of a walk through ``Patterns`` after which everything matches; all bits are set."""


class _Level:
    """The segments of query types at one position, as sets of bits.

    Those with a literal segment, by segment; with ``?``; with ``*``; and that end before it.
    """

    __slots__ = ("any", "ends", "literals", "opens")

    def __init__(self) -> None:
        self.literals: dict[str, int] = {}
        self.any = self.opens = self.ends = 0


class Patterns:
    """Query types, of which at least one must match, matched all at once.

    A walk along the segments of an event type has a state: the set of the query types that match so
    far, 0 if none does, or :data:`OPEN`.
    """

    __slots__ = ("_all", "_levels", "_minimal", "is_everything", "query_types")

    def __init__(self, query_types: Iterable[EventType]) -> None:
        self.query_types = tuple(dict.fromkeys(query_types))
        self._all = (1 << len(self.query_types)) - 1
        self._levels = [_Level()]
        self._minimal: tuple[EventType, ...] | None = None
        for number, query_type in enumerate(self.query_types):
            self._add(query_type, 1 << number)
        self.is_everything = bool(self._levels[0].opens)

    def _add(self, query_type: EventType, bit: int) -> None:
        head, is_open = _split(query_type)
        levels = self._levels
        while len(levels) <= len(head):
            levels.append(_Level())
        for level, segment in zip(levels, head, strict=False):
            if segment == "?":
                level.any |= bit
            else:
                level.literals[segment] = level.literals.get(segment, 0) | bit
        if is_open:
            levels[len(head)].opens |= bit
        else:
            levels[len(head)].ends |= bit

    @property
    def minimal(self) -> tuple[EventType, ...]:
        """The query types, sorted, without those that another one includes."""
        if self._minimal is None:
            self._minimal = tuple(
                sorted(
                    query_type
                    for number, query_type in enumerate(self.query_types)
                    if not self._is_included(query_type, self._all & ~(1 << number))
                )
            )
        return self._minimal

    def matches(self, event_type: EventType) -> bool:
        """Whether an event type matches."""
        alive = self._all
        levels = self._levels
        for level, segment in zip(levels, event_type, strict=False):
            if alive & level.opens:
                return True
            alive &= level.literals.get(segment, 0) | level.any
            if not alive:
                return False
        level = levels[len(event_type)]
        return bool(alive & (level.opens | level.ends))

    def start(self) -> int:
        """State before the first segment."""
        return OPEN if self.is_everything else self._all

    def advance(self, state: int, depth: int, segment: str) -> int:
        """State after one more segment, at ``depth``."""
        if state == OPEN:
            return OPEN
        level = self._levels[depth]
        state &= level.literals.get(segment, 0) | level.any
        return OPEN if state and state & self._levels[depth + 1].opens else state

    def ends(self, state: int, size: int) -> bool:
        """Whether an event type with so many segments, which led to a state, matches."""
        return state == OPEN or bool(state & self._levels[size].ends)

    def next_segments(self, state: int, depth: int) -> Collection[str] | None:
        """Segments at ``depth`` that continue the walk, and maybe some that end it; None: any."""
        if state == OPEN:
            return None
        level = self._levels[depth]
        if state & level.any:
            return None
        if state.bit_count() >= len(level.literals):
            return level.literals.keys()
        return {self.query_types[i][depth] for i in _bits(state & ~level.ends)}

    def overlapping(self, query_type: EventType) -> Iterator[EventType]:
        """The query types that overlap with another one."""
        head, is_open = _split(query_type)
        alive, found = self._all, 0
        for level, segment in zip(self._levels, head, strict=False):
            found |= alive & level.opens
            if segment == "?":
                alive &= ~(level.opens | level.ends)
            else:
                alive &= level.literals.get(segment, 0) | level.any
            if not alive:
                break
        else:
            level = self._levels[len(head)]
            found |= alive if is_open else alive & (level.opens | level.ends)
        for i in _bits(found):
            yield self.query_types[i]

    def _is_included(self, query_type: EventType, others: int) -> bool:
        """Whether one of the others includes a query type."""
        head, is_open = _split(query_type)
        for level, segment in zip(self._levels, head, strict=False):
            if others & level.opens:
                return True
            others &= level.literals.get(segment, 0) | level.any
            if not others:
                return False
        level = self._levels[len(head)]
        return bool(others & (level.opens if is_open else level.opens | level.ends))


class Subscription:
    """Set of event types, given by query types, of which at least one must match.

    Two are equal if they were formed of equal sets; an intersection does not equal a set that
    happens to have the same types. ``parts`` are sets that must all match, for walks (see
    ``rocksdb.types``).

    Raises ``InvalidSubscriptionError``: ``*`` is not the last segment, or too much (``limits``).
    """

    __slots__ = ("_hash", "_query_types", "is_everything", "parts")

    def __init__(self, query_types: Iterable[Sequence[str]]) -> None:
        self._set((Patterns(_checked(query_types)),))

    def _set(self, parts: tuple[Patterns, ...]) -> "Subscription":
        self.parts = parts
        self.is_everything = all(part.is_everything for part in parts)
        self._query_types: tuple[EventType, ...] | None = None
        self._hash: int | None = None
        return self

    @property
    def query_types(self) -> tuple[EventType, ...]:
        """The query types, sorted, without those that another one includes.

        ``InvalidSubscriptionError``: an intersection has more than ``limits.MAX_COMMON_TYPES``.
        """
        if self._query_types is None:
            if len(self.parts) == 1:
                self._query_types = self.parts[0].minimal
            else:
                self._query_types = Patterns(_in_common(*self.parts)).minimal
        return self._query_types

    @property
    def is_empty(self) -> bool:
        """Whether no event type matches."""
        if len(self.parts) == 1:
            return not self.parts[0].query_types
        return _are_disjoint(*self.parts)

    def matches(self, event_type: EventType) -> bool:
        """Whether an event type is in the set."""
        for part in self.parts:  # noqa: SIM110  # a third of the time of all(…)
            if not part.matches(event_type):
                return False
        return True

    def union(self, *others: "Subscription") -> "Subscription":
        """The types in any of them."""
        query_types = (i for each in (self, *others) for i in each.query_types)
        return Subscription(())._set((Patterns(query_types),))

    def intersection(self, other: "Subscription") -> "Subscription":
        """The types in both; raises as :attr:`query_types` of one that is an intersection."""
        if other.is_everything or self is other:
            return self
        if self.is_everything:
            return other
        parts = (self._single_part(), other._single_part())
        return Subscription(())._set(parts)

    def isdisjoint(self, other: "Subscription") -> bool:
        """Whether no type is in both."""
        return self.intersection(other).is_empty

    def _single_part(self) -> Patterns:
        return self.parts[0] if len(self.parts) == 1 else Patterns(self.query_types)

    def _key(self) -> tuple[tuple[EventType, ...], ...]:
        return tuple(sorted(part.minimal for part in self.parts))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Subscription) and self._key() == other._key()

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._key())
        return self._hash

    def __repr__(self) -> str:
        parts = [[list(i) for i in part.minimal] for part in self.parts]
        return " & ".join(f"Subscription({part})" for part in parts)


def check_query_types(query_types: Iterable[Sequence[str]]) -> None:
    """Raise ``InvalidSubscriptionError`` for more query types, or longer ones, than allowed."""
    n_segments = 0
    for number, query_type in enumerate(query_types, 1):
        _check_size(number, query_type)
        n_segments += len(query_type)
    if n_segments > limits.MAX_QUERY_SEGMENTS:
        raise too_many_segments(n_segments)


def too_many_segments(n_segments: int) -> InvalidSubscriptionError:
    """The error for query types with more than ``limits.MAX_QUERY_SEGMENTS`` segments."""
    return InvalidSubscriptionError(
        f"query types with {n_segments} segments, at most {limits.MAX_QUERY_SEGMENTS} are allowed"
    )


def _check_size(number: int, query_type: Sequence[str]) -> None:
    if number > limits.MAX_SUBSCRIPTION_TYPES:
        raise InvalidSubscriptionError(
            f"more than {limits.MAX_SUBSCRIPTION_TYPES} query types in one subscription"
        )
    if len(query_type) > limits.MAX_TYPE_SEGMENTS + 1:
        raise InvalidSubscriptionError(
            f"query type has {len(query_type)} segments, at most"
            f" {limits.MAX_TYPE_SEGMENTS + 1} are allowed"
        )
    if (n_characters := sum(map(len, query_type))) > limits.MAX_TYPE_BYTES + 1:
        raise InvalidSubscriptionError(
            f"query type has {n_characters} characters, at most"
            f" {limits.MAX_TYPE_BYTES + 1} are allowed"
        )


def _checked(query_types: Iterable[Sequence[str]]) -> Iterator[EventType]:
    for number, query_type in enumerate(query_types, 1):
        _check_size(number, query_type)
        if "*" in query_type[:-1]:
            raise InvalidSubscriptionError(
                f"query type {quoted_type(tuple(query_type))}: '*' is allowed only as the last"
                " segment"
            )
        yield tuple(query_type)


def _split(query_type: EventType) -> tuple[EventType, bool]:
    """Segments before ``*``, and whether there is one."""
    if query_type and query_type[-1] == "*":
        return query_type[:-1], True
    return query_type, False


def _bits(bits: int) -> Iterator[int]:
    """Numbers of the set bits."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _are_disjoint(first: Patterns, second: Patterns) -> bool:
    if len(first.query_types) > len(second.query_types):
        first, second = second, first
    return all(next(second.overlapping(i), None) is None for i in first.query_types)


def _in_common(first: Patterns, second: Patterns) -> Collection[EventType]:
    """Query types that match the types in both."""
    found: dict[EventType, None] = {}
    for one in first.query_types:
        for other in second.overlapping(one):
            found[_common(one, other)] = None
            if len(found) > limits.MAX_COMMON_TYPES:
                raise InvalidSubscriptionError(
                    f"more than {limits.MAX_COMMON_TYPES} query types in common"
                )
    return found


def _common(first: EventType, second: EventType) -> EventType:
    """The query type that matches the types in two overlapping ones."""
    one, one_is_open = _split(first)
    other, other_is_open = _split(second)
    segments = [j if i == "?" else i for i, j in zip(one, other, strict=False)]
    longer = one if len(one) > len(other) else other
    segments += longer[len(segments) :]
    if one_is_open and other_is_open:
        segments.append("*")
    return tuple(segments)


EVERYTHING: Final = Subscription([("*",)])
"""Matches every event type."""

NOTHING: Final = Subscription([])
"""Matches no event type."""
