"""The bridge in a whole gateway: RSB in and out, Mariner and RSB peers around it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge.core.engine import Engine
from eventer_bridge.rsb import payloads
from eventer_bridge.rsb.event import RsbEvent, now_us
from eventer_bridge.rsb.introspection import RSB_SCOPE
from mariner.gateway.gateway import Gateway
from tests.eventer_bridge.rsb.peers import TIMEOUT_S, RawPeer, raw_server
from tests.eventer_bridge.rsb.samples import OTHER, sample
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer as MarinerPeer
from tests.support.peer import event, register_req
from tests.support.waiting import until


@contextlib.asynccontextmanager
async def bridging(
    *,
    path: Path | None = None,
    core: dict[str, Any] | None = None,
    **rsb: Any,
) -> AsyncIterator[Gateway]:
    """A gateway with a bridge: a server unless told, everything in, ``/cmd/`` out."""
    backend = {"type": "memory"} if path is None else {"type": "rocksdb", "path": str(path)}
    conf = {
        "server_id": 1,
        "backend": backend,
        "rsb": {
            "host": "127.0.0.1",
            "port": 0,
            "mode": "server",
            "scopes_in": ["/"],
            "scopes_out": ["/cmd/"],
            **rsb,
        },
        **(core or {}),
    }
    async with running_gateway(event_core=conf) as gateway:
        yield gateway


def rsb_port(gateway: Gateway) -> int:
    assert gateway.rsb is not None
    assert gateway.rsb.port is not None
    return gateway.rsb.port


def stats(gateway: Gateway) -> Any:
    assert gateway.rsb is not None
    return gateway.rsb.stats


async def stored(gateway: Gateway, *event_type: str) -> list[Any]:
    """Events of a type, oldest first."""
    query = {
        "msg_type": "query_req",
        "query_id": 1,
        "query_type": "timeseries",
        "event_types": [list(event_type or ("rsb", "*"))],
        "order": "ASCENDING",
        "order_by": "TIMESTAMP",
    }
    async with await MarinerPeer.init(gateway.mariner.port) as peer:
        events: list[Any] = (await peer.request(query))["events"]
        return events


async def register(gateway: Gateway, *events: dict[str, Any]) -> None:
    async with await MarinerPeer.init(gateway.mariner.port) as peer:
        assert (await peer.request(register_req(1, *events)))["success"]


async def receive_of_users(peer: RawPeer) -> RsbEvent:
    """The next event that is none of RSB's own affairs."""
    while RSB_SCOPE.includes((came := await peer.receive()).scope):
        pass
    return came


async def until_registered(gateway: Gateway, count: int) -> None:
    await until(lambda: stats(gateway).events_registered == count)


async def test_events_of_the_bus_are_registered_with_everything(tmp_path: Path) -> None:
    begin_us = now_us()
    async with bridging(path=tmp_path / "events") as gateway:
        async with (
            await MarinerPeer.init(gateway.mariner.port, subscriptions=[["rsb", "*"]]) as watcher,
            await RawPeer.connect(rsb_port(gateway)) as peer,
        ):
            peer.send(sample(378), sample(379, ".x.Image", b"\x01"))
            await until_registered(gateway, 2)
            [notified] = (await watcher.receive())["events"][:1]
            first, second = await stored(gateway)
            assert first == notified
        assert first["type"] == ["rsb", "robot", "arm"]
        assert first["source_timestamp"] == {"s": 1_700_000_000, "us": 123_456}
        rsb = first["payload"]["data"]["rsb"]
        assert (rsb["id"], rsb["sequence"]) == (str(sample(378).id), 378)
        times = [begin_us, rsb["meta"]["receive_time"], rsb["meta"]["deliver_time"], now_us()]
        assert times == sorted(times)
        assert first["payload"]["data"]["value"] == "hello"
        assert second["payload"]["data_type"] == ".x.Image"


