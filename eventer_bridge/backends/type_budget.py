"""The budget of event types: a price for each, a bound for all, and a quota for each client.

Types are never forgotten, visible to all, and kept in memory. The price of a type is its memory in
units of ``limits.TYPE_PRICE_BYTES``, at least 1: its own memory, and that of segments that no
earlier type had.

Belongs to the event loop's thread.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from eventer_bridge import limits
from eventer_bridge.errors import LimitError, QuotaError
from eventer_bridge.model import EventType
from eventer_bridge.slices import Steps, at_once

TYPE_BYTES: Final = 350
"""Memory of a type besides its segments: its tuple, entries by type and by id, its node in the
tree."""

SLOT_BYTES: Final = 8
"""Memory for each of its segments, new or not."""

SEGMENT_BYTES: Final = 100
"""Memory of a new segment besides its characters."""

MAX_CHARACTER_BYTES: Final = 4
"""Memory of a character that is not ASCII, at most."""

STEP_TYPES: Final = 16
"""Types whose price is computed in one step: up to 0.2 ms, if they have many segments."""


class TypeQuota(NamedTuple):
    """Owner of new types (a client, or a group of them), and the maximum price of all of them."""

    owner: str
    max_types: int


class TypeBudget:
    """See the module.

    Attributes:
        spent: prices paid so far by each owner.
        total: price of all known types.
    """

    def __init__(self, spent: Mapping[str, int] | None = None) -> None:
        self.spent = dict(spent or {})
        self.total = 0
        self._segments: dict[str, str] = {}

    def check(self, new_types: Collection[EventType], quota: TypeQuota | None) -> None:
        """Refuse new types that exceed the budget.

        Args:
            new_types: new types, each once.
            quota: quota of the registering client; None: this server, its modules, other servers.

        Raises:
            LimitError: they exceed ``limits.MAX_EVENT_TYPES`` or the quota.
        """
        if new_types:
            at_once(self.check_in_steps(new_types, quota))

    def check_in_steps(
        self, new_types: Collection[EventType], quota: TypeQuota | None
    ) -> Steps[None]:
        """As :meth:`check`, for many types; none may be added meanwhile."""
        max_types = limits.MAX_EVENT_TYPES
        if quota is not None:
            max_types -= limits.RESERVED_EVENT_TYPES
            left = quota.max_types - self.spent.get(quota.owner, 0)
            if (yield from self._cost_more(new_types, left)):
                raise QuotaError(
                    f"{len(new_types)} new event types, but {max(left, 0)} more are allowed for"
                    f" this client (max_event_types: {quota.max_types}); a long one counts as"
                    " several",
                    "max_event_types",
                )
        left = max_types - self.total
        if (yield from self._cost_more(new_types, left)):
            raise LimitError(
                f"{len(new_types)} new event types, but {max(left, 0)} more are allowed"
                f" ({max_types} in total); a long one counts as several"
            )

    def add(self, event_type: EventType, owner: str | None = None) -> EventType:
        """Add a new type, and charge its price to ``owner`` (None: none).

        Returns:
            An equal type, which shares its segments with others.
        """
        price = self._price(event_type, set())
        self.total += price
        if owner is not None:
            self.spent[owner] = self.spent.get(owner, 0) + price
        segments = self._segments
        return tuple([segments.setdefault(segment, segment) for segment in event_type])

    def _cost_more(self, new_types: Collection[EventType], left: int) -> Steps[bool]:
        """Whether types cost more than is left; stops as soon as they do."""
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
        """Price of a type, given the segments in ``seen`` of earlier new ones; updates ``seen``."""
        known = self._segments
        n_bytes = TYPE_BYTES + SLOT_BYTES * len(event_type)
        for segment in event_type:
            if segment not in known and segment not in seen:
                seen.add(segment)
                width = 1 if segment.isascii() else MAX_CHARACTER_BYTES
                n_bytes += SEGMENT_BYTES + width * len(segment)
        return -(-n_bytes // limits.TYPE_PRICE_BYTES)
