"""Whatever waits for a client is on the account of the process, and too much of it goes."""

import asyncio
import base64
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.memory import account_of_process
from eventer_bridge.model import QueryResult
from eventer_bridge.net.stream import Pause
from mariner.gateway.gateway import Gateway
from mariner.server.connection import ClientConnection
from tests.eventer_bridge.backends.faults import being_synced, held_sync
from tests.support.inprocess import APP, running_gateway
from tests.support.peer import INIT, RawPeer, event, register_req
from tests.support.waiting import until
from tests.torture.attacks import eventer, rsb
from tests.torture.attacks.attack import Target

TIMEOUT_S: Final = 60.0
PING: Final[dict[str, Any]] = {"msg_type": "ping_req", "ping_id": 1}
OTHER: Final = {**APP, "name": "other"}
EVENTER: Final = {"host": "127.0.0.1", "port": 0, "token": "insider"}
RSB: Final = {"host": "127.0.0.1", "port": 0, "mode": "server", "scopes_in": ["/"]}
LARGE_BYTES: Final = 600_000


def held() -> int:
    return account_of_process().n_bytes


def reset(peer: RawPeer) -> None:
    """End a connection at once, whatever it has not sent yet."""
    tcp = peer.writer.get_extra_info("socket")
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.writer.transport.abort()


def query(query_id: int, n_types: int) -> dict[str, Any]:
    types = [["type", "x" * 1_000, str(i)] for i in range(n_types)]
    return {
        "msg_type": "query_req",
        "query_id": query_id,
        "query_type": "latest",
        "event_types": types,
    }


@contextlib.asynccontextmanager
async def slowly_asking(gateway: Gateway) -> AsyncIterator[RawPeer]:
    """A client whose next query waits until its quota is paid for, which it never is."""
    async with await RawPeer.init(gateway.mariner.port) as peer:
        [account] = [i for i in gateway.mariner.service.accounts if i.name == "app"]
        assert account.throttle is not None
        account.throttle.spend("query_ms_per_s", 1e9)
        yield peer


async def test_queries_that_wait() -> None:
    slow = {**APP, "quota": {"query_ms_per_s": 1}}
    async with running_gateway([slow, OTHER]) as gateway, slowly_asking(gateway) as peer:
        for number in range(40):
            peer.send(query(number, 100))
        await until(lambda: held() >= limits.MAX_QUERIES_WAITING_BYTES)
        [client] = [i for i in gateway.mariner.connections if i.client == "app"]
        await until(lambda: client.pauses)
        # two or three of them, and what was received and not taken
        assert held() < limits.MAX_QUERIES_WAITING_BYTES + 800_000
        async with await RawPeer.init(gateway.mariner.port, client_name="other") as other:
            assert (await other.request(PING))["msg_type"] == "ping_res"
        reset(peer)
        await until(lambda: not held())


async def test_queries_with_too_long_types_do_not_wait() -> None:
    for types, reason in (
        ([["a"] * 1_000], "query type has 1000 segments, at most 65 are allowed"),
        ([["a" * 2_000]], "query type has 2000 characters, at most 1025 are allowed"),
        ([["a"]] * 1_001, "more than 1000 query types in one subscription"),
    ):
        async with running_gateway() as gateway, await RawPeer.init(gateway.mariner.port) as peer:
            peer.send({**query(1, 0), "event_types": types})
            assert await peer.is_closed_by_server()
            declined = await RawPeer.connect(gateway.mariner.port)
            async with declined:
                answer = await declined.request({**INIT, "subscriptions": types})
            assert answer["error"] == f"init_req: /subscriptions: {reason}"


