"""The public hat-mariner client against our server: it is the judge."""

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest
from hat.drivers import net
from hat.event import common
from hat.mariner import client as hat_client

from eventer_bridge.core.engine import Engine
from eventer_bridge.model import Event, EventId, Status, Timestamp
from tests.support.inprocess import APP, running_gateway

READER = {
    "name": "reader",
    "token": None,
    "subscriptions": [["a", "*"], ["b"]],
    "register_events": [],
}


def hat_event(
    *segments: str, value: object = 1, source_s: int | None = None
) -> common.RegisterEvent:
    return common.RegisterEvent(
        type=segments,
        source_timestamp=None if source_s is None else common.Timestamp(source_s, 5),
        payload=common.EventPayloadJson(value),
    )


async def hat_connect(port: int, **options: object) -> hat_client.Connection:
    options = {"client_name": "app", "client_token": "secret", **options}
    return await hat_client.connect(net.TcpAddress("127.0.0.1", port), **options)


async def test_init_and_status() -> None:
    async with running_gateway() as gateway:
        connection = await hat_connect(gateway.mariner.port)
        assert connection.status is common.Status.OPERATIONAL
        await connection.async_close()


@pytest.mark.parametrize(
    "options",
    [{"client_token": "wrong"}, {"client_token": None}, {"client_name": "nobody"}],
)
async def test_wrong_name_and_wrong_token_are_told_alike(options: dict[str, object]) -> None:
    async with running_gateway() as gateway:
        with pytest.raises(Exception, match=r"^initiate error: invalid client name or token$"):
            await hat_connect(gateway.mariner.port, **options)


async def test_status_changes_are_told() -> None:
    statuses: asyncio.Queue[common.Status] = asyncio.Queue()

    def on_status(_: object, status: common.Status) -> None:
        statuses.put_nowait(status)

    async with running_gateway() as gateway:
        connection = await hat_connect(gateway.mariner.port, status_cb=on_status)
        gateway.mariner.service.on_status(Status.STANDBY)
        assert await statuses.get() is common.Status.STANDBY
        gateway.mariner.service.on_status(Status.STARTING)  # told as STANDBY: no change
        gateway.mariner.service.on_status(Status.OPERATIONAL)
        assert await statuses.get() is common.Status.OPERATIONAL
        await connection.async_close()


async def test_register_returns_the_events() -> None:
    async with running_gateway() as gateway:
        connection = await hat_connect(gateway.mariner.port)
        requests = [
            hat_event("a", "1", value={"x": [1, 2.5, None, "ž"]}, source_s=-3),
            common.RegisterEvent(("a", "2"), None, common.EventPayloadBinary("t", b"\x00\xff")),
            common.RegisterEvent(("a", "3"), None, None),
        ]
        events = await connection.register(requests)
        assert events is not None
        assert [common.RegisterEvent(e.type, e.source_timestamp, e.payload) for e in events] == (
            requests
        )
        [session] = {e.id.session for e in events}
        assert [e.id for e in events] == [common.EventId(1, session, i) for i in (1, 2, 3)]
        assert len({e.timestamp for e in events}) == 1
        await connection.async_close()


@pytest.mark.parametrize("persisted", [False, True])
async def test_events_that_satisfy_subscription_and_rights(persisted: bool) -> None:
    heard: asyncio.Queue[Collection[common.Event]] = asyncio.Queue()

    def on_events(_: object, events: Collection[common.Event]) -> None:
        heard.put_nowait(events)

    async with running_gateway([APP, READER]) as gateway:
        reader = await hat_connect(
            gateway.mariner.port,
            client_name="reader",
            client_token=None,
            subscriptions=[("a", "?"), ("c",)],
            persisted=persisted,
            events_cb=on_events,
        )
        app = await hat_connect(gateway.mariner.port)
        for request in (
            [hat_event("c"), hat_event("a", "1", "2")],  # no right; not asked for
            [hat_event("a", "1"), hat_event("b"), hat_event("a", "2")],
        ):
            registered = await app.register(request)
        events = await heard.get()
        assert [e.type for e in events] == [("a", "1"), ("a", "2")]
        assert registered is not None
        assert {e.id.session for e in events} == {registered[0].id.session}
        assert heard.empty()
        await reader.async_close()
        await app.async_close()