async def test_who_cannot_be_told_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> RsbEvent:
        raise MemoryError

    async with (
        bridging() as gateway,
        await RawPeer.connect(rsb_port(gateway)) as peer,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(payloads, "from_event", fail)
            await register(gateway, event("other"))  # which it is not told of anyway
            await register(gateway, event("rsb", "cmd", "go"))
        with pytest.raises(asyncio.IncompleteReadError):
            await receive_of_users(peer)
        assert stats(gateway).closed["internal error"] == 1


async def test_sequence_numbers_that_wrap_repeat_or_come_late_are_all_kept() -> None:
    sequences = [2**32 - 2, 2**32 - 1, 0, 1, 1, 7, 3, 7]
    async with bridging() as gateway, await RawPeer.connect(rsb_port(gateway)) as peer:
        peer.send(*[sample(i) for i in sequences])
        await until_registered(gateway, len(sequences))
        came = [i["payload"]["data"]["rsb"] for i in await stored(gateway)]
        assert [i["sequence"] for i in came] == sequences
        assert [i["id"] for i in came] == [str(sample(i).id) for i in sequences]


async def test_only_what_is_in_scope_comes_in_and_all_is_relayed() -> None:
    async with (
        bridging(scopes_in=["/robot/", "/lab/door/"], prefix=["from", "rsb"]) as gateway,
        await RawPeer.connect(rsb_port(gateway)) as sender,
        await RawPeer.connect(rsb_port(gateway)) as listener,
    ):
        scopes = ["/", "/robot/", "/robots/", "/lab/", "/lab/door/left/", "/robot/arm/"]
        sender.send(*[sample(i, scope=scope) for i, scope in enumerate(scopes)])
        assert [str((await listener.receive()).scope) for _ in scopes] == scopes
        await until_registered(gateway, 3)
        types = [i["type"] for i in await stored(gateway, "from", "*")]
        assert types == [
            ["from", "rsb", "robot"],
            ["from", "rsb", "lab", "door", "left"],
            ["from", "rsb", "robot", "arm"],
        ]


async def test_events_of_others_go_out() -> None:
    async with (
        bridging() as gateway,
        await RawPeer.connect(rsb_port(gateway)) as first,
        await RawPeer.connect(rsb_port(gateway)) as second,
    ):
        await register(
            gateway,
            event("rsb", "robot"),  # not in scopes_out
            event("other", "cmd"),
            event("rsb", "cmd", "a b"),
            event("rsb", "cmd", "move", value=1.5),
            event("rsb", "cmd", value="stop"),
        )
        came = [await first.receive() for _ in range(2)]
        assert came == [await second.receive() for _ in range(2)]
        assert [(str(i.scope), i.schema) for i in came] == [
            ("/cmd/move/", "double"),
            ("/cmd/", "utf-8-string"),
        ]
        assert [i.event_id.sequence for i in came] == [0, 1]
        assert came[0].event_id.sender == came[1].event_id.sender
        for each in came:
            assert each.meta.create_time is not None
            assert each.meta.send_time is not None
            assert each.meta.send_time >= each.meta.create_time
            assert each.meta.receive_time is None
        assert stats(gateway).events_notified == 2


async def test_what_came_by_rsb_is_not_sent_back() -> None:
    async with (
        bridging(scopes_out=["/"]) as gateway,
        await RawPeer.connect(rsb_port(gateway)) as sender,
        await RawPeer.connect(rsb_port(gateway)) as listener,
    ):
        sender.send(sample(1))
        assert await listener.receive() == sample(1)  # relayed, once
        await until_registered(gateway, 1)
        [came] = await stored(gateway)
        # somebody brings it again, as it is: it was on this bus
        again = {key: came[key] for key in ("type", "source_timestamp", "payload")}
        await register(gateway, again)
        await register(gateway, event("rsb", "end"))
        for peer in (sender, listener):
            assert str((await peer.receive()).scope) == "/end/"


async def test_what_came_by_another_bus_is_sent_as_it_was() -> None:
    original = sample(5, sender=OTHER)
    async with bridging() as first, bridging(scopes_out=["/"]) as second:
        async with await RawPeer.connect(rsb_port(first)) as sender:
            sender.send(original)
            await until_registered(first, 1)
        [came] = await stored(first)
        async with await RawPeer.connect(rsb_port(second)) as listener:
            again = {key: came[key] for key in ("type", "source_timestamp", "payload")}
            await register(second, again)
            assert await listener.receive() == original
            # by this time it was on that bus, too
            await register(second, again)
            await register(second, event("rsb", "end"))
            assert str((await listener.receive()).scope) == "/end/"


async def test_two_of_ours_server_and_client() -> None:
    async with (
        bridging() as server,
        bridging(mode="client", port=rsb_port(server), scopes_out=["/up/"]) as client,
        await RawPeer.connect(rsb_port(server)) as peer,
    ):
        await until(lambda: client.rsb is not None and client.rsb.is_connected)
        peer.send(sample(1))  # to both
        await until_registered(server, 1)
        await until_registered(client, 1)
        await register(client, event("rsb", "up", value=1))  # to the server and the peer
        assert str((await receive_of_users(peer)).scope) == "/up/"
        await until_registered(server, 2)
        await register(server, event("rsb", "cmd", value=2))  # to the client and the peer
        assert str((await receive_of_users(peer)).scope) == "/cmd/"
        await until_registered(client, 2)
        assert [i["type"] for i in await stored(server)] == [
            *(["rsb", "robot", "arm"], ["rsb", "up"], ["rsb", "cmd"]),
        ]
        assert [i["type"] for i in await stored(client)] == [
            *(["rsb", "robot", "arm"], ["rsb", "up"], ["rsb", "cmd"]),
        ]
        assert stats(server).events_registered == stats(client).events_registered == 2


async def test_replication_does_not_go_round() -> None:
    """Two gateways on one bus that keep each other's events, everything in and out."""
    listen: dict[str, Any] = {"host": "127.0.0.1", "port": 0}
    async with bridging(scopes_out=["/"], core={"eventer_server": listen}) as first:
        assert first.eventer_server is not None
        remote = {
            "server_id": 1,
            "host": "127.0.0.1",
            "port": first.eventer_server.address.port,
        }
        core = {"server_id": 2, "replication": [remote]}
        port = rsb_port(first)
        async with (
            bridging(mode="client", port=port, scopes_out=["/"], core=core) as second,
            await RawPeer.connect(port) as peer,
        ):
            await until(lambda: second.rsb is not None and second.rsb.is_connected)
            peer.send(sample(1))
            await until_registered(second, 1)

            async def replicated() -> bool:
                return len(await stored(second)) == 2

            await until(replicated)
            await register(second, event("rsb", "end"))
            # not the event of the peer
            assert str((await receive_of_users(peer)).scope) == "/end/"


async def test_who_stands_by_does_not_send() -> None:
    listen: dict[str, Any] = {"host": "127.0.0.1", "port": 0}
    async with bridging(core={"eventer_server": listen}) as first:
        assert first.eventer_server is not None
        address = first.eventer_server.address
        remote = {"server_id": 1, "host": address.host, "port": address.port}
        core = {"server_id": 2, "replication": [remote]}
        port = rsb_port(first)
        async with (
            bridging(mode="client", port=port, core=core) as second,
            await RawPeer.connect(port) as peer,
        ):
            assert isinstance(second.core, Engine)
            await second.core.stop()
            await until(lambda: second.rsb is not None and second.rsb.is_connected)
            for index, value in enumerate(("move", "end")):
                await register(first, event("rsb", "cmd", value=value))
                came = await receive_of_users(peer)
                assert (came.event_id.sequence, came.data.decode()) == (index, value)

                async def is_replicated(count: int = index + 1) -> bool:
                    return len(await stored(second)) == count

                await until(is_replicated)


async def test_an_event_that_is_refused_costs_the_others_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "eventer_bridge")
    deep = sample(2, scope="/" + "x/" * 64)
    long = sample(3, scope="/" + "y" * 1022 + "/")
    async with bridging() as gateway, await RawPeer.connect(rsb_port(gateway)) as peer:
        peer.send(sample(1), deep, long, sample(4))
        await until_registered(gateway, 2)
        assert stats(gateway).rejected == {"invalid event": 2}
        kept = [i["payload"]["data"]["rsb"]["sequence"] for i in await stored(gateway)]
        assert kept == [1, 4]
    records = [i for i in caplog.records if i.message == "RSB event not registered"]
    assert records[0].__dict__["reason"] == "event type has 65 segments, at most 64 are allowed"


