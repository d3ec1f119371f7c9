"""What the known event types cost, and who brought them.

Types are known for ever, to all, and kept in memory. So each has a price, and there is a
bound for all of them and one for each client. A type costs 1, or as many as there are
``limits.TYPE_PRICE_BYTES`` in the memory that it takes: its own, and that of those segments
which no type before it had.

Belongs to the event loop's thread.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from eventer_bridge import limits
from eventer_bridge.errors import LimitError
from eventer_bridge.model import EventType
from eventer_bridge.slices import Steps, at_once

TYPE_BYTES: Final = 350
"""Memory of a type besides its segments: its tuple, entries by type and by id, its place in the
tree."""

SLOT_BYTES: Final = 8
"""Memory for each of its segments, new or not."""

SEGMENT_BYTES: Final = 100
"""Memory of a new segment besides its characters."""

MAX_CHARACTER_BYTES: Final = 4
"""Memory of a character that is not ASCII, at most."""

STEP_TYPES: Final = 16
"""Types whose price is found in one step: up to 0.2 ms, if they have many segments."""


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

    def check(self, new_types: Collection[EventType], quota: TypeQuota | None) -> None:
        """Refuse types that are not known yet and cost too much.

        Args:
            new_types: each once.
            quota: of who brings them; None: this server itself, its modules, other servers.

        Raises:
            LimitError: they exceed ``limits.MAX_EVENT_TYPES`` or the quota.
        """
        if new_types:
            at_once(self.check_in_steps(new_types, quota))

    def check_in_steps(
        self, new_types: Collection[EventType], quota: TypeQuota | None
    ) -> Steps[None]:
        """As :meth:`check`, of many types; none may be added meanwhile."""
        max_types = limits.MAX_EVENT_TYPES
        if quota is not None:
            max_types -= limits.RESERVED_EVENT_TYPES
            left = quota.max_types - self.spent.get(quota.owner, 0)
            if (yield from self._cost_more(new_types, left)):
                raise LimitError(
                    f"{len(new_types)} new event types, but {max(left, 0)} more are allowed this"
                    f" client (max_event_types: {quota.max_types}); a long one counts as several"
                )
        left = max_types - self.total
        if (yield from self._cost_more(new_types, left)):
            raise LimitError(
                f"{len(new_types)} new event types, but {max(left, 0)} more are allowed"
                f" ({max_types} altogether); a long one counts as several"
            )

    def add(self, event_type: EventType, owner: str | None = None) -> EventType:
        """Note that a type is known from now on.

        Args:
            event_type: the type.
            owner: who pays.

        Returns:
            An equal type, which has its segments in common with others.
        """
        price = self._price(event_type, set())
        self.total += price
        if owner is not None:
            self.spent[owner] = self.spent.get(owner, 0) + price
        segments = self._segments
        return tuple([segments.setdefault(segment, segment) for segment in event_type])

    def _cost_more(self, new_types: Collection[EventType], left: int) -> Steps[bool]:
        """Whether types cost more than is left; what is refused costs no more time than that."""
        if len(new_types) > left:
            return True
        seen: set[str] = set()
        for number, event_type in enumerate(new_types):
            if number % STEP_TYPES == 0:
                yield
            left -= self._price(event_type, seen)
            if left < 0:
                return True
        return False

    def _price(self, event_type: EventType, seen: set[str]) -> int:
        """Price of a type after others that brought the segments in ``seen``, which it adds to."""
        known = self._segments
        n_bytes = TYPE_BYTES + SLOT_BYTES * len(event_type)
        for segment in event_type:
            if segment not in known and segment not in seen:
                seen.add(segment)
                width = 1 if segment.isascii() else MAX_CHARACTER_BYTES
                n_bytes += SEGMENT_BYTES + width * len(segment)
        return -(-n_bytes // limits.TYPE_PRICE_BYTES)
