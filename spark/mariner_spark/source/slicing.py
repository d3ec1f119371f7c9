"""Cutting the time of a store into slices with about as many sessions each.

Ids of sessions rise with time, almost without gaps. So the middle of a server's sessions is
found by a few look-ups, however unevenly they are spread over time.

Runs where a read is planned.
"""

from itertools import pairwise
from typing import Final

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.info import ext_info
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.store import Store

PROBES: Final = 8
"""Look-ups for each server and slice."""


def cut(store: Store, low: bytes, stop: bytes, n_slices: int) -> list[tuple[bytes, bytes]]:
    """Cut.

    Args:
        store: the store.
        low: timestamp to begin with, encoded; empty: no bound.
        stop: what lies behind the last one; empty: no bound.
        n_slices: how many, at most.

    Returns:
        First timestamp and what lies behind, of each slice, in order; together all of it.

    Raises:
        StorageError: it could not be read.
    """
    snapshot = store.snapshot()
    places: list[tuple[bytes, float]] = []
    for server in ext_info(store).servers if n_slices > 1 else ():
        first, last = server.first_session, server.last_session
        prefix = keys.encode_int(server.server_id)
        if low:
            first = _bisect(snapshot, prefix, first, last, low)
        if stop:
            last = _bisect(snapshot, prefix, first, last, stop)
        n_probes = min(PROBES * n_slices, last - first + 1)
        for i in range(n_probes):
            session = first + i * (last - first + 1) // n_probes
            timestamp = _timestamp(snapshot, prefix, session)
            if timestamp is not None and timestamp > low and (not stop or timestamp < stop):
                places.append((timestamp, (last - first + 1) / n_probes))
    edges = [low, *_quantiles(places, n_slices), stop]
    return list(pairwise(edges))


def _quantiles(places: list[tuple[bytes, float]], n_slices: int) -> list[bytes]:
    """Timestamps that cut weighted ones into parts of about the same weight."""
    places.sort()
    share = sum(weight for _, weight in places) / n_slices
    found: list[bytes] = []
    passed = 0.0
    for timestamp, weight in places:
        is_due = passed >= share * (len(found) + 1) and len(found) < n_slices - 1
        if is_due and (not found or timestamp > found[-1]):
            found.append(timestamp)
        passed += weight
    return found


def _bisect(snapshot: Snapshot, server: bytes, first: int, last: int, timestamp: bytes) -> int:
    """First session of a server, from ``first`` to ``last``, that is not before a timestamp."""
    while first < last:
        middle = (first + last) // 2
        found = _timestamp(snapshot, server, middle)
        if found is not None and found < timestamp:
            first = middle + 1
        else:
            last = middle
    return first


def _timestamp(snapshot: Snapshot, server: bytes, session: int) -> bytes | None:
    """Timestamp of the first session of a server from this one on."""
    iterator = snapshot.iterator("server")
    iterator.seek(server + keys.encode_int(session))
    if iterator.valid() and iterator.key().startswith(server):
        timestamp: bytes = iterator.value()
        return timestamp
    with snapshot.errors():
        iterator.status()
    return None
