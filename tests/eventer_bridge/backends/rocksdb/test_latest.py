"""The latest event of each type, kept for those that were written last."""

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.latest import LatestCache, Row

N_TYPES = 2 * store_limits.FORGOTTEN_PART


@pytest.fixture(autouse=True)
def few_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LATEST_CACHE_TYPES", N_TYPES)


def type_of(number: int) -> TypeId:
    return number.to_bytes(4, "big")


def row(number: int, time: int, value: bytes = b"v") -> Row:
    return type_of(number) + time.to_bytes(36, "big"), value


def write(cache: LatestCache, *rows: Row) -> None:
    cache.update((key[:4], (key, value)) for key, value in rows)


def kept(cache: LatestCache, n_types: int) -> list[int]:
    return [i for i in range(n_types) if cache.get(type_of(i)) is not None]


def test_types_that_were_written_last_are_kept() -> None:
    cache = LatestCache(b"")
    for number in range(10 * N_TYPES):
        write(cache, row(number, 1 + number))
    last = [*range(10 * N_TYPES)][-len(kept(cache, 10 * N_TYPES)) :]
    assert kept(cache, 10 * N_TYPES) == last
    assert N_TYPES - 1 - N_TYPES // store_limits.FORGOTTEN_PART <= len(last) <= N_TYPES


def test_a_type_that_is_written_again_is_kept() -> None:
    cache = LatestCache(b"")
    for number in range(10 * N_TYPES):
        write(cache, row(0, 1 + 2 * number), row(1 + number, 2 + 2 * number))
    assert cache.get(type_of(0)) == row(0, 1 + 2 * (10 * N_TYPES - 1))
    assert cache.get(type_of(1)) is None


def test_an_earlier_row_is_not_the_latest() -> None:
    cache = LatestCache(b"", [(type_of(0), row(0, 5))])
    write(cache, row(0, 4), row(0, 5, b"again"))
    assert cache.get(type_of(0)) == row(0, 5)
    write(cache, row(0, 6))
    assert cache.get(type_of(0)) == row(0, 6)


def test_of_a_forgotten_type_only_what_is_behind_everything_is_the_latest() -> None:
    cache = LatestCache(b"")
    for number in range(N_TYPES + 1):
        write(cache, row(number, 1 + number))
    assert cache.get(type_of(0)) is None
    n_forgotten = N_TYPES + 1 - len(kept(cache, N_TYPES + 1))
    write(cache, row(0, n_forgotten))  # the store may have a later one
    assert cache.get(type_of(0)) is None
    write(cache, row(0, n_forgotten + 1))
    assert cache.get(type_of(0)) == row(0, n_forgotten + 1)


def test_a_large_row_is_left_to_the_store() -> None:
    cache = LatestCache(b"")
    write(cache, row(0, 1), row(0, 2, bytes(limits.LATEST_CACHE_ROW_BYTES + 1)))
    assert cache.get(type_of(0)) is None
    write(cache, row(0, 2))
    assert cache.get(type_of(0)) is None
    write(cache, row(0, 3, bytes(limits.LATEST_CACHE_ROW_BYTES)))
    assert cache.get(type_of(0)) == row(0, 3, bytes(limits.LATEST_CACHE_ROW_BYTES))
