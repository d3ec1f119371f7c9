"""Finding keys in order: scanning a range, merging ranges of types, walking blocks of sessions.

Runs on a reader thread. Nothing here reads a value of an event, except for a filter that
needs it: keys first, then the values of the answer.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from itertools import filterfalse, islice
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from rocksdict import RdictIter

from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import ENTRY_BYTES, LOCAL_ID_BYTES, ORIGIN_BYTES, TypeId
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.types import EveryType, patience

Filter = Callable[[bytes], bool]
"""Whether the event with this key (of the scanned family) belongs to the answer."""

without_type = itemgetter(slice(keys.TYPE_BYTES, None))
"""What follows the type in a key of ``event`` or ``source``."""


class KeyRange(NamedTuple):
    """A part of the order of events: from ``start`` up to, but without ``stop``, in a direction.

    Both are keys, or beginnings of keys, without type.
    """

    start: bytes
    stop: bytes
    descending: bool = False

    def after(self, position: bytes) -> "KeyRange":
        """What of the span comes after a key of it, in its direction."""
        if self.descending:
            return KeyRange(self.start, position, True)
        return KeyRange(position + b"\x00", self.stop, False)

    def contains(self, position: bytes) -> bool:
        """Whether a key, without its type, belongs to the span."""
        return self.start <= position < self.stop


NOWHERE: Final = KeyRange(b"", b"")
"""No part of it."""

TypeScan: TypeAlias = Callable[[Snapshot, TypeId, KeyRange], list[Iterator[bytes]]]
"""Returns keys of a type in a span without type: iterators, each in order."""


def scan(snapshot: Snapshot, iterator: RdictIter, span: KeyRange) -> Iterator[bytes]:
    """Keys of a span, in order.

    The iterator may be moved between two keys: keys are read in blocks, each twice as large as the
    one before, and each begins with a seek. Raises as ``Snapshot.event_rows``.
    """
    start, stop, descending = span
    step = iterator.prev if descending else iterator.next
    n_keys = 1
    while True:
        snapshot.pause()
        if descending:
            iterator.seek_for_prev(stop)
            if iterator.valid() and iterator.key() == stop:
                step()
        else:
            iterator.seek(start)
        block: list[bytes] = []
        while iterator.valid() and start <= (key := iterator.key()) < stop:
            block.append(key)
            if len(block) == n_keys:
                break
            step()
        else:
            with snapshot.errors():
                iterator.status()  # raises if it is not the end, but a failure
            yield from block
            return
        yield from block
        if descending:
            stop = key
        else:
            start = key + b"\x00"
        n_keys = min(2 * n_keys, store_limits.MAX_BLOCK_KEYS)


def scan_blocks(snapshot: Snapshot, span: KeyRange) -> Iterator[bytes]:
    """Keys of the visible blocks of sessions that may have positions in a span, in order."""
    iterator = snapshot.iterator("session")
    start, stop = span.start[: keys.SESSION_KEY_BYTES], span.stop[: keys.SESSION_KEY_BYTES]
    if len(start) == keys.SESSION_KEY_BYTES:  # the block of this session may begin before it
        start = _first_block(snapshot, iterator, start)
    span = KeyRange(start, stop + keys.KEY_MAX, span.descending)
    yield from _seen(snapshot, scan(snapshot, iterator, span))


def _first_block(snapshot: Snapshot, iterator: RdictIter, session_key: bytes) -> bytes:
    """Key of the block that may have a session; the session's where there is none."""
    origin = session_key[:ORIGIN_BYTES]
    iterator.seek(origin)
    if iterator.valid() and origin <= iterator.key() <= session_key:
        # only then, as going back over what was deleted takes long
        iterator.seek_for_prev(session_key)
        session_key = iterator.key()
    with snapshot.errors():
        iterator.status()
    return session_key


def scan_server(snapshot: Snapshot, server: bytes, start: bytes) -> Iterator[bytes]:
    """As :func:`scan_blocks`, of a server, from a session on (encoded; or only the server)."""
    if len(start) == keys.SERVER_KEY_BYTES and (block := snapshot.find_block(start)) is not None:
        start = block[keys.TIMESTAMP_BYTES :]
    found = scan(snapshot, snapshot.iterator("server"), KeyRange(start, server + keys.KEY_MAX))
    return _seen(snapshot, (snapshot.timestamp(key) + key for key in found))


def _seen(snapshot: Snapshot, block_keys: Iterator[bytes]) -> Iterator[bytes]:
    hidden = snapshot.hidden
    return filterfalse(hidden.__contains__, block_keys) if hidden else block_keys


