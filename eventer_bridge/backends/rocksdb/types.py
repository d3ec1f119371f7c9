"""The event types of a store and the four bytes that stand for each of them.

Owned by the event loop's thread. A reader thread may look up ``names``: a type is never
forgotten or renumbered, and rows that it reads have types that were known before.
"""

from collections.abc import Iterable, Sequence

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.errors import LimitError
from eventer_bridge.model import Event, EventType
from eventer_bridge.subscription import Subscription
from eventer_bridge.type_trie import TypeTrie


class Types:
    """See the module.

    Args:
        stored: the types that the store knows, by id.

    Attributes:
        names: every known type, by id.
    """

    def __init__(self, stored: Iterable[tuple[TypeId, EventType]]) -> None:
        self.names: dict[TypeId, EventType] = {}
        self._ids: dict[EventType, TypeId] = {}
        self._trie: TypeTrie[TypeId] = TypeTrie()
        for type_id, event_type in stored:
            self._add(type_id, event_type)

    def __len__(self) -> int:
        return len(self.names)

    def check(self, event_types: Iterable[EventType]) -> None:
        """Refuse new types above the limit.

        Raises:
            LimitError: there would be more than ``limits.MAX_EVENT_TYPES``.
        """
        n_types = len(self) + len(set(event_types).difference(self._ids))
        if n_types > max(len(self), limits.MAX_EVENT_TYPES):
            raise LimitError(
                f"{n_types} different event types, at most {limits.MAX_EVENT_TYPES} are allowed"
            )

    def intern(self, events: Sequence[Event], new: list[tuple[TypeId, bytes]]) -> list[TypeId]:
        """Ids of the events' types.

        Args:
            events: any events.
            new: types that are not in the store yet are appended here, encoded.

        Raises:
            LimitError: as :meth:`check`.
            InvalidEventError: a new type is not Unicode text.
        """
        ids = self._ids
        try:
            return [ids[event.type] for event in events]
        except KeyError:
            pass
        unknown = list(dict.fromkeys(event.type for event in events if event.type not in ids))
        self.check(unknown)
        encoded = [keys.encode_type(event_type) for event_type in unknown]
        for event_type, data in zip(unknown, encoded, strict=True):
            type_id = keys.encode_type_id(len(self))
            self._add(type_id, event_type)
            new.append((type_id, data))
        return [ids[event.type] for event in events]

    def resolve(self, subscription: Subscription) -> list[TypeId]:
        """Ids of the known types that match."""
        if subscription.is_everything:
            return list(self.names)
        return self._trie.resolve(subscription)

    def _add(self, type_id: TypeId, event_type: EventType) -> None:
        self.names[type_id] = event_type
        self._ids[event_type] = type_id
        self._trie.add(event_type, type_id)
