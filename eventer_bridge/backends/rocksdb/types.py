"""The event types of a store, the four bytes that stand for each of them, and those of a query.

The event loop's thread adds types. Any thread may read meanwhile: a type is never forgotten or
renumbered, a new one is complete before it counts, and rows have types that were known before.

A tree (:class:`TypeTrie`) finds the types that match a subscription. A node stands for the common
beginning of several types; a single type takes the place of a node, and where all continue alike
for some segments, there is no node in between. So there are fewer nodes than types, however long
these are. A search goes down the tree with the state of each part of the subscription
(``Patterns``), and visits only what may match; below an ``*`` everything matches.

The types of a query (:func:`find_wanted`) are found on a reader thread, in steps of 0.1 ms with a
pause after each. The visible types of a client are kept (:class:`VisibleTypes`). If finding those
of a query takes long, it is left until reading needs it (:class:`SoughtTypes`): events that come
first in the order are often found without it.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from eventer_bridge import limits
from eventer_bridge.backends.readers import PauseCb
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.type_budget import TypeBudget, TypeQuota
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.memory import LastingDict
from eventer_bridge.model import EventType
from eventer_bridge.packed import encode_type
from eventer_bridge.slices import Steps
from eventer_bridge.subscription import OPEN, Patterns, Subscription

STEP_TYPES: Final = 64
"""Types that are looked at in one step, where each of them is: 0.1 ms."""

STEP_NEW_TYPES: Final = 8
"""New types that are added in one step: 0.1 ms, or 0.4 ms if they have many segments."""


class TypeRegistry:
    """See the module.

    Args:
        stored: the types that the store knows, by id.
        spent: what those of each client cost.

    Attributes:
        names: every known type, by id.
        ids: the same the other way round. Both may be read on any thread.
    """

    def __init__(
        self,
        stored: Iterable[tuple[TypeId, EventType]],
        spent: Mapping[str, int] | None = None,
    ) -> None:
        self.names: dict[TypeId, EventType] = LastingDict()
        self._budget = TypeBudget(spent)
        self.ids: dict[EventType, TypeId] = LastingDict()
        self._trie = TypeTrie()
        self._visible: OrderedDict[Subscription, VisibleTypes] = OrderedDict()
        self._visible_lock = threading.Lock()
        for type_id, event_type in stored:
            self._add(type_id, event_type, None)

    def __len__(self) -> int:
        return len(self.names)

    def check(self, event_types: Iterable[EventType], quota: TypeQuota | None = None) -> None:
        """Refuse new types above a limit; see ``TypeBudget.check``.

        Raises:
            LimitError: they cost too much.
        """
        ids = self.ids
        self._budget.check({i for i in event_types if i not in ids}, quota)

    def spent(self, owner: str) -> int:
        """What the types of an owner cost."""
        return self._budget.spent.get(owner, 0)

    def intern(
        self,
        found: Iterable[tuple[int, EventType]],
        new: list[tuple[TypeId, bytes]],
        quota: TypeQuota | None = None,
        n_asked: int = 0,
    ) -> Steps[None]:
        """Add types that are not known, in steps. Nobody else adds types meanwhile.

        Args:
            found: types of events, known and new ones, each with the index of its event.
            new: types that are not in the store yet are appended here, encoded.
            quota: of who asked for them.
            n_asked: so many of the events, the first ones, were asked for.

        Raises:
            LimitError: as :meth:`check`.
            InvalidEventError: a new type is not Unicode text.
        """
        unknown: dict[EventType, str | None] = {}  # each with the owner, if it was asked for
        owner = quota and quota.owner
        for n_found, (index, event_type) in enumerate(found, 1):
            if event_type not in self.ids:
                unknown.setdefault(event_type, owner if index < n_asked else None)
            if n_found % limits.STEP_EVENTS == 0:
                yield
        if unknown:
            yield from self._add_in_steps(unknown, new, quota)

    def _add_in_steps(
        self,
        unknown: Mapping[EventType, str | None],
        new: list[tuple[TypeId, bytes]],
        quota: TypeQuota | None,
    ) -> Steps[None]:
        """Add types, each with its owner, if it was asked for; see :meth:`intern`."""
        asked = [event_type for event_type, owner in unknown.items() if owner is not None]
        if asked:
            yield from self._budget.check_in_steps(asked, quota)
        if len(asked) < len(unknown):
            yield from self._budget.check_in_steps(unknown, None)
        encoded: list[bytes] = []
        for event_type in unknown:  # all of them before the first is added
            encoded.append(encode_type(event_type))
            if len(encoded) % STEP_TYPES == 0:
                yield
        for (event_type, owner), data in zip(unknown.items(), encoded, strict=True):
            type_id = keys.encode_type_id(len(self.names))
            self._add(type_id, event_type, owner)
            new.append((type_id, data))
            if len(new) % STEP_NEW_TYPES == 0:
                yield

    def learn(self, type_id: TypeId, event_type: EventType) -> None:
        """Add a type that the store has got, if it is not known."""
        if type_id not in self.names:
            self._add(type_id, event_type, None)

    def find(self, subscription: Subscription) -> Iterator[list[TypeId]]:
        """Ids of the types that match, each once, in no particular order, in steps of 0.1 ms.

        Types that are added after it began may be among those found, or not. Any thread.
        """
        ids = self.ids
        return ([ids[i] for i in found] for found in self._trie.find(subscription))

    def visible(self, rights: Subscription) -> "VisibleTypes":
        """The types that rights allow: one for all who ask for equal rights. Any thread."""
        hash(rights)  # slow at the first time
        with self._visible_lock:
            visible = self._visible.pop(rights, None)
            if visible is None:
                visible = VisibleTypes(self, rights)
            self._visible[rights] = visible
            n_kept = max(1, limits.MAX_VISIBLE_BYTES // max(1, len(self)))
            while len(self._visible) > n_kept:
                self._visible.popitem(last=False)
        return visible

    def _add(self, type_id: TypeId, event_type: EventType, owner: str | None) -> None:
        event_type = self._budget.add(event_type, owner)
        self.ids[event_type] = type_id
        self._trie.add(event_type)
        self.names[type_id] = event_type  # the last: see ``__len__``


class VisibleTypes(Collection[TypeId]):
    """Ids of the types that rights allow, kept up to date: a byte for each known type.

    Made by ``TypeRegistry.visible``. Any thread.

    Args:
        types: all types.
        rights: which of them are allowed.

    Attributes:
        rights: as given.
    """

    def __init__(self, types: TypeRegistry, rights: Subscription) -> None:
        self._types = types
        self.rights = rights
        self._flags = bytearray()  # 1 for each type that is allowed, by its number
        self._size = 0
        self._lock = threading.Lock()

    @property
    def is_up_to_date(self) -> bool:
        """Whether every known type was looked at."""
        return len(self._flags) == len(self._types)

    def catch_up(self) -> Iterator[None]:
        """Look at the types that came since the last time, in steps of 0.1 ms.

        What two threads do at the same time is done twice, and right.
        """
        begin, end = len(self._flags), len(self._types)
        flags = bytearray(end - begin)
        for found in self._find(begin, end):
            for number in found:
                if begin <= number < end:
                    flags[number - begin] = 1
            yield
        with self._lock:
            if len(self._flags) == begin:
                self._size += flags.count(1)
                self._flags += flags

    def __contains__(self, type_id: object) -> bool:
        """Whether a type is allowed that came before ``catch_up`` was called."""
        assert isinstance(type_id, bytes)
        number = keys.decode_type_id(type_id)
        flags = self._flags
        return number < len(flags) and flags[number] == 1

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[TypeId]:
        return self.since(0)

    def since(self, first: int) -> Iterator[TypeId]:
        """Those whose number is not below ``first``, in the order of their numbers."""
        flags = self._flags
        number = flags.find(1, first)
        while number >= 0:
            yield keys.encode_type_id(number)
            number = flags.find(1, number + 1)

    def _find(self, begin: int, end: int) -> Iterator[Iterable[int]]:
        """Numbers of types from ``begin`` on that are allowed, in steps."""
        if not begin:
            for found in self._types.find(self.rights):
                yield map(keys.decode_type_id, found)
            return
        names, matches = self._types.names, self.rights.matches
        for number in range(begin, end, STEP_TYPES):
            some = range(number, min(number + STEP_TYPES, end))
            yield [i for i in some if matches(names[keys.encode_type_id(i)])]


STEP_SEGMENTS: Final = 128
"""Segments that a search looks at in one step: 0.1 ms."""

STEP_BELOW_TYPES: Final = 512
"""Types that it takes in one step where all match."""


class _Node:
    """Types with ``size`` common segments: ``sample`` is one of them, ``own`` has no more."""

    __slots__ = ("children", "own", "sample", "size")

    def __init__(self, size: int, sample: EventType) -> None:
        self.size = size
        self.sample = sample
        self.own: EventType | None = None
        self.children: dict[str, _Node | EventType] = LastingDict()

    def put(self, child: "_Node | EventType") -> None:
        """Add a new child."""
        sample, size = _measured(child)
        if size > self.size:
            self.children[sample[self.size]] = child
        else:
            assert isinstance(child, tuple)
            self.own = child


_States: TypeAlias = list[int]


class TypeTrie:
    """See the module. One thread adds types; any thread may search meanwhile."""

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
            if isinstance(child, _Node) and event_type[: child.size] == child.sample[: child.size]:
                node = child
                continue
            sample, size = _measured(child)
            common = _common_size(event_type, sample, node.size + 1, size)
            if common < max(size, len(event_type)):
                between = _Node(common, sample)
                between.put(child)
                between.put(event_type)
                node.children[segment] = between
            return
        node.own = event_type

    def find(self, subscription: Subscription) -> Iterator[list[EventType]]:
        """Types that match, each once, in no particular order, in steps of some 0.1 ms.

        A search may be paused or given up between two steps. Types that are added after it began
        may be among those found, or not. Where a node has many children, a step copies its entries
        first: 5 ms for a million of them.
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
                if len(found) >= STEP_BELOW_TYPES:
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
    """A type at or below a node's child, and the size of their common beginning."""
    if isinstance(child, tuple):
        return child, len(child)
    return child.sample, child.size


