"""Connections that have not said yet who they are: by age, by address, and by crowd.

Everything here takes constant time: it is asked most when there are most of them.
"""

from collections import OrderedDict, defaultdict
from typing import Generic, TypeVar

T = TypeVar("T")


class Newcomers(Generic[T]):
    """Entries in the order they were added; each belongs to an address."""

    def __init__(self) -> None:
        self._all: OrderedDict[T, str] = OrderedDict()
        self._by_address: dict[str, OrderedDict[T, None]] = {}
        # addresses by the number of their entries, of which the largest is known
        self._by_count: defaultdict[int, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._largest_count = 0

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, entry: T) -> bool:
        return entry in self._all

    def count(self, address: str) -> int:
        """Entries of an address."""
        entries = self._by_address.get(address)
        return 0 if entries is None else len(entries)

    @property
    def largest_count(self) -> int:
        """Entries of the address that has most."""
        return self._largest_count

    def oldest(self) -> T:
        """The oldest entry of all."""
        return next(iter(self._all))

    def oldest_of(self, address: str) -> T:
        """The oldest entry of an address that has one."""
        return next(iter(self._by_address[address]))

    def oldest_of_largest(self) -> T:
        """The oldest entry of the address that has most, or of one of them."""
        return self.oldest_of(next(iter(self._by_count[self._largest_count])))

    def add(self, entry: T, address: str) -> None:
        """Add an entry, as the youngest."""
        self._all[entry] = address
        entries = self._by_address.setdefault(address, OrderedDict())
        entries[entry] = None
        self._recount(address, len(entries) - 1, len(entries))

    def remove(self, entry: T) -> None:
        """Remove an entry that is there."""
        address = self._all.pop(entry)
        entries = self._by_address[address]
        del entries[entry]
        if not entries:
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
