"""Splitting the time of a store into slices with about the same number of sessions each.

Session ids rise with time, almost without gaps. So a few look-ups find the middle of a server's
sessions, however unevenly they are spread over time.

Runs in the process that plans a read.
"""

from itertools import pairwise
from typing import Final

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.info import ext_servers
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.store import Store

PROBES: Final = 8
"""Look-ups for each server and slice."""


def split(store: Store, start: bytes, stop: bytes, n_slices: int) -> list[tuple[bytes, bytes]]:
    """Split a range of timestamps.

    Args:
        store: the store.
        start: first timestamp, encoded; empty: no bound.
        stop: end of the timestamps, not included; empty: no bound.
        n_slices: number of slices, at most.

    Returns:
        Start and stop of each slice, in order; together they cover the range.

    Raises:
        StorageError: it could not be read.
    """
    snapshot = store.snapshot()
    samples: list[tuple[bytes, float]] = []
    for server in ext_servers(store) if n_slices > 1 else ():
        first, last = server.first_session, server.last_session
        prefix = keys.encode_int(server.server_id)
        if start:
            first = _bisect(snapshot, prefix, first, last, start)
        if stop:
            last = _bisect(snapshot, prefix, first, last, stop)
        n_probes = min(PROBES * n_slices, last - first + 1)
        for i in range(n_probes):
            session = first + i * (last - first + 1) // n_probes
            timestamp = _timestamp(snapshot, prefix, session)
            if timestamp is not None and timestamp > start and (not stop or timestamp < stop):
                samples.append((timestamp, (last - first + 1) / n_probes))
    edges = [start, *_quantiles(samples, n_slices), stop]
    return list(pairwise(edges))


def _quantiles(samples: list[tuple[bytes, float]], n_slices: int) -> list[bytes]:
    """Timestamps that split weighted ones into parts of about the same weight."""
    samples.sort()
    share = sum(weight for _, weight in samples) / n_slices
    found: list[bytes] = []
    passed = 0.0
    for timestamp, weight in samples:
        is_due = passed >= share * (len(found) + 1) and len(found) < n_slices - 1
        if is_due and (not found or timestamp > found[-1]):
            found.append(timestamp)
        passed += weight
    return found


def _bisect(snapshot: Snapshot, server: bytes, first: int, last: int, timestamp: bytes) -> int:
    """First session of a server in ``first`` to ``last`` that is not before a timestamp."""
    while first < last:
        middle = (first + last) // 2
        found = _timestamp(snapshot, server, middle)
        if found is not None and found < timestamp:
            first = middle + 1
        else:
            last = middle
    return first


def _timestamp(snapshot: Snapshot, server: bytes, session: int) -> bytes | None:
    """Timestamp of a server's session with this id, or of those before it.

    Passes over all that was deleted in between: unlike a query's look-up (``Snapshot.find_block``),
    it needs the session before it, and holds up nobody else.
    """
    iterator = snapshot.iterator("server")
    iterator.seek_for_prev(server + keys.encode_int(session))
    key: bytes | None = iterator.key()
    if key is not None and key.startswith(server):
        timestamp: bytes = iterator.value()
        return timestamp
    with snapshot.errors():
        iterator.status()
    return None
