"""Life cycle of a gateway, as clients see it and as it stands in the store afterwards."""

import signal
from pathlib import Path
from typing import Any

from tests.support.gateway import gateway
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req

CONNECTED = ["event", "communication", "connected"]
DISCONNECTED = ["event", "communication", "disconnected"]
APP = ["event", "1", "eventer", "app"]
ENGINE = ["event", "1", "engine"]


async def stored(peer: RawPeer, *types: list[str]) -> list[dict[str, Any]]:
    """What is stored of these types, oldest first."""
    response = await peer.request(
        {
            "msg_type": "query_req",
            "query_id": 1,
            "query_type": "timeseries",
            "event_types": types,
            "order": "ASCENDING",
            "order_by": "TIMESTAMP",
        }
    )
    events: list[dict[str, Any]] = response["events"]
    return events


def states(events: list[dict[str, Any]]) -> list[Any]:
    return [e["payload"]["data"] for e in events]


async def test_start_and_stop_are_events_and_clients_are_told(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        peer = await RawPeer.init(running.port)
        assert states(await stored(peer, ENGINE)) == ["STARTED"]
        running.process.send_signal(signal.SIGTERM)
        assert await peer.receive() == {"msg_type": "status", "status": "STANDBY"}
        assert await peer.is_closed_by_server()
        assert await running.process.wait() == 0
        peer.writer.close()
    async with gateway(tmp_path) as running, await RawPeer.init(running.port) as peer:
        events = await stored(peer, ENGINE, APP)
        until_stopped = ["STARTED", "CONNECTED", "DISCONNECTED", "STOPPED"]
        assert states(events) == [*until_stopped, "STARTED", "CONNECTED"]
        sessions = [e["id"]["session"] for e in events]
        assert sessions == list(range(1, 7))  # nothing was reserved for nothing


async def test_connections_are_events() -> None:
    async with (
        running_gateway() as running,
        await RawPeer.init(running.mariner.port, subscriptions=[["event", "*"]]) as watcher,
    ):
        # it hears of itself: its subscription holds before it is announced
        await check_announcement(watcher, CONNECTED, "CONNECTED")
        async with await RawPeer.init(running.mariner.port) as other:
            await check_announcement(watcher, CONNECTED, "CONNECTED")
            assert (await other.request(register_req(1, event("a"))))["success"]
        await check_announcement(watcher, DISCONNECTED, "DISCONNECTED")
        async with await RawPeer.connect(running.mariner.port) as stranger:
            assert not (await stranger.request({"msg_type": "ping_req", "ping_id": 1}))["success"]
            assert await stranger.is_closed_by_server()
        # who was not let in did not connect
        assert states(await stored(watcher, APP)) == ["CONNECTED", "CONNECTED", "DISCONNECTED"]


async def check_announcement(peer: RawPeer, event_type: list[str], state: str) -> None:
    """The two events of one session that tell of a connection."""
    first, second = (await peer.receive())["events"]
    assert (first["type"], first["payload"]) == (event_type, None)
    assert (second["type"], second["payload"]["data"]) == (APP, state)
    assert first["id"]["session"] == second["id"]["session"]
    assert first["source_timestamp"] is second["source_timestamp"] is None


async def test_a_name_that_is_no_segment_of_a_type_connects_all_the_same() -> None:
    client = {
        "name": "*",
        "token": None,
        "subscriptions": [["*"]],
        "register_events": [{"subscriptions": [["*"]]}],
    }
    async with (
        running_gateway([client]) as running,
        await RawPeer.init(running.mariner.port, client_name="*", client_token=None) as peer,
    ):
        assert (await peer.request(register_req(1, event("a"))))["success"]
        told = await stored(peer, ["event", "communication", "*"], ["event", "1", "eventer"])
        assert [i["type"] for i in told] == [["event", "communication", "connected"]]
