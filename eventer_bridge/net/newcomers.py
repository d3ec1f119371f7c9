"""New connections (no ``init`` yet): by age, by address, and by entries of an address.

Every operation takes constant time: they are most frequent when there are most entries.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Newcomers(Generic[T]):
    """Entries in the order they were added; each belongs to an address.

    Args:
        has_sent: returns whether an entry's peer has sent anything; called only when needed.
    """

    def __init__(self, has_sent: Callable[[T], bool]) -> None:
        self._has_sent = has_sent
        self._all: dict[T, str] = {}
        self._of_all: _Victims[T] = _Victims()
        self._by_address: dict[str, _Victims[T]] = {}
        # addresses by the number of their entries; the largest number is known
        self._by_count: defaultdict[int, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._largest_count = 0

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, entry: T) -> bool:
        return entry in self._all

    def count(self, address: str) -> int:
        """Number of entries of an address."""
        entries = self._by_address.get(address)
        return 0 if entries is None else len(entries)

    @property
    def largest_count(self) -> int:
        """Number of entries of the address that has most."""
        return self._largest_count

    def victim_of_all(self) -> T:
        """The oldest silent entry of all, or the oldest if none is silent."""
        return self._of_all.victim(self._has_sent)

    def victim(self, address: str) -> T:
        """The oldest silent entry of an address, or the oldest if none is silent."""
        return self._by_address[address].victim(self._has_sent)

    def victim_of_largest(self) -> T:
        """As :meth:`victim`, of an address that has most."""
        return self.victim(next(iter(self._by_count[self._largest_count])))

    def add(self, entry: T, address: str) -> None:
        """Add an entry, the youngest."""
        self._all[entry] = address
        self._of_all.add(entry)
        entries = self._by_address.setdefault(address, _Victims())
        entries.add(entry)
        self._recount(address, len(entries) - 1, len(entries))

    def remove(self, entry: T) -> None:
        """Remove an existing entry."""
        address = self._all.pop(entry)
        self._of_all.remove(entry)
        entries = self._by_address[address]
        entries.remove(entry)
        if not len(entries):
            del self._by_address[address]
        self._recount(address, len(entries) + 1, len(entries))

    def _recount(self, address: str, before: int, after: int) -> None:
        if before:
            del self._by_count[before][address]
        if after:
            self._by_count[after][address] = None
        self._largest_count = max(self._largest_count, after)
        if before and not self._by_count[before]:
            del self._by_count[before]
            if before == self._largest_count:
                self._largest_count = after


class _Victims(Generic[T]):
    """Entries of one address, or of all; both parts in the order they were added."""

    __slots__ = ("_maybe_silent", "_sent")

    def __init__(self) -> None:
        self._maybe_silent: OrderedDict[T, None] = OrderedDict()
        self._sent: OrderedDict[T, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._maybe_silent) + len(self._sent)

    def add(self, entry: T) -> None:
        self._maybe_silent[entry] = None

    def remove(self, entry: T) -> None:
        of_kind = self._sent if entry in self._sent else self._maybe_silent
        del of_kind[entry]

    def victim(self, has_sent: Callable[[T], bool]) -> T:
        while self._maybe_silent:
            entry = next(iter(self._maybe_silent))
            if not has_sent(entry):
                return entry
            # each entry moves once
            self._sent[entry] = self._maybe_silent.pop(entry)
        return next(iter(self._sent))
