"""Large registrations: done in slices, in order, and others do not wait for them."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.core.authentication import Authenticator
from eventer_bridge.core.payload_schemas import PayloadSchemas
from eventer_bridge.core.rights import ClientConfig, RegisterRule
from eventer_bridge.net import stream
from eventer_bridge.net.sockets import write_parts
from eventer_bridge.packed import Batch
from eventer_bridge.slices import Steps
from eventer_bridge.subscription import Subscription
from mariner.limits import LARGE_FRAME_BYTES
from mariner.server import connection, encoding
from tests.eventer_bridge.modules import scripted
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req

N = 4 * limits.LARGE_SESSION_EVENTS
QUERY = {
    "msg_type": "query_req",
    "query_id": 1,
    "query_type": "timeseries",
    "event_types": [["large"]],
    "order": "ASCENDING",
    "order_by": "TIMESTAMP",
    "max_results": 10,
}


def large(register_id: int) -> dict[str, Any]:
    return register_req(register_id, *[event("large", value=i) for i in range(N)])


async def test_others_do_not_wait(tmp_path: Path) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
        await RawPeer.init(gateway.mariner.port) as other,
    ):
        peer.send(large(1))
        answer = asyncio.ensure_future(peer.receive())
        n_pings = n_queries = 0
        while not answer.done():
            pong = await other.request({"msg_type": "ping_req", "ping_id": n_pings})
            assert pong["ping_id"] == n_pings
            n_pings += not answer.done()
            found = (await other.request(QUERY))["events"]
            n_queries += not answer.done()
            assert len(found) in (0, 10)  # a session is seen whole or not at all
        assert n_pings > 1  # dealt with at a stretch, one at the most
        assert n_queries > 0
        response = await answer
        assert response["success"]
        assert [i["payload"]["data"] for i in response["events"]] == list(range(N))


async def test_one_that_is_sent_again_is_answered_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[Batch] = []
    prepare = encoding.prepare

    def note(batch: Batch) -> Steps[None]:
        prepared.append(batch)
        return prepare(batch)

    monkeypatch.setattr(encoding, "prepare", note)
    request = {**large(1), "request_key": "k"}
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
        await RawPeer.init(gateway.mariner.port) as other,
    ):
        for client in peer, other:
            client.send(request)  # perhaps while the first one is under way
        first, second = [await i.receive() for i in (peer, other)]
        third = await peer.request(request)
    assert len(prepared) == 3
    assert first["events"] == second["events"] == third["events"]
    assert third["repeated"]


async def test_a_large_answer_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[list[bytes]] = []

    def note(transport: asyncio.WriteTransport, parts: list[bytes]) -> None:
        written.append(parts)
        write_parts(transport, parts)

    monkeypatch.setattr(stream, "write_parts", note)
    value = "x" * limits.LARGE_SESSION_BYTES
    async with running_gateway() as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        response = await peer.request(register_req(1, event("a", value=value)))
        assert response["events"][0]["payload"]["data"] == value
    ((size, head, encoded, tail),) = (parts for parts in written if len(parts) > 1)
    assert encoded.startswith(b'{"id":')
    assert len(size + head + tail) < 100


async def test_whatever_follows_the_events_of_a_large_registration(tmp_path: Path) -> None:
    request = msgspec.json.encode(large(1))[:-1]
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        for key in (r'"\u017e"', '"]"', r'"\"]},\\"'):
            peer.send(b'%b,"request_key":%b}' % (request, key.encode()))
            assert len((await peer.receive())["events"]) == N
            wrong = request.replace(b'"source_timestamp":null', b'"source_timestamp":1', 1)
            peer.send(b'%b,"request_key":%b}' % (wrong, key.encode()))
            response = await peer.receive()
            assert response["register_id"] == 1
            assert "/register_events/0: Expected `object | null`" in response["error"]


async def test_what_a_client_asks_is_done_in_order(tmp_path: Path) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        for register_id in range(4):
            peer.send(
                register_req(register_id, event("a")) if register_id % 2 else large(register_id)
            )
        peer.send(QUERY)
        received = [await peer.receive() for _ in range(5)]
        registered = [i for i in received if i["msg_type"] == "register_res"]
        assert [i["register_id"] for i in registered] == [0, 1, 2, 3]
        sessions = [i["events"][0]["id"]["session"] for i in registered]
        assert sessions == list(range(sessions[0], sessions[0] + 4))
        # what it registered before is found
        assert len(received[-1]["events"]) == 10 or received[-1] in registered


async def test_many_short_events_are_answered_too(tmp_path: Path) -> None:
    short: dict[str, Any] = {"type": [], "source_timestamp": None, "payload": None}
    request = register_req(1, *[short] * (limits.LARGE_SESSION_EVENTS + 1))
    assert len(str(request)) < LARGE_FRAME_BYTES
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        response = await peer.request(request)
        assert len(response["events"]) == limits.LARGE_SESSION_EVENTS + 1


async def test_who_is_notified_finds_it(tmp_path: Path) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
        await RawPeer.init(gateway.mariner.port, subscriptions=[["large"]]) as early,
        await RawPeer.init(gateway.mariner.port, subscriptions=[["large"]], persisted=True) as late,
    ):
        peer.send(large(1))
        for subscriber in early, late:
            notified = await subscriber.receive()
            assert [i["payload"]["data"] for i in notified["events"]] == list(range(N))
            assert len((await subscriber.request(QUERY))["events"]) == 10
        assert (await peer.receive())["success"]


async def test_small_ones_that_are_handed_over_in_steps_are_answered() -> None:
    async with (
        running_gateway() as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
        await RawPeer.init(gateway.mariner.port, subscriptions=[["small", "*"]]) as subscriber,
    ):
        events = [event("small", str(i), value=i) for i in range(2 * limits.STEP_EVENTS)]
        for register_id in range(8):  # the first is large, for its new types
            peer.send(register_req(register_id, *events))
        for register_id in range(8):
            for received in (await peer.receive(), await subscriber.receive()):
                assert received.get("register_id", register_id) == register_id
                data = [i["payload"]["data"] for i in received["events"]]
                assert data == list(range(len(events)))


async def test_a_large_registration_is_answered_while_the_server_closes(tmp_path: Path) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        peer.send(large(1))
        while gateway.core.pending_events < N:
            await asyncio.sleep(0)
        closing = asyncio.ensure_future(gateway.async_close())
        while (message := await peer.receive())["msg_type"] == "status":
            pass
        assert message["success"]
        await closing


async def test_a_large_registration_without_rights_is_refused() -> None:
    client = {
        "name": "app",
        "token": "secret",
        "subscriptions": [["*"]],
        "register_events": [{"subscriptions": [["large"]]}],
    }
    events = [event("large") for _ in range(N)]
    async with (
        running_gateway([client]) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        response = await peer.request(register_req(1, *events, event("other")))
        assert response["error"] == f"register_events[{N}]: no right to register 'other'"
        wrong = {**event("large"), "type": 1}
        response = await peer.request(register_req(2, *events, wrong))
        assert response["error"].startswith(f"register_req: /register_events/{N}: Expected `array`")
        assert (await peer.request(register_req(3, *events)))["success"]


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_small_registration_that_modules_make_large_is_answered(key: str | None) -> None:
    """Nobody is subscribed, so that nobody has its events encoded."""
    add_many = scripted.answering({("go",): [("added",)] * limits.LARGE_SESSION_EVENTS})
    client = ClientConfig("a", "secret", (("*",),), (RegisterRule((("*",),)),))
    authenticator = Authenticator([client], PayloadSchemas({}))
    async with scripted.running(Subscription([("go",)])) as (core, [module]):
        module.on_process = add_many
        async with (
            await connection.listen(core, authenticator, "127.0.0.1", 0) as served,
            await RawPeer.init(served.port, client_name="a") as peer,
        ):
            first = register_req(1, event("go"))
            second = register_req(2, event("x"))
            if key is not None:
                first["request_key"] = key
                second = {**first, "register_id": 2}
            peer.send(first)
            peer.send(second)
            answers = [await peer.receive() for _ in range(2)]
        assert [(i["register_id"], len(i["events"])) for i in answers] == [(1, 1), (2, 1)]
        assert [i.get("repeated") for i in answers] == [None, None if key is None else True]
