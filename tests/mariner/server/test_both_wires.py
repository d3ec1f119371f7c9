"""What is registered over Eventer: its payloads come back over both wires, from any backend."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from eventer_bridge.eventer.messages import (
    MsgEventsNotify,
    MsgQueryReq,
    MsgQueryRes,
    MsgRegisterReq,
    MsgRegisterRes,
)
from eventer_bridge.model import Event, JsonPayload, Order, QueryTimeseriesParams, RegisterEvent
from tests.eventer_bridge.eventer.peers import Peer, initialised
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer

TEXTS = (b" 1", b"\t[1,\r\n 2]\n", b"\n{}", b'"a" ', b"1")
QUERY = {
    "msg_type": "query_req",
    "query_id": 1,
    "query_type": "timeseries",
    "event_types": [["a"]],
    "order": "ASCENDING",
    "order_by": "TIMESTAMP",
}


def texts(events: Any) -> list[bytes]:
    """Payloads of Eventer's events, as they are."""
    found: list[Event] = [*events]
    return [bytes(i.payload.data) for i in found if isinstance(i.payload, JsonPayload)]


async def found_by_eventer(peer: Peer) -> list[bytes]:
    peer.send(MsgQueryReq(QueryTimeseriesParams([("a",)], order=Order.ASCENDING)), last=False)
    response, _ = await peer.receive(MsgQueryRes)
    return texts(response.result.events)


def values(message: dict[str, Any]) -> list[Any]:
    return [i["payload"]["data"] for i in message["events"]]


@pytest.mark.parametrize("together", [1, len(TEXTS)])
@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
async def test_payloads_stay_as_they_came(backend: str, together: int, tmp_path: Path) -> None:
    core = {
        "server_id": 1,
        "backend": {"type": backend} | ({"path": str(tmp_path)} if backend == "rocksdb" else {}),
        "eventer_server": {"host": "127.0.0.1", "port": 0, "token": None},
    }
    expected = [json.loads(i) for i in TEXTS]
    async with running_gateway(event_core=core) as gateway:
        assert gateway.eventer_server is not None
        async with (
            initialised(gateway.eventer_server) as peer,
            initialised(gateway.eventer_server, [("a",)]) as subscriber,
            await RawPeer.init(gateway.mariner.port, subscriptions=[["a"]]) as other,
        ):
            for begin in range(0, len(TEXTS), together):
                part = TEXTS[begin : begin + together]
                events = [RegisterEvent(("a",), None, JsonPayload(Raw(i))) for i in part]
                peer.send(MsgRegisterReq(events), last=False)
                response, _ = await peer.receive(MsgRegisterRes)
                assert texts(response.events) == [*part]
                notified, _ = await subscriber.receive(MsgEventsNotify)
                assert texts(notified.events) == [*part]
                assert values(await other.receive()) == expected[begin : begin + together]
            assert await found_by_eventer(peer) == [*TEXTS]
            assert values(await other.request(QUERY)) == expected
    if backend == "rocksdb":
        async with running_gateway(event_core=core) as gateway:
            assert gateway.eventer_server is not None
            async with initialised(gateway.eventer_server) as peer:
                assert await found_by_eventer(peer) == [*TEXTS]
