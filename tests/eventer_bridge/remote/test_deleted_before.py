"""What retention deleted before it was followed: those who read on from before are told."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import limits
from eventer_bridge.model import Event, QueryTimeseriesParams, Status
from eventer_bridge.net import limits as net_limits
from mariner.gateway.gateway import Gateway
from tests.support.event_servers import event_server, eventer_port, events_of
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req

FEW: Final = [{"subscriptions": [["a"]], "max_entries": 3}]
WANTED: Final[dict[str, Any]] = {"subscriptions": [["a"]], "persisted": True}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "RECONNECT_MAX_S", 0.2)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.001)


async def register(gateway: Gateway, first: int, last: int) -> None:
    async with await RawPeer.init(gateway.mariner.port) as peer:
        for i in range(first, last):
            assert (await peer.request(register_req(i, event("a", value=i))))["success"]


async def values(peer: RawPeer, until: int) -> list[Any]:
    """What comes, up to an event with a value: values, and the kinds of other messages."""
    found: list[Any] = []
    while until not in found:
        message = await peer.receive()
        events = message.get("events")
        found += (
            [i["payload"] and i["payload"]["data"] for i in events]
            if events
            else [message["msg_type"]]
        )
    return found


async def a_of(gateway: Gateway) -> list[Event]:
    return [i for i in await events_of(gateway, 1) if i.type == ("a",)]


async def delete_meanwhile(path: Path) -> None:
    """Have the first server delete what it registers, while nobody follows it."""
    async with event_server(path, 1, retention=FEW) as first:
        await register(first, 5, 30)
        while len((await first.core.query(QueryTimeseriesParams([("a",)]))).events) > 3:
            await asyncio.sleep(0.01)


async def test_replicated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with event_server(tmp_path, 1) as first:
        port = eventer_port(first)
        await register(first, 0, 5)
        async with event_server(tmp_path, 2, remotes={1: port}) as second:
            while len(stored := await a_of(second)) < 5:
                await asyncio.sleep(0.01)
    seen = [{"server": 1, "session": stored[1].id.session, "instance": 1}]
    await delete_meanwhile(tmp_path)
    async with (
        event_server(tmp_path, 2, remotes={1: port}) as second,
        await RawPeer.init(second.mariner.port, **WANTED, start=seen) as live,
        event_server(tmp_path, 1, port=port, retention=FEW) as first,
    ):
        expected = [2, 3, 4, "up_to_date", "gap", 27, 28, 29]
        assert await values(live, 29) == expected
        async with await RawPeer.init(second.mariner.port, **WANTED, start=seen) as later:
            assert await values(later, 29) == ["gap", 2, 3, 4, 27, 28, 29]
        await register(first, 30, 31)
        assert [i for i in await values(live, 30) if i != "up_to_date"] == [30]
        behind = [{"server": 1, "session": i.id.session, "instance": 1} for i in await a_of(first)]
        async with await RawPeer.init(
            second.mariner.port, **WANTED, start=behind[-2:-1]
        ) as knowing:
            assert await values(knowing, 30) == [30]
        [line] = [i for i in caplog.records if "deleted before" in i.message]
        assert vars(line)["server"] == 1


async def test_relayed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with event_server(tmp_path, 1) as first:
            port = eventer_port(first)
            await register(first, 0, 5)
            eventer = {"host": "127.0.0.1", "port": port}
            relay = await stack.enter_async_context(running_gateway(eventer=eventer))
            while relay.core.status is not Status.OPERATIONAL:
                await asyncio.sleep(0.01)
            peers = [
                await stack.enter_async_context(
                    await RawPeer.init(relay.mariner.port, subscriptions=[["a"]], persisted=i)
                )
                for i in (False, True)
            ]
            await register(first, 5, 6)
            for peer in peers:
                assert [i for i in await values(peer, 5) if i != "status"] == [5]
        await delete_meanwhile(tmp_path)
        async with event_server(tmp_path, 1, port=port, retention=FEW):
            for peer in peers:  # who will not be told of these is to know
                with pytest.raises(asyncio.IncompleteReadError):
                    await values(peer, -1)
        assert relay.mariner.stats.closed["a gap in what it gets"] == 2
    closing = [vars(i) for i in caplog.records if i.message == "closing connection"]
    text = "events of server 1 were deleted before they were relayed"
    assert [i["detail"] for i in closing if "detail" in i] == [text] * 2
