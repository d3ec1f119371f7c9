"""Event types are known for ever: how many of them a client may bring, by each wire."""

from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import chatter, limits
from eventer_bridge.errors import RegisterError
from eventer_bridge.eventer import client as eventer
from eventer_bridge.model import EventType, JsonPayload, QueryLatestParams, RegisterEvent
from mariner.gateway.gateway import Gateway
from tests.eventer_bridge.rsb.peers import RawPeer as RsbPeer
from tests.eventer_bridge.rsb.samples import sample
from tests.support.inprocess import APP, running_gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.waiting import until

REFUSAL = "more are allowed for this client (max_event_types: 3)"
"""Of a client with a quota of 3."""

OTHER = {**APP, "name": "other", "token": "other"}


def core_of(path: Path, **keys: Any) -> dict[str, Any]:
    return {"server_id": 1, "backend": {"type": "rocksdb", "path": str(path / "store")}, **keys}


def events_of(*names: str) -> list[RegisterEvent]:
    return [RegisterEvent((name,), None, JsonPayload.of(1)) for name in names]


async def register(peer: RawPeer, *names: str) -> str | None:
    """Register an event of each type; why it was refused, if it was."""
    response = await peer.request(register_req(1, *(event(name) for name in names)))
    error: str | None = response.get("error")
    return error


def eventer_address(gateway: Gateway) -> chatter.Address:
    assert gateway.eventer_server is not None
    return gateway.eventer_server.address


async def test_quota_of_a_mariner_client_holds_after_a_restart(tmp_path: Path) -> None:
    clients: list[dict[str, Any]] = [{**APP, "quota": {"max_event_types": 3}}, OTHER]
    core = core_of(tmp_path)
    async with running_gateway(clients, event_core=core) as gateway:
        port = gateway.mariner.port
        async with (
            await RawPeer.init(port) as peer,
            await RawPeer.init(port, client_name="other", client_token="other") as other,
        ):
            assert await register(peer, "a", "b") is None
            assert REFUSAL in (await register(peer, "c", "d") or "")
            assert await register(other, "c", "d", "e", "f") is None
            assert await register(peer, "a", "c", "d", "e") is None  # they are known now
            assert await register(peer, "g") is None
            [account] = (i for i in gateway.accounts["mariner"] if i.name == "app")
            assert account.hits == {"max_event_types": 1}
            many = [f"x{i}" for i in range(limits.MANY_NEW_TYPES + 1)]  # in slices
            assert REFUSAL in (await register(peer, *many) or "")
            assert account.hits == {"max_event_types": 2}
        async with await RawPeer.init(port) as peer:
            assert REFUSAL in (await register(peer, "h") or "")
    async with running_gateway(clients, event_core=core) as gateway:
        port = gateway.mariner.port
        async with (
            await RawPeer.init(port) as peer,
            await RawPeer.init(port, client_name="other", client_token="other") as other,
        ):
            assert REFUSAL in (await register(peer, "h") or "")
            assert await register(peer, "a", "f", "g") is None
            assert await register(other, "h") is None


async def test_clients_of_a_token_share_a_quota_whatever_they_are_called(tmp_path: Path) -> None:
    server = {"host": "127.0.0.1", "port": 0, "quota": {"max_event_types": 3}}
    for is_first in True, False:
        async with running_gateway(event_core=core_of(tmp_path, eventer_server=server)) as gateway:
            address = eventer_address(gateway)
            if is_first:
                for name in "abc":
                    async with await eventer.connect(address, name) as client:
                        assert await client.register(events_of(name))
            for name in "abcd":
                async with await eventer.connect(address, name) as client:
                    assert await client.register(events_of("a", "b", "c"))
                    with pytest.raises(RegisterError):
                        await client.register(events_of(f"new {name}"))
            async with await RawPeer.init(gateway.mariner.port) as peer:
                assert await register(peer, *(f"other {i}" for i in range(10))) is None


async def test_eventer_clients_of_the_configuration_have_quotas(tmp_path: Path) -> None:
    quotas = {"a": 2, "b": 0}
    clients = [{**APP, "name": name, "quota": {"max_event_types": n}} for name, n in quotas.items()]
    server = {"host": "127.0.0.1", "port": 0, "clients": clients}
    async with running_gateway(event_core=core_of(tmp_path, eventer_server=server)) as gateway:
        address = eventer_address(gateway)
        async with (
            await eventer.connect(address, "a", client_token="secret") as a,
            await eventer.connect(address, "b", client_token="secret") as b,
        ):
            with pytest.raises(RegisterError):
                await b.register(events_of("x"))
            assert await a.register(events_of("x", "y"))
            assert await b.register(events_of("x", "y"))
            with pytest.raises(RegisterError):
                await a.register(events_of("z"))


async def test_participants_of_rsb_share_a_quota() -> None:
    rsb = {
        "host": "127.0.0.1",
        "port": 0,
        "mode": "server",
        "scopes_in": ["/"],
        "max_event_types": 2,
    }
    core = {"server_id": 1, "backend": {"type": "memory"}, "rsb": rsb}
    async with running_gateway(event_core=core) as gateway:
        assert gateway.rsb is not None
        assert gateway.rsb.port is not None
        stats = gateway.rsb.stats
        async with (
            await RsbPeer.connect(gateway.rsb.port) as one,
            await RsbPeer.connect(gateway.rsb.port) as other,
        ):
            one.send(*[sample(i, scope=f"/{i % 2}/") for i in range(6)])
            other.send(*[sample(i, scope=f"/new/{i}/") for i in range(4)])
            await until(lambda: stats.events_registered + stats.rejected["limit"] == 10)
        assert stats.events_registered == 6


async def test_types_of_modules_are_not_the_clients(tmp_path: Path) -> None:
    module = {
        "module": "eventer_bridge.modules.threshold",
        "thresholds": [{"subscriptions": [["*"]], "limit": 0}],
    }
    clients = [{**APP, "quota": {"max_event_types": 3}}]
    core = core_of(tmp_path, modules=[module])
    async with (
        running_gateway(clients, event_core=core) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        assert await register(peer, "a", "b", "c") is None  # each raises an alarm
        assert REFUSAL in (await register(peer, "d") or "")
        found = await gateway.core.query(QueryLatestParams([("alarm", "*")]))
        assert len(found.events) == 3


async def test_made_up_names_are_announced_up_to_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_ANNOUNCED_NAMES", 5)
    server = {"host": "127.0.0.1", "port": 0}

    async def announced(gateway: Gateway) -> set[EventType]:
        found = await gateway.core.query(QueryLatestParams([("event", "1", "eventer", "*")]))
        return {i.type for i in found.events}

    async with running_gateway(event_core=core_of(tmp_path, eventer_server=server)) as gateway:
        address = eventer_address(gateway)
        assert gateway.eventer_server is not None
        server_stats = gateway.eventer_server.stats
        for number in range(10):
            async with await eventer.connect(address, f"{number}") as client:
                assert await client.register(events_of("a"))
            await until(lambda: not server_stats.connections)
        # …/connected and …/disconnected count, too
        assert len(await announced(gateway)) == 3
        async with await eventer.connect(address, "0") as client:
            assert await client.register(events_of("b"))
