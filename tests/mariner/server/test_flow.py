"""Order, back-pressure, slow readers, pings, closing: nothing stalls anybody else."""

import asyncio
import contextlib
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import query
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.model import QueryResult
from eventer_bridge.net import limits as net_limits
from tests.support.inprocess import running_gateway
from tests.support.peer import INIT, RawPeer, event, register_req

QUERY_ALL = {
    "msg_type": "query_req",
    "query_id": 1,
    "query_type": "timeseries",
    "order": "ASCENDING",
    "order_by": "TIMESTAMP",
}
LARGE = "x" * 20_000


async def test_many_registrations_in_flight_are_answered_in_order(tmp_path: Path) -> None:
    count = 3 * limits.MAX_REGISTRATIONS_IN_FLIGHT
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        for i in range(count):
            # every tenth is refused: it waits for its turn as well
            peer.send(register_req(i, event("?" if i % 10 == 0 else "a")))
        answers = [await peer.receive() for _ in range(count)]
        assert [a["register_id"] for a in answers] == list(range(count))
        assert [a["success"] for a in answers] == [i % 10 != 0 for i in range(count)]
        sessions = [a["events"][0]["id"]["session"] for a in answers if a["success"]]
        assert sessions == list(range(sessions[0], sessions[0] + len(sessions)))


async def test_a_slow_query_does_not_hold_back_a_ping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    ext_timeseries = query.StoreReader.ext_timeseries

    def ext_slowly(*args: Any) -> QueryResult:
        release.wait(60)
        result: QueryResult = ext_timeseries(*args)
        return result

    monkeypatch.setattr(query.StoreReader, "ext_timeseries", ext_slowly)
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        peer.send(QUERY_ALL)
        pong = await peer.request({"msg_type": "ping_req", "ping_id": 3})
        assert pong == {"msg_type": "ping_res", "ping_id": 3}
        assert (await peer.request(register_req(1, event("a"))))["success"]
        release.set()
        assert (await peer.receive())["msg_type"] == "query_res"


async def test_what_is_not_durable_yet_is_told_to_who_does_not_mind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    ext_sync = Store.ext_sync

    def ext_slow_sync(self: Store) -> None:
        release.wait()
        ext_sync(self)

    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port, subscriptions=[["a"]]) as at_once,
        await RawPeer.init(gateway.mariner.port, subscriptions=[["a"]], persisted=True) as durable,
        await RawPeer.init(gateway.mariner.port) as writer,
    ):
        monkeypatch.setattr(Store, "ext_sync", ext_slow_sync)
        try:
            writer.send(register_req(1, event("a")))
            assert (await at_once.receive())["msg_type"] == "events"
            for peer in (durable, writer):  # an answer comes after what was told before
                pong = await peer.request({"msg_type": "ping_req", "ping_id": 1})
                assert pong["msg_type"] == "ping_res"
        finally:
            release.set()
        assert (await durable.receive())["msg_type"] == "events"
        assert (await writer.receive())["success"]
        for peer in (at_once, durable):  # nobody hears of it twice
            pong = await peer.request({"msg_type": "ping_req", "ping_id": 2})
            assert pong["msg_type"] == "ping_res"


async def test_too_many_waiting_queries_stop_the_reading_not_the_server(
    tmp_path: Path,
) -> None:
    count = 3 * limits.MAX_QUERIES_WAITING
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        for i in range(count):
            peer.send({**QUERY_ALL, "query_id": i})
        answers = [await peer.receive() for _ in range(count)]
        assert [a["query_id"] for a in answers] == list(range(count))


async def test_a_subscriber_that_does_not_read_is_closed_and_costs_nobody_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net_limits, "MAX_SEND_BUFFER_BYTES", 1 << 20)
    async with running_gateway() as gateway:
        port = gateway.mariner.port
        stats = gateway.mariner.stats
        deaf = await RawPeer.init(port, subscriptions=[["a"]])
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        hears = await RawPeer.init(port, subscriptions=[["a"]])
        writer = await RawPeer.init(port)
        heard = 0
        for i in itertools.count(1):
            assert (await writer.request(register_req(i, event("a", value=LARGE))))["success"]
            heard += len((await hears.receive())["events"])
            if stats.closed["slow consumer"]:
                break
        assert heard == i
        assert stats.clients == 2
        for peer in (deaf, hears, writer):
            peer.writer.close()


async def test_answers_that_are_not_read_stop_the_reading(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "SWEEP_PERIOD_S", 0.02)
    monkeypatch.setattr(net_limits, "WRITE_STALL_TIMEOUT_S", 0.5)
    async with running_gateway(path=tmp_path / "store") as gateway:
        stats = gateway.mariner.stats
        peer = await RawPeer.init(gateway.mariner.port)
        for i in range(50):
            assert (await peer.request(register_req(i, event("a", value=LARGE))))["success"]
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for i in range(limits.MAX_QUERIES_WAITING):
            peer.send({**QUERY_ALL, "query_id": i})
        while not stats.closed["write stalled"]:
            await asyncio.sleep(0.01)
        # a few answers of 1 MB were made for it, not all of them
        assert stats.bytes_out < 30_000_000
        peer.writer.close()


