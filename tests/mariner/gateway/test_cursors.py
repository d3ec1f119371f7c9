"""Cursors: the server keeps what a client acknowledged; parked events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.reader_rows import (
    CursorRow,
    cursor_key,
    encode_id,
    encode_row,
    parked_prefix,
)
from eventer_bridge.backends.rocksdb import control
from eventer_bridge.backends.rocksdb.verify import Finding, ext_verify
from eventer_bridge.core.cursors import Cursor, Cursors
from eventer_bridge.errors import StoreDamagedError
from eventer_bridge.model import EventId, QueryResult, QueryTimeseriesParams, Timestamp
from mariner.gateway.gateway import Gateway
from tests.mariner.gateway.reloaded import client, running
from tests.mariner.gateway.test_replay import (
    connect,
    declined,
    id_of,
    received,
    register,
    serving,
    timeseries,
    values,
)
from tests.support.inprocess import metrics_of, running_gateway
from tests.support.peer import INIT, RawPeer

APP_LABEL = 'client="app"'
OTHER_LABEL = 'client="(not configured)"'


@contextlib.asynccontextmanager
async def reader(gateway: Gateway, name: str = "c", **keys: Any) -> AsyncIterator[RawPeer]:
    wanted: Any = {"subscriptions": [["a"]], "persisted": True, "cursor": name, **keys}
    async with await RawPeer.init(gateway.mariner.port, **wanted) as peer:
        yield peer


def ack(*ids: Any, parked: Any = (), done: Any = ()) -> dict[str, Any]:
    parked = [{"id": i, "reason": reason} for i, reason in parked]
    return {"msg_type": "events_ack", "ids": ids, "parked": parked, "done": done}


async def settled(peer: RawPeer) -> None:
    """The server took everything that was sent."""
    assert (await peer.request({"msg_type": "ping_req", "ping_id": 1}))["ping_id"] == 1


def findings(store_path: Path) -> list[Finding]:
    """What is wrong with a store."""
    found: list[Finding] = []
    with control.open_read_only(store_path) as store:
        ext_verify(store, found.append)
    return found


def cursors_of(gateway: Gateway) -> Cursors:
    assert gateway.core.cursors is not None
    return gateway.core.cursors


def find(gateway: Gateway, name: str = "c") -> Cursor:
    return cursors_of(gateway).find("app", name)


@pytest.fixture(params=["memory", "rocksdb"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "rocksdb" else None


async def test_goes_on_behind_what_was_acknowledged(path: Path | None) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        await register(connection, *range(5))
        async with reader(gateway) as peer:
            events = await received(peer)
            assert values(events) == [*range(5)]
            peer.send(ack(events[2]["id"]))
            peer.send(ack(events[1]["id"]))  # never back
            await settled(peer)
        async with reader(gateway) as peer:
            assert values(await received(peer)) == [3, 4]
            await register(connection, 5)
            (last,) = await received(peer, 1)
            peer.send(ack(last["id"]))
            await settled(peer)
        async with reader(gateway) as peer:
            assert await received(peer) == []
        async with reader(gateway, "other", start=[events[3]["id"]]) as peer:
            assert values(await received(peer)) == [4, 5]


async def test_outlives_the_gateway(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, await connect(gateway) as connection:
        await register(connection, *range(5))
        async with reader(gateway) as peer:
            events = await received(peer)
            peer.send(ack(events[3]["id"], parked=[(events[1]["id"], "no idea")]))
            await settled(peer)
    async with serving(tmp_path) as gateway:
        cursor = find(gateway)
        ((parked, row),) = cursors_of(gateway).parked(cursor).items()
        assert parked == EventId(*events[1]["id"].values())
        assert row.reason == "no idea"
        async with reader(gateway) as peer:
            assert values(await received(peer)) == [4]


async def test_a_damaged_cursor_is_told(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path / "store") as backend:
        await backend.keep_reader_rows({b"c[]": b"{}"})
    expected = "the event store is damaged: a cursor: Expected `array` of length 2"
    with pytest.raises(StoreDamagedError, match=f"^{expected}$"):
        async with serving(tmp_path):
            pass


async def test_a_damaged_parked_event_closes_its_reader(tmp_path: Path) -> None:
    key = parked_prefix("app", "c") + encode_id(EventId(1, 1, 1))
    async with await rocksdb.create(tmp_path / "store") as backend:
        row = encode_row(CursorRow([], Timestamp(0, 0)))
        await backend.keep_reader_rows({cursor_key("app", "c"): row, key: b"{}"})
    async with serving(tmp_path) as gateway:
        async with reader(gateway) as peer:
            assert await peer.is_closed_by_server()
        cursors = cursors_of(gateway)
        expected = "a parked event: Object missing required field `reason`"
        with pytest.raises(StoreDamagedError, match=expected):
            cursors.parked(find(gateway))
        cursors.delete(find(gateway))
        await cursors.rows.flush()
        async with reader(gateway) as peer:
            assert await received(peer) == []


async def test_another_connection_takes_it_over(path: Path | None) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        await register(connection, 1)
        async with reader(gateway) as first:
            (event,) = await received(first)
            first.send(ack(event["id"]))
            async with reader(gateway) as second:
                reason = "another connection has the cursor now"
                assert await first.receive() == {"msg_type": "cursor_lost", "reason": reason}
                assert await first.is_closed_by_server()
                assert await received(second) == []


async def test_wrong_acknowledgements_close(path: Path | None) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        (event,) = await register(connection, 1)
        unknown = {**id_of(event), "session": event.id.session + 1}
        for wrong in (ack(unknown), ack(parked=[(unknown, "x")])):
            async with reader(gateway) as peer:
                await received(peer)
                peer.send(wrong)
                assert await peer.is_closed_by_server()
        async with await RawPeer.init(gateway.mariner.port) as peer:
            peer.send(ack(id_of(event)))
            assert await peer.is_closed_by_server()


async def test_parked_events_are_redelivered_or_dropped(path: Path | None) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        await register(connection, *range(4))
        cursors = cursors_of(gateway)
        async with reader(gateway) as peer:
            events = await received(peer)
            ids = [i["id"] for i in events]
            parked = [(ids[1], "one"), (ids[2], "two"), (ids[3], "three")]
            peer.send(ack(ids[3], parked=parked))
            await settled(peer)
            cursor = find(gateway)
            assert cursor.n_parked == 3
            cursors.done(cursor, [EventId(*ids[3].values())])
            cursors.redeliver(cursor, [EventId(*ids[1].values())])
            message = await peer.receive()
            assert message["redelivered"] is True
            assert message["events"] == [events[1]]
            peer.send(ack(parked=[(ids[1], "again")]))
            await settled(peer)
            assert [i.reason for i in cursors.parked(cursor).values()] == ["again", "two"]
        cursors.redeliver(cursor, [EventId(*ids[2].values())])
        async with reader(gateway) as peer:
            assert (await peer.receive())["events"] == [events[2]]
            assert await received(peer) == []
            peer.send(ack(done=[ids[2]]))
            await settled(peer)
            assert [i.reason for i in cursors.parked(cursor).values()] == ["again"]


async def test_parked_events_of_several_answers_are_all_redelivered(
    path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        await register(connection, *range(3))
        async with reader(gateway) as peer:
            ids = [i["id"] for i in await received(peer)]
            peer.send(ack(ids[-1], parked=[(i, "x") for i in ids]))
            await settled(peer)
            cursors, cursor = cursors_of(gateway), find(gateway)
            monkeypatch.setattr(limits, "MAX_RESULT_BYTES", 0)
            cursors.redeliver(cursor, [*cursors.parked(cursor)])
            assert [(await peer.receive())["events"][0]["id"] for _ in ids] == ids


async def test_what_is_redelivered_is_of_the_rights_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration is another one when what is to be sent was read."""
    async with running(tmp_path) as it, await connect(it.gateway) as connection:
        await register(connection, 1)
        async with reader(it.gateway) as peer:
            [only] = await received(peer)
            peer.send(ack(only["id"], parked=[(only["id"], "x")]))
            await settled(peer)
            answer, n_queries = it.gateway.core.answer, 0

            async def query_slowly(*arguments: Any) -> QueryResult:
                nonlocal n_queries
                result = await answer(*arguments)
                n_queries += 1
                if n_queries == 1:
                    assert len(result.events) == 1
                    await it.reload(clients=[client(subscriptions=[["b"]])])
                return result

            monkeypatch.setattr(it.gateway.core, "answer", query_slowly)
            cursor = find(it.gateway)
            cursors_of(it.gateway).redeliver(cursor, [EventId(*only["id"].values())])
            while n_queries < 2:
                await asyncio.sleep(0)
            await settled(peer)


