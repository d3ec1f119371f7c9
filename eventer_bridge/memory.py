"""Memory that a process holds for its peers: one account of it, estimates, and bounded caches.

Whatever holds bytes of a peer, or what was decoded or made of them, has a :class:`MemoryShare`:
what a connection received and did not take, registrations and queries that wait, what its peer has
not read, subscriptions, answers over HTTP, events of other servers. Bounds of each kind are not
enough: thousands of connections might use them to the full.

When all together hold too much, the owner who holds most loses the largest of its shares, which
means that a connection is closed, until the rest fits. Owners are clients, or addresses until the
client is known: a client with one large message does not pay for one with a thousand smaller ones.

A :class:`BoundedCache` holds data that is looked up for each event. Peers can invent event types,
so its entries count by their size, not only by their number.

The account belongs to the event loop's thread, a cache to one thread.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from eventer_bridge import limits
from eventer_bridge.model import EventType, QueryLatestParams, QueryParams, QueryServerParams


class _Owner:
    """Who holds shares that are counted."""

    __slots__ = ("n_bytes", "shares")

    def __init__(self) -> None:
        self.n_bytes = 0
        self.shares: set[MemoryShare] = set()


class MemoryShare:
    """What one connection, or another holder, holds; ``n_bytes`` is the counted part of it."""

    __slots__ = ("_account", "_close", "_owner", "is_closed", "n_bytes")

    def __init__(self, account: "MemoryAccount", owner: str) -> None:
        self._account = account
        self._owner = owner
        self._close: Callable[[], object] | None = None
        self.n_bytes = 0
        self.is_closed = False

    def when_lost(self, close: Callable[[], object]) -> None:
        """Call ``close``, which is to free what is held, if this share has to go."""
        self._close = close

    def move(self, owner: str) -> None:
        """It belongs to another owner from now on."""
        n_bytes = self.n_bytes
        self.set(0)
        self._owner = owner
        self.set(n_bytes)

    def set(self, n_bytes: int) -> None:
        """Set what is held now; less than ``limits.UNCOUNTED_BYTES`` counts as nothing."""
        if n_bytes < limits.UNCOUNTED_BYTES:
            if not self.n_bytes:
                return
            n_bytes = 0
        if not self.is_closed and n_bytes != self.n_bytes:
            self._account._count(self, self._owner, n_bytes)

    def close(self) -> None:
        """Stop counting: nothing is held any more, or soon."""
        self.set(0)
        self.is_closed = True
        self._close = None

    def lose(self) -> None:
        """Give up what is held."""
        close = self._close
        self.close()
        if close is not None:
            close()


class MemoryAccount:
    """Sheds the largest shares when there is too much. See :func:`account_of_process`."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self.max_bytes = limits.MAX_MEMORY_BYTES if max_bytes is None else max_bytes
        self.n_bytes = 0
        self._owners: dict[str, _Owner] = {}

    def _count(self, share: MemoryShare, name: str, n_bytes: int) -> None:
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = _Owner()
        change = n_bytes - share.n_bytes
        share.n_bytes = n_bytes
        owner.n_bytes += change
        self.n_bytes += change
        if n_bytes:
            owner.shares.add(share)
        else:
            owner.shares.discard(share)
            if not owner.shares:
                del self._owners[name]
        if change > 0 and self.n_bytes > self.max_bytes:
            self._shed()

    def _shed(self) -> None:
        """Have those who hold most give up their largest shares, until there is room again."""
        most_bytes = self.max_bytes - self.max_bytes // limits.SHED_SHARE
        while self.n_bytes > most_bytes:
            *_, second, first = (0, *sorted([i.n_bytes for i in self._owners.values()]))
            largest = next(i for i in self._owners.values() if i.n_bytes == first)
            for share in sorted(largest.shares, key=lambda i: i.n_bytes, reverse=True):
                share.lose()
                if self.n_bytes <= most_bytes or largest.n_bytes < second:
                    break


_accounts: "Final[WeakKeyDictionary[asyncio.AbstractEventLoop, MemoryAccount]]" = (
    WeakKeyDictionary()
)


def account_of_process() -> MemoryAccount:
    """The account of the running event loop, the only one of a process."""
    loop = asyncio.get_running_loop()
    account = _accounts.get(loop)
    if account is None:
        account = _accounts[loop] = MemoryAccount()
    return account


def types_bytes(types: Iterable[EventType]) -> int:
    """Memory of event types, or of what has one each, besides the bytes that they came as."""
    segments = [*map(len, types)]
    return len(segments) * limits.EVENT_OBJECT_BYTES + sum(segments) * limits.SEGMENT_BYTES


def subscription_bytes(types: Sequence[EventType]) -> int:
    """Memory of a subscription: of its types, and of what matches all of them at once."""
    literal_bytes = 2 * limits.SEGMENT_BYTES + len(types) // 8
    return types_bytes(types) + sum(map(len, types)) * literal_bytes


def query_bytes(params: QueryParams, n_bytes: int) -> int:
    """Memory of a query that waits, and came as so many bytes."""
    if isinstance(params, QueryServerParams):
        return n_bytes
    types = params.event_types or ()
    n_ids = 0 if isinstance(params, QueryLatestParams) else len(params.ids or ())
    return n_bytes + types_bytes(types) + n_ids * limits.EVENT_OBJECT_BYTES


K = TypeVar("K")
V = TypeVar("V")

ENTRY_BYTES: Final = 100
"""Memory of a dict entry besides key and value."""


class LastingDict(dict[K, V]):
    """A large dict that stays, to which new objects are added all the time.

    The collector of cycles leaves out a plain one that has texts only, but a new tuple in it brings
    it back: then it is visited three times, whole, until the next full collection (``gc.freeze``),
    10 ms for 100,000 entries. This one is frozen once, with the rest.
    """

    __slots__ = ()


class BoundedCache(Generic[K, V]):
    """A dict that is cleared before it takes more than ``limits.CACHE_BYTES``. One thread.

    ``known`` are the entries; always the same dict, for fast look-ups.
    """

    __slots__ = ("_n_bytes", "known")

    def __init__(self) -> None:
        self.known: dict[K, V] = LastingDict()
        self._n_bytes = 0

    def put(self, key: K, value: V, n_bytes: int) -> None:
        """Add a new entry of so many bytes, unless it is too large by itself."""
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
