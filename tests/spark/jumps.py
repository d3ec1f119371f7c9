"""A store whose session ids jumped, as after crashes, and how its events are shared."""

import random
from bisect import bisect
from itertools import pairwise
from pathlib import Path

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.limits import RESERVED_SESSIONS
from eventer_bridge.model import Event, EventId, Timestamp
from mariner_spark.source.store import split
from tests.spark.support import fill


def encoded(seconds: int) -> bytes:
    """Bound of a slice."""
    return keys.encode_timestamp(Timestamp(seconds, 0))


def fill_with_jumps(path: Path) -> list[int]:
    """Make such a store, of three servers; the seconds of its events."""
    stored = [
        *_crashing(1, 0, n_crashes=50, n_sessions=20),
        *_crashing(2, 100, n_crashes=1, n_sessions=1_500),
        *_crashing(3, 10**6, n_crashes=5, n_sessions=100),
    ]
    fill(path, stored)
    return sorted(i.timestamp.s for i in stored)


def _crashing(server: int, first_s: int, *, n_crashes: int, n_sessions: int) -> list[Event]:
    """Events of a server that crashes now and then, so that its session ids jump."""
    chance = random.Random(server)
    events: list[Event] = []
    session = 0
    for _ in range(n_crashes):
        for _ in range(chance.randrange(1, 2 * n_sessions)):
            session += 1
            moment = Timestamp(first_s + len(events), 0)
            events += [
                Event(EventId(server, session, i), ("a",), moment, None, None)
                for i in range(1, chance.choice((1, 1, 20)) + 1)
            ]
        session += chance.randrange(RESERVED_SESSIONS)
    return events


def sizes_of_slices(
    path: Path, moments: list[int], n_slices: int, first: int | None = None, last: int | None = None
) -> list[int]:
    """Numbers of events in each slice of a time, of those at these moments."""
    start, stop = (b"" if i is None else encoded(i) for i in (first, last))
    store = Store(path, read_only=True)
    try:
        slices = split(store, start, stop, n_slices)
    finally:
        store.ext_close()
    assert len(slices) == n_slices
    within = [s for s in moments if (first or 0) <= s < (last or 10**9)]
    edges = [0, *(keys.decode_timestamp(start).s for start, _ in slices[1:]), 10**9]
    sizes = [bisect(within, end - 1) - bisect(within, begin - 1) for begin, end in pairwise(edges)]
    assert sum(sizes) == len(within)
    return sizes