@pytest.mark.parametrize(
    ("instance", "session", "said"),
    [
        (2, -1, "parked: event 1/{}/2 is not stored, or this client may not see it"),  # of type b
        (3, -1, "parked: event 1/{}/3 is not stored, or this client may not see it"),
        (-1, 0, "parked: event 1/{}/-1 is not stored, or this client may not see it"),
        (1, 1, "event 1/{}/1 was not sent"),
    ],
)
async def test_what_was_not_sent_is_not_parked(
    path: Path | None,
    caplog: pytest.LogCaptureFixture,
    instance: int,
    session: int,
    said: str,
) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        await register(connection, 1, 2)
        async with reader(gateway) as peer:
            first, last = await received(peer)
            at = last["id"]["session"] + session
            other = {"server": 1, "session": at, "instance": instance}
            # with one that was sent, before it and behind it
            parked = [(first["id"], "x"), (other, "x"), (last["id"], "x")]
            peer.send(ack(last["id"], parked=parked))
            assert await peer.is_closed_by_server()
        assert f"events_ack: {said.format(at)}" in str([vars(i) for i in caplog.records])
        cursor = find(gateway)
        assert (cursor.n_parked, cursors_of(gateway).parked(cursor), cursor.seen) == (0, {}, {})
        async with reader(gateway) as peer:
            assert values(await received(peer)) == [1, 2]
    if path is not None:
        assert findings(path / "store") == []