def _common_size(first: EventType, second: EventType, begin: int, end: int) -> int:
    """Size of the common beginning of two types: at least ``begin``, at most ``end``."""
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


FEW_STEPS: Final = 8
"""Steps in which the types that match are sought before anything is read."""

FREE_PASSES: Final = 10_000
"""Events that are passed over before those types are sought that took longer."""


class EveryType(Collection[TypeId]):
    """All types, by their number: of a query without types, if all may be seen."""

    def __init__(self, n_types: int) -> None:
        self._n_types = n_types

    def __contains__(self, type_id: object) -> bool:
        return True

    def __len__(self) -> int:
        return self._n_types

    def __iter__(self) -> Iterator[TypeId]:
        return self.since(0)

    def since(self, first: int) -> Iterator[TypeId]:
        """Those whose number is not below ``first``, in the order of their numbers."""
        return map(keys.encode_type_id, range(first, self._n_types))


class SoughtTypes(Collection[TypeId]):
    """Types that match a subscription, which are only found when needed."""

    def __init__(self, types: TypeRegistry, subscription: Subscription, pause: PauseCb) -> None:
        self._types = types
        self._subscription = subscription
        self._pause = pause
        self._known: dict[TypeId, bool] = {}
        self._found: VisibleTypes | None = None

    def __contains__(self, type_id: object) -> bool:
        assert isinstance(type_id, bytes)
        is_wanted = self._known.get(type_id)
        if is_wanted is None:
            is_wanted = self._subscription.matches(self._types.names[type_id])
            self._known[type_id] = is_wanted
        return is_wanted

    def __len__(self) -> int:
        return len(self._sought())

    def __iter__(self) -> Iterator[TypeId]:
        return iter(self._sought())

    def _sought(self) -> VisibleTypes:
        if self._found is None:
            found = VisibleTypes(self._types, self._subscription)
            catch_up(found, self._pause)
            self._found = found
        return self._found


