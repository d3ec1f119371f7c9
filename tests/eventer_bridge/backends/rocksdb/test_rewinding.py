"""A store that is taken back to an earlier moment: as if nothing later had been registered."""

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.reader_rows import (
    CursorRow,
    ParkedRow,
    cursor_key,
    decode_cursor,
    encode_id,
    encode_row,
    parked_prefix,
)
from eventer_bridge.backends.rocksdb.restoring import ext_rewind
from eventer_bridge.model import (
    Event,
    JsonPayload,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
    natural_key,
)
from tests.eventer_bridge.backends.consistency import check_store
from tests.eventer_bridge.backends.contract_retention import (
    TestClock,
    hurry,  # noqa: F401
    rule,
    settled,
)
from tests.eventer_bridge.backends.oracle import Writer, answer, draft, request_key
from tests.eventer_bridge.backends.putting import put, put_all

LARGE = JsonPayload.of("x" * 100_000)


async def check_queries(backend: Backend, kept: list[Event]) -> None:
    queries: list[QueryParams] = [
        QueryTimeseriesParams(),
        QueryTimeseriesParams(order_by=OrderBy.SOURCE_TIMESTAMP),
        QueryTimeseriesParams([("b",)], order_by=OrderBy.SOURCE_TIMESTAMP),
        QueryServerParams(1),
        QueryServerParams(2),
    ]
    for query in queries:
        assert list((await backend.query(query)).events) == answer(kept, query)
    latest = sorted((await backend.query(QueryLatestParams())).events, key=natural_key)
    assert latest == answer(kept, QueryLatestParams())


async def test_later_events_are_gone_from_every_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RETENTION_BATCH_EVENTS", 3)
    async with await rocksdb.create(tmp_path / "whole") as backend:
        writer = Writer(backend)
        await backend.reserve(1, 50)
        for time in range(1, 8):
            drafts = draft("a", time), draft("b", 100 - time, LARGE), draft("c")
            await writer.session(*drafts, server=1, time=time)
            await writer.session(draft("b"), draft(f"of/{time}"), server=2, time=Timestamp(time, 1))
    for until in (
        Timestamp(9, 0),
        Timestamp(4, 1),
        Timestamp(4, 0),
        Timestamp(1, 0),
        Timestamp(0, 0),
    ):
        path = tmp_path / f"{until.s}.{until.us}"
        shutil.copytree(tmp_path / "whole", path)
        kept = [i for i in writer.events if i.timestamp <= until]
        assert ext_rewind(path, until) == len(writer.events) - len(kept)
        assert len(check_store(path)) == len(kept)
        async with await rocksdb.create(path) as backend:
            await check_queries(backend, kept)
            for server in 1, 2:
                newest = max((i.timestamp for i in kept if i.id.server == server), default=None)
                assert backend.high_water_mark(server).timestamp == newest
            assert backend.high_water_mark(1).session == 50
            again = Writer(backend)
            again.events = kept
            await again.session(draft("a"), server=2, time=20)


async def test_what_is_registered_again_together_is_found(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for time in range(1, 3 * store_limits.MAX_PASSED_ROWS):
            await writer.session(draft("a"), time=time)
    ext_rewind(tmp_path, Timestamp(1, 0))
    async with await rocksdb.create(tmp_path) as backend:
        first, *others = writer.events
        again = [[msgspec.structs.replace(i, timestamp=Timestamp(2, 0))] for i in others]
        await asyncio.wait(put_all(backend, again))
        for [event] in again:
            query = QueryTimeseriesParams(ids=[first.id, event.id])
            assert (await backend.query(query)).events == [event, first]


@pytest.mark.usefixtures("hurry")
async def test_what_was_deleted_does_not_keep_the_clock_ahead(tmp_path: Path) -> None:
    path = tmp_path / "store"
    clock = TestClock(1_000)
    rules = [rule("a", max_entries=0)]
    async with await rocksdb.create(path, retention=rules, clock=clock) as backend:
        writer = Writer(backend)
        for time in 1, 50, 60:
            await writer.session(draft("a"), server=2, time=time)
        await writer.session(draft("a"), server=1, time=70)
        assert len(await settled(backend, clock)) == 1
        assert backend.high_water_mark(2) == (3, Timestamp(60, 0))
    assert ext_rewind(path, Timestamp(55, 0)) == 1
    assert not check_store(path)
    async with await rocksdb.create(path) as backend:
        assert backend.high_water_mark(2) == (3, Timestamp(55, 0))
        assert backend.high_water_mark(1) == (0, None)


async def test_later_requests_are_forgotten(tmp_path: Path) -> None:
    keys = [request_key(str(time)) for time in range(4)]
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for time, key in enumerate(keys):
            await put(backend, writer.make(draft("a"), time=time), None, 1, key)
    ext_rewind(tmp_path, Timestamp(1, 0))
    clock = TestClock(10)
    async with await rocksdb.create(tmp_path, clock=clock) as backend:
        found = backend.find_requests("app", [key.key for key in keys])
        assert [i and i.timestamp.s for i in found] == [0, 1, None, None]


async def test_cursors_go_back(tmp_path: Path) -> None:
    def parked(event: Event) -> bytes:
        return parked_prefix("app", "ahead") + encode_id(event.id)

    now = Timestamp(1, 0)
    row = encode_row(ParkedRow("no idea", now))
    keys = {name: cursor_key("app", name) for name in ("ahead", "behind", "other")}
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        first, _ = await writer.session(draft("a"), draft("a"), time=1)
        kept, left = await writer.session(draft("a"), draft("a"), time=2)
        (later,) = await writer.session(draft("a"), time=3)
        (other,) = await writer.session(draft("a"), server=2, time=4)
        seen = {"ahead": [later.id], "behind": [first.id], "other": [kept.id, other.id]}
        cursors = {keys[name]: encode_row(CursorRow(ids, now)) for name, ids in seen.items()}
        await backend.keep_reader_rows({**cursors, parked(kept): row, parked(later): row})
    assert ext_rewind(tmp_path, Timestamp(2, 0)) == 2
    assert len(check_store(tmp_path)) == 4
    async with await rocksdb.create(tmp_path) as backend:
        rows = backend.reader_rows(b"")
        found = {name: decode_cursor(key, rows.pop(key))[2].seen for name, key in keys.items()}
        assert found == {"ahead": [left.id], "behind": [first.id], "other": [kept.id]}
        assert rows == {parked(kept): row}
