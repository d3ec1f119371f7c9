"""The budget of event types: a price for each, a bound for all, and a quota for each client.

Types are never forgotten, visible to all, and kept in memory. The price of a type is its memory in
units of ``limits.TYPE_PRICE_BYTES``, at least 1: its own memory, and that of segments that no
earlier type had.

Belongs to the event loop's thread.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
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

MAX_PRICE: Final = 12
"""Of a type that may be registered (``limits``)."""

_MAX_BYTES: Final = TYPE_BYTES + limits.MAX_TYPE_SEGMENTS * (SLOT_BYTES + SEGMENT_BYTES)
assert MAX_PRICE * limits.TYPE_PRICE_BYTES >= (
    _MAX_BYTES + MAX_CHARACTER_BYTES * limits.MAX_TYPE_BYTES
)

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
        max_types = limits.MAX_EVENT_TYPES - (limits.RESERVED_EVENT_TYPES if quota else 0)
        left = max_types - self.total
        of_client = quota.max_types - self.spent.get(quota.owner, 0) if quota else left
        if not (yield from self._cost_more(new_types, min(left, of_client))):
            return
        if quota is not None and (yield from self._cost_more(new_types, of_client)):
            raise QuotaError(
                f"{len(new_types)} new event types, but {max(of_client, 0)} more are allowed for"
                f" this client (max_event_types: {quota.max_types}); a long one counts as several",
                "max_event_types",
            )
        raise LimitError(
            f"{len(new_types)} new event types, but {max(left, 0)} more are allowed"
            f" ({max_types} in total); a long one counts as several"
        )

    def add(self, event_type: EventType, owner: str | None = None) -> EventType:
        """Add a new type, and charge its price to ``owner`` (None: none).

        Returns:
            An equal type, which shares its segments with others.
        """
        segments = self._segments
        n_known = len(segments)
        shared = tuple([segments.setdefault(segment, segment) for segment in event_type])
        price = _price(event_type, islice(reversed(segments), len(segments) - n_known))
        self.total += price
        if owner is not None:
            self.spent[owner] = self.spent.get(owner, 0) + price
        return shared

    def _cost_more(self, new_types: Collection[EventType], left: int) -> Steps[bool]:
        """Whether types cost more than is left; stops as soon as they do."""
        if len(new_types) > left:
            return True
        if len(new_types) * MAX_PRICE <= left:
            return False
        known, seen = self._segments, set[str]()
        for number, event_type in enumerate(new_types):
            if number % STEP_TYPES == 0:
                yield
            new = {segment for segment in event_type if segment not in known} - seen
            seen |= new
            left -= _price(event_type, new)
            if left < 0:
                return True
        return False


def _price(event_type: EventType, new: Iterable[str]) -> int:
    """Price of a type, of which these segments are new."""
    n_bytes = TYPE_BYTES + SLOT_BYTES * len(event_type)
    for segment in new:
        width = 1 if segment.isascii() else MAX_CHARACTER_BYTES
        n_bytes += SEGMENT_BYTES + width * len(segment)
    return -(-n_bytes // limits.TYPE_PRICE_BYTES)
