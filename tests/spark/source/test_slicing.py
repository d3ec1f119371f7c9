"""Slices of stores whose session ids say little: of which much was deleted, or that jumped."""

import random
from bisect import bisect
from itertools import pairwise
from pathlib import Path

import pytest

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.limits import RESERVED_SESSIONS
from eventer_bridge.model import Event, EventId, Timestamp
from mariner_spark.source.store import split
from tests.spark.support import fill


def encoded(s: int) -> bytes:
    return keys.encode_timestamp(Timestamp(s, 0))


def test_slices_share_the_work_where_much_was_deleted_before(tmp_path: Path) -> None:
    fill(
        tmp_path,
        [Event(EventId(1, i, 1), ("a",), Timestamp(i, 0), None, None) for i in range(1, 2_001)],
    )
    store = Store(tmp_path)
    try:
        commit = Commit()
        for session in range(1, 1_101):  # one by one, as retention does where others lie between
            if session % 50 != 21:
                key = keys.session_key(Timestamp(session, 0), 1, session)
                commit.batch.delete(key, store.handle("session"))
                commit.batch.delete(key[keys.TIMESTAMP_BYTES :], store.handle("server"))
        store.ext_write_synced(commit)
        slices = split(store, encoded(1_201), encoded(1_601), 4)
    finally:
        store.ext_close()
    edges = [start for start, _ in slices] + [encoded(1_601)]
    assert [stop for _, stop in slices] == edges[1:]
    seconds = [keys.decode_timestamp(edge).s for edge in edges]
    sizes = [stop - start for start, stop in pairwise(seconds)]
    assert len(sizes) == 4
    assert min(sizes) > 60


def crashing(server: int, first_s: int, *, n_crashes: int, n_sessions: int) -> list[Event]:
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


@pytest.fixture(scope="module")
def jumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A store of three servers, and the seconds of its events."""
    path = tmp_path_factory.mktemp("jumped") / "store"
    stored = [
        *crashing(1, 0, n_crashes=50, n_sessions=20),
        *crashing(2, 100, n_crashes=1, n_sessions=1_500),
        *crashing(3, 10**6, n_crashes=5, n_sessions=100),
    ]
    fill(path, stored)
    return path, sorted(i.timestamp.s for i in stored)


@pytest.mark.parametrize(("first", "last"), [(None, None), (3_000, 10**6 + 1_000)])
@pytest.mark.parametrize("n_slices", [2, 6, 30])
def test_slices_share_the_work_where_ids_jumped(
    jumped: tuple[Path, list[int]], n_slices: int, first: int | None, last: int | None
) -> None:
    path, moments = jumped
    within = [s for s in moments if (first or 0) <= s < (last or 10**9)]
    assert len(within) > 5_000
    start, stop = (b"" if i is None else encoded(i) for i in (first, last))
    store = Store(path, read_only=True)
    try:
        slices = split(store, start, stop, n_slices)
    finally:
        store.ext_close()
    assert len(slices) == n_slices
    edges = [0, *(keys.decode_timestamp(start).s for start, _ in slices[1:]), 10**9]
    sizes = [bisect(within, end - 1) - bisect(within, begin - 1) for begin, end in pairwise(edges)]
    assert sum(sizes) == len(within)
    assert max(sizes) <= 2 * len(within) / n_slices, sizes
