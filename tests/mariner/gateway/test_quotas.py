"""Quotas of clients: what is held back, what is declined, and that nobody else notices."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import limits, tls
from eventer_bridge.core import tokens
from eventer_bridge.core.quotas import ClientQuota
from eventer_bridge.errors import ConfigurationError, InitError
from eventer_bridge.eventer import client as eventer
from eventer_bridge.model import JsonPayload, QueryLatestParams, RegisterEvent
from eventer_bridge.net.stream import Pause
from mariner.gateway import config_file
from mariner.gateway.gateway import Gateway
from tests.mariner.gateway.reloaded import Running, running
from tests.support.certificates import make_certificates
from tests.support.inprocess import APP, metrics_of
from tests.support.peer import RawPeer, event, register_req
from tests.support.waiting import until

TIMEOUT_S: Final = 60.0
OTHER: Final = {**APP, "name": "other"}
PING: Final = {"msg_type": "ping_req", "ping_id": 1}
QUERY: Final = {
    "msg_type": "query_req",
    "query_id": 1,
    "query_type": "timeseries",
    "event_types": [["a"]],
    "order": "ASCENDING",
    "order_by": "TIMESTAMP",
}


def with_quota(**bounds: int | None) -> dict[str, Any]:
    return {**APP, "quota": bounds}


def many(n_events: int, register_id: int = 1) -> dict[str, Any]:
    return register_req(register_id, *[event("a", value=i) for i in range(n_events)])


def account(gateway: Gateway, name: str = "app", wire: str = "mariner") -> Any:
    [found] = [i for i in gateway.accounts[wire] if i.name == name]
    return found


def is_held(gateway: Gateway, name: str = "app", wire: str = "mariner") -> bool:
    return bool(account(gateway, name, wire).throttle.is_holding)


async def pong_s(peer: RawPeer) -> float:
    """Seconds that an answer to a ping takes."""
    began_s = time.monotonic()
    async with asyncio.timeout(TIMEOUT_S):
        assert (await peer.request(PING))["msg_type"] == "ping_res"
    return time.monotonic() - began_s


async def test_who_registers_too_much_is_not_read_from(tmp_path: Path) -> None:
    clients = [with_quota(events_per_s=20), OTHER]
    async with (
        running(tmp_path, clients=clients, http={"port": 0}) as it,
        await RawPeer.init(it.port) as peer,
        await RawPeer.init(it.port, client_name="other") as other,
    ):
        assert (await peer.request(many(10)))["success"]
        assert await metrics_of(it.gateway, "mariner_client_") == {}
        assert not is_held(it.gateway)  # what it may use at once is not used up
        began_s = time.monotonic()
        assert (await peer.request(many(400)))["success"]  # taken, and paid for afterwards
        peer.send(PING)
        await until(lambda: is_held(it.gateway))
        assert (await other.request(many(500)))["success"]
        metrics = await metrics_of(it.gateway, "mariner_client_")
        assert metrics['held{client="app",wire="mariner"}'] == 1
        await it.reload(clients=[with_quota(events_per_s=500), OTHER])  # 19 s would be left to pay
        assert (await peer.receive())["msg_type"] == "ping_res"
        assert time.monotonic() - began_s > 0.5  # more than 380 of 410 were left to be paid
        metrics = await metrics_of(it.gateway, "mariner_client_")
        assert metrics['held{client="app",wire="mariner"}'] == 0
        assert metrics['held_seconds_total{client="app",wire="mariner"}'] > 0.4
        key = 'quota_hits_total{client="app",quota="events_per_s",wire="mariner"}'
        assert metrics[key] == 1
        assert not [i for i in metrics if "other" in i]


async def test_refused_registrations_count_as_well(tmp_path: Path) -> None:
    nothing = {**with_quota(events_per_s=5), "register_events": []}
    async with running(tmp_path, clients=[nothing]) as it, await RawPeer.init(it.port) as peer:
        for i in range(40):
            peer.send(many(1, i))
        await until(lambda: is_held(it.gateway))
        for i in range(6):
            assert (await peer.receive())["register_id"] == i


@pytest.mark.parametrize("is_tls", [False, True])
async def test_who_sends_too_many_bytes_is_not_read_from(tmp_path: Path, is_tls: bool) -> None:
    keys: dict[str, Any] = {}
    context = None
    if is_tls:
        files = make_certificates(tmp_path)
        context = tls.client_context(files.ca)
        server = {"cert": str(files.server_cert), "key": str(files.server_key)}
        keys["mariner"] = {"host": "127.0.0.1", "port": 0, "tls": server}
    clients = [with_quota(bytes_per_s=20_000)]
    async with (
        running(tmp_path, clients=clients, **keys) as it,
        await RawPeer.init(it.port, context) as peer,
    ):
        large = register_req(1, event("a", value="x" * 30_000))
        began_s = time.monotonic()
        assert (await peer.request(large))["success"]
        await pong_s(peer)
        assert time.monotonic() - began_s > 0.4
        assert account(it.gateway).hits.keys() == {"bytes_per_s"}


async def test_another_connection_does_not_help(tmp_path: Path) -> None:
    async with running(tmp_path, clients=[with_quota(events_per_s=10)]) as it:
        began_s = time.monotonic()
        async with await RawPeer.init(it.port) as first, await RawPeer.init(it.port) as second:
            assert (await first.request(many(16)))["success"]
            second.send(many(1))
            await pong_s(first)
            assert time.monotonic() - began_s > 0.4
            assert (await second.receive())["success"]
            assert (await first.request(many(10)))["success"]
            first.writer.close()
            # nor does leaving, and coming again
            async with await RawPeer.init(it.port) as third:
                await pong_s(third)
                assert time.monotonic() - began_s > 1.4
                assert (await third.request(many(1)))["success"]


async def test_who_ends_is_answered_when_it_is_paid_for(tmp_path: Path) -> None:
    async with (
        running(tmp_path, clients=[with_quota(events_per_s=10)]) as it,
        await RawPeer.init(it.port) as peer,
    ):
        began_s = time.monotonic()
        for i in range(2):
            peer.send(many(150, i))
        peer.writer.write_eof()
        await until(lambda: is_held(it.gateway))
        assert (await peer.receive())["success"]
        await it.reload(clients=[with_quota(events_per_s=200)])  # 14 s would be left to pay
        assert (await peer.receive_answer())["register_id"] == 1
        async with asyncio.timeout(TIMEOUT_S):
            await peer.reader.read()  # up to the end
        assert time.monotonic() - began_s > 0.6


async def test_who_leaves_is_not_held(tmp_path: Path) -> None:
    async with running(tmp_path, clients=[with_quota(events_per_s=1)]) as it:
        for _ in range(2):  # nor who comes again, and sends nothing
            async with await RawPeer.init(it.port) as peer:
                if not is_held(it.gateway):
                    assert (await peer.request(many(50_000)))["success"]
                await until(lambda: is_held(it.gateway))
            await until(lambda: not account(it.gateway).members)
            assert not is_held(it.gateway)


async def test_a_login_that_takes_long_does_not_help(tmp_path: Path) -> None:
    chosen = {**with_quota(events_per_s=1), "token": tokens.scrypt_text("secret")}
    async with running(tmp_path, clients=[chosen]) as it:
        async with await RawPeer.init(it.port) as peer:
            assert (await peer.request(many(1_000)))["success"]
        await until(lambda: not account(it.gateway).members)
        async with await RawPeer.init(it.port):
            assert is_held(it.gateway)


async def test_connections(tmp_path: Path) -> None:
    refusal = "too many connections of this client (max_connections: 1)"
    async with running(tmp_path, clients=[with_quota(max_connections=1), OTHER]) as it:
        async with await RawPeer.init(it.port):
            assert await it.answer() == refusal
            assert await it.answer(client_name="other") is None
            # who may not log in is not told
            assert await it.answer(client_token="wrong") == "invalid client name or token"
        await until(lambda: not account(it.gateway).members)
        assert await it.answer() is None
        assert account(it.gateway).hits == {"max_connections": 1}


async def test_subscriptions(tmp_path: Path) -> None:
    refusal = "too many subscriptions of this client (max_subscriptions: 3)"
    types = [["a"], ["b"]]
    async with running(tmp_path, clients=[with_quota(max_subscriptions=3)]) as it:
        assert await it.answer(subscriptions=[*types, *types]) == refusal
        async with await RawPeer.init(it.port, subscriptions=types):
            assert await it.answer(subscriptions=types) == refusal
            assert await it.answer(subscriptions=types[:1]) is None
        await until(lambda: not account(it.gateway).members)
        assert await it.answer(subscriptions=types) is None


async def test_rows_of_an_answer(tmp_path: Path) -> None:
    clients = [with_quota(max_query_rows=2), OTHER]
    async with (
        running(tmp_path, clients=clients) as it,
        await RawPeer.init(it.port) as peer,
        await RawPeer.init(it.port, client_name="other") as other,
    ):
        for name in "abc":
            assert (await peer.request(register_req(1, event("x", name))))["success"]
        for query in (
            {**QUERY, "event_types": [["x", "*"]]},
            {**QUERY, "event_types": [["x", "*"]], "max_results": 3},
            {
                "msg_type": "query_req",
                "query_id": 1,
                "query_type": "latest",
                "event_types": [["x", "*"]],
            },
        ):
            found: list[str] = []
            page: dict[str, Any] = {"more_follows": True, "events": []}
            while page["more_follows"]:
                last = {"last_event_id": page["events"][-1]["id"]} if page["events"] else {}
                page = await peer.request({**query, **last})
                assert len(page["events"]) <= 2
                found += [i["type"][1] for i in page["events"]]
            assert sorted(found) == ["a", "b", "c"]
            assert account(it.gateway).hits.pop("max_query_rows") == 1  # the last page is whole
            assert len((await other.request(query))["events"]) == 3
        less = await peer.request({**QUERY, "event_types": [["x", "*"]], "max_results": 1})
        assert len(less["events"]) == 1
        await peer.request({**QUERY, "event_types": [["x", "*"]], "max_results": 2})
        assert not account(it.gateway).hits  # it asked for no more


def test_event_types_that_are_not_bounded() -> None:
    assert ClientQuota().n_event_types == limits.MAX_CLIENT_EVENT_TYPES
    unbounded = ClientQuota(max_event_types=None).over(ClientQuota(max_event_types=5))
    assert unbounded.n_event_types == limits.MAX_EVENT_TYPES


async def test_time_of_queries(tmp_path: Path) -> None:
    core = {"server_id": 1, "backend": {"type": "rocksdb", "path": str(tmp_path / "store")}}
    clients = [with_quota(query_ms_per_s=1), OTHER]
    async with (
        running(tmp_path, clients=clients, event_core=core) as it,
        await RawPeer.init(it.port) as peer,
        await RawPeer.init(it.port, client_name="other") as other,
    ):
        for _ in range(3):
            assert (await peer.request(many(1_000)))["success"]
        n_queries = 3
        for i in range(n_queries):
            peer.send({**QUERY, "query_id": i})
        await until(lambda: is_held(it.gateway))
        assert account(it.gateway).hits.keys() == {"query_ms_per_s"}
        # it may do anything else meanwhile, and others may ask
        peer.send(PING)
        answers = 0
        while (message := await peer.receive())["msg_type"] == "query_res":
            answers += 1
        assert message["msg_type"] == "ping_res"
        assert answers < n_queries
        assert len((await other.request(QUERY))["events"]) == 3_000
        await it.reload(clients=[with_quota(query_ms_per_s=2_000), OTHER])
        for _ in range(n_queries - answers):
            assert (await peer.receive())["msg_type"] == "query_res"


# --- both wires, defaults and reloads -------------------------------------------------------


@contextlib.asynccontextmanager
async def eventer_gateway(tmp_path: Path, **keys: Any) -> AsyncIterator[tuple[Running, Any]]:
    server = {"host": "127.0.0.1", "port": 0, **keys.pop("server", {})}
    core = {"server_id": 1, "backend": {"type": "memory"}, "eventer_server": server}
    async with running(tmp_path, event_core=core, **keys) as it:
        assert it.gateway.eventer_server is not None
        yield it, it.gateway.eventer_server.address


async def test_eventer_clients_of_a_token_are_one(tmp_path: Path) -> None:
    events = [RegisterEvent(("a",), None, JsonPayload.of(1)) for _ in range(15)]
    server = {"quota": {"events_per_s": 10, "max_connections": 2}}
    async with eventer_gateway(tmp_path, server=server) as (it, address):
        async with (
            await eventer.connect(address, "x") as x,
            await eventer.connect(address, "y") as y,
        ):
            began_s = time.monotonic()
            assert await x.register(events)
            assert len((await y.query(QueryLatestParams([("a",)]))).events) == 1
            await y.register(events[:1])
            assert await x.register(events[:1])
            assert time.monotonic() - began_s > 0.3
            with pytest.raises(InitError, match=r"max_connections: 2"):
                await eventer.connect(address, "z")
        found = account(it.gateway, "Eventer clients", "eventer")
        assert found.hits.keys() == {"events_per_s", "max_connections"}
        assert found.n_registered == 17


async def test_a_quota_of_all_and_exceptions(tmp_path: Path) -> None:
    clients = [
        APP,
        {**OTHER, "quota": {"max_connections": 2}},
        {**APP, "name": "free", "quota": {"max_connections": None}},
    ]
    quota = {"max_connections": 1, "max_event_types": 0}
    async with running(tmp_path, clients=clients, quota=quota) as it:
        for name, most in (("app", 1), ("other", 2), ("free", 5)):
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(most):
                    peer = await RawPeer.init(it.port, client_name=name)
                    await stack.enter_async_context(peer)
                    assert "max_event_types: 0" in (await peer.request(many(1)))["error"]
                declined = await it.answer(client_name=name)
                assert (declined is None) is (name == "free")
        assert account(it.gateway).hits == {"max_connections": 1, "max_event_types": 1}


async def test_a_reload_brings_quotas_and_takes_them(tmp_path: Path) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        assert (await peer.request(many(1_000)))["success"]
        report = await it.reload(
            quota={"events_per_s": 10}, clients=[with_quota(max_connections=1)]
        )
        assert report == {
            "changed": ["clients[app].quota.max_connections", "quota.events_per_s"],
            "needs_restart": [],
        }
        assert (await peer.request(many(1_000)))["success"]
        peer.send(PING)
        await until(lambda: is_held(it.gateway))
        [stream] = it.gateway.mariner.connections
        assert stream.pauses == {Pause.QUOTA}
        assert (await it.answer() or "").startswith("too many connections of this client")
        assert (await it.reload(quota={}))["changed"] == ["quota.events_per_s"]
        async with asyncio.timeout(TIMEOUT_S):
            assert (await peer.receive())["msg_type"] == "ping_res"
        assert not is_held(it.gateway)


async def test_a_reload_brings_a_rate_of_bytes(tmp_path: Path) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        await it.reload(quota={"bytes_per_s": 1_000})
        peer.send({**PING, "padding": "x" * 100_000})
        await until(lambda: is_held(it.gateway))


async def test_a_removed_client_is_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path, clients=[APP, OTHER]) as it:
        async with await RawPeer.init(it.port, client_name="other") as other:
            assert await it.answer() is None
            await it.reload(clients=[APP])
            await it.closed(other)
        await it.reload(clients=[APP])
        assert [i.name for i in it.gateway.accounts["mariner"]] == ["app"]


async def test_clients_of_a_token_get_names(tmp_path: Path) -> None:
    async with eventer_gateway(tmp_path) as (it, address):
        named = {**APP, "name": "hat", "token": None, "quota": {"events_per_s": 10}}
        server = it.conf["event_core"]["eventer_server"]
        async with await eventer.connect(address, "hat") as client:
            server["clients"] = [named]
            await it.reload()
            events = [RegisterEvent(("a",), None, JsonPayload.of(1)) for _ in range(30)]
            assert await client.register(events)
            await until(lambda: is_held(it.gateway, "hat", "eventer"))
            assert account(it.gateway, "hat", "eventer").n_registered == 30
        await until(lambda: not account(it.gateway, "hat", "eventer").members)
        assert not is_held(it.gateway, "hat", "eventer")


@pytest.mark.parametrize(
    ("quota", "text"),
    [
        ({"events_per_s": 0}, "quota.events_per_s: 0: expected at least 1"),
        ({"events_per_s": float("nan")}, "quota.events_per_s: nan: expected integer or null"),
        ({"max_connections": "1"}, "quota.max_connections: '1': expected integer or null"),
        ({"rows": 1}, "quota.rows: unknown key, expected one of events_per_s, bytes_per_s,"),
    ],
)
def test_wrong_quotas_are_told(quota: dict[str, Any], text: str) -> None:
    conf = {
        "name": "x",
        "mariner": {"host": "", "port": 0},
        "event_core": {"server_id": 1, "backend": {"type": "memory"}},
        "clients": [{**APP, "quota": quota}],
    }
    with pytest.raises(ConfigurationError) as e:
        config_file.parse(conf, "f")
    assert f"f: clients[0].{text}" in str(e.value)


def test_named_clients_have_their_own_quotas() -> None:
    server = {"host": "", "port": 0, "clients": [], "quota": {}}
    backend = {"type": "memory"}
    conf = {
        "name": "x",
        "mariner": {"host": "", "port": 0},
        "event_core": {"server_id": 1, "backend": backend, "eventer_server": server},
        "clients": [],
    }
    text = r"^f: event_core.eventer_server.quota: expected in each client instead, if there are"
    with pytest.raises(ConfigurationError, match=text):
        config_file.parse(conf, "f")
