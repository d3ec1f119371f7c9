"""What 000's conditions of a query cost in RocksDB: ids, payload, unique types."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import query, scan
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import ClosedError
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    Order,
    OrderBy,
    QueryTimeseriesParams,
    Timestamp,
)
from tests.eventer_bridge.backends.oracle import Writer, answer, draft
from tests.eventer_bridge.backends.putting import put, stage


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Counts the keys that are scanned, and the values of events that are read."""
    count = {"keys": 0, "values": 0}
    scan_keys, value = scan.scan, Snapshot.value

    def counting_scan(*args: Any) -> Iterator[bytes]:
        for key in scan_keys(*args):
            count["keys"] += 1
            yield key

    def counting_value(self: Snapshot, key: bytes) -> bytes:
        count["values"] += 1
        return value(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(scan, "scan", counting_scan)
        patch.setattr(Snapshot, "value", counting_value)
        yield count


@pytest.mark.parametrize("order_by", list(OrderBy))
@pytest.mark.parametrize("order", list(Order))
async def test_queries_of_ids_and_unique_types_cost_what_they_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Order, order_by: OrderBy
) -> None:
    names = [f"t{i}" for i in range(20)]
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for n in range(100):
            # half of the types come in the first sessions only
            some = names if n < 50 else names[:10]
            put(backend, writer.make(*(draft(i, n % 7) for i in some)))
        params = QueryTimeseriesParams(order=order, order_by=order_by)
        for max_results, n_keys in (None, 3 * 20), (5, 2 * 20):
            unique = msgspec.structs.replace(params, unique_type=True, max_results=max_results)
            with counted(monkeypatch) as count:
                result = await backend.query(unique)
            expected = answer(writer.events, unique)
            assert result.events == expected
            assert count["values"] <= len(expected) + 1  # whether there are more
            assert count["keys"] <= n_keys
        ids = msgspec.structs.replace(params, ids=[i.id for i in writer.events[::300]])
        with counted(monkeypatch) as count:
            result = await backend.query(ids)
        assert len(result.events) == 5
        assert count["keys"] == 0
        assert count["values"] == (5 if order_by is OrderBy.TIMESTAMP else 10)


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize(
    "kind",
    [
        {"order_by": OrderBy.SOURCE_TIMESTAMP},
        {"order_by": OrderBy.SOURCE_TIMESTAMP, "t_from": Timestamp(30, 0)},
        {"payload": JsonPayload.of("rare")},
        {"source_t_from": Timestamp(50, 0), "source_t_to": Timestamp(51, 0)},
    ],
)
async def test_events_of_one_type_are_passed_over_without_a_look_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any], order: Order
) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for n in range(60):
            source, payload = (None, JsonPayload.of("rare")) if n % 20 == 7 else (n, None)
            await writer.session(draft("a", source, payload), draft("b"))
        params = QueryTimeseriesParams([("a",)], order=order, **kind)
        events = answer(writer.events, params)
        last_page = msgspec.structs.replace(params, last_event_id=events[-2].id)
        for page, expected in (params, events), (last_page, events[-1:]):
            with counted(monkeypatch) as count:
                result = await backend.query(page)
            assert result.events == expected
            with_source = [i for i in expected if i.source_timestamp]
            n_found = len(with_source) if params.order_by is OrderBy.SOURCE_TIMESTAMP else 0
            n_of_last = 0 if page is params else 2
            assert count["values"] <= n_found + n_of_last


async def test_what_has_no_source_timestamp_is_read_as_far_as_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for n in range(30):
            await writer.session(draft("a", n if n < 5 else None), draft("b"))
        params = QueryTimeseriesParams(order_by=OrderBy.SOURCE_TIMESTAMP)
        for max_results, n_sought in (4, 0), (7, 3):
            page = msgspec.structs.replace(params, max_results=max_results)
            with counted(monkeypatch) as count:
                result = await backend.query(page)
            assert result.events == answer(writer.events, page)
            assert count["values"] == 5 + 2 * n_sought  # to know that, and for the answer


def test_reading_values_stops_when_the_store_is_to_close(tmp_path: Path) -> None:
    store = Store(tmp_path)
    try:
        event = Event(EventId(1, 1, 1), ("a",), Timestamp(0, 0), None, None)
        commit = Commit()
        stage(store, commit, [[event]], {("a",): b"\0\0\0\0"})
        store.write(commit)
        store.ext_sync()
        assert store.decide()
        snapshot = store.snapshot()
        key = snapshot.find(event.id)
        assert key is not None
        accepts = query.value_filter(snapshot, [lambda _: False], None)
        for _ in range(1_000):
            assert not accepts(key)
        store.is_closing = True
        with pytest.raises(ClosedError, match=r"the event store is closed$"):
            all(not accepts(key) for _ in range(1_000))
    finally:
        store.ext_close()


def test_a_type_that_becomes_visible_meanwhile_is_not_sought(tmp_path: Path) -> None:
    """Types that rights allow are shared by all who have them, and another query adds one."""
    store = Store(tmp_path)
    try:
        event = Event(EventId(1, 1, 1), ("a",), Timestamp(0, 0), None, None)
        commit = Commit()
        type_ids = [b"\0\0\0\0"]
        stage(store, commit, [[event]], {("a",): type_ids[0]})
        store.write(commit)
        store.ext_sync()
        assert store.decide()
        sought = query.Timeseries(store.snapshot(), QueryTimeseriesParams(), type_ids)
        type_ids.append(b"\0\0\0\1")
        assert [len(rows) for rows, _ in sought.rows(2)] == [1]
    finally:
        store.ext_close()
