"""Sessions that are registered together: one row for all, and found as if each had its own."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.reader_rows import (
    CURSOR_PREFIX,
    CursorRow,
    cursor_key,
    decode_cursor,
    encode_row,
)
from eventer_bridge.backends.rocksdb import RocksDbBackend, control, keys, scan
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.info import ext_info
from eventer_bridge.backends.rocksdb.restoring import ext_rewind
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.types import EveryType
from eventer_bridge.errors import OutcomeUnknownError
from eventer_bridge.model import (
    INT64_MAX,
    Event,
    EventId,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
    natural_key,
)
from eventer_bridge.slices import at_once
from tests.eventer_bridge.backends.consistency import check_store
from tests.eventer_bridge.backends.contract_retention import (
    TestClock,
    check_all_queries,
    hurry,  # noqa: F401
    rule,
    settled,
)
from tests.eventer_bridge.backends.faults import failing_for_good, query_when_open, recovered
from tests.eventer_bridge.backends.oracle import Writer, answer, draft
from tests.eventer_bridge.backends.putting import put, put_all, put_in_steps, stage
from tests.eventer_bridge.backends.rocksdb.raw_rows import raw_rows

UPWARDS = QueryTimeseriesParams(order=Order.ASCENDING)


def together(
    writer: Writer, *sessions: Sequence[RegisterEvent], server: int = 1, time: int = 1
) -> list[list[Event]]:
    """Events of sessions of one moment."""
    return [writer.make(*drafts, server=server, time=time) for drafts in sessions]


async def fill(backend: Backend) -> Writer:
    """Blocks of three servers, of sessions with one to three events."""
    writer = Writer(backend)
    for time in range(1, 6):
        for server in 1, 2, -3:
            sessions = (
                [draft("a", time)],
                [draft("b"), draft("a", 9 - time), draft(f"c/{time}")],
                [draft("a")],
                [draft("b", 5), draft("b")],
            )
            put_all(backend, together(writer, *sessions, server=server, time=time))
            put(backend, writer.make(draft("c"), draft("a"), server=server, time=time))
    await backend.flush()
    return writer


def n_rows(path: Path) -> tuple[int, int]:
    """Numbers of rows in ``session`` and ``server``."""
    with raw_rows(path) as rows:
        n_sessions, n_servers = (len([*rows[name].keys()]) for name in ("session", "server"))
    return n_sessions, n_servers


async def test_sessions_that_come_together_share_their_rows(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        futures = put_all(backend, together(writer, *([draft("a")] for _ in range(64))))
        await asyncio.wait(futures)
        large = writer.make(*(draft("a") for _ in range(300)), time=2)
        await at_once(put_in_steps(backend, large))
        assert (await backend.query(UPWARDS)).events == writer.events
    assert n_rows(tmp_path) == (2, 2)
    assert len(check_store(tmp_path)) == 364


@pytest.mark.parametrize("few_types", [1, 100], ids=["walked", "merged"])
async def test_every_page_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_types: int
) -> None:
    """Behind each event, in either direction: most are in the middle of a block."""
    monkeypatch.setattr(store_limits, "FEW_MERGED_TYPES", few_types)
    monkeypatch.setattr(store_limits, "MAX_BLOCK_KEYS", 2)
    queries: list[QueryTimeseriesParams | QueryServerParams] = [
        *(QueryServerParams(server) for server in (1, 2, -3)),
        QueryTimeseriesParams([("a",), ("b",)], order=Order.ASCENDING),
        QueryTimeseriesParams(t_from=Timestamp(2, 0), t_to=Timestamp(4, 0)),
        *(
            QueryTimeseriesParams(order=order, order_by=order_by, unique_type=unique_type)
            for order in Order
            for order_by in OrderBy
            for unique_type in (False, True)
        ),
    ]
    async with await rocksdb.create(tmp_path) as backend:
        writer = await fill(backend)
        for query in queries:
            whole = answer(writer.events, query)
            assert (await backend.query(query)).events == whole
            for n, event in enumerate(whole, 1):
                page = msgspec.structs.replace(query, last_event_id=event.id, max_results=3)
                assert (await backend.query(page)).events == whole[n : n + 3]
    check_store(tmp_path)


def test_others_get_their_turn_while_a_block_is_walked(tmp_path: Path) -> None:
    store = Store(tmp_path)
    pauses: list[None] = []
    try:
        ids = [EventId(1, 1, i) for i in range(1_000)]
        events = [Event(i, ("a",), Timestamp(1, 0), None, None) for i in ids]
        commit = Commit()
        stage(store, commit, [events], {("a",): keys.encode_type_id(0)})
        store.write(commit)
        store.ext_sync()
        assert store.decide()
        snapshot = store.snapshot(lambda: pauses.append(None))
        for is_descending in False, True:
            span = scan.KeyRange(b"", keys.KEY_MAX, is_descending)
            blocks = scan.scan_blocks(snapshot, span)
            found, _ = scan.walk(snapshot, blocks, EveryType(1), span, limit=len(ids))
            assert len(found) == len(ids)
            assert len(pauses) > len(ids) / store_limits.PAUSE_EVENTS
            pauses.clear()
        del snapshot
    finally:
        store.ext_close()


def test_blocks_that_may_have_positions_of_a_span(tmp_path: Path) -> None:
    store = Store(tmp_path)
    try:
        commit = Commit()
        for time in range(1, 5):
            ids = [EventId(1, 10 * time + i, 1) for i in range(3)]
            events = [[Event(i, ("a",), Timestamp(time, 0), None, None)] for i in ids]
            stage(store, commit, events, {("a",): keys.encode_type_id(0)})
        store.write(commit)
        store.ext_sync()
        assert store.decide()
        snapshot = store.snapshot()
        blocks = [key for key, _ in snapshot.rows("session")]
        for time, session, n_before in ((2, 12, 1), (2, 10, 1), (2, 19, 1), (3, 29, 2), (3, 1, 2)):
            start = keys.session_key(Timestamp(time, 0), 1, session) + keys.encode_int(1)
            span = scan.KeyRange(start, keys.KEY_MAX)
            assert [*scan.scan_blocks(snapshot, span)] == blocks[n_before:]
        start = keys.session_key(Timestamp(3, 0), 0, 25) + keys.encode_int(1)
        assert [*scan.scan_blocks(snapshot, scan.KeyRange(start, keys.KEY_MAX))] == blocks[2:]
        del snapshot
    finally:
        store.ext_close()


async def test_events_are_found_by_their_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = await fill(backend)
        some = [event.id for event in writer.events]
        others = [
            *(EventId(i.server, i.session, 9) for i in some),
            *(EventId(i.server, i.session + 100, i.instance) for i in some),
            *(EventId(7, i.session, i.instance) for i in some),
            EventId(1, 0, 1),
        ]
        ids = [*others, *some[::-1], *some[:5]]
        read: list[bytes] = []
        block = Snapshot.block

        def counting(snapshot: Snapshot, key: bytes) -> object:
            read.append(key)
            return block(snapshot, key)

        monkeypatch.setattr(Snapshot, "block", counting)
        query = QueryTimeseriesParams(ids=ids, order=Order.ASCENDING)
        assert (await backend.query(query)).events == answer(writer.events, query)
        assert len(read) == len(set(read)) == 30
        query = QueryTimeseriesParams(ids=others)
        assert (await backend.query(query)).events == []


async def kept_of(path: Path, events: Iterable[Event], *kept: str) -> None:
    """Delete the events whose types are not kept."""
    clock = TestClock(1_000)
    types = {"/".join(event.type) for event in events}
    rules = [rule(*sorted(types.difference(kept)), max_entries=0)]
    async with await rocksdb.create(path, retention=rules, clock=clock) as backend:
        await settled(backend, clock)


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("kept", ["first", "middle", "last", "none"])
async def test_a_block_that_is_deleted_in_part(tmp_path: Path, kept: str) -> None:
    """Each event has a session; the latest of each type is not deleted: it is in another block."""
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        names = "first", "middle", "last"
        for time in 1, 2:
            sessions = ([draft(name), draft(name)] for name in names)
            await asyncio.wait(put_all(backend, together(writer, *sessions, time=time)))
        latest = [writer.make(draft(name), server=2, time=3) for name in names]
        await asyncio.wait(put_all(backend, latest))
        mark = backend.high_water_mark(1)
        assert mark == (6, Timestamp(2, 0))
    await kept_of(tmp_path, writer.events, kept)
    left = [i for i in writer.events if i.id.server == 2 or i.type == (kept,)]
    n_blocks = 1 if kept == "none" else 3
    assert n_rows(tmp_path) == (n_blocks, n_blocks)
    assert len(check_store(tmp_path)) == len(left)
    with control.open_read_only(tmp_path) as store:
        [of_server, *_] = ext_info(store).servers
    if kept != "none":
        left_ids = [i.id.session for i in left if i.id.server == 1]
        assert (of_server.first_session, of_server.last_session) == (min(left_ids), max(left_ids))
    async with await rocksdb.create(tmp_path) as backend:
        await check_all_queries(backend, left)
        assert backend.high_water_mark(1) == backend.last_session(1) == mark
        for event in left:
            query = QueryServerParams(event.id.server, last_event_id=event.id)
            assert (await backend.query(query)).events == answer(left, query)
        again = Writer(backend)
        again.events = [*left, *writer.events[-1:]]
        more = [*left, *await again.session(draft("first"), server=2, time=9)]
        await check_all_queries(backend, more)


async def test_a_session_is_deleted_for_good_where_a_later_one_is_kept(tmp_path: Path) -> None:
    """Then nothing of the server goes back, either."""
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        sessions = [draft("a")], [draft("b")], [draft("a")]
        await asyncio.wait(put_all(backend, together(writer, *sessions, time=5)))
        await writer.session(draft("a"), server=2, time=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "RETENTION_PERIOD_S", 0.001)
        patch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.001)
        await kept_of(tmp_path, writer.events, "b")
    async with await rocksdb.create(tmp_path) as backend:
        left = [writer.events[1], writer.events[3]]
        assert (await backend.query(UPWARDS)).events == left
        assert backend.last_session(1) == (3, Timestamp(5, 0))
        later = Event(EventId(1, 4, 1), ("c",), Timestamp(8, 0), None, None)
        await put(backend, [later])
        seen = encode_row(CursorRow([later.id], Timestamp(9, 0)))
        await backend.keep_reader_rows({cursor_key("app", "c"): seen})
    assert ext_rewind(tmp_path, Timestamp(6, 0)) == 2
    assert len(check_store(tmp_path)) == 1
    async with await rocksdb.create(tmp_path) as backend:
        [row] = backend.reader_rows(CURSOR_PREFIX).values()
        assert decode_cursor(cursor_key("app", "c"), row)[2].seen == [EventId(1, 3, INT64_MAX)]


async def test_rewinding_deletes_blocks(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = await fill(backend)
    n_before = n_rows(tmp_path)
    left = [event for event in writer.events if event.timestamp <= Timestamp(3, 0)]
    assert ext_rewind(tmp_path, Timestamp(3, 0)) == len(writer.events) - len(left)
    assert len(check_store(tmp_path)) == len(left)
    assert n_before == (30, 30)
    assert n_rows(tmp_path) == (18, 18)
    async with await rocksdb.create(tmp_path) as backend:
        assert (await backend.query(UPWARDS)).events == sorted(left, key=natural_key)
        last = max((i for i in left if i.id.server == 1), key=natural_key)
        assert backend.high_water_mark(1) == (last.id.session, last.timestamp)


async def test_a_block_is_seen_when_it_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STORE_RETRY_PERIOD_S", 0.02)
    queries: list[QueryParams] = [
        UPWARDS,
        QueryTimeseriesParams([("a",), *((f"none{n}",) for n in range(20))]),
        QueryTimeseriesParams(order_by=OrderBy.SOURCE_TIMESTAMP),
        QueryTimeseriesParams(ids=[EventId(1, i, 1) for i in range(9)]),
        QueryServerParams(1),
        QueryServerParams(1, last_event_id=EventId(1, 4, 1)),
        QueryLatestParams(),
    ]

    async def found(backend: RocksDbBackend) -> list[list[Event]]:
        results = [await query_when_open(backend, i) for i in queries]
        return [sorted(i.events, key=natural_key) for i in results]

    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        one, another = ([draft("a")] for _ in range(2))
        await asyncio.wait(put_all(backend, together(writer, one, another, time=1)))
        before = [sorted(answer(writer.events, i), key=natural_key) for i in queries]
        assert await found(backend) == before
        with failing_for_good():
            commits = put_all(backend, together(writer, one, another, one, time=2))
            await asyncio.wait(commits)
            assert await found(backend) == before
        await recovered(backend)
        error = commits[0].exception()
        assert isinstance(error, OutcomeUnknownError)
        assert error.is_stored()
        assert await found(backend) == [
            sorted(answer(writer.events, i), key=natural_key) for i in queries
        ]
    check_store(tmp_path)


async def test_ids_that_are_far_apart(tmp_path: Path) -> None:
    """A block is of any ids that ascend."""
    async with await rocksdb.create(tmp_path) as backend:
        ids = 1, 2**40, INT64_MAX
        sessions = [[Event(EventId(1, i, i), ("a",), Timestamp(1, 0), None, None)] for i in ids]
        await asyncio.wait(put_all(backend, sessions))
        events = [*chain.from_iterable(sessions)]
        await check_all_queries(backend, events)
        assert backend.last_session(1) == (INT64_MAX, Timestamp(1, 0))
    assert n_rows(tmp_path) == (1, 1)
    check_store(tmp_path)


async def test_looking_up_what_was_deleted_does_not_pass_over_all_of_it(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        [first] = await writer.session(draft("a"))
        others = [
            (await writer.session(draft("a")))[0] for _ in range(5 * store_limits.MAX_PASSED_ROWS)
        ]
    *deleted, last = others
    store = Store(tmp_path)
    try:
        commit = Commit()
        for event in deleted:  # one by one, as retention does
            commit.batch.delete(key_of(event), store.handle("session"))
            commit.batch.delete(key_of(event)[keys.TIMESTAMP_BYTES :], store.handle("server"))
        store.write(commit)
        store.ext_sync()
        snapshot = store.snapshot()
        for event, found in (
            (first, first),
            (deleted[3], first),
            (deleted[-1], None),
            (last, last),
        ):
            server_key = key_of(event)[keys.TIMESTAMP_BYTES :]
            expected = None if found is None else key_of(found)
            assert snapshot.find_block(server_key) == expected
        assert [*snapshot.find_all([i.id for i in (deleted[3], deleted[-1])])] == []
        assert len([*snapshot.find_all([first.id, deleted[-1].id, last.id])]) == 2
        del snapshot
    finally:
        store.ext_close()


def key_of(event: Event) -> bytes:
    return keys.session_key(event.timestamp, event.id.server, event.id.session)
