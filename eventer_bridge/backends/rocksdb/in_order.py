"""Finding events by source timestamp: in ``event``, where most are in order, and in ``source``.

See ``source_order``. Runs on a reader thread.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.scan import KeyRange, scan
from eventer_bridge.backends.rocksdb.snapshot import Snapshot

_TIME: Final = slice(keys.TYPE_BYTES, keys.TYPE_BYTES + keys.TIMESTAMP_BYTES)
"""The source timestamp in a key by source timestamp."""


class _Found(NamedTuple):
    """An event in order: its key in ``event``, and the one by source timestamp."""

    key: bytes
    by_source: bytes


def scan_by_source(snapshot: Snapshot, type_id: TypeId, span: KeyRange) -> list[Iterator[bytes]]:
    """Keys of a type by source timestamp (``keys.by_source``), from each place that has some.

    Iterators, each in the order of the span, which is without type. Others may move them between
    two keys. Raises as ``Snapshot.event_rows``.
    """
    start, stop, descending = span
    of_type = KeyRange(type_id + start, type_id + stop, descending)
    has_order = snapshot.in_order_until(type_id) != b""
    found: list[Iterator[bytes]] = []
    if has_order:
        found.append(_InOrder(snapshot, type_id).scan(of_type))
    if not has_order or _is_any(snapshot, of_type):
        found.append(scan(snapshot, snapshot.iterator("source"), of_type))
    return found


def find_contiguous(
    snapshot: Snapshot, type_id: TypeId, span: KeyRange
) -> tuple[bytes, bytes] | None:
    """Where all events of a type by source timestamp are in order, among others that are not.

    A part of ``event``: a key, and one before which it ends; None: some are in ``source``.
    """
    whole = KeyRange(type_id + span.start, type_id + span.stop)
    if _is_any(snapshot, whole):
        return None
    search = _InOrder(snapshot, type_id)
    return search.find(whole.start), search.find(whole.stop)


def _is_any(snapshot: Snapshot, span: KeyRange) -> bool:
    """Whether ``source`` has any key in a span."""
    iterator = snapshot.iterator("source")
    iterator.seek(span.start)
    key: bytes | None = iterator.key()
    if key is None:
        with snapshot.errors():
            iterator.status()
        return False
    return key < span.stop


class _InOrder:
    """Events of a type that are in order."""

    def __init__(self, snapshot: Snapshot, type_id: TypeId) -> None:
        self._snapshot = snapshot
        self._iterator = snapshot.iterator("event")
        self._begin = type_id
        self._end = type_id + snapshot.in_order_until(type_id) + b"\x00"
        self._no_bounds = {type_id: self._begin, type_id + keys.KEY_MAX: self._end}

    def scan(self, span: KeyRange) -> Iterator[bytes]:
        """Keys by source timestamp in a span, with type; as ``scan.scan``."""
        start, stop, descending = span
        edge: bytes | None = self.find(stop if descending else start)
        n_keys = 1
        while edge is not None:
            found = self._before(edge) if descending else self._from(edge)
            edge = None
            block: list[bytes] = []
            while found is not None and start <= found.by_source < stop:
                block.append(found.by_source)
                if len(block) == n_keys:
                    edge = found.key if descending else found.key + b"\x00"
                    break
                found = self._next(descending=descending)
            yield from block
            n_keys = min(2 * n_keys, store_limits.MAX_BLOCK_KEYS)

    def find(self, bound: bytes) -> bytes:
        """Key in ``event`` from which on events are not before a bound, by source timestamp.

        With 40,000 events of a type, it seeks 1 to 10 times on average, depending on how regular
        the timestamps are. To halve alone takes 23.
        """
        if bound in self._no_bounds:
            return self._no_bounds[bound]
        if (near := self._find_near(bound)) is not None:
            return near
        first, last = self._from(self._begin), self._before(self._end)
        if first is None or last is None or last.by_source < bound:
            return self._end
        if first.by_source >= bound:
            return first.key
        is_even = False
        while True:  # the first is before the bound, the last is not
            is_even = not is_even  # a guess that halves nothing may be bad again and again
            middle = self._guess(first, last, bound) if is_even else self._half(first, last)
            found = self._from(middle)
            assert found is not None  # the last one at most
            if found.by_source < bound:
                found = self._next(descending=False)
                assert found is not None  # as before
                if found.by_source >= bound:
                    return found.key
                first = found
            else:
                before = self._before(middle)
                assert before is not None  # the first one at least
                if before.by_source < bound:
                    return found.key
                last = before

    def _find_near(self, bound: bytes) -> bytes | None:
        """As :meth:`find`, where most have it: at its time; None: it is not near.

        Most events are registered as soon as there is something to tell.
        """
        found = self._from(bound[: _TIME.stop])
        is_before = found is not None and found.by_source < bound
        for _ in range(store_limits.NEAR_EVENTS):
            if is_before:
                found = self._next(descending=False)
                if found is None:
                    return self._end
                if found.by_source >= bound:
                    return found.key
            else:
                key = self._end if found is None else found.key
                found = self._before(key) if found is None else self._next(descending=True)
                if found is None or found.by_source < bound:
                    return key
        return None

    def _half(self, first: _Found, last: _Found) -> bytes:
        """A key in the middle, behind the first."""
        low, high = _number(first.key), _number(last.key)
        return self._key(low + (high - low + 1) // 2)

    def _guess(self, first: _Found, last: _Found, bound: bytes) -> bytes:
        """A key where the bound would be if both timestamps went by at the same rate."""
        low, high = _number(first.key), _number(last.key)
        low_s, high_s = _source(first.by_source), _source(last.by_source)
        part = _source(bound) - low_s
        guess = low + (high - low) * part // max(high_s - low_s, 1)
        return self._key(max(guess, low + 1))

    def _key(self, number: int) -> bytes:
        return self._begin + number.to_bytes(keys.POSITION_BYTES, "big")

    def _from(self, key: bytes) -> _Found | None:
        """The first one that does not come before a key."""
        self._snapshot.pause()
        self._iterator.seek(key)
        return self._take(self._iterator.next)

    def _before(self, key: bytes) -> _Found | None:
        """The last one before a key."""
        self._snapshot.pause()
        self._iterator.seek_for_prev(key)
        if self._iterator.key() == key:
            self._iterator.prev()
        return self._take(self._iterator.prev)

    def _next(self, *, descending: bool) -> _Found | None:
        """The one after that where the iterator is, in a direction."""
        move = self._iterator.prev if descending else self._iterator.next
        move()
        return self._take(move)

    def _take(self, move: Callable[[], None]) -> _Found | None:
        """The first one that is in order, from where the iterator is."""
        iterator = self._iterator
        while (key := iterator.key()) is not None and self._begin <= key < self._end:
            value = iterator.value()
            if keys.is_in_order(value):
                return _Found(key, keys.by_source(key, value))
            del value
            move()
        if key is None:
            with self._snapshot.errors():
                iterator.status()  # raises if it is not the end, but a failure
        return None


def _number(key: bytes) -> int:
    return int.from_bytes(key[keys.TYPE_BYTES :], "big")


def _source(by_source: bytes) -> int:
    return int.from_bytes(by_source[_TIME], "big")
