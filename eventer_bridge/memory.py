"""One account of the memory that a process holds for its peers.

Whatever holds bytes of a peer, or what was decoded or made of them, has a :class:`MemoryShare`:
what a connection received and did not take, registrations and queries that wait, what its peer has
not read, subscriptions, answers over HTTP, events of other servers. Bounds of each kind are not
enough: thousands of connections might use them to the full.

When all together hold too much, the owner who holds most loses the largest of its shares, which
means that a connection is closed, until the rest fits. Owners are clients, or addresses until the
client is known: a client with one large message does not pay for one with a thousand smaller ones.

Belongs to the event loop's thread.
"""

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from eventer_bridge import limits


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
    """See the module. A process has one (:func:`account_of_process`)."""

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
