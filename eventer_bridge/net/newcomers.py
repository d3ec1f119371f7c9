"""Connections that have not said yet who they are: by age, by address, and by crowd.

Everything here takes constant time: it is asked most when there are most of them.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Newcomers(Generic[T]):
    """Entries in the order they were added; each belongs to an address.

    Args:
        has_sent: whether anything came from an entry's peer; asked only when it matters.
    """

    def __init__(self, has_sent: Callable[[T], bool]) -> None:
        self._has_sent = has_sent
        self._all: OrderedDict[T, str] = OrderedDict()
        self._by_address: dict[str, _OfAddress[T]] = {}
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

    def first_to_go(self, address: str) -> T:
        """Of an address that has one: the oldest silent entry, or the oldest if none is silent."""
        return self._by_address[address].first_to_go(self._has_sent)

    def first_to_go_of_largest(self) -> T:
        """The same of the address that has most, or of one of them."""
        return self.first_to_go(next(iter(self._by_count[self._largest_count])))

    def add(self, entry: T, address: str) -> None:
        """Add an entry, as the youngest."""
        self._all[entry] = address
        entries = self._by_address.setdefault(address, _OfAddress())
        entries.add(entry)
        self._recount(address, len(entries) - 1, len(entries))

    def remove(self, entry: T) -> None:
        """Remove an entry that is there."""
        address = self._all.pop(entry)
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


class _OfAddress(Generic[T]):
    """Entries of one address, both parts in the order they were added."""

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

    def first_to_go(self, has_sent: Callable[[T], bool]) -> T:
        while self._maybe_silent:
            entry = next(iter(self._maybe_silent))
            if not has_sent(entry):
                return entry
            # each one moves once
            self._sent[entry] = self._maybe_silent.pop(entry)
        return next(iter(self._sent))
