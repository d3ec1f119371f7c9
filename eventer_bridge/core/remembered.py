"""What can be found out again, and is remembered within a bound of bytes.

Event types and what follows from them are looked up for each event, and peers make them up.
So what is remembered counts with its size, not only as one more entry.
"""

import sys
from typing import Final, Generic, TypeVar

from eventer_bridge import limits
from eventer_bridge.model import EventType

K = TypeVar("K")
V = TypeVar("V")

ENTRY_BYTES: Final = 100
"""What an entry of a dict takes besides key and value."""


class Remembered(Generic[K, V]):
    """A dict that begins anew before it takes more than ``limits.REMEMBERED_BYTES``.

    Belongs to one thread.

    Attributes:
        known: what is remembered; always the same dict, and a plain one, which is looked up
            faster than a class of its own would be.
    """

    __slots__ = ("_n_bytes", "known")

    def __init__(self) -> None:
        self.known: dict[K, V] = {}
        self._n_bytes = 0

    def remember(self, key: K, value: V, n_bytes: int) -> None:
        """Add what is not there yet, unless it is too large by itself.

        Args:
            key: its key.
            value: its value.
            n_bytes: size of the two.
        """
        n_bytes += ENTRY_BYTES
        if n_bytes > limits.REMEMBERED_BYTES:
            return
        if self._n_bytes + n_bytes > limits.REMEMBERED_BYTES:
            self.forget()
        self._n_bytes += n_bytes
        self.known[key] = value

    def forget(self) -> None:
        """Begin anew."""
        self.known.clear()
        self._n_bytes = 0


def type_bytes(event_type: EventType) -> int:
    """Memory that an event type takes."""
    return sys.getsizeof(event_type) + sum(map(sys.getsizeof, event_type))
