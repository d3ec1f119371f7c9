"""Replication between servers of ours, and with hat-event-server, both ways."""

import asyncio
import contextlib
import logging
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hat.drivers import net
from hat.event import common
from hat.event import eventer as hat_eventer
from hat.event.backends import lmdb
from hat.event.server import eventer_client

from eventer_bridge.eventer.client import EventerClient
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    Order,
    QueryServerParams,
    QueryTimeseriesParams,
)
from eventer_bridge.net import limits
from eventer_bridge.remote.feed import Feed
from mariner.gateway.gateway import Gateway
from tests.support import hat_events
from tests.support.event_servers import event_server, eventer_port, events_of
from tests.support.hat_events import UNREADABLE, UNSTORABLE
from tests.support.hat_peers import hat_event_server
from tests.support.peer import RawPeer, event, register_req


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is back is found at once."""
    monkeypatch.setattr(limits, "RECONNECT_MAX_S", 0.2)


async def same(first: Gateway, second: Gateway, server_id: int) -> list[Any]:
    """Wait until the second has what the first has of a server."""
    while True:
        found = await events_of(second, server_id)
        wanted = await events_of(first, server_id)
        assert wanted[: len(found)] == found  # nothing is missing in between, nothing twice
        if len(wanted) == len(found):
            return found
        await asyncio.sleep(0.05)  # to ask costs something


async def register(gateway: Gateway, n_sessions: int) -> None:
    async with await RawPeer.init(gateway.mariner.port) as peer:
        for i in range(n_sessions):
            answer = await peer.request(register_req(i, event("a", value=i), event("b")))
            assert answer["success"]


async def test_two_of_ours(tmp_path: Path) -> None:
    async with event_server(tmp_path, 1) as first:
        await register(first, 50)
        port = eventer_port(first)
        async with event_server(tmp_path, 2, remotes={1: port}) as second:
            await same(first, second, 1)
            await register(first, 50)  # live
            found = await same(first, second, 1)
            assert len([e for e in found if e.type == ("a",)]) == 100
            # the first one was told how far the second is
            while True:
                told = [e for e in await events_of(first, 1) if e.type[-2:-1] == ("synced",)]
                payloads = [e.payload for e in told if isinstance(e.payload, JsonPayload)]
                states = [payload.value()["state"] for payload in payloads]
                if states == ["CONNECTED", "SYNCING", "SYNCED"]:
                    break
                await asyncio.sleep(0.01)
            assert {e.type for e in told} == {("event", "2", "synced", "1")}
        await register(first, 50)
        async with event_server(tmp_path, 2, remotes={1: port}) as second:  # goes on where it was
            await same(first, second, 1)


async def test_a_connection_that_is_lost_when_it_has_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    catch_up = Feed._catch_up
    lost: list[EventerClient] = []

    async def losing(feed: Feed, client: EventerClient) -> int:
        count = await catch_up(feed, client)
        if not lost:
            lost.append(client)
            client.close()
        return count

    monkeypatch.setattr(Feed, "_catch_up", losing)
    async with (
        event_server(tmp_path, 1) as first,
        event_server(tmp_path, 2, remotes={1: eventer_port(first)}) as second,
    ):
        while not lost:
            await asyncio.sleep(0.01)
        await register(first, 5)
        await same(first, second, 1)
    assert not [i for i in caplog.records if i.exc_info]


async def test_the_first_is_restarted(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with event_server(tmp_path, 1) as first:
            port = eventer_port(first)
            second = await stack.enter_async_context(event_server(tmp_path, 2, remotes={1: port}))
            await register(first, 20)
            await same(first, second, 1)
        async with event_server(tmp_path, 1, port=port) as first:
            await register(first, 20)
            await same(first, second, 1)


async def test_the_first_has_another_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, copy, elsewhere = (tmp_path / i for i in ("store1", "copy", "elsewhere"))

    async with contextlib.AsyncExitStack() as stack:
        async with event_server(tmp_path, 1) as first:
            await register(first, 5)
            port = eventer_port(first)
        shutil.copytree(store, copy)
        async with event_server(tmp_path, 1, port=port) as first:
            second = await stack.enter_async_context(event_server(tmp_path, 2, remotes={1: port}))
            await register(first, 20)
            await same(first, second, 1)
        for other in range(3):
            caplog.clear()
            store.rename(elsewhere)
            if other == 2:  # an older copy
                copy.rename(store)
            else:  # begins anew: with fewer sessions than are kept, and with more
                async with event_server(tmp_path, 1) as first:
                    await register(first, (1, 40)[other])
            async with event_server(tmp_path, 1, port=port) as first:
                while not [i for i in caplog.records if "its store is not the one" in i.message]:
                    await asyncio.sleep(0.01)
                await register(first, 3)
            shutil.rmtree(store)
            elsewhere.rename(store)
            async with event_server(tmp_path, 1, port=port) as first:  # its own again: goes on
                await register(first, 3)
                await same(first, second, 1)  # and nothing of the other one was kept


async def test_the_last_session_that_is_kept_was_deleted_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend: dict[str, Any] = {
        "module": "hat.event.backends.lmdb",
        "db_path": str(tmp_path / "hat.db"),
        "identifier": None,
        "flush_period": 0.05,
        "cleanup_period": 60,
        "conditions": [],
        "latest": {"subscriptions": [["*"]]},
        "timeseries": [],  # only the latest event of a type is kept
    }
    async with hat_event_server(tmp_path, server_id=7, backend=backend) as hat:
        client = await hat_eventer.connect(net.TcpAddress(hat.host, hat.port), "test")
        wanted = common.RegisterEvent(("x",), None, None)
        last = 0
        for _ in range(3):
            async with event_server(tmp_path, 1, remotes={7: hat.port}) as ours:
                kept: list[Any] = []
                while not kept or kept[-1].type != ("x",) or kept[-1].id.session == last:
                    await client.register([wanted])
                    kept = await events_of(ours, 7)
            last = kept[-1].id.session
            await client.register([wanted])
            after = common.EventId(7, last - 1, 1 << 62)
            query = common.QueryServerParams(7, last_event_id=after)
            while last in {i.id.session for i in (await client.query(query)).events}:
                await asyncio.sleep(0.01)
        await client.async_close()
    assert not [i for i in caplog.records if i.levelno >= logging.ERROR]


async def test_a_wrong_identifier_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[logging.LogRecord]:
        return [i for i in caplog.records if "is unknown at" in i.message]

    caplog.set_level(logging.INFO)
    async with hat_event_server(tmp_path, server_id=7) as hat:
        for configured in (7, 8):
            async with event_server(tmp_path, 1, remotes={configured: hat.port}):
                while not [i for i in caplog.records if i.__dict__.get("state") == "SYNCED"]:
                    await asyncio.sleep(0.01)
            if configured == 7:
                assert not told()
                caplog.clear()
        [record] = told()
        assert record.levelno == logging.WARNING
        assert record.message == f"server 8 is unknown at {hat.host}:{hat.port}"
        assert record.__dict__["known"] == [7]


async def test_queries_answer_over_all_servers(tmp_path: Path) -> None:
    async with event_server(tmp_path, 1) as first:
        remotes = {1: eventer_port(first)}
        async with event_server(tmp_path, 2, remotes=remotes) as second:
            for _ in range(10):
                await register(first, 2)
                await register(second, 2)
            wanted = [e for e in await same(first, second, 1) if e.type == ("a",)]
            wanted += [e for e in await events_of(second, 2) if e.type == ("a",)]
            wanted.sort(key=lambda e: (e.timestamp, e.id))  # natural order (000)
            servers = [e.id.server for e in wanted]
            assert servers != sorted(servers)  # one's events are between the other's
            for order in Order:
                in_order = wanted if order is Order.ASCENDING else wanted[::-1]
                params = QueryTimeseriesParams([("a",)], order=order, max_results=7)
                found: list[Event] = []
                more = True
                while more:
                    last_id = found[-1].id if found else None
                    params = msgspec.structs.replace(params, last_event_id=last_id)
                    result = await second.core.query(params)
                    found.extend(result.events)
                    more = result.more_follows
                assert found == in_order


async def test_from_hat_event_server(tmp_path: Path) -> None:
    async with hat_event_server(tmp_path, server_id=7, flush_period_s=0.1) as hat:
        client = await hat_eventer.connect(net.TcpAddress(hat.host, hat.port), "test")
        wanted = [
            common.RegisterEvent(("x", str(i)), None, common.EventPayloadJson(i)) for i in range(30)
        ]
        registered = []
        for i in range(0, 30, 3):
            registered.extend(await client.register(wanted[i : i + 3], with_response=True))
        async with event_server(tmp_path, 1, remotes={7: hat.port}) as ours:

            async def kept() -> list[Any]:
                return [e for e in await events_of(ours, 7) if e.type[0] == "x"]

            registered.extend(await client.register(wanted[:3], with_response=True))
            while len(await kept()) < len(registered):
                await asyncio.sleep(0.02)
            for mine, theirs in zip(await kept(), registered, strict=True):
                assert (mine.id.server, mine.id.session, mine.id.instance) == tuple(theirs.id)
                assert mine.type == theirs.type
                assert (mine.timestamp.s, mine.timestamp.us) == tuple(theirs.timestamp)
                assert mine.payload.value() == theirs.payload.data
        await client.async_close()


def left_out(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [i for i in caplog.records if "are left out" in i.message]


async def test_from_hat_event_server_with_events_that_cannot_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [*UNREADABLE, *UNSTORABLE]
    good = common.RegisterEvent(("good",), None, common.EventPayloadJson(1))
    async with hat_event_server(tmp_path, server_id=7, flush_period_s=0.05) as hat:
        client = await hat_eventer.connect(net.TcpAddress(hat.host, hat.port), "test")
        wanted: list[tuple[int, ...]] = []

        async def register_at_hat() -> None:
            for event in bad:
                events = await client.register([good, event, good], with_response=True)
                wanted.extend(tuple(i.id) for i in events[::2])
                await client.register([event])

        async def until_kept(gateway: Gateway) -> None:
            while len(
                kept := [i.id for i in await events_of(gateway, 7) if i.type == ("good",)]
            ) < (len(wanted)):
                await asyncio.sleep(0.02)
            assert [(i.server, i.session, i.instance) for i in kept] == wanted
            assert not [i for i in await events_of(gateway, 7) if i.type[:1] == ("x",)]

        await register_at_hat()
        async with event_server(tmp_path, 1, remotes={7: hat.port}) as ours:  # found by a query
            await until_kept(ours)
            await register_at_hat()  # live
            await until_kept(ours)
            # of each registration that was told of, one
            while sum(i.__dict__["events"] for i in left_out(caplog)) < 4 * len(bad):
                await asyncio.sleep(0.02)
            refused = left_out(caplog)
            assert all(i.levelno == logging.ERROR for i in refused)
            reasons = {i.__dict__["reason"] for i in refused}
            assert any("payload is not JSON" in i for i in reasons)
            assert any("timestamp out of range" in i for i in reasons)
            assert any("'?' and '*' are for queries only" in i for i in reasons)
        await register_at_hat()
        async with event_server(tmp_path, 1, remotes={7: hat.port}) as ours:
            await until_kept(ours)
            # who reads on is told of those at the end, too
            params = QueryServerParams(7, last_event_id=EventId(*wanted[-1]))
            while (await ours.core.query(params)).deleted is None:
                await asyncio.sleep(0.02)
        await client.async_close()


async def test_to_hat_event_server(tmp_path: Path) -> None:
    """hat-event's own synchronisation and its LMDB store, over our server."""
    stored: list[Any] = []
    backend = await lmdb.create(
        {
            "db_path": str(tmp_path / "hat.db"),
            "identifier": None,
            "flush_period": 0.05,
            "cleanup_period": 60,
            "conditions": [],
            "latest": {"subscriptions": [["*"]]},
            "timeseries": [{"order_by": "TIMESTAMP", "subscriptions": [["*"]]}],
        },
        stored.extend,
        None,
    )
    async with event_server(tmp_path, 1) as first:
        await register(first, 30)
        for n_sessions in (0, 30):  # it goes on where it was
            await register(first, n_sessions)
            synced: asyncio.Queue[Any] = asyncio.Queue()
            hat = await eventer_client.create_eventer_client(
                net.TcpAddress("127.0.0.1", eventer_port(first)),
                "event/2",
                2,
                1,
                backend,
                synced_cb=lambda state, count, queue=synced: queue.put_nowait((state, count)),
            )
            while (await synced.get())[0] is not eventer_client.SyncedState.SYNCED:
                pass
            await register(first, 30)  # live
            while len(stored) < len(wanted := await events_of(first, 1)):
                await asyncio.sleep(0.02)
            await hat.async_close()
        assert [tuple(i.id) for i in stored[: len(wanted)]] == [
            (i.id.server, i.id.session, i.id.instance) for i in wanted
        ]
        assert stored[: len(wanted)] == [hat_events.event(i) for i in wanted]
    await backend.async_close()