async def test_only_what_was_redelivered_is_done(
    path: Path | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        await register(connection, 1)
        async with reader(gateway) as peer:
            [only] = await received(peer)
            peer.send(ack(only["id"], parked=[(only["id"], "x")]))
            await settled(peer)
            peer.send(ack(done=[only["id"]]))  # it is for people
            assert await peer.is_closed_by_server()
        said = f"events_ack: done: event 1/{only['id']['session']}/1 was not sent again"
        assert said in str([vars(i) for i in caplog.records])
        assert find(gateway).n_parked == 1


async def test_what_retention_deleted_meanwhile_is_parked(
    path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.01)
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.02)
    backend: dict[str, Any] = {"type": "memory"}
    if path is not None:
        backend = {"type": "rocksdb", "path": str(path / "store")}
    rules = [{"subscriptions": [["a"]], "max_entries": 2}]
    core = {"server_id": 1, "backend": {**backend, "retention": rules}}
    async with running_gateway(event_core=core) as gateway, await connect(gateway) as connection:
        await register(connection, 1)
        async with reader(gateway) as peer:
            [only] = await received(peer)
            await register(connection, *range(9))
            while len((await connection.query(timeseries("a"))).events) > 2:
                await asyncio.sleep(0.001)
            peer.send(ack(parked=[(only["id"], "late")]))
            await received(peer, 9)
            await settled(peer)
        parked = cursors_of(gateway).parked(find(gateway))
        assert [(i.session, row.reason) for i, row in parked.items()] == [
            (only["id"]["session"], "late")
        ]
    if path is not None:
        assert findings(path / "store") == []


