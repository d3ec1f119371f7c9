"""Slices of stores whose session ids say little: of which much was deleted, or that jumped."""

from itertools import pairwise
from pathlib import Path

import pytest

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.model import Event, EventId, Timestamp
from mariner_spark.source.store import split
from tests.spark.jumps import encoded, fill_with_jumps, sizes_of_slices
from tests.spark.support import fill


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


@pytest.fixture(scope="module")
def jumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A store of three servers, and the seconds of its events."""
    path = tmp_path_factory.mktemp("jumped") / "store"
    return path, fill_with_jumps(path)


@pytest.mark.parametrize(("first", "last"), [(None, None), (3_000, 10**6 + 1_000)])
@pytest.mark.parametrize("n_slices", [2, 6, 30])
def test_slices_share_the_work_where_ids_jumped(
    jumped: tuple[Path, list[int]], n_slices: int, first: int | None, last: int | None
) -> None:
    sizes = sizes_of_slices(*jumped, n_slices, first, last)
    assert sum(sizes) > 5_000
    assert max(sizes) <= 2 * sum(sizes) / n_slices, sizes