def merge(
    snapshot: Snapshot,
    scan_type: TypeScan,
    type_ids: Iterable[TypeId],
    span: KeyRange,
    *,
    limit: int,
    accept: Filter | None = None,
    done: Set[TypeId] = frozenset(),
) -> list[bytes]:
    """First keys of several types, in the order of what follows the type; some seeks for each type.

    ``scan_type`` returns keys of a type: :func:`scan_event`, or ``in_order.scan_by_source``. The
    filter is called in the order of the keys; types of ``done``, to which it may add, are left out.
    """
    start, stop, descending = span
    first: list[bytes] = []
    waiting = iter(type_ids)
    while some := list(islice(waiting, store_limits.MERGED_TYPES)):
        span = KeyRange(start, stop, descending)
        ranges = [
            _until_done(snapshot, keys_of_type, type_id, done)
            for type_id in some
            for keys_of_type in scan_type(snapshot, type_id, span)
        ]
        found: Iterable[bytes] = heapq.merge(*ranges, key=without_type, reverse=descending)
        if accept:
            found = filter(accept, found)
        both = heapq.merge(first, found, key=without_type, reverse=descending)
        first = list(islice(both, limit))
        if len(first) == limit:  # what lies behind the last cannot be among the first
            if descending:
                start = without_type(first[-1])
            else:
                stop = without_type(first[-1])
    return first


def scan_event(snapshot: Snapshot, type_id: TypeId, span: KeyRange) -> list[Iterator[bytes]]:
    """As :func:`scan`, keys in ``event`` of a type; the span is without type."""
    start, stop, descending = span
    span = KeyRange(type_id + start, type_id + stop, descending)
    return [scan(snapshot, snapshot.iterator("event"), span)]


def _until_done(
    snapshot: Snapshot, found: Iterator[bytes], type_id: TypeId, done: Set[TypeId]
) -> Iterator[bytes]:
    """Keys of a type that may be seen, until the type is done."""
    if snapshot.hidden:
        found = filterfalse(snapshot.hides, found)
    while type_id not in done and (key := next(found, None)) is not None:
        yield key


def walk(
    snapshot: Snapshot,
    block_keys: Iterable[bytes],
    wanted: Collection[TypeId],
    span: KeyRange,
    *,
    limit: int,
    accept: Filter | None = None,
    done: Set[TypeId] = frozenset(),
) -> tuple[list[bytes], KeyRange]:
    """First keys in ``event`` of given blocks, as long as that is cheaper than a merge.

    It is given up when as many events were passed over as there are wanted types: a merge costs
    about that. So, however the types are spread, both together cost at most about twice of the
    better one.

    Block keys come in the direction of the span of positions (see ``keys``). Returns keys, and the
    span that is left to be merged: :data:`NOWHERE`, unless it was given up.
    """
    start, stop, descending = span
    found: list[bytes] = []
    n_passed = 0
    n_allowed = patience(wanted)
    is_any_wanted = isinstance(wanted, EveryType)
    for block_key in block_keys:
        block = snapshot.block(block_key)
        origin, entries = block.origin, block.entries
        begins = block.between(start, stop)
        for n_walked, begin in enumerate(reversed(begins) if descending else begins):
            if not n_walked % store_limits.PAUSE_EVENTS:
                snapshot.pause()
            end = begin + LOCAL_ID_BYTES
            position = origin + entries[begin:end]
            type_id = entries[end : begin + ENTRY_BYTES]
            if type_id in done or not (is_any_wanted or type_id in wanted):
                n_passed += 1
                if n_passed > n_allowed:
                    n_allowed = len(wanted)  # they may have to be sought for that
                if n_passed > n_allowed:
                    rest = (
                        KeyRange(start, position + b"\x00", True)
                        if descending
                        else KeyRange(position, stop)
                    )
                    return found, rest
                continue
            key = type_id + position
            if accept is None or accept(key):
                found.append(key)
                if len(found) >= limit:
                    return found, NOWHERE
    return found, NOWHERE


def find_in_blocks(
    snapshot: Snapshot,
    block_keys: Iterable[bytes],
    type_ids: Collection[TypeId],
    span: KeyRange,
    *,
    limit: int,
    accept: Filter | None = None,
    done: Set[TypeId] = frozenset(),
) -> list[bytes]:
    """As :func:`walk`, and :func:`merge` where that is cheaper."""
    found: list[bytes] = []
    if isinstance(type_ids, EveryType) or patience(type_ids) > store_limits.FEW_MERGED_TYPES:
        found, rest = walk(
            snapshot, block_keys, type_ids, span, limit=limit, accept=accept, done=done
        )
        if rest is NOWHERE:
            return found
        span = rest
    n_left = limit - len(found)
    return found + merge(
        snapshot, scan_event, type_ids, span, limit=n_left, accept=accept, done=done
    )