async def test_what_comes_behind_waits_and_what_has_begun_outlives_the_connection(
    path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        events = await register(connection, *range(5))
        answer, reached, go_on = gateway.core.answer, asyncio.Event(), asyncio.Event()

        async def held(*arguments: Any) -> QueryResult:
            result: QueryResult = await answer(*arguments)
            if isinstance(arguments[0].params, QueryTimeseriesParams):
                reached.set()
                await go_on.wait()
            return result

        monkeypatch.setattr(gateway.core, "answer", held)
        cursor: Cursor
        async with reader(gateway) as peer:
            await received(peer)
            cursor = find(gateway)
            peer.send(ack(id_of(events[1]), parked=[(id_of(events[0]), "x")]))
            peer.send(ack(id_of(events[3])))
            await reached.wait()
            assert (cursor.n_parked, cursor.seen) == (0, {})
            go_on.set()
            await settled(peer)
            assert (cursor.n_parked, cursor.seen[1]) == (1, events[3].id)
            reached.clear()
            go_on.clear()
            peer.send(ack(parked=[(id_of(events[2]), "y")]))
            await reached.wait()
        async with reader(gateway) as peer:  # which has it now, and so the other one's is void
            assert values(await received(peer)) == [4]
            peer.send(ack(parked=[(id_of(events[4]), "z")]))
            go_on.set()
            await settled(peer)
        assert [i.reason for i in cursors_of(gateway).parked(cursor).values()] == ["x", "z"]


async def test_bounds(path: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CLIENT_CURSORS", 2)
    monkeypatch.setattr(limits, "MAX_PARKED", 1)
    async with serving(path) as gateway, await connect(gateway) as connection:
        await register(connection, 1, 2)
        for name in ("c", "d"):
            async with reader(gateway, name) as peer:
                events = await received(peer)
        assert await declined(gateway, cursor="e") == "cursor 'e': there are too many cursors"
        async with reader(gateway) as peer:
            await received(peer)
            peer.send(ack(parked=[(i["id"], "x") for i in events]))
            assert await peer.is_closed_by_server()
        cursors_of(gateway).delete(find(gateway, "d"))
        async with reader(gateway, "e") as peer:
            assert len(await received(peer)) == 2


async def test_bounds_of_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CLIENT_CURSORS", 2)
    async with serving(tmp_path) as gateway, await connect(gateway) as connection:
        first, *_ = await register(connection, 1, 2)
        wanted: Any = {"persisted": True, "start": [id_of(first)]}  # a look for gaps takes a while
        async with contextlib.AsyncExitStack() as stack:
            peers = [await RawPeer.connect(gateway.mariner.port) for _ in range(5)]
            for number, peer in enumerate(peers):
                await stack.enter_async_context(peer)
                peer.send({**INIT, **wanted, "cursor": f"c{number}"})
            found = [(await peer.receive())["success"] for peer in peers]
            assert found.count(True) == 2
            assert len([*cursors_of(gateway)]) == 2


async def test_lag(path: Path | None) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        events = await register(connection, *range(5))
        async with reader(gateway) as peer:
            await received(peer)
            cursor, cursors = find(gateway), cursors_of(gateway)
            await cursors.measure(cursor)
            assert cursor.lag_events == 5
            assert cursor.lag_s > 0
            peer.send(ack(id_of(events[3])))
            await settled(peer)
            await cursors.measure(cursor)
            assert cursor.lag_events == 1
            peer.send(ack(id_of(events[4])))
            await settled(peer)
            await cursors.measure(cursor)
            assert (cursor.lag_events, cursor.lag_s) == (0, 0.0)


async def test_metrics_are_of_clients() -> None:
    core = {"server_id": 1, "backend": {"type": "memory"}}
    http = {"host": "127.0.0.1", "port": 0}
    async with (
        running_gateway(event_core=core, http=http) as gateway,
        await connect(gateway) as connection,
    ):
        await register(connection, 1, 2)
        for number in range(50):
            async with reader(gateway, f"{number:064}") as peer:
                events = await received(peer)
                parked = [(i["id"], "x") for i in events]
                peer.send(ack(events[number % 2]["id"], parked=parked))
                await settled(peer)
        cursors = cursors_of(gateway)
        cursors._make("gone", "a")  # of a client that is not configured
        async with reader(gateway, "0" * 64) as peer:
            for cursor in cursors:
                await cursors.measure(cursor)
            found = await metrics_of(gateway, "mariner_cursor")
        lag_s = {i: found.pop(f"_lag_seconds{{{i}}}") for i in (APP_LABEL, OTHER_LABEL)}
        assert all(i > 0 for i in lag_s.values())
        # whatever clients call their cursors
        assert found == {
            f"s{{{APP_LABEL}}}": 50,
            f"s_connected{{{APP_LABEL}}}": 1,
            f"_lag_events{{{APP_LABEL}}}": 1,
            f"_parked_events{{{APP_LABEL}}}": 100,
            f"s{{{OTHER_LABEL}}}": 1,
            f"s_connected{{{OTHER_LABEL}}}": 0,
            f"_lag_events{{{OTHER_LABEL}}}": found[f"_lag_events{{{OTHER_LABEL}}}"],
            f"_parked_events{{{OTHER_LABEL}}}": 0,
        }


async def test_retention_is_held_if_it_is_told_to(
    path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.01)
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.02)
    n_looks = 0
    held_since = Cursors._held_since

    def ext_counted(cursors: Cursors) -> Timestamp | None:
        nonlocal n_looks
        n_looks += 1
        return held_since(cursors)

    monkeypatch.setattr(Cursors, "_held_since", ext_counted)
    backend: dict[str, Any] = {"type": "memory"}
    if path is not None:
        backend = {"type": "rocksdb", "path": str(path / "store")}
    rules = [{"subscriptions": [["a"]], "max_entries": 2}]
    core = {
        "server_id": 1,
        "backend": {**backend, "retention": rules},
        "cursors": {"hold_retention": 3600},
    }
    async with running_gateway(event_core=core) as gateway, await connect(gateway) as connection:
        async with reader(gateway) as peer:
            await received(peer)
        await register(connection, *range(10))
        # two passes of retention: without the bound, the first would have deleted eight events
        end = n_looks + 2
        async with asyncio.timeout(60):
            while n_looks < end:
                await asyncio.sleep(0.001)
        async with reader(gateway) as peer:
            events = await received(peer)
            assert values(events) == [*range(10)]
            peer.send(ack(events[-1]["id"]))
            await settled(peer)
        await cursors_of(gateway).measure(find(gateway))
        while len((await connection.query(timeseries("a"))).events) > 2:
            await asyncio.sleep(0.01)


async def test_a_cursor_needs_persisted_events() -> None:
    async with serving(None) as gateway:
        text = await declined(gateway, cursor="c", persisted=False)
        assert text == "start: expected with persisted events only"
        assert "/cursor" in await declined(gateway, cursor="")