async def test_a_condition_that_does_not_hold_refuses_that_event_only() -> None:
    condition = {
        "subscriptions": [["rsb", "robot", "*"]],
        "condition": {"type": "json", "data_path": "value", "data_type": "number"},
    }
    backend = {"type": "memory", "conditions": [condition]}
    module = {"module": "eventer_bridge.modules.rate", "subscriptions": [["x"]]}
    for modules in ([], [module]):  # told at once, and later
        core = {"backend": backend, "modules": modules}
        async with bridging(core=core) as gateway, await RawPeer.connect(rsb_port(gateway)) as peer:
            peer.send(sample(1, "int64", bytes(8)), sample(2), sample(3, "int64", bytes(8)))
            await until(lambda g=gateway: stats(g).events_registered == 2)  # type: ignore[misc]
            assert stats(gateway).rejected == {"condition": 1}
            kept = [i["payload"]["data"]["rsb"]["sequence"] for i in await stored(gateway)]
            assert kept == [1, 3]


async def test_what_cannot_be_sent_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with bridging() as gateway:
        await register(gateway, event("rsb", "cmd"))
        assert stats(gateway).unsent == {"nobody there": 1}
        async with await RawPeer.connect(rsb_port(gateway)) as peer:
            await register(
                gateway,
                event("rsb", "cmd", value={"rsb": {"schema": "bool"}, "value": 1}),
                event("rsb", "cmd"),
            )
            assert str((await peer.receive()).scope) == "/cmd/"
        assert stats(gateway).unsent == {"nobody there": 1, "invalid": 1}
    [record] = [i for i in caplog.records if i.message == "event not sent by RSB"]
    assert "expected true or false" in record.__dict__["reason"]


