"""Source timestamps: which events have a row in ``source``, and that queries find the others."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import control, in_order, keys
from eventer_bridge.backends.rocksdb.backend import RocksDbBackend
from eventer_bridge.backends.rocksdb.restoring import ext_rewind
from eventer_bridge.backends.rocksdb.rows import ROWS
from eventer_bridge.backends.rocksdb.scan import KeyRange
from eventer_bridge.errors import ClosedError
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    Order,
    OrderBy,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.packed import stored_batch
from tests.eventer_bridge.backends.consistency import check_store
from tests.eventer_bridge.backends.oracle import Writer, answer, draft
from tests.eventer_bridge.backends.putting import TYPES, put

MAX_PASSED: Final = 3
EVERYTHING: Final = KeyRange(b"", keys.KEY_MAX)


@pytest.fixture(autouse=True)
def few_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_limits, "MAX_PASSED_EVENTS", MAX_PASSED)


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[RocksDbBackend]:
    async with await rocksdb.create(tmp_path) as created:
        yield created


def indexed(path: Path) -> list[int]:
    """Seconds of the source timestamps in ``source``, by type and order; the store is closed."""
    check_store(path)
    with control.open_read_only(path) as store, store.in_use():
        found = [key for key, _ in store.snapshot().rows("source")]
    return [keys.decode_timestamp(key, keys.TYPE_BYTES).s for key in found]


def ends(path: Path) -> dict[bytes, int]:
    """Until when events are in order, in seconds of their timestamps, by number of the type."""
    found: dict[bytes, int] = {}
    with control.open_read_only(path) as store, store.in_use():
        rows = store.iterator("default")
        rows.seek(keys.IN_ORDER_KEY)
        while rows.valid() and (key := rows.key()).startswith(keys.IN_ORDER_KEY):
            position = rows.value()
            found[key[-1:]] = keys.decode_timestamp(position).s if position else -1
            rows.next()
        del rows
    return found


async def register(backend: RocksDbBackend, *sources: int | None, name: str = "a") -> None:
    """Sessions of an event each, one a second."""
    for source in sources:
        session = backend.high_water_mark(1).session + 1
        event_id, source_timestamp = EventId(1, session, 1), source and Timestamp(source, 0)
        time = Timestamp(session, 0)
        await put(backend, [Event(event_id, (name,), time, source_timestamp or None, None)])


async def test_what_comes_in_order_has_no_row(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 1, 1, 2, 5, 5, 9)
        await register(backend, 3, 4, name="b")
    assert indexed(tmp_path) == []
    assert ends(tmp_path) == {}


async def test_a_few_that_are_late_have_a_row_each(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 5, 4, 6, 3, None, 7)
    assert indexed(tmp_path) == [3, 4]
    assert ends(tmp_path) == {}


async def test_after_more_of_them_all_have_one(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 5, 6, 1, 2, 3, 4, 7)
    assert indexed(tmp_path) == [1, 2, 3, 4, 7]
    assert ends(tmp_path) == {b"\0": 2}
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 8)
    assert indexed(tmp_path) == [1, 2, 3, 4, 7, 8]
    assert ends(tmp_path) == {b"\0": 2}


async def test_those_in_order_make_up_for_as_many_others(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 5, 6, 1, 2, 3, 7, 4, 8, None, 9, 1, 10, 11, 12, 13, 1, 2, 3, 14)
    assert indexed(tmp_path) == [1, 1, 1, 2, 2, 3, 3, 4]
    assert ends(tmp_path) == {}


async def test_one_in_order_makes_up_for_one_only(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 5, 1, 2, 3, 6, 4, 4, 7)
    assert indexed(tmp_path) == [1, 2, 3, 4, 4, 7]
    assert ends(tmp_path) == {b"\0": 5}


async def test_where_the_order_ended_is_known_after_a_restart(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 5, 1, 1, 1, 1)
        await register(backend, None, name="b")
        await register(backend, 1, name="c")
    async with await rocksdb.create(tmp_path) as backend:
        with backend._store.in_use():
            snapshot = backend._store.snapshot()
            found = [snapshot.in_order_until(keys.encode_type_id(i)) for i in range(3)]
            places = [
                len(in_order.scan_by_source(snapshot, keys.encode_type_id(i), EVERYTHING))
                for i in range(3)
            ]
            del snapshot
    position = keys.session_key(Timestamp(1, 0), 1, 1) + keys.encode_int(1)
    assert found == [position, b"", keys.KEY_MAX]
    assert places == [2, 1, 1]


async def test_a_type_without_events_begins_again(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 5)
        await register(backend, 5, name="b")
    assert await asyncio.to_thread(ext_rewind, tmp_path, Timestamp(1, 0)) == 1
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 6, 7, name="b")
    assert indexed(tmp_path) == []
    assert ends(tmp_path) == {}


async def test_a_session_with_too_many(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        late = [draft(source=1) for _ in range(MAX_PASSED + 1)]
        await writer.session(draft(source=5), *late, draft(source=6))
        await writer.session(*(draft("b") for _ in range(9)), draft("b", source=7))
    assert indexed(tmp_path) == [1] * (MAX_PASSED + 1) + [6, 7]
    assert ends(tmp_path) == {b"\0": 1, b"\1": -1}


async def test_an_event_of_another_server_that_is_behind(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await writer.session(draft(source=5), time=5)
        await writer.session(draft(source=6), server=2, time=6)
        await writer.session(draft(source=7), server=3, time=4)
        await writer.session(draft(source=8), time=8)
    assert indexed(tmp_path) == [7, 8]
    assert ends(tmp_path) == {b"\0": 6}


async def test_a_type_that_begins_without_source_timestamp_is_not_in_order(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, None, 1, None, 2)
    assert indexed(tmp_path) == [1, 2]
    assert ends(tmp_path) == {b"\0": -1}


@pytest.mark.parametrize(
    ("before", "after", "rows"),
    [
        ((5, 6), (7, 4, 8), [4]),
        ((5, 6, 1, None), (7, 8), [1]),  # the last one in order lies behind others
        ((5, 6, 1, None, 2), (7, 8), [1, 2]),
        ((5, 6, 1, 2, 7, None), (3, 3, 8), [1, 2, 3, 3]),  # those before it do not count
    ],
)
async def test_it_goes_on_after_a_restart(
    tmp_path: Path, before: Sequence[int | None], after: Sequence[int | None], rows: list[int]
) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, *before)
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, *after)
    assert indexed(tmp_path) == rows
    assert ends(tmp_path) == {}


async def test_too_many_behind_the_last_one_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store_limits, "MAX_PASSED_EVENTS", 100)
        async with await rocksdb.create(tmp_path) as backend:
            await register(backend, 5, 1, 2, 3, 4)
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 6, 7)
    assert indexed(tmp_path) == [1, 2, 3, 4, 6, 7]
    assert ends(tmp_path) == {b"\0": 5}


async def test_types_that_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 1, 2)
        await register(backend, 1, 2, name="b")
    monkeypatch.setattr(limits, "LATEST_CACHE_TYPES", 1)
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 3)
        await register(backend, 4, name="b")
        await register(backend, 5, name="new")
    assert indexed(tmp_path) == [4]
    assert ends(tmp_path) == {b"\1": 4}  # of its last event at the beginning


@pytest.mark.parametrize(("excess", "rows"), [(0, []), (1, [2, 3])])
async def test_after_a_large_value_none_is_in_order(
    tmp_path: Path, excess: int, rows: list[int]
) -> None:
    n_bytes = store_limits.MAX_ORDERED_BYTES + excess - keys.SOURCED_HEAD_BYTES
    payload = JsonPayload.of("x" * (n_bytes - 2))
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await writer.session(draft(source=1))
        await writer.session(draft(source=2, payload=payload), draft(source=3))
        params = QueryTimeseriesParams(order_by=OrderBy.SOURCE_TIMESTAMP)
        assert list((await backend.query(params)).events) == answer(writer.events, params)
    assert indexed(tmp_path) == rows
    assert ends(tmp_path) == ({b"\0": 1} if rows else {})


@pytest.mark.parametrize("source", [1, None])
async def test_a_large_value_at_first(tmp_path: Path, source: int | None) -> None:
    payload = JsonPayload.of("x" * store_limits.MAX_ORDERED_BYTES)
    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(draft(source=source, payload=payload))
    assert indexed(tmp_path) == [source] * (source is not None)
    assert ends(tmp_path) == {b"\0": -1}


async def test_what_lies_behind_the_last_in_order_counts_again(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 5, 1, None)
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 2, 6)
    assert indexed(tmp_path) == [1, 2]
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 3, 3, 3, 7)
    assert ends(tmp_path) == {}
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, 4, 4, 4)
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, None, 8)
    assert ends(tmp_path) == {b"\0": 9}
    assert indexed(tmp_path) == [1, 2, 3, 3, 3, 4, 4, 4, 8]


async def test_a_type_that_has_ended_does_not_begin_again(tmp_path: Path) -> None:
    """A stored end may outlive its type, when a loss is accepted."""
    async with await rocksdb.create(tmp_path) as backend:
        await register(backend, None)
        order = backend._store.order
        type_id = keys.encode_type_id(0)
        order.add_types([type_id])
        [event] = Writer(backend).make(draft(source=1))
        batches, ids = [stored_batch([event], TYPES)], {event.type: type_id}
        rows = ROWS(store_limits.MAX_PASSED_EVENTS, store_limits.MAX_ORDERED_BYTES)
        staged = order.stage(rows, batches, ids, 0, -1, is_counted=False)
        _, _, sources, _, _, ended = staged
        assert len(sources) == 1
        assert ended == []


SPREADS: Final = {
    "steady": lambda n: n * 1_000_000,
    "all at once": lambda _n: 0,
    "slower and slower": lambda n: 2**n,
    "with a gap": lambda n: n if n < 32 else 10**15 + n,
    "in bursts": lambda n: n // 16 * 10**9,
}


@pytest.mark.parametrize("sources", SPREADS)
@pytest.mark.parametrize("times", SPREADS)
async def test_a_bound_is_found_in_few_steps(
    backend: RocksDbBackend, monkeypatch: pytest.MonkeyPatch, times: str, sources: str
) -> None:
    n_events = 60
    writer = Writer(backend)
    for n in range(n_events):
        time, source = (timestamp(SPREADS[spread](n)) for spread in (times, sources))
        await writer.session(draft(source=source), time=time)
    found = [i.source_timestamp for i in writer.events if i.source_timestamp]
    wanted = sorted(
        {*found, *(timestamp((micros(i) + micros(k)) // 2) for i, k in pairwise(found))}
    )
    n_seeks = 0
    search = in_order._InOrder._from

    def counting(self: in_order._InOrder, key: bytes) -> object:
        nonlocal n_seeks
        n_seeks += 1
        return search(self, key)

    monkeypatch.setattr(in_order._InOrder, "_from", counting)
    most = 0
    with backend._store.in_use():
        snapshot = backend._store.snapshot()
        for bound in wanted:
            n_seeks = 0
            start = keys.encode_timestamp(bound)
            span = KeyRange(start, start + keys.KEY_MAX)
            [keys_in_order] = in_order.scan_by_source(snapshot, keys.encode_type_id(0), span)
            assert len([*keys_in_order]) == found.count(bound)
            most = max(most, n_seeks)
    is_regular = times == sources and times not in ("all at once", "in bursts")
    assert most <= (3 if is_regular else 48)


def micros(moment: Timestamp) -> int:
    return moment.s * 1_000_000 + moment.us


def timestamp(us: int) -> Timestamp:
    return Timestamp(*divmod(us, 1_000_000))


def random_drafts(rng: random.Random, kind: str, clock: int) -> Iterator[RegisterEvent]:
    for _ in range(rng.randint(1, 4)):
        source: int | None = clock - rng.choice((0, 0, 0, 1))
        if kind == "mixed" and not rng.randrange(9):
            source = None
        if kind in ("mixed", "late") and not rng.randrange(9):
            source = rng.randrange(clock + 3)
        if kind == "random":
            source = rng.randrange(40)
        payload = JsonPayload.of("x" * 5_000 if not rng.randrange(99) else rng.randrange(2))
        yield draft(rng.choice("abc"), source=source, payload=payload)


async def test_a_search_pauses(backend: RocksDbBackend) -> None:
    await register(backend, 1, 2, 3)
    with backend._store.in_use():
        snapshot = backend._store.snapshot()

        def pause() -> None:
            raise ClosedError("it closes")

        snapshot.pause = pause
        for descending in (True, False):
            for start in (b"", keys.encode_timestamp(Timestamp(2, 0))):
                span = KeyRange(start, start + keys.KEY_MAX, descending)
                [found] = in_order.scan_by_source(snapshot, keys.encode_type_id(0), span)
                with pytest.raises(ClosedError):
                    next(found)


@pytest.mark.parametrize("near", [0, 1, store_limits.NEAR_EVENTS])
@pytest.mark.parametrize("kind", ["steady", "late", "mixed", "random", "servers"])
async def test_queries_find_what_was_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, near: int
) -> None:
    monkeypatch.setattr(store_limits, "NEAR_EVENTS", near)
    monkeypatch.setattr(store_limits, "MAX_BLOCK_KEYS", 2)
    rng = random.Random(f"{kind} {near}")
    backend = await rocksdb.create(tmp_path)
    writer = Writer(backend)
    for clock in range(1, 40):
        server = 2 if kind == "servers" and not rng.randrange(9) else 1
        time = clock - 8 * (server - 1)  # that of the other one is behind
        await writer.session(*random_drafts(rng, kind, clock), server=server, time=time)
        if not rng.randrange(15):
            await backend.async_close()
            backend = await rocksdb.create(tmp_path)
            writer._backend = backend
        for _ in range(3):
            params = random_query(rng, writer.events)
            assert list((await backend.query(params)).events) == answer(writer.events, params)
    for _ in range(150):
        params = random_query(rng, writer.events)
        assert list((await backend.query(params)).events) == answer(writer.events, params), params
    await backend.async_close()
    check_store(tmp_path)


def random_query(rng: random.Random, events: Sequence[Event]) -> QueryTimeseriesParams:
    def bound(last: int) -> Timestamp | None:
        return (
            Timestamp(rng.randrange(-1, last), rng.choice((0, 0, 1)))
            if rng.random() < 0.5
            else None
        )

    some = rng.choice((None, [("a",)], [("b",)], [("a",), ("c",)], [("x",), ("c",)]))
    return QueryTimeseriesParams(
        event_types=some,
        t_from=bound(42) if rng.random() < 0.2 else None,
        t_to=bound(42) if rng.random() < 0.2 else None,
        source_t_from=bound(42),
        source_t_to=bound(42),
        order=rng.choice([*Order]),
        order_by=OrderBy.SOURCE_TIMESTAMP,
        max_results=rng.choice((None, 1, 3, 10)),
        last_event_id=rng.choice(events).id if rng.random() < 0.3 else None,
        payload=JsonPayload.of(1) if rng.random() < 0.2 else None,
        unique_type=rng.random() < 0.2,
    )