def catch_up(visible: VisibleTypes, pause: PauseCb) -> None:
    """Look at the types that are new since the last time."""
    if not visible.is_up_to_date:
        for _ in visible.catch_up():
            pause()


def patience(wanted: Collection[TypeId]) -> int:
    """Events that may be passed over, at least, before a merge would have been better."""
    return FREE_PASSES if isinstance(wanted, SoughtTypes) else len(wanted)


def find_wanted(types: TypeRegistry, query: VisibleQuery, pause: PauseCb) -> Collection[TypeId]:
    """Types of a query, after those of every row that is read; raises as ``query.types``."""
    if query.asks_for_all:
        return _all_visible(types, query.types, pause)
    found: list[TypeId] = []
    steps = types.find(query.types)
    for n_steps, some in enumerate(steps):
        found += some
        pause()
        if n_steps == FEW_STEPS:
            return SoughtTypes(types, query.types, pause)
    return frozenset(found)


def all_wanted(
    types: TypeRegistry, query: VisibleQuery, pause: PauseCb
) -> VisibleTypes | EveryType:
    """As :func:`find_wanted`, in the order of their numbers, for queries that need all of them."""
    if query.asks_for_all:
        return _all_visible(types, query.types, pause)
    wanted = VisibleTypes(types, query.types)
    catch_up(wanted, pause)
    return wanted


def _all_visible(
    types: TypeRegistry, rights: Subscription, pause: PauseCb
) -> VisibleTypes | EveryType:
    if rights.is_everything:
        return EveryType(len(types))
    visible = types.visible(rights)
    catch_up(visible, pause)
    return visible
