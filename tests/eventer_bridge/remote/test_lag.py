"""How far a replication is behind, over a link that stops and goes on."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge.model import JsonPayload
from eventer_bridge.remote import limits
from mariner.gateway.gateway import Gateway
from tests.support import proxy
from tests.support.event_servers import event_server, eventer_port, events_of
from tests.support.inprocess import metrics_of
from tests.support.peer import RawPeer, event, register_req
from tests.support.proxy import Proxy

HTTP = {"host": "127.0.0.1", "port": 0}
POLL_INTERVAL_S = 0.01


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LAG_PERIOD_S", 0.02)


async def register(server: Gateway, n_sessions: int) -> None:
    async with await RawPeer.init(server.mariner.port) as peer:
        for i in range(n_sessions):
            assert (await peer.request(register_req(i, event("a", value=i))))["success"]


async def figures(server: Gateway) -> dict[str, float]:
    found = await metrics_of(server, "mariner_replication_")
    return {name.removesuffix('{server="server 1"}'): value for name, value in found.items()}


async def until_synced(server: Gateway) -> None:
    while not (await figures(server))["synced"]:
        await asyncio.sleep(POLL_INTERVAL_S)


async def told_of(server: Gateway) -> list[Any]:
    """What its replica told it."""
    return [
        event.payload.value()
        for event in await events_of(server, 1)
        if event.type == ("event", "2", "synced", "1") and isinstance(event.payload, JsonPayload)
    ]


async def until_kept(first: Gateway, second: Gateway) -> None:
    while await events_of(second, 1) != await events_of(first, 1):
        await asyncio.sleep(POLL_INTERVAL_S)


async def test_a_link_that_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SYNCED_LAG_S", 0.5)
    async with (
        event_server(tmp_path, 1) as first,
        proxy.create(eventer_port(first)) as link,
        event_server(tmp_path, 2, remotes={1: link.port}, http=HTTP) as second,
    ):
        await until_synced(second)
        await held(first, link)
        while (found := await figures(second))["lag_seconds"] < 2 * 0.5:
            await asyncio.sleep(POLL_INTERVAL_S)
        assert not found["synced"]
        assert await metrics_of(second, "mariner_remote_connected{") == {'server="server 1"}': 1}
        link.go_on()
        await until_synced(second)
        await until_kept(first, second)
        while (told := await told_of(first))[-2:] != [
            {"state": "SYNCING"},
            {"state": "SYNCED", "count": None},
        ]:
            await asyncio.sleep(POLL_INTERVAL_S)
        assert link.n_connections == 1
        assert [i["state"] for i in told][:3] == ["CONNECTED", "SYNCING", "SYNCED"]


async def held(first: Gateway, link: Proxy) -> None:
    """Stop a link, and register what does not come over it."""
    link.hold()
    await register(first, 20)


async def test_what_was_on_its_way_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SYNCED_LAG_EVENTS", 15)
    async with (
        event_server(tmp_path, 1) as first,
        proxy.create(eventer_port(first)) as link,
        event_server(tmp_path, 2, remotes={1: link.port}, http=HTTP) as second,
    ):
        await until_synced(second)
        again = {"state": "SYNCED", "count": None}
        while again not in (told := await told_of(first)):
            # where an answer was held, nothing is counted behind it
            await held(first, link)
            link.go_on()
            await until_kept(first, second)
        place = told.index(again)
        assert told[place - 1] == {"state": "SYNCING"}
        assert told[place - 2]["state"] == "SYNCED"
        await until_synced(second)
