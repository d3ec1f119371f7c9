"""A gateway that relays to a remote Event Server: hat-event-server, and another of ours."""

import asyncio
import contextlib
import json
import logging
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hat.drivers import net
from hat.event import common
from hat.event import eventer as hat_eventer

from eventer_bridge import limits
from eventer_bridge.model import Status
from tests.support.hat_events import UNREADABLE
from tests.support.hat_peers import hat_event_server, mariner_conf
from tests.support.inprocess import metrics_of, running_gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.process import child, wait_listening

QUERY: dict[str, Any] = {
    "msg_type": "query_req",
    "query_id": 1,
    "query_type": "timeseries",
    "event_types": [["a", "*"]],
    "order": "ASCENDING",
    "order_by": "TIMESTAMP",
}


@contextlib.asynccontextmanager
async def relaying_to(port: int) -> AsyncIterator[int]:
    """Port of a gateway in front of an Event Server, once it is OPERATIONAL."""
    eventer = {"host": "127.0.0.1", "port": port, "token": None}
    async with running_gateway(eventer=eventer) as gateway:
        peer = await RawPeer.connect(gateway.mariner.port)
        peer.send(INIT)
        response = await peer.receive()
        while response.get("status") != "OPERATIONAL":
            response = await peer.receive()
        peer.writer.close()
        yield gateway.mariner.port


INIT: dict[str, Any] = {
    "msg_type": "init_req",
    "client_name": "app",
    "client_token": "secret",
    "subscriptions": [],
    "server_id": None,
    "persisted": False,
}


async def receive(peer: RawPeer, msg_type: str) -> Any:
    """Next message of a type; those of others may come between."""
    while (message := await peer.receive())["msg_type"] != msg_type:
        pass
    return message


async def check_everything(port: int) -> None:
    watchers = [
        await RawPeer.init(port, subscriptions=[["a", "*"]], persisted=persisted)
        for persisted in (False, True)
    ]
    async with await RawPeer.init(port) as peer:
        registered = []
        for i in range(10):
            answer = await peer.request(register_req(i, event("a", str(i), value={"n": i})))
            assert answer["success"]
            registered.extend(answer["events"])
        refused = await peer.request(register_req(11, event("?")))
        assert not refused["success"]
        result = await peer.request(QUERY)
        assert result["events"] == registered
        page = await peer.request({**QUERY, "max_results": 3, "last_event_id": registered[4]["id"]})
        assert page["events"] == registered[5:8]
        assert page["more_follows"]
        by_id = await peer.request({**QUERY, "ids": [registered[7]["id"], registered[2]["id"]]})
        assert by_id["events"] == [registered[2], registered[7]]
        same = await peer.request({**QUERY, "payload": registered[3]["payload"]})
        assert same["events"] == [registered[3]]
        pong = await peer.request({"msg_type": "ping_req", "ping_id": 3})
        assert pong == {"msg_type": "ping_res", "ping_id": 3}
        for watcher in watchers:
            heard: list[Any] = []
            while len(heard) < 10:
                heard.extend((await receive(watcher, "events"))["events"])
            assert heard == registered
            watcher.writer.close()


async def test_in_front_of_hat_event_server(tmp_path: Path) -> None:
    async with (
        hat_event_server(tmp_path, flush_period_s=0.1) as server,
        relaying_to(server.port) as port,
    ):
        await check_everything(port)


async def test_a_configuration_of_hat_mariner(tmp_path: Path) -> None:
    """It runs unchanged: the very file that hat-mariner-server takes."""
    async with hat_event_server(tmp_path) as hat:
        conf = tmp_path / "hat-mariner.json"
        conf.write_text(json.dumps(mariner_conf(hat.port)))
        output = tmp_path / "gateway.log"
        async with child("mariner", "serve", "--conf", str(conf), output=output) as process:
            port = await wait_listening(process, output)
            async with await RawPeer.connect(port) as peer:
                peer.send(INIT)
                response = await peer.receive()
                while response.get("status") != "OPERATIONAL":
                    response = await peer.receive()
                assert (await peer.request(register_req(1, event("a"))))["success"]


