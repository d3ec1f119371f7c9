"""What the known event types cost, and who brought them.

Types are known for ever, to all, and kept in memory. So each has a price, and there is a
bound for all of them and one for each client. A type costs 1, or as many as there are
``limits.TYPE_PRICE_BYTES`` in the memory that it takes: its own, and that of those segments
which no type before it had.

Belongs to the event loop's thread.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from eventer_bridge import limits
from eventer_bridge.errors import LimitError
from eventer_bridge.model import EventType

TYPE_BYTES: Final = 300
"""Memory of a type besides its tuple: entries by type and by id, its place in the tree."""

SEGMENT_BYTES: Final = 50
"""Memory of a segment besides its text."""


class TypeQuota(NamedTuple):
    """What a client may add to the known types.

    Attributes:
        owner: who pays: a client, or all who are not told from each other.
        max_types: what its types may cost, all of them since the store was made.
    """

    owner: str
    max_types: int


class TypeBudget:
    """See the module.

    Args:
        spent: what the types of each owner cost so far.

    Attributes:
        spent: the same, kept up to date.
        total: what all known types cost.
    """

    def __init__(self, spent: Mapping[str, int] | None = None) -> None:
        self.spent = dict(spent or {})
        self.total = 0
        self._segments: dict[str, str] = {}

    def check(self, new_types: Iterable[EventType], quota: TypeQuota | None) -> None:
        """Refuse types that are not known yet and cost too much.

        Args:
            new_types: each once.
            quota: of who brings them; None: this server itself, its modules, other servers.

        Raises:
            LimitError: they exceed ``limits.MAX_EVENT_TYPES`` or the quota.
        """
        price = self._price(new_types)
        if not price:
            return
        max_types = limits.MAX_EVENT_TYPES
        if quota is not None:
            max_types -= limits.RESERVED_EVENT_TYPES
        if self.total + price > max_types:
            raise LimitError(
                f"{self.total + price} different event types, at most {max_types} are allowed;"
                " a long one counts as several"
            )
        if quota is None:
            return
        spent = self.spent.get(quota.owner, 0)
        if spent + price > quota.max_types:
            raise LimitError(
                f"{spent + price} event types that nobody used before, at most {quota.max_types}"
                " are allowed this client (max_event_types); a long one counts as several"
            )

    def add(self, event_type: EventType, owner: str | None = None) -> EventType:
        """Note that a type is known from now on.

        Args:
            event_type: the type.
            owner: who pays.

        Returns:
            An equal type, which has its segments in common with others.
        """
        price = self._price([event_type])
        self.total += price
        if owner is not None:
            self.spent[owner] = self.spent.get(owner, 0) + price
        segments = self._segments
        return tuple([segments.setdefault(segment, segment) for segment in event_type])

    def _price(self, new_types: Iterable[EventType]) -> int:
        known = self._segments
        price = 0
        seen: set[str] = set()
        for event_type in new_types:
            n_bytes = TYPE_BYTES + sys.getsizeof(event_type)
            for segment in event_type:
                if segment not in known and segment not in seen:
                    n_bytes += SEGMENT_BYTES + sys.getsizeof(segment)
                    seen.add(segment)
            price += -(-n_bytes // limits.TYPE_PRICE_BYTES)
        return price