async def test_large_registrations_that_wait_for_their_turn() -> None:
    async with running_gateway([APP, OTHER]) as gateway, contextlib.AsyncExitStack() as stack:
        lane = gateway.core.lane
        for _ in range(limits.MAX_LARGE_SESSIONS):
            await lane.enter("somebody")
        peers = [
            await stack.enter_async_context(await RawPeer.init(gateway.mariner.port))
            for _ in range(3)
        ]
        for number, peer in enumerate(peers):
            peer.send(register_req(number, event("large", value="x" * LARGE_BYTES)))
        await until(lambda: held() >= 3 * LARGE_BYTES)
        other = await RawPeer.init(gateway.mariner.port, client_name="other")
        await stack.enter_async_context(other)
        other.send(register_req(9, event("large", value="y" * LARGE_BYTES)))
        await until(lambda: held() >= 4 * LARGE_BYTES)
        reset(peers[2])  # who leaves does not wait any more
        await until(lambda: held() < 4 * LARGE_BYTES)
        order: list[int] = []

        async def answered(peer: RawPeer) -> None:
            answer = await peer.receive()
            assert answer["success"]
            order.append(answer["register_id"])

        lane.leave("somebody")  # one place, for one after the other
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*map(answered, (*peers[:2], other)))
        assert order[1] == 9, "clients take turns"
        await until(lambda: not held())


async def test_who_waits_with_too_much_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_MEMORY_BYTES", 5 * LARGE_BYTES)
    async with running_gateway([APP, OTHER]) as gateway, contextlib.AsyncExitStack() as stack:
        lane = gateway.core.lane
        for _ in range(limits.MAX_LARGE_SESSIONS):
            await lane.enter("somebody")
        closed = gateway.mariner.stats.closed
        honest = await RawPeer.init(gateway.mariner.port, client_name="other")
        await stack.enter_async_context(honest)
        honest.send(register_req(1, event("large", value="x" * 2 * LARGE_BYTES)))
        await until(lambda: held() >= 2 * LARGE_BYTES)
        peers = [await RawPeer.init(gateway.mariner.port) for _ in range(5)]
        for peer in peers:
            await stack.enter_async_context(peer)
            peer.send(register_req(1, event("large", value="x" * LARGE_BYTES)))
        await until(lambda: closed["too much is buffered"] == 3)
        assert held() <= 5 * LARGE_BYTES
        for peer in peers:
            reset(peer)
        await until(lambda: held() < 3 * LARGE_BYTES)
        lane.leave("somebody")
        assert (await honest.receive())["success"], "it had most in one message, but not in all"


@pytest.mark.parametrize("n_each", [30_000, 100_000, 400_000])
async def test_registrations_that_wait_until_the_core_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_each: int
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_BYTES", 2 * n_each)
    monkeypatch.setattr(limits, "MAX_GATHERED_BYTES", 2 * n_each)
    async with (
        running_gateway([APP, OTHER], path=tmp_path) as gateway,
        contextlib.AsyncExitStack() as stack,
    ):
        peers = [
            await stack.enter_async_context(await RawPeer.init(gateway.mariner.port))
            for _ in range(12)
        ]
        other = await RawPeer.init(gateway.mariner.port, client_name="other")
        await stack.enter_async_context(other)
        core = gateway.core
        await until(lambda: not core.pending_events)  # that they came
        n_before = core.n_ended
        with held_sync() as may_sync:
            for number, peer in enumerate(peers):
                peer.send(register_req(number, event("a", value="x" * n_each)))
            await until(lambda: core.is_full)
            await until(lambda: held() >= 12 * n_each)
            # not one more of each connection
            assert core.pending_events <= 4
            assert (await other.request(PING))["msg_type"] == "ping_res"
            other.send(register_req(99, event("a")))
            await being_synced(gateway.backend)
            order: list[int] = []

            async def answered(peer: RawPeer) -> None:
                answer = await peer.receive()
                assert answer["success"]
                order.append(answer["register_id"])

            answers = asyncio.gather(*map(answered, (*peers, other)))
            may_sync.release(1000)
            async with asyncio.timeout(TIMEOUT_S):
                await answers
        assert core.n_ended >= n_before + 13
        assert order.index(99) < 8, order  # after those under way, and one of the other client
        await until(lambda: not held())