async def test_in_front_of_another_gateway(tmp_path: Path) -> None:
    core = {
        "server_id": 1,
        "backend": {"type": "rocksdb", "path": str(tmp_path / "store")},
        "eventer_server": {"host": "127.0.0.1", "port": 0},
    }
    async with running_gateway(event_core=core) as remote:
        assert remote.eventer_server is not None
        async with relaying_to(remote.eventer_server.address.port) as port:
            await check_everything(port)


async def test_latest_of_another_gateway_has_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LATEST_RESULTS", 2)
    core = {
        "server_id": 1,
        "backend": {"type": "rocksdb", "path": str(tmp_path / "store")},
        "eventer_server": {"host": "127.0.0.1", "port": 0},
    }
    async with running_gateway(event_core=core) as remote:
        assert remote.eventer_server is not None
        async with (
            relaying_to(remote.eventer_server.address.port) as port,
            await RawPeer.init(port) as peer,
        ):
            answer = await peer.request(register_req(0, *(event("a", i) for i in "54321")))
            latest = {"msg_type": "query_req", "query_id": 1, "query_type": "latest"}
            latest["event_types"] = [["a", "?"]]
            found: list[Any] = []
            more_follows = True
            while more_follows:
                page = await peer.request(latest)
                found += page["events"]
                more_follows = page["more_follows"]
                latest["last_event_id"] = found[-1]["id"]
            assert found == answer["events"]


async def test_while_the_server_is_away(tmp_path: Path) -> None:
    core = {
        "server_id": 1,
        "backend": {"type": "rocksdb", "path": str(tmp_path / "store")},
    }
    listen = {"host": "127.0.0.1", "port": 0}
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            running_gateway(event_core={**core, "eventer_server": listen})
        )
        assert first.eventer_server is not None
        listen["port"] = remote_port = first.eventer_server.address.port
        port = await stack.enter_async_context(relaying_to(remote_port))
        peer = await RawPeer.init(port, subscriptions=[["a"]])
        peer.send(register_req(1, event("a")))
        first_two = [await peer.receive() for _ in range(2)]
        assert {m["msg_type"] for m in first_two} == {"register_res", "events"}
        query = {**QUERY, "event_types": [["a"]]}
        assert len((await peer.request(query))["events"]) == 1
        await first.async_close()
        assert await peer.receive() == {"msg_type": "status", "status": "STANDBY"}
        refused = await peer.request(register_req(2, event("a")))
        assert not refused["success"]
        assert "not" in refused["error"]
        async with running_gateway(event_core={**core, "eventer_server": listen}) as second:
            async with await RawPeer.init(second.mariner.port) as other:
                assert (await other.request(register_req(1, event("a", value=2))))["success"]
            messages = [await peer.receive() for _ in range(2)]
            kinds = {m["msg_type"]: m for m in messages}
            assert kinds["status"]["status"] == "OPERATIONAL"
            # registered while it was not connected, or just after
            assert [e["payload"]["data"] for e in kinds["events"]["events"]] == [2]
            assert len((await peer.request(query))["events"]) == 2
            peer.writer.close()


async def test_registrations_do_not_wait_for_slow_queries(tmp_path: Path) -> None:
    absent = {**QUERY, "event_types": [["absent"]]}  # hat-event looks at all that there are
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(hat_event_server(tmp_path))
        hat = await hat_eventer.connect(net.TcpAddress(server.host, server.port), "test")
        for i in range(20):
            filling = [common.RegisterEvent(("fill", str(i)), None, None)] * 1_000
            assert await hat.register(filling, with_response=True)
        await hat.async_close()
        port = await stack.enter_async_context(relaying_to(server.port))
        peers = [await stack.enter_async_context(await RawPeer.init(port)) for _ in range(9)]
        registering = peers.pop()
        n_unanswered = 0
        while n_unanswered < 2:  # this process may have to wait for a processor meanwhile
            queries = [asyncio.ensure_future(peer.request(absent)) for peer in peers]
            await asyncio.wait(queries, return_when=asyncio.FIRST_COMPLETED)
            # all of them are at the server by now, which answers one after the other
            assert (await registering.request(register_req(1, event("a"))))["success"]
            n_unanswered = sum(not query.done() for query in queries)
            answers = await asyncio.gather(*queries)
            assert all(answer["events"] == [] for answer in answers)