async def test_who_stops_sending_while_it_is_held_back_gets_all_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_limits, "SEND_HIGH_WATER_BYTES", 1000)
    monkeypatch.setattr(limits, "MAX_REGISTRATIONS_IN_FLIGHT", 4)
    count = 300
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        for i in range(count):
            peer.send(register_req(i, event("a", value=LARGE)))
            peer.send({**QUERY_ALL, "query_id": i, "max_results": 1})
        peer.writer.write_eof()
        answers = [await peer.receive_answer() for _ in range(2 * count)]
        ids = [a["register_id"] for a in answers if a["msg_type"] == "register_res"]
        assert ids == list(range(count))
        assert await peer.is_closed_by_server()


async def test_a_full_engine_stops_reading_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_EVENTS", 10)
    async with running_gateway(path=tmp_path / "store") as gateway:
        peers = [await RawPeer.init(gateway.mariner.port) for _ in range(3)]
        for i in range(200):
            for peer in peers:
                peer.send(register_req(i, event("a"), event("b")))
        for peer in peers:
            answers = [await peer.receive() for _ in range(200)]
            assert [a["register_id"] for a in answers] == list(range(200))
            assert all(a["success"] for a in answers)
            peer.writer.close()


async def test_an_idle_peer_is_pinged_and_a_dead_one_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SWEEP_PERIOD_S", 1e6)  # this test sweeps
    async with running_gateway() as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        [connection] = gateway.mariner.connections
        now = time.monotonic()
        for ping_id in (1, 2):
            connection.sweep(now)  # it was heard, or written to
            connection.sweep(now + 60)
            connection.sweep(now := now + 61)  # twice the 30 s after which clients ping
            assert await peer.receive() == {"msg_type": "ping_req", "ping_id": ping_id}
            peer.send({"msg_type": "ping_res", "ping_id": ping_id})
            # this answer comes after that one was taken in
            await peer.request({"msg_type": "ping_req", "ping_id": 1})
        connection.sweep(now)
        connection.sweep(now := now + 61)
        assert (await peer.receive())["ping_id"] == 3
        connection.sweep(now + 30)
        assert not gateway.mariner.stats.closed
        connection.sweep(now + 31)
        assert await peer.is_closed_by_server()
        assert gateway.mariner.stats.closed["ping timeout"] == 1


async def test_more_connections_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "MAX_CONNECTIONS", 1)
    async with running_gateway() as gateway, await RawPeer.init(gateway.mariner.port) as first:
        async with await RawPeer.connect(gateway.mariner.port) as second:
            answer = await second.request(INIT)
            assert answer == {**answer, "success": False, "error": "too many connections"}
            assert await second.is_closed_by_server()
        assert (await first.request(register_req(1, event("a"))))["success"]


async def test_events_of_one_session_come_in_one_message_in_order(tmp_path: Path) -> None:
    async with running_gateway(path=tmp_path / "store") as gateway:
        port = gateway.mariner.port
        all_now = await RawPeer.init(port, subscriptions=[["a"], ["b"], ["c"]])
        some_durable = await RawPeer.init(port, subscriptions=[["b"], ["c"]], persisted=True)
        writer = await RawPeer.init(port)
        for i in range(20):
            writer.send(register_req(i, event("a"), event("b"), event("c", value=i)))
        sessions: list[int] = []
        for _ in range(20):
            message = await all_now.receive()
            assert [e["type"] for e in message["events"]] == [["a"], ["b"], ["c"]]
            [session] = {e["id"]["session"] for e in message["events"]}
            sessions.append(session)
            durable = await some_durable.receive()
            assert durable["events"] == message["events"][1:]
        assert sessions == list(range(sessions[0], sessions[0] + 20))
        for peer in (all_now, some_durable, writer):
            peer.writer.close()


async def test_closing_answers_what_is_under_way(tmp_path: Path) -> None:
    async with running_gateway(path=tmp_path / "store") as gateway:
        peer = await RawPeer.init(gateway.mariner.port)
        stats = gateway.mariner.stats
        for i in range(100):
            peer.send(register_req(i, event("a")))
        while stats.frames_in < 50:
            await asyncio.sleep(0)
        gateway.close()
        answers: list[Any] = []
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                answers.append(await peer.receive())
        registered = [a for a in answers if a["msg_type"] == "register_res" and a["success"]]
        assert len(registered) >= 49
        assert [a["register_id"] for a in registered] == list(range(len(registered)))
        peer.writer.close()
        await gateway.wait_closed()

    async with running_gateway(path=tmp_path / "store") as gateway:
        reader = await RawPeer.init(gateway.mariner.port)
        stored = await reader.request({**QUERY_ALL, "event_types": [["a"]]})
        assert [e["id"] for e in stored["events"]][: len(registered)] == [
            a["events"][0]["id"] for a in registered
        ]
        reader.writer.close()


async def test_what_is_persisted_is_heard_of_before_it_is_acknowledged(tmp_path: Path) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port, subscriptions=[["a"]], persisted=True) as peer,
    ):
        count = 50
        for i in range(count):
            peer.send(register_req(i, event("a")))
        heard = acknowledged = 0
        while acknowledged < count:
            message = await peer.receive()
            if message["msg_type"] == "events":
                heard += len(message["events"])
            else:
                acknowledged += 1
                assert acknowledged <= heard