async def test_while_the_core_is_full_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bridging() as gateway, await RawPeer.connect(rsb_port(gateway)) as peer:
        drained: list[Any] = []
        core = gateway.core
        monkeypatch.setattr(type(core), "is_full", True)
        monkeypatch.setattr(
            type(core), "wait_for_room", lambda self, owner, call: drained.append(call)
        )
        peer.send(sample(1))
        await until(lambda: len(drained) == 1)
        large = [sample(i, "bytes", bytes(100_000)) for i in range(2, 102)]
        peer.send(*large)
        draining = asyncio.create_task(peer.writer.drain())
        async with await MarinerPeer.init(gateway.mariner.port) as other:  # is served
            assert (await other.request({"msg_type": "ping_req", "ping_id": 1}))["ping_id"] == 1
        assert not draining.done()
        assert stats(gateway).frames_in == 1
        monkeypatch.undo()
        drained[0]()
        await draining
        await until_registered(gateway, 101)


async def test_the_rest_goes_on_while_a_client_has_no_bus() -> None:
    async with raw_server() as server:
        port = server.port
    async with bridging(mode="client", port=port) as gateway:
        assert gateway.rsb is not None
        assert gateway.rsb.port is None
        await register(gateway, event("rsb", "cmd"))
        assert stats(gateway).unsent == {"nobody there": 1}


async def test_closing_says_bye_and_ends() -> None:
    async with (
        bridging(scopes_in=["/a/"], scopes_out=["/b/"]) as gateway,
        await RawPeer.connect(rsb_port(gateway)) as peer,
    ):
        gateway.close()
        byes = [await peer.receive() for _ in range(2)]
        assert {i.schema for i in byes} == {".rsb.protocol.introspection.Bye"}
        assert await peer.is_ended()
        assert not gateway.is_closed
        peer.writer.write_eof()
        async with asyncio.timeout(TIMEOUT_S):
            await gateway.wait_closed()