async def test_who_leaves_does_not_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_BYTES", 50_000)
    monkeypatch.setattr(limits, "MAX_GATHERED_BYTES", 50_000)
    async with running_gateway(path=tmp_path) as gateway:
        with held_sync():
            peers = [await RawPeer.init(gateway.mariner.port) for _ in range(4)]
            for peer in peers:
                peer.send(register_req(1, event("a", value="x" * 100_000)))

            def waiting() -> list[ClientConnection]:
                return [i for i in gateway.mariner.connections if Pause.CORE_FULL in i.pauses]

            await until(lambda: held() >= 400_000 and len(waiting()) >= 2)
            left = waiting()
            for client in left:
                client._transport.abort()
            await until(lambda: held() < 400_000 - 90_000 * len(left))
            for peer in peers:
                peer.writer.close()


async def test_who_is_closed_for_what_waits_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_BYTES", 50_000)
    monkeypatch.setattr(limits, "MAX_GATHERED_BYTES", 50_000)
    monkeypatch.setattr(limits, "MAX_MEMORY_BYTES", 500_000)
    async with running_gateway(path=tmp_path) as gateway:
        with held_sync():
            peers = [await RawPeer.init(gateway.mariner.port) for _ in range(12)]
            for peer in peers:
                peer.send(register_req(1, event("a", value="x" * 100_000)))
            closed = gateway.mariner.stats.closed
            await until(lambda: closed["too much is buffered"] >= 8)
            # perhaps all that are left: what the core has may be of one that was closed
            await until(lambda: len(gateway.core._waiting) <= 12 - closed["too much is buffered"])
            assert held() <= 500_000
            for peer in peers:
                peer.writer.close()


async def test_notifications_of_rsb_wait_until_the_core_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_BYTES", 50_000)
    core_conf = {"server_id": 1, "backend": {"type": "rocksdb", "path": str(tmp_path)}, "rsb": RSB}
    async with running_gateway(event_core=core_conf) as gateway:
        assert gateway.rsb is not None
        to = Target(0, 0, gateway.rsb.port or 0, 0, 1)
        n_before = gateway.core.n_ended
        with held_sync():
            senders = [await asyncio.to_thread(rsb.connect, to) for _ in range(6)]
            for number, sender in enumerate(senders):
                await asyncio.to_thread(
                    sender.sendall, rsb.notification(number, "/a/", b"x" * 100_000)
                )
            await until(lambda: held() >= 600_000)
            assert gateway.core.pending_events <= 2
            senders[5].close()
            senders[4].close()
        await until(lambda: gateway.core.n_ended >= n_before + 4)
        await until(lambda: not held())
        for sender in senders:
            sender.close()


async def test_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    types = [["a", "b", str(i)] for i in range(1_000)]
    monkeypatch.setattr(limits, "MAX_CLIENT_SUBSCRIPTIONS", 2_500)
    async with running_gateway() as gateway:
        before = held()
        async with await RawPeer.init(gateway.mariner.port, subscriptions=types):
            assert held() - before > 500_000
            async with (
                await RawPeer.init(gateway.mariner.port, subscriptions=types),
                await RawPeer.connect(gateway.mariner.port) as third,
            ):
                answer = await third.request({**INIT, "subscriptions": types})
                assert answer["error"] == (
                    "too many subscriptions of this client (max_subscriptions: 2500)"
                )
        await until(lambda: held() <= before)


async def test_they_are_held_by_who_holds_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_MEMORY_BYTES", 5_000_000)
    types = [["a", "b", str(i)] for i in range(1_000)]
    async with running_gateway([APP, OTHER]) as gateway, contextlib.AsyncExitStack() as stack:
        other = await RawPeer.init(gateway.mariner.port, client_name="other", subscriptions=types)
        await stack.enter_async_context(other)
        for _ in range(10):
            peer = await RawPeer.init(gateway.mariner.port, subscriptions=types)
            await stack.enter_async_context(peer)
        assert gateway.mariner.stats.closed["too much is buffered"] >= 4
        assert (await other.request(PING))["msg_type"] == "ping_res"
        assert held() <= 5_000_000


