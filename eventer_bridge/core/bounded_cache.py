"""A cache bounded in bytes.

Event types and data derived from them are looked up for each event, and peers can invent types.
Therefore entries count by their size, not only by their number.
"""

import sys
from typing import Final, Generic, TypeVar

from eventer_bridge import limits
from eventer_bridge.model import EventType

K = TypeVar("K")
V = TypeVar("V")

ENTRY_BYTES: Final = 100
"""Memory of a dict entry besides key and value."""


class BoundedCache(Generic[K, V]):
    """A dict that is cleared before it takes more than ``limits.CACHE_BYTES``.

    Belongs to one thread.

    Attributes:
        known: the entries; always the same dict, a plain one for fast look-ups.
    """

    __slots__ = ("_n_bytes", "known")

    def __init__(self) -> None:
        self.known: dict[K, V] = {}
        self._n_bytes = 0

    def put(self, key: K, value: V, n_bytes: int) -> None:
        """Add a new entry, unless it is too large by itself.

        Args:
            key: its key.
            value: its value.
            n_bytes: size of both.
        """
        n_bytes += ENTRY_BYTES
        if n_bytes > limits.CACHE_BYTES:
            return
        if self._n_bytes + n_bytes > limits.CACHE_BYTES:
            self.clear()
        self._n_bytes += n_bytes
        self.known[key] = value

    def clear(self) -> None:
        """Clear the cache."""
        self.known.clear()
        self._n_bytes = 0


def type_bytes(event_type: EventType) -> int:
    """Memory of an event type."""
    return sys.getsizeof(event_type) + sum(map(sys.getsizeof, event_type))
