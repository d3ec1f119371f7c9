"""What is registered over Eventer: its payloads come back over both wires, from any backend."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from eventer_bridge import limits
from eventer_bridge.eventer import codec as eventer_codec
from eventer_bridge.eventer.messages import (
    MsgEventsNotify,
    MsgQueryReq,
    MsgQueryRes,
    MsgRegisterReq,
    MsgRegisterRes,
)
from eventer_bridge.model import Event, JsonPayload, Order, QueryTimeseriesParams, RegisterEvent
from eventer_bridge.packed import Batch, TypeTable
from mariner.wire import codec as mariner_codec
from tests.eventer_bridge.eventer.peers import Peer, initialised
from tests.eventer_bridge.packed.support import compiled
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


@compiled
async def test_new_types_of_a_large_registration_are_looked_up_in_slices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where it is read at one go, no more than ``MANY_NEW_TYPES`` are: each takes 10 us."""
    n_looked_up: list[int] = []

    def spy(module: Any, name: str) -> None:
        read = getattr(module, name)

        def counted(message: bytes, types: TypeTable, *args: int) -> Batch | None:
            n_before = len(types)
            batch: Batch | None = read(message, types, *args)
            n_looked_up.append(len(types) - n_before)
            return batch

        monkeypatch.setattr(module, name, counted)

    spy(eventer_codec, "read_sbs")
    spy(mariner_codec, "read_json")
    core = {
        "server_id": 1,
        "backend": {"type": "rocksdb", "path": str(tmp_path)},
        "eventer_server": {"host": "127.0.0.1", "port": 0, "token": None},
    }
    async with running_gateway(event_core=core) as gateway:
        assert gateway.eventer_server is not None
        names = [f"{i:x>10}" for i in range(4_000)]
        async with initialised(gateway.eventer_server) as peer:
            events = [RegisterEvent((name,), None, None) for name in names]
            peer.send(MsgRegisterReq(events), last=False)
            response, _ = await peer.receive(MsgRegisterRes)
            assert [i.type for i in response.events or ()] == [i.type for i in events]
        async with await RawPeer.init(gateway.mariner.port) as raw:
            registered = [
                {"type": ["of mariner", name], "source_timestamp": None, "payload": None}
                for name in names
            ]
            answer = await raw.request(
                {"msg_type": "register_req", "register_id": 1, "register_events": registered}
            )
            assert [i["type"][1] for i in answer["events"]] == names
    assert len(n_looked_up) >= 2
    assert max(n_looked_up) == limits.MANY_NEW_TYPES