async def test_components_ask_in_small_messages() -> None:
    core_conf = {"server_id": 1, "backend": {"type": "memory"}, "eventer_server": EVENTER}
    async with running_gateway(event_core=core_conf) as gateway:
        assert gateway.eventer_server is not None
        port = gateway.eventer_server.address.port
        closed = gateway.eventer_server.stats.closed
        for number, types in enumerate(([["x" * 1_100_000]], [["x" * 2_000]], [["a"] * 100]), 1):
            component = await asyncio.to_thread(eventer.Component, port)
            with component.socket:
                request = eventer.timeseries_req(2, types, newest=True)
                await asyncio.to_thread(component.socket.sendall, request)
                while closed["protocol error"] < number:
                    await asyncio.sleep(0.005)


async def test_notifications_that_are_held_for_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a client joins, the rest that it missed is read."""
    async with (
        running_gateway(path=tmp_path) as gateway,
        await RawPeer.init(gateway.mariner.port) as writer,
    ):
        core, n_asked, is_read = gateway.core, 0, asyncio.Event()
        answer = core.answer

        async def answer_late(query: VisibleQuery, *others: Any) -> QueryResult:
            nonlocal n_asked
            n_asked += 1
            if n_asked > 1:  # it has a place
                await is_read.wait()
            result = await answer(query, *others)
            if n_asked == 1:
                assert (await writer.request(register_req(1, event("a"))))["success"]
            return result

        monkeypatch.setattr(core, "answer", answer_late)
        reader = await RawPeer.init(
            gateway.mariner.port, subscriptions=[["a"]], persisted=True, start="earliest"
        )
        async with reader, asyncio.timeout(TIMEOUT_S):
            await until(lambda: n_asked == 2)
            for number in range(10):
                request = register_req(number, event("a", value="x" * 100_000))
                assert (await writer.request(request))["success"]
            assert held() >= 1_000_000
            is_read.set()
            n_events = 0
            while n_events < 11:
                message = await reader.receive()
                n_events += len(message.get("events", ()))
            await until(lambda: held() < 100_000)


async def test_what_has_its_turn_waits_until_the_core_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that is large, and of which no large session is made."""
    n_bytes = 450_000
    data = base64.b64encode(bytes(n_bytes)).decode()
    payload = {"payload_type": "binary", "data_type": "t", "data": data}
    monkeypatch.setattr(limits, "MAX_PENDING_BYTES", n_bytes)
    async with (
        running_gateway(path=tmp_path) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        await until(lambda: not gateway.core.pending_events)
        with held_sync() as may_sync:
            for number in range(10):
                peer.send(register_req(number, {**event("a"), "payload": payload}))
            await until(lambda: len(gateway.core._waiting) == 1)
            assert gateway.core._pending_bytes < 2 * n_bytes + 1_000
            assert held() >= 2 * len(data)  # what waits for its commit, too
            may_sync.release(1000)
            for number in range(10):
                answer = await peer.receive()
                assert (answer["register_id"], answer["success"]) == (number, True)


async def test_what_was_not_held_is_not_counted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_MEMORY_BYTES", 1_000_000)
    padded = msgspec.json.encode({**PING, "x": "x" * 12_000})
    async with running_gateway() as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        for _ in range(200):
            assert (await peer.request(padded))["msg_type"] == "ping_res"
        assert (await peer.request(register_req(1, event("a"))))["success"]


async def test_what_comes_together_is_held_until_it_is_stored(tmp_path: Path) -> None:
    async with (
        running_gateway(path=tmp_path) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        assert (await peer.request(register_req(0, event("a"))))["success"]
        await until(lambda: not gateway.core.pending_events)
        with held_sync():
            some = [register_req(i, event("a", value="x" * 300)) for i in range(60)]
            peer.send_together(some)
            await until(lambda: gateway.core.pending_events == 60)
            [client] = gateway.mariner.connections
            assert client.held_bytes >= 60 * 300
