"""Reloading a running gateway: retention, its Eventer server, and remote servers."""

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import limits
from eventer_bridge.core import tokens
from eventer_bridge.errors import EventerBridgeError, InitError
from eventer_bridge.eventer import client as eventer
from eventer_bridge.model import RegisterEvent
from tests.mariner.gateway.reloaded import QUERY, TIMEOUT_S, registered, running
from tests.support.peer import RawPeer, event, register_req

TIMESERIES: Final = {
    **QUERY,
    "query_type": "timeseries",
    "event_types": [["a"]],
    "order": "DESCENDING",
    "order_by": "TIMESTAMP",
}


# --- the other wire, retention --------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
async def test_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.01)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.01)
    store: dict[str, Any] = {"type": backend}
    if backend == "rocksdb":
        store["path"] = str(tmp_path / "store")

    def core(*rules: dict[str, Any]) -> dict[str, Any]:
        return {"server_id": 1, "backend": {**store, "retention": [*rules]}}

    async with running(tmp_path, event_core=core()) as it, await RawPeer.init(it.port) as peer:

        async def kept(n_expected: int) -> None:
            """Wait until so many events are kept."""
            async with asyncio.timeout(TIMEOUT_S):
                while len((await peer.request(TIMESERIES))["events"]) != n_expected:
                    await asyncio.sleep(0.01)

        async def register(n: int) -> None:
            for _ in range(n):
                assert await registered(peer, "a") is None

        await register(20)
        rule = {"subscriptions": [["a"]], "max_entries": 10}
        await it.reload(event_core=core(rule))
        await kept(10)
        await register(5)
        await kept(10)
        await it.reload(event_core=core({**rule, "max_entries": 4}))
        await kept(4)
        await it.reload(event_core=core())
        await register(20)
        await kept(24)


async def test_retention_is_replaced_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is registered at that moment is counted once, or less than the rest would be kept."""
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.01)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.01)
    store = {"type": "rocksdb", "path": str(tmp_path / "store")}

    def core(max_entries: int) -> dict[str, Any]:
        rule = {"subscriptions": [["a"]], "max_entries": max_entries}
        return {"server_id": 1, "backend": {**store, "retention": [rule]}}

    async with (
        running(tmp_path, event_core=core(10**6)) as it,
        await RawPeer.init(it.port) as peer,
    ):
        n_sent, is_over = 0, False

        async def register() -> None:
            nonlocal n_sent
            while not is_over:
                for _ in range(50):
                    peer.send(register_req(n_sent, event("a")))
                    n_sent += 1
                for _ in range(50):
                    assert (await peer.receive())["success"]

        registering = asyncio.create_task(register())
        for number in range(10):
            await it.reload(event_core=core(10**6 + number))
        is_over = True
        await registering
        [share] = it.gateway.backend._retention._shares.all  # type: ignore[union-attr]
        async with asyncio.timeout(TIMEOUT_S):
            while not share.is_known:
                await asyncio.sleep(0.01)
        assert share.n_events == n_sent


def with_eventer(**keys: Any) -> dict[str, Any]:
    server = {"host": "127.0.0.1", "port": 0, **keys}
    return {"server_id": 1, "backend": {"type": "memory"}, "eventer_server": server}


# --- other wires and servers ----------------------------------------------------------------


async def test_eventer_clients(tmp_path: Path) -> None:
    async with running(tmp_path, event_core=with_eventer(token="t")) as it:
        assert it.gateway.eventer_server is not None
        address = it.gateway.eventer_server.address

        async def connect(name: str, token: str) -> eventer.EventerClient:
            return await eventer.connect(address, name, client_token=token)

        everything = await connect("made up", "t")
        several = ["t", tokens.sha256_text("u")]
        report = await it.reload(event_core=with_eventer(token=several))
        assert report["changed"] == ["event_core.eventer_server.token"]
        await (await connect("another", "u")).async_close()
        assert await everything.register([RegisterEvent(("a",), None, None)]) is not None
        # from one token for all to clients of their own
        gui = {"name": "gui", "token": "t", "subscriptions": [["a"]], "register_events": []}
        await it.reload(event_core=with_eventer(clients=[gui]))
        async with asyncio.timeout(TIMEOUT_S):
            await everything.wait_closed()
        with pytest.raises(InitError):
            await connect("made up", "t")
        limited = await connect("gui", "t")
        with pytest.raises(EventerBridgeError):
            await limited.register([RegisterEvent(("a",), None, None)])
        may_register = [{"subscriptions": [["a"]]}]
        await it.reload(event_core=with_eventer(clients=[{**gui, "register_events": may_register}]))
        assert await limited.register([RegisterEvent(("a",), None, None)]) is not None
        await limited.async_close()


async def test_a_remote_server_gets_the_new_token_on_the_next_connection(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    async with running(tmp_path / "remote", event_core=with_eventer(token="old")) as remote:
        assert remote.gateway.eventer_server is not None
        port = remote.gateway.eventer_server.address.port
        server = {"server_id": 1, "host": "127.0.0.1", "port": port, "token": "old"}
        backend = {"type": "memory"}
        core = {"server_id": 2, "backend": backend, "replication": [server]}
        async with running(tmp_path, event_core=core) as it:
            stats = remote.gateway.eventer_server.stats

            async def until_connected(n_removed: int) -> None:
                """Wait until it is connected again, after so many connections were closed."""
                [replication] = it.gateway._replications
                async with asyncio.timeout(TIMEOUT_S):
                    while not (
                        stats.closed["removed from the configuration"] == n_removed
                        and stats.clients
                        and replication.is_connected
                    ):
                        await asyncio.sleep(0.01)

            await until_connected(0)
            core["replication"] = [{**server, "token": "new"}]
            report = await it.reload(event_core=core)
            assert report["changed"] == ["event_core.replication[0].token"]
            await remote.reload(event_core=with_eventer(token="new"))  # closes the connection
            await until_connected(1)