async def test_server_id_filters_notifications() -> None:
    wanted: dict[int | None, list[int]] = {None: [1, 2, 1, 2], 1: [1, 1], 2: [2, 2]}
    heard: dict[int | None, asyncio.Queue[int]] = {i: asyncio.Queue() for i in wanted}

    async with running_gateway() as gateway:
        core = gateway.core
        assert isinstance(core, Engine)
        connections = []
        for server_id, servers in heard.items():

            def on_events(
                _: object, events: Collection[common.Event], servers: asyncio.Queue[int] = servers
            ) -> None:
                for event in events:
                    servers.put_nowait(event.id.server)

            options = {"subscriptions": [("a",)], "server_id": server_id, "events_cb": on_events}
            connections.append(await hat_connect(gateway.mariner.port, **options))
        for session in (1, 2):
            await connections[0].register([hat_event("a")])
            event_id = EventId(2, session, 1)
            await core.replicate([Event(event_id, ("a",), Timestamp(session, 0), None, None)])
        for server_id, servers in heard.items():
            assert [await servers.get() for _ in wanted[server_id]] == wanted[server_id]
        for connection in connections:
            await connection.async_close()


async def test_what_may_not_be_registered_is_refused() -> None:
    async with running_gateway([{**APP, "register_events": [{"subscriptions": [["a"]]}]}]) as g:
        connection = await hat_connect(g.mariner.port)
        assert await connection.register([hat_event("a"), hat_event("b")]) is None
        assert await connection.register([hat_event("a")]) is not None
        result = await connection.query(common.QueryServerParams(1))
        assert [e.type for e in result.events if e.type[0] != "event"] == [("a",)]
        await connection.async_close()


async def test_queries_with_paging(tmp_path: Path) -> None:
    async with running_gateway(path=tmp_path / "store") as gateway:
        connection = await hat_connect(gateway.mariner.port)
        for i in range(10):
            await connection.register([hat_event("a", str(i % 2), value=i, source_s=100 - i)])

        latest = await connection.query(common.QueryLatestParams([("a", "?")]))
        assert sorted(e.payload.data for e in latest.events) == [8, 9]
        assert not latest.more_follows

        values: list[int] = []
        params = common.QueryTimeseriesParams(
            event_types=[("a", "*")],
            order=common.Order.ASCENDING,
            order_by=common.OrderBy.SOURCE_TIMESTAMP,
            source_t_from=common.Timestamp(92, 0),
            max_results=3,
        )
        while True:
            result = await connection.query(params)
            values.extend(e.payload.data for e in result.events)
            if not result.more_follows:
                break
            params = params._replace(last_event_id=list(result.events)[-1].id)
        assert values == [8, 7, 6, 5, 4, 3, 2, 1, 0]

        first = await connection.query(common.QueryServerParams(1, persisted=True, max_results=4))
        assert first.more_follows
        last_id = list(first.events)[-1].id
        rest = await connection.query(common.QueryServerParams(1, last_event_id=last_id))
        events = [*first.events, *rest.events]
        assert [e.id for e in events] == sorted({e.id for e in events})
        assert [e.payload.data for e in events if e.type[0] == "a"] == list(range(10))
        assert (await connection.query(common.QueryServerParams(2))).events == []
        await connection.async_close()


async def test_rights_bound_queries() -> None:
    async with running_gateway([APP, READER]) as gateway:
        app = await hat_connect(gateway.mariner.port)
        await app.register([hat_event("a", "1"), hat_event("c"), hat_event("b")])
        reader = await hat_connect(gateway.mariner.port, client_name="reader", client_token=None)
        for params in (
            common.QueryLatestParams(),
            common.QueryTimeseriesParams(),
            common.QueryServerParams(1),
        ):
            result = await reader.query(params)
            assert {e.type for e in result.events} == {("a", "1"), ("b",)}
        assert (await reader.query(common.QueryLatestParams([("c",)]))).events == []
        await app.async_close()
        await reader.async_close()


async def test_the_client_pings_and_stays() -> None:
    async with running_gateway() as gateway:
        stats = gateway.mariner.stats
        connection = await hat_connect(gateway.mariner.port, ping_delay=0.01, ping_timeout=60)
        while stats.frames_in < 5:  # init and pings, each answered before the next
            await asyncio.sleep(0.01)
        assert connection.is_open
        await connection.async_close()
