"""The status of a gateway: what it counts, and that its answer is bounded."""

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from eventer_bridge import limits as core_limits
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.errors import StorageError
from eventer_bridge.eventer import client as eventer
from mariner import limits
from mariner.gateway.counts import StatusReport
from mariner.gateway.gateway import Gateway
from mariner.gateway.logs.records import LastErrors
from mariner.gateway.status import CursorStatus, GatewayStatus, QuotaUse, with_rates
from mariner.version import __version__
from tests.mariner.gateway.test_cursors import ack, cursors_of, reader, settled
from tests.mariner.gateway.test_quotas import eventer_gateway, many
from tests.mariner.gateway.test_replay import connect, id_of, received, register, serving
from tests.support.event_servers import event_server, eventer_port
from tests.support.inprocess import APP, running_gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.waiting import until

OTHER: Final = {**APP, "name": "other"}


async def status_of(gateway: Gateway) -> GatewayStatus:
    return await StatusReport(gateway).collect()


async def test_of_a_store_and_its_clients(tmp_path: Path) -> None:
    quota = {"events_per_s": 5_000, "max_event_types": 10, "max_connections": 3}
    clients: list[dict[str, Any]] = [{**APP, "quota": quota}, OTHER]
    async with running_gateway(clients, path=tmp_path / "store") as gateway:
        report = StatusReport(gateway)
        before = await report.collect()
        assert (before.name, before.version, before.status) == ("test", __version__, "OPERATIONAL")
        assert (before.not_ready, before.clients, before.slowest) == (None, [], [])
        async with (
            await RawPeer.init(gateway.mariner.port) as peer,
            await RawPeer.init(gateway.mariner.port, subscriptions=[["a"], ["b"]]) as second,
            await RawPeer.init(gateway.mariner.port, client_name="other"),
        ):
            asked = await report.collect()
            for i in range(3):
                assert (await peer.request(register_req(i, event("a"), event("b"))))["success"]
            assert len((await second.receive())["events"]) == 2
            await until(lambda: gateway.mariner.stats.events_notified == 6)
            found = with_rates(asked, await report.collect())
        store = found.store
        assert store is not None
        assert (store.backend, store.path) == ("rocksdb", str(tmp_path / "store"))
        assert store.oldest is not None
        assert store.events >= 6
        assert store.size_bytes > 0
        assert store.free_bytes is not None
        assert store.since_commit_s is not None
        assert (store.history, store.pending_events) == (gateway.backend.history_id, 0)  # type: ignore[union-attr]
        app, other = found.clients
        assert (app.name, app.wire, app.connections, app.subscriptions) == ("app", "mariner", 2, 2)
        assert (app.events_registered, app.events_notified, app.is_held) == (6, 6, False)
        assert (app.registered_per_s or 0) > 0
        assert app.quota["max_connections"] == QuotaUse(3, 2)
        assert app.quota["max_event_types"] == QuotaUse(10, 2)
        rate = app.quota["events_per_s"]
        assert (rate.limit, rate.spent, rate.hits) == (5_000, 6, 0)
        assert (rate.used or 0) > 0
        assert (other.name, other.connections, other.registered_per_s) == ("other", 1, 0)
        wire = found.wires["mariner"]
        assert (wire.connections, wire.clients, wire.events_registered) == (3, 3, 6)
        assert with_rates(replace(before, started="earlier"), before) == before


async def test_of_clients_of_a_token(tmp_path: Path) -> None:
    async with eventer_gateway(tmp_path) as (it, address):
        async with await eventer.connect(address, "x"), await eventer.connect(address, "y"):
            [client] = (await status_of(it.gateway)).clients
        assert (client.wire, client.name, client.connections) == ("eventer", "Eventer clients", 2)


async def test_of_who_is_held_and_who_does_not_read(tmp_path: Path) -> None:
    held_to: dict[str, Any] = {**APP, "quota": {"events_per_s": 1}}
    clients = [held_to, OTHER, {**APP, "name": "slow"}]
    async with (
        running_gateway(clients) as gateway,
        await RawPeer.init(gateway.mariner.port) as held,
        await RawPeer.init(gateway.mariner.port, client_name="other") as other,
        await RawPeer.init(gateway.mariner.port, client_name="slow", subscriptions=[["x"]]) as slow,
    ):
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        assert (await held.request(many(1_000)))["success"]  # 16 minutes to pay for them
        large = register_req(1, event("x", value="x" * 1_000_000))
        async with asyncio.timeout(60):
            while not (found := await status_of(gateway)).clients[0].behind_s:
                assert (await other.request(large))["success"]
        first, *others = found.clients
        assert first.name == "slow"
        assert first.unread_bytes > 1_000_000
        [slowest] = found.slowest
        host, port = slow.writer.get_extra_info("sockname")
        assert (slowest.client, slowest.peer) == ("slow", f"{host}:{port}")
        assert slowest.unread_bytes == first.unread_bytes
        assert {i.name: i.is_held for i in others} == {"app": True, "other": False}
        [app] = [i for i in others if i.name == "app"]
        assert app.quota["events_per_s"].hits == 1
        assert app.held_s > 0