def reasons(caplog: pytest.LogCaptureFixture, level: int, server: str) -> list[str]:
    """Why a feed was not connected, of each line of a level."""
    return [
        record.__dict__["reason"]
        for record in caplog.records
        if record.message == "feed is not connected"
        and (record.levelno, record.__dict__["server"]) == (level, server)
    ]


async def test_a_reason_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "eventer_bridge")
    async with hat_event_server(tmp_path, server_token="right") as server:
        remote = {"host": server.host, "port": server.port, "token": "wrong"}
        name = f"{server.host}:{server.port}"
        async with running_gateway(eventer=remote):
            for feed in (name, f"{name} (persisted)"):
                while len(reasons(caplog, logging.DEBUG, feed)) < 3:
                    await asyncio.sleep(0.01)
                [reason] = reasons(caplog, logging.WARNING, feed)
                assert {reason} == set(reasons(caplog, logging.DEBUG, feed))
                assert "token" in reason


async def test_a_server_that_closes_at_a_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = {"module": "hat.event.backends.memory"}  # only answers queries for the latest
    async with hat_event_server(tmp_path, backend=backend) as server:
        remote = {"host": server.host, "port": server.port, "token": None}
        name = f"{server.host}:{server.port}"
        async with running_gateway(eventer=remote) as gateway:
            while not (told := reasons(caplog, logging.WARNING, name)):
                await asyncio.sleep(0.01)
            assert told == [f"{name}: peer closed, at a timeseries query"]
            assert gateway.core.status is Status.STANDBY


@contextlib.asynccontextmanager
async def remote_server(kind: str, path: Path, port: int = 0) -> AsyncIterator[int]:
    """Port of an Event Server that has forgotten everything whenever it starts."""
    if kind == "hat dummy":
        backend = {"module": "hat.event.backends.dummy"}
        async with hat_event_server(path, listen=("127.0.0.1", port), backend=backend) as hat:
            yield hat.port
        return
    store = None
    if kind == "rocksdb":
        store = path / "store"
        shutil.rmtree(store, ignore_errors=True)
    core: dict[str, Any] = {
        "server_id": 1,
        "backend": {"type": "rocksdb", "path": str(store)} if store else {"type": "memory"},
        "eventer_server": {"host": "127.0.0.1", "port": port},
    }
    async with running_gateway(event_core=core) as gateway:
        assert gateway.eventer_server is not None
        yield gateway.eventer_server.address.port


