"""The Eventer server of a gateway: its configuration, its metrics, and hat-mariner behind it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hat.drivers import net
from hat.event import common
from hat.mariner import client as hat_mariner

from eventer_bridge import chatter
from eventer_bridge.errors import InitError
from eventer_bridge.eventer import client as eventer
from eventer_bridge.model import JsonPayload, QueryLatestParams, RegisterEvent
from mariner.gateway.gateway import Gateway
from tests.support.hat_peers import hat_mariner_server
from tests.support.inprocess import metrics_of_wire, running_gateway

EVENT = RegisterEvent(("a",), None, JsonPayload.of(1))


def configured(path: Path, **keys: Any) -> dict[str, Any]:
    """``event_core`` with an Eventer server on a free port."""
    return {
        "server_id": 1,
        "backend": {"type": "rocksdb", "path": str(path / "store")},
        "eventer_server": {"host": "127.0.0.1", "port": 0, **keys},
    }


def address(gateway: Gateway) -> chatter.Address:
    assert gateway.eventer_server is not None
    return gateway.eventer_server.address


async def test_metrics(tmp_path: Path) -> None:
    core = configured(tmp_path, token="secret")
    http = {"host": "127.0.0.1", "port": 0}
    async with running_gateway(event_core=core, http=http) as gateway:
        at = address(gateway)
        heard: asyncio.Queue[Any] = asyncio.Queue()
        async with await eventer.connect(
            at,
            "gui",
            client_token="secret",
            subscriptions=[("a",)],
            on_events=heard.put_nowait,
        ) as client:
            with pytest.raises(InitError, match="invalid client token"):
                await eventer.connect(at, "gui", client_token="wrong")
            await client.register([EVENT, EVENT])
            await heard.get()
            await client.query(QueryLatestParams())
            refused = client.register([RegisterEvent(("?",), None, None)])
            await asyncio.wait([refused])
            found = await metrics_of_wire(gateway, "eventer")
            assert found["clients"] == found["connections"] == 1
            assert found["connections_accepted_total"] == 2
            assert found["connections_declined_total"] == 1
            assert found["events_registered_total"] == 2
            assert found["events_notified_total"] == 2
            assert found['registrations_rejected_total{reason="invalid event"}'] == 1
            assert found['connections_closed_total{reason="declined"}'] == 1
            # two of init, of registration one and of query one; and a notification
            assert found['frames_total{direction="in"}'] == 5
            assert found['frames_total{direction="out"}'] == 6
            assert found['bytes_total{direction="in"}'] > 0
        while (found := await metrics_of_wire(gateway, "eventer"))["connections"]:
            pass
        assert found["clients"] == 0
        assert found['connections_closed_total{reason="peer closed"}'] == 1


async def test_clients_of_the_configuration(tmp_path: Path) -> None:
    clients = [
        {
            "name": "gui",
            "token": "secret",
            "subscriptions": [["a", "*"]],
            "register_events": [{"subscriptions": [["a"]], "schema_id": "test://number"}],
        }
    ]
    core = configured(tmp_path, clients=clients)
    schemas = [{"$id": "test://number", "type": "number"}]
    async with running_gateway(event_core=core, schemas=schemas) as gateway:
        at = address(gateway)
        # a name of the Mariner clients is none here
        with pytest.raises(InitError, match="invalid client name or token"):
            await eventer.connect(at, "app", client_token="secret")
        async with await eventer.connect(at, "gui", client_token="secret") as client:
            [registered] = await client.register([EVENT])
            assert (await client.query(QueryLatestParams())).events == [registered]
            refused = [
                client.register([RegisterEvent(("a",), None, JsonPayload.of("x"))]),
                client.register([RegisterEvent(("a", "b"), None, JsonPayload.of(1))]),
            ]
            await asyncio.wait(refused)
            assert all(i.exception() for i in refused)


async def test_hat_mariner_server_in_front_of_ours(tmp_path: Path) -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()
    statuses: asyncio.Queue[Any] = asyncio.Queue()
    async with (
        running_gateway(event_core=configured(tmp_path)) as gateway,
        hat_mariner_server(tmp_path, address(gateway).port) as port,
    ):
        at = net.TcpAddress("127.0.0.1", port)
        options = {"client_name": "app", "client_token": "secret"}
        watchers = [
            await hat_mariner.connect(
                at,
                **options,
                subscriptions=[("a", "*")],
                persisted=persisted,
                events_cb=lambda _, events: heard.put_nowait(list(events)),
            )
            for persisted in (False, True)
        ]
        client = await hat_mariner.connect(
            at, **options, status_cb=lambda _, status: statuses.put_nowait(status)
        )
        if client.status is not common.Status.OPERATIONAL:
            assert await statuses.get() is common.Status.OPERATIONAL
        wanted = [
            common.RegisterEvent(
                ("a",), common.Timestamp(-3, 5), common.EventPayloadJson({"x": 1})
            ),
            common.RegisterEvent(("a", "b"), None, common.EventPayloadBinary("t", b"\x00\xff")),
            common.RegisterEvent(("a", "c"), None, None),
        ]
        registered = list(await client.register(wanted))
        contents = [common.RegisterEvent(e.type, e.source_timestamp, e.payload) for e in registered]
        assert contents == wanted
        assert [await heard.get() for _ in watchers] == [registered, registered]
        for params in (
            common.QueryTimeseriesParams([("a", "*")], order=common.Order.ASCENDING),
            common.QueryServerParams(1, persisted=True),
            common.QueryLatestParams([("a", "*")]),
        ):
            result = await client.query(params)
            assert sorted(e for e in result.events if e.type[0] == "a") == registered
            assert not result.more_follows
        page = await client.query(
            common.QueryTimeseriesParams(
                [("a", "*")],
                order=common.Order.ASCENDING,
                max_results=1,
                last_event_id=registered[0].id,
            )
        )
        assert (list(page.events), page.more_follows) == (registered[1:2], True)
        assert await client.register([common.RegisterEvent(("?",), None, None)]) is None
        await gateway.core.stop()  # type: ignore[attr-defined]  # it is embedded
        assert await statuses.get() is common.Status.STOPPING
        assert await statuses.get() is common.Status.STANDBY
        for connection in (client, *watchers):
            await connection.async_close()
