"""hat-event's own client on our Eventer server: every message, as a Hat component sends it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest
from hat.drivers import net
from hat.event import common
from hat.event import eventer as hat_eventer

from eventer_bridge import chatter
from eventer_bridge.backends import rocksdb
from eventer_bridge.core import engine
from eventer_bridge.core.authentication import OneForAll
from eventer_bridge.core.engine import Engine
from eventer_bridge.eventer import server as eventer_server
from eventer_bridge.eventer.server import EventerServer


@contextlib.asynccontextmanager
async def running(
    path: Path, token: str | None = None
) -> AsyncIterator[tuple[EventerServer, Engine]]:
    """An Eventer server on a durable core."""
    backend = await rocksdb.create(path / "store")
    core = await engine.create(backend, 1)
    server = await eventer_server.listen(
        core, chatter.parse_address("tcp+sbs://127.0.0.1:0"), OneForAll(token)
    )
    try:
        yield server, core
    finally:
        await core.stop()
        await server.async_close()
        await core.async_close()
        await backend.async_close()


async def connect(server: EventerServer, name: str = "gui/1", **kwargs: Any) -> Any:
    address = net.TcpAddress("127.0.0.1", server.address.port)
    return await hat_eventer.connect(address, name, **kwargs)


def hat_event(*segments: str, value: object = 1, source_s: int | None = None) -> Any:
    timestamp = None if source_s is None else common.Timestamp(source_s, 0)
    return common.RegisterEvent(segments, timestamp, common.EventPayloadJson(value))


async def test_init_status_register_query(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, _):
        client = await connect(server)
        assert client.status is common.Status.OPERATIONAL
        wanted = [
            hat_event("a", "1", value={"x": [1, 2.5, None, "ž"]}, source_s=-3),
            common.RegisterEvent(("a", "2"), None, common.EventPayloadBinary("t", b"\x00\xff")),
            common.RegisterEvent(("a", "3"), None, None),
        ]
        events = await client.register(wanted, with_response=True)
        assert [common.RegisterEvent(e.type, e.source_timestamp, e.payload) for e in events] == (
            wanted
        )
        await client.register([hat_event("b")])
        for params in (
            common.QueryLatestParams([("a", "*")]),
            common.QueryTimeseriesParams([("a", "?")], order=common.Order.ASCENDING),
            common.QueryServerParams(1, persisted=True),
        ):
            result = await client.query(params)
            found = [e for e in result.events if e.type[0] == "a"]
            assert sorted(found) == list(events)
            assert not result.more_follows
        assert await client.register([hat_event("?")], with_response=True) is None
        assert (await client.query(common.QueryLatestParams([("b",)]))).events
        await client.async_close()


@pytest.mark.parametrize("persisted", [False, True])
async def test_notifications_by_session(tmp_path: Path, persisted: bool) -> None:
    heard: asyncio.Queue[Collection[Any]] = asyncio.Queue()
    async with running(tmp_path) as (server, _):
        watcher = await connect(
            server,
            "watcher",
            subscriptions=[("a", "*")],
            persisted=persisted,
            events_cb=lambda _, events: heard.put_nowait(events),
        )
        client = await connect(server)
        for i in range(20):
            await client.register([hat_event("a", value=i), hat_event("b"), hat_event("a", "c")])
        for i in range(20):
            events = list(await heard.get())
            assert [e.type for e in events] == [("a",), ("a", "c")]
            assert events[0].payload.data == i
            assert len({e.id.session for e in events}) == 1
        await watcher.async_close()
        await client.async_close()


async def test_a_token_is_required_alike(tmp_path: Path) -> None:
    async with running(tmp_path, "secret") as (server, _):
        for token in (None, "wrong", ""):
            with pytest.raises(hat_eventer.EventerInitError, match="invalid client token"):
                await connect(server, client_token=token)
        client = await connect(server, client_token="secret")
        assert client.status is common.Status.OPERATIONAL
        await client.async_close()
        assert server.stats.declined == 3


async def test_status_is_told(tmp_path: Path) -> None:
    statuses: asyncio.Queue[Any] = asyncio.Queue()
    async with running(tmp_path) as (server, core):
        client = await connect(server, status_cb=lambda _, status: statuses.put_nowait(status))
        await core.stop()
        await core.start()
        told = [await statuses.get() for _ in range(4)]
        assert [i.name for i in told] == ["STOPPING", "STANDBY", "STARTING", "OPERATIONAL"]
        await client.async_close()