@pytest.mark.parametrize("kind", ["hat dummy", "memory", "rocksdb"])
async def test_ids_begin_anew(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def until_live(n_times: int) -> None:
        """Both feeds; a server that keeps nothing cannot be asked for what was missed."""
        while sum(i.message == "feed is live" for i in caplog.records) < 2 * n_times:
            await asyncio.sleep(0.01)

    async with contextlib.AsyncExitStack() as stack:
        async with remote_server(kind, tmp_path) as remote_port:
            port = await stack.enter_async_context(relaying_to(remote_port))
            watchers = [
                await RawPeer.init(port, subscriptions=[["a"]], persisted=persisted)
                for persisted in (False, True)
            ]
            peer = await stack.enter_async_context(await RawPeer.init(port))
            await until_live(1)
            for i in range(20):
                assert (await peer.request(register_req(i, event("a", value=i))))["success"]
            for watcher in watchers:
                await hear(watcher, list(range(20)))
        assert (await receive(peer, "status"))["status"] == "STANDBY"
        async with remote_server(kind, tmp_path, remote_port):
            await until_live(2)
            if kind != "hat dummy":  # it tells of another history: nobody hears of both
                for connected in (peer, *watchers):
                    await receive_end(connected)
                    connected.writer.close()
                [told] = [i for i in caplog.records if "does not continue its history" in i.message]
                assert told.levelno == logging.ERROR
                assert "was followed up to session" in told.__dict__["reason"]
                watchers = [
                    await RawPeer.init(port, subscriptions=[["a"]], persisted=persisted)
                    for persisted in (False, True)
                ]
                peer = await stack.enter_async_context(await RawPeer.init(port))
            else:
                while (await receive(peer, "status"))["status"] != "OPERATIONAL":
                    pass
            for i in range(20, 40):
                assert (await peer.request(register_req(i, event("a", value=i))))["success"]
            for watcher in watchers:
                await hear(watcher, list(range(20, 40)))
                watcher.writer.close()
    if kind == "hat dummy":
        assert [i for i in caplog.records if "no longer has the last events" in i.message]


async def receive_end(peer: RawPeer) -> None:
    """Wait until a connection is closed, with no event on it before."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            assert (await peer.receive())["msg_type"] != "events"


async def hear(watcher: RawPeer, values: list[int]) -> None:
    """Wait for events with these payloads, in this order."""
    heard: list[int] = []
    while len(heard) < len(values):
        events = (await receive(watcher, "events"))["events"]
        heard.extend(event["payload"]["data"] for event in events)
    assert heard == values


async def test_events_that_cannot_be_ones_here_are_left_out_and_counted(tmp_path: Path) -> None:
    good = common.RegisterEvent(("a",), None, common.EventPayloadJson(1))
    async with hat_event_server(tmp_path, flush_period_s=0.05) as server:
        remote = {"host": server.host, "port": server.port, "token": None}
        http = {"host": "127.0.0.1", "port": 0}
        async with running_gateway(eventer=remote, http=http) as gateway:
            watchers = [
                await RawPeer.init(gateway.mariner.port, subscriptions=[["*"]], persisted=persisted)
                for persisted in (False, True)
            ]
            while (await metrics_of(gateway, "mariner_"))["operational"] != 1:
                pass
            hat = await hat_eventer.connect(net.TcpAddress(server.host, server.port), "test")
            told = []
            for bad in UNREADABLE:
                events = await hat.register([good, bad, good], with_response=True)
                told.append([events[0].id._asdict(), events[2].id._asdict()])
            for watcher in watchers:
                heard: list[Any] = []
                while len(heard) < len(told):
                    events = (await receive(watcher, "events"))["events"]
                    if events[0]["type"] == ["a"]:
                        heard.append([event["id"] for event in events])
                assert heard == told
                watcher.writer.close()
            refused = await metrics_of(gateway, "mariner_remote_events_refused_total")
            [(label, count)] = refused.items()
            assert label == f'{{server="{server.host}:{server.port}"}}'
            # each was told of when it was registered, when it was persisted, and perhaps once
            # more in between, as the answer to a query
            assert count >= 2 * len(UNREADABLE)
            await hat.async_close()


async def test_ids_and_timestamps_reach_clients_as_the_server_gave_them() -> None:
    """Not every server gives the events of one registration the same timestamp."""
    given = [(7, 3, 100, 1), (7, 9, 99, 999_999), (8, 1, 100, 2)]

    def answered(_: object, events: Any) -> list[common.Event]:
        return [
            common.Event(
                common.EventId(5, session, instance),
                registered.type,
                common.Timestamp(s, us),
                registered.source_timestamp,
                registered.payload,
            )
            for registered, (session, instance, s, us) in zip(events, given, strict=True)
        ]

    expected = [
        {
            "id": {"server": 5, "session": session, "instance": instance},
            "type": ["a", str(number)],
            "timestamp": {"s": s, "us": us},
            "source_timestamp": None,
            "payload": {"payload_type": "json", "data": number},
        }
        for number, (session, instance, s, us) in enumerate(given)
    ]
    server = await hat_eventer.listen(
        net.TcpAddress("127.0.0.1", 0),
        status=common.Status.OPERATIONAL,
        register_cb=answered,
        query_cb=lambda _, params: common.QueryResult([], more_follows=False),
    )
    try:
        [listening] = server._srv._srv.sockets
        async with (
            relaying_to(listening.getsockname()[1]) as port,
            await RawPeer.init(port) as peer,
        ):
            watcher = await RawPeer.init(port, subscriptions=[["*"]], persisted=False)
            events = [event("a", str(number), value=number) for number in range(3)]
            answer = await peer.request(register_req(1, *events))
            assert answer["events"] == expected
            registered = [common.RegisterEvent(tuple(i["type"]), None, None) for i in events]
            told = [
                i._replace(payload=common.EventPayloadJson(number))
                for number, i in enumerate(answered(None, registered))
            ]
            await server.notify_events(told, persisted=False)
            heard: list[Any] = []
            while len(heard) < len(expected):
                heard += (await receive(watcher, "events"))["events"]
            assert heard == expected
            watcher.writer.close()
    finally:
        await server.async_close()
