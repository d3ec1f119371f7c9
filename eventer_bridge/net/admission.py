"""Admission: the connection slots of a process, for new and for known connections.

A connection is new from ``accept`` until its ``init`` succeeds (on wires that have one), known
afterwards. Slots for new connections are few, which bounds their memory, and can be taken away.
When all are in use, the next connection takes the slot

* of a connection of its own address, if that address has used up its share,
* of a connection of the address that has most, if its own address has fewer,
* of a connection of the address that has most or, if no address has two, of any.

Among these, the oldest silent connection goes first, then the oldest. A connection may
lose its slot only after a grace period for its handshake; the exceptions are a silent one of
an address that used up its share (an honest peer sends at once), and one of an address with
more than the newcomer's. If no connection may go, a newcomer whose address has no slot waits
(in the kernel, with those behind it); any other is refused. Silent peers, one or many,
therefore keep no client out, and a thousand honest clients that reconnect at once do not evict
each other.

Runs on the event loop's thread.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from eventer_bridge.memory import MemoryShare, account_of_process
from eventer_bridge.net import limits
from eventer_bridge.net.quota import Bounds, Quota, address_of
from eventer_bridge.net.stats import RefusedSlot, ServerStats
from eventer_bridge.resources import in_time
from eventer_bridge.slices import Turns

T = TypeVar("T")


class RefusedError(Exception):
    """A connection gets no slot, for ``reason``."""

    def __init__(self, reason: RefusedSlot) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Slot:
    """A connection's slot. Created by :meth:`Admission.enter`, given back by :meth:`release`.

    ``peer`` is address and port, as logs name it, ``address`` the key for counting
    (``quota.address_of``), ``accepted_at`` by ``time.monotonic()``; ``has_sent()`` says whether the
    peer has sent anything, ``was_taken`` whether another connection took the slot.
    """

    __slots__ = (
        "_admission",
        "_close",
        "_held_until",
        "_is_known",
        "_is_released",
        "_quota",
        "_stats",
        "accepted_at",
        "address",
        "has_sent",
        "peer",
        "share",
        "turns",
        "was_taken",
    )

    def __init__(
        self,
        admission: "Admission",
        peer: str,
        address: str,
        stats: ServerStats,
        has_sent: Callable[[], bool],
    ) -> None:
        self._admission = admission
        self._stats = stats
        self._close: Callable[[], object] | None = None
        self._is_known = False
        self._is_released = False
        self._quota: Quota | None = None
        self._held_until = 0.0
        self.peer = peer
        self.address = address
        self.accepted_at = time.monotonic()
        self.has_sent = has_sent
        self.was_taken = False
        self.share = MemoryShare(admission.memory, address)
        self.turns = admission.turns

    def when_taken(self, close: Callable[[], object]) -> None:
        """Call ``close`` when another connection takes the slot, or at once if one already has."""
        self._close = close
        if self.was_taken:
            close()

    def establish(self, quota: Quota | None = None) -> bool:
        """Make the connection a known one; ``quota`` is that of its wire, besides the process'.

        Returns False if there are too many known connections, or this one was closed meanwhile.
        Later calls return True.
        """
        if self._is_known:
            return True
        if quota is not None and not quota.take(self.address):
            return False
        if not self._admission._establish(self):
            if quota is not None:
                quota.give_back(self.address)
            return False
        self._is_known = True
        self._quota = quota
        self._close = None  # the slot can no longer be taken
        return True

    def login_failed(self) -> float:
        """Note a wrong name or token; returns the seconds to wait before answering.

        The slot is held until then, even if the client leaves: trying again on another connection
        is no quicker.
        """
        now = time.monotonic()
        delay_s = self._admission._penalties.failed(self.address, now)
        self._held_until = now + delay_s
        return delay_s

    def release(self) -> None:
        """Give the slot back; later calls do nothing."""
        if self._is_released:
            return
        self._is_released = True
        self.share.close()
        self._close = None
        self._stats.connections -= 1
        if self._is_known:
            self._admission._known.give_back(self.address)
            if self._quota is not None:
                self._quota.give_back(self.address)
            return
        held_s = self._held_until - time.monotonic()
        if held_s > 0:
            asyncio.get_running_loop().call_later(held_s, self._admission._leave, self)
        else:
            self._admission._leave(self)

    def _evict(self) -> None:
        self.was_taken = True
        self._stats.refused[RefusedSlot.TAKEN] += 1
        if self._close is not None:
            self._close()


class Admission:
    """The slots of all listeners of a process, within bounds."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = Bounds.usual() if bounds is None else bounds
        self._n_listeners = 0
        self.memory = account_of_process()
        self.turns = Turns()
        self._new: Newcomers[Slot] = Newcomers(lambda slot: slot.has_sent())
        self._known = Quota(self.bounds.known, self.bounds.known_per_address)
        self._has_room = asyncio.Event()
        self._penalties = LoginPenalties()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Count a listener, which shares :attr:`accept_turn`, while it accepts."""
        self._n_listeners += 1
        try:
            yield
        finally:
            self._n_listeners -= 1

    @property
    def accept_turn(self) -> int:
        """Connections that each listener may accept in a row: its share of a turn."""
        return max(1, limits.ACCEPT_TURN_CONNECTIONS // self._n_listeners)

    async def enter(
        self, host: str, peer: str, stats: ServerStats, has_sent: Callable[[], bool]
    ) -> Slot:
        """Wait for a slot for an accepted connection; ``RefusedError``: there is none."""
        address = address_of(host)
        while wait_s := self._make_room(address):
            self._has_room.clear()
            await in_time(self._has_room.wait(), wait_s)
        slot = Slot(self, peer, address, stats, has_sent)
        self._new.add(slot, address)
        stats.connections += 1
        return slot

    def _make_room(self, address: str) -> float:
        """Free a slot if necessary; returns the seconds to wait before that is possible, or 0."""
        new = self._new
        count = new.count(address)
        if count >= self.bounds.new_per_address:
            victim = new.victim(address)
            if victim.has_sent() and self._grace_s(victim) > 0:
                raise RefusedError(RefusedSlot.ADDRESS_FULL)
        elif len(new) < self.bounds.new:
            return 0.0
        elif new.largest_count > count + 1:
            victim = new.victim_of_largest()
        else:
            victim = new.victim_of_all() if new.largest_count == 1 else new.victim_of_largest()
            if (wait_s := self._grace_s(victim)) > 0:
                if count:
                    raise RefusedError(RefusedSlot.ALL_FULL)
                return wait_s
        new.remove(victim)
        victim._evict()
        return 0.0

    @staticmethod
    def _grace_s(slot: Slot) -> float:
        return slot.accepted_at + limits.NEW_CONNECTION_GRACE_S - time.monotonic()

    def _establish(self, slot: Slot) -> bool:
        if slot not in self._new or not self._known.take(slot.address):
            return False
        self._leave(slot)
        return True

    def _leave(self, slot: Slot) -> None:
        if slot in self._new:
            self._new.remove(slot)
            self._has_room.set()


class Newcomers(Generic[T]):
    """New connections by age, by address, and by the number of entries of an address.

    Every operation takes constant time: they are most frequent when there are most entries.
    ``has_sent``, whether an entry's peer has sent anything, is called only when needed;
    ``largest_count`` is the number of entries of the address that has most.
    """

    def __init__(self, has_sent: Callable[[T], bool]) -> None:
        self._has_sent = has_sent
        self._all: dict[T, str] = {}
        self._of_all: _Victims[T] = _Victims()
        self._by_address: dict[str, _Victims[T]] = {}
        # addresses by the number of their entries; the largest number is known
        self._by_count: defaultdict[int, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self.largest_count = 0

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, entry: T) -> bool:
        return entry in self._all

    def count(self, address: str) -> int:
        """Number of entries of an address."""
        entries = self._by_address.get(address)
        return 0 if entries is None else len(entries)

    def victim_of_all(self) -> T:
        """The oldest silent entry of all, or the oldest if none is silent."""
        return self._of_all.victim(self._has_sent)

    def victim(self, address: str) -> T:
        """The oldest silent entry of an address, or the oldest if none is silent."""
        return self._by_address[address].victim(self._has_sent)

    def victim_of_largest(self) -> T:
        """As :meth:`victim`, of an address that has most."""
        return self.victim(next(iter(self._by_count[self.largest_count])))

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
        self.largest_count = max(self.largest_count, after)
        if before and not self._by_count[before]:
            del self._by_count[before]
            if before == self.largest_count:
                self.largest_count = after


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


class LoginPenalties:
    """Delays of answers to wrong names or tokens, for the addresses that failed most recently.

    Each address has a few free attempts; after them, its answers are spaced out in time, over all
    its connections. A correct login is answered at once, even from that address.
    """

    def __init__(self) -> None:
        # when the penalty of an address ends
        self._settled_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._settled_at)

    def failed(self, address: str, now: float) -> float:
        """A login from this address failed; returns the delay of its answer in seconds."""
        free_s = limits.FREE_LOGIN_FAILURES * limits.LOGIN_FAILURE_PERIOD_S
        penalty_s = (
            max(0.0, self._settled_at.pop(address, now) - now) + limits.LOGIN_FAILURE_PERIOD_S
        )
        # bounds the penalty that is left after many attempts
        penalty_s = min(penalty_s, free_s + limits.MAX_LOGIN_DELAY_S)
        self._settled_at[address] = now + penalty_s
        if len(self._settled_at) > limits.MAX_FAILED_ADDRESSES:
            self._settled_at.popitem(last=False)
        return max(0.0, penalty_s - free_s)