async def test_of_cursors_those_furthest_behind_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(None) as gateway, await connect(gateway) as connection:
        events = await register(connection, 1, 2)
        async with reader(gateway, "a"), reader(gateway, "b") as peer:
            await received(peer)
            parked = [(id_of(events[0]), "x")]
            peer.send(ack(id_of(events[1]), parked=parked))
            await settled(peer)
        async with reader(gateway, "c"):
            for cursor in cursors_of(gateway):
                await cursors_of(gateway).measure(cursor)
            cursors_of(gateway).find("app", "a").lag_s = 5
            cursors_of(gateway).find("app", "c").lag_s = 9
            found = (await status_of(gateway)).cursors
            assert found == [
                CursorStatus("app", "c", 2, 9, is_connected=True, n_parked=0),
                CursorStatus("app", "a", 2, 5, is_connected=False, n_parked=0),
                CursorStatus("app", "b", 0, 0, is_connected=False, n_parked=1),
            ]
            monkeypatch.setattr(core_limits, "MAX_CURSORS", 2)
            assert (await status_of(gateway)).cursors == found[:2]


async def test_of_thousands_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [{**APP, "name": f"c{i}"} for i in range(6)]
    monkeypatch.setattr(limits, "MAX_STATUS_CLIENTS", 4)
    async with running_gateway(clients) as gateway:
        async with contextlib.AsyncExitStack() as stack:
            for i in range(6):
                peer = await RawPeer.init(gateway.mariner.port, client_name=f"c{i}")
                await stack.enter_async_context(peer)
                assert (await peer.request(many(i)))["success"]
            found = await status_of(gateway)
        assert [i.name for i in found.clients] == ["c5", "c4", "c3", "c2"]
        assert found.clients_left_out == 2


async def test_of_remote_servers_and_modules(tmp_path: Path) -> None:
    async with event_server(tmp_path, 1) as remote:
        port = eventer_port(remote)
        rate = {"module": "eventer_bridge.modules.rate", "subscriptions": [["a"]]}
        core = {
            "server_id": 2,
            "backend": {"type": "memory"},
            "modules": [rate],
            "replication": [{"server_id": 1, "host": "127.0.0.1", "port": port, "token": None}],
        }
        async with running_gateway(event_core=core) as gateway:
            async with asyncio.timeout(60):
                while not (one := (found := await status_of(gateway)).remotes[0]).is_synced or (
                    one.lag_events
                ):
                    await asyncio.sleep(0.01)
        assert (one.name, one.is_connected, one.refused_events) == ("server 1", True, 0)
        assert one.lag_s is not None
        assert found.modules == ["eventer_bridge.modules.rate"]
        conf = {"host": "127.0.0.1", "port": port, "token": None}
        async with running_gateway(eventer=conf) as relay:
            found = await status_of(relay)
        assert (found.store, found.modules) == (None, [])
        assert [i.is_synced for i in found.remotes] == [None]


async def test_of_a_gateway_that_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(path=tmp_path / "store") as gateway:

        async def fail(_: Any) -> None:
            raise StorageError("the disk is full")

        monkeypatch.setattr(RocksDbBackend, "check", fail)
        assert (await status_of(gateway)).not_ready == "the disk is full"


async def test_of_a_store_that_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway(path=tmp_path / "store") as gateway:

        async def wait(*_: Any) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(RocksDbBackend, "query", wait)
        monkeypatch.setattr(limits, "OLDEST_TIMEOUT_S", 0.01)
        store = (await status_of(gateway)).store
        assert store is not None
        assert store.oldest is None


def test_the_last_errors() -> None:
    handler = LastErrors()
    logger = logging.getLogger("tests.last_errors")
    logger.propagate = False
    logger.addHandler(handler)
    try:
        logger.warning("no error")
        for i in range(limits.MAX_STATUS_ERRORS + 3):
            logger.error("number %d", i, extra={"path": "/x"})
        try:
            raise ValueError("what nobody thought of")
        except ValueError:
            logger.exception("x" * 10_000)
    finally:
        logger.removeHandler(handler)
    errors = handler.last()
    assert len(errors) == limits.MAX_STATUS_ERRORS
    assert (errors[0]["message"], errors[0]["path"]) == ("number 4", "/x")
    assert errors[-1]["exception"] == "ValueError: what nobody thought of"
    assert len(errors[-1]["message"]) < 1_000
    assert errors[0]["time"].endswith("+00:00")
