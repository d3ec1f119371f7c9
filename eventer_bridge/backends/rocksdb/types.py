"""The event types of a store and the four bytes that stand for each of them.

The event loop's thread adds types. Any thread may read meanwhile: a type is never forgotten or
renumbered, what is new is complete before it counts, and rows have types that were known
before.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.type_budget import TypeBudget, TypeQuota
from eventer_bridge.backends.type_trie import TypeTrie
from eventer_bridge.model import Event, EventType
from eventer_bridge.slices import Steps, at_once, parts
from eventer_bridge.subscription import Subscription

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
        self.names: dict[TypeId, EventType] = {}
        self._budget = TypeBudget(spent)
        self.ids: dict[EventType, TypeId] = {}
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
        self._budget.check(set(event_types).difference(self.ids), quota)

    def spent(self, owner: str) -> int:
        """What the types of an owner cost."""
        return self._budget.spent.get(owner, 0)

    def intern(
        self,
        events: Sequence[Event],
        new: list[tuple[TypeId, bytes]],
        quota: TypeQuota | None = None,
        n_asked: int = 0,
    ) -> list[TypeId]:
        """Ids of the events' types.

        Args:
            events: any events.
            new: types that are not in the store yet are appended here, encoded.
            quota: of who asked for them.
            n_asked: so many of the events, the first ones, were asked for.

        Raises:
            LimitError: as :meth:`check`.
            InvalidEventError: a new type is not Unicode text.
        """
        ids = self.ids
        try:
            return [ids[event.type] for event in events]
        except KeyError:
            return at_once(self.intern_in_steps(events, new, quota, n_asked))

    def intern_in_steps(
        self,
        events: Sequence[Event],
        new: list[tuple[TypeId, bytes]],
        quota: TypeQuota | None = None,
        n_asked: int = 0,
    ) -> Steps[list[TypeId]]:
        """As :meth:`intern`, of many events. Nobody else adds types meanwhile."""
        ids = self.ids
        unknown: dict[EventType, bool] = {}  # each with whether it was asked for
        for part in parts(len(events)):
            for index, event in enumerate(events[part], part.start):
                if event.type not in ids:
                    unknown.setdefault(event.type, quota is not None and index < n_asked)
            yield
        if unknown:
            yield from self._add_in_steps(unknown, new, quota)
        type_ids: list[TypeId] = []
        for part in parts(len(events)):
            type_ids += [ids[event.type] for event in events[part]]
            yield
        return type_ids

    def _add_in_steps(
        self,
        unknown: Mapping[EventType, bool],
        new: list[tuple[TypeId, bytes]],
        quota: TypeQuota | None,
    ) -> Steps[None]:
        """Add types, each with whether it was asked for; see :meth:`intern`."""
        asked = [event_type for event_type, is_asked in unknown.items() if is_asked]
        if asked:
            yield from self._budget.check_in_steps(asked, quota)
        if len(asked) < len(unknown):
            yield from self._budget.check_in_steps(unknown, None)
        encoded: list[bytes] = []
        for event_type in unknown:  # all of them before the first is added
            encoded.append(keys.encode_type(event_type))
            if len(encoded) % STEP_TYPES == 0:
                yield
        for (event_type, is_asked), data in zip(unknown.items(), encoded, strict=True):
            type_id = keys.encode_type_id(len(self))
            self._add(type_id, event_type, quota.owner if quota and is_asked else None)
            new.append((type_id, data))
            if len(new) % STEP_NEW_TYPES == 0:
                yield

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
