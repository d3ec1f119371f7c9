"""The client against servers that are not there, or do not behave."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import tls
from eventer_bridge.model import QueryLatestParams, QueryTimeseriesParams, Status
from eventer_bridge.net import limits as net_limits
from mariner import client, limits
from mariner.errors import (
    ConnectError,
    ConnectionLostError,
    OutcomeUnknownError,
    RegisterError,
    RemoteProtocolError,
    UnavailableError,
)
from tests.mariner.client.servers import (
    INIT_RES,
    MIB,
    ScriptedPeer,
    closed_by_client,
    register_event,
    scripted,
)
from tests.support.certificates import make_certificates
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_status_right_behind_the_first_answer_is_the_last_word() -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.receive()
        answer = {**INIT_RES, "status": "STANDBY"}
        news = {"msg_type": "status", "status": "OPERATIONAL"}
        peer.send_together((answer, news))
        await closed_by_client(peer)

    async with scripted(script) as server, await server.connect() as connection:
        await connection.wait_status(Status.OPERATIONAL)


async def test_nobody_listens() -> None:
    async with scripted(closed_by_client) as server:
        pass
    with pytest.raises(ConnectError, match=rf"^127\.0\.0\.1:{server.port}: connection refused$"):
        await server.connect()


async def test_unknown_host() -> None:
    with pytest.raises(ConnectError, match="the host name cannot be resolved"):
        await client.connect("no-such-host.invalid", 23014, client_name="app")


async def test_server_does_not_answer() -> None:
    async with scripted(closed_by_client) as server:
        with pytest.raises(ConnectError, match=r": no answer to init_req within 1 s$"):
            await server.connect(connect_timeout_s=1)


async def test_tls_handshake_is_not_answered(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    async with scripted(closed_by_client) as server:
        with pytest.raises(ConnectError, match=r": no connection within 0\.1 s$"):
            await server.connect(connect_timeout_s=0.1, ssl=tls.client_context(made.ca))


async def test_not_a_mariner_server() -> None:
    async def script(peer: ScriptedPeer) -> None:
        peer.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with scripted(script) as server:
        with pytest.raises(ConnectError, match="violated the protocol: frame of 2"):
            await server.connect()


async def test_connection_ends_inside_a_frame() -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        await peer.receive()
        peer.writer.write(b"\x02\x01\x00half")

    async with scripted(script) as server, await server.connect() as conn:
        with pytest.raises(ConnectionLostError, match="in the middle of a frame of 256 bytes"):
            await conn.ping()


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        ({"outcome": "unknown", "error": "outcome unknown: x"}, OutcomeUnknownError, "unknown: x"),
        ({"outcome": "unknown"}, OutcomeUnknownError, "unknown; the server gave no reason"),
        ({"outcome": "unavailable", "error": "why"}, UnavailableError, "^why$"),
        ({"outcome": "another", "error": "why"}, RegisterError, "^why$"),
        ({}, RegisterError, "refused; the server gave no reason"),
    ],
)
async def test_outcomes(said: dict[str, str], error: type[Exception], text: str) -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        register_id = (await peer.receive())["register_id"]
        message = {"msg_type": "register_res", "register_id": register_id, "success": False}
        peer.send(message | said)
        await closed_by_client(peer)

    async with scripted(script) as server, await server.connect() as conn:
        with pytest.raises(error, match=text):
            await conn.register([register_event("a")])
        assert conn.is_open


async def test_invalid_message() -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        peer.send({"msg_type": "status", "status": 1})

    async with scripted(script) as server, await server.connect() as conn:
        await conn.wait_closed()
    assert conn.close_reason is not None
    assert conn.close_reason.startswith("the server violated the protocol: status: /status")


async def test_more_follows_without_events() -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        query_id = (await peer.receive())["query_id"]
        answer = {"msg_type": "query_res", "query_id": query_id, "events": []}
        peer.send({**answer, "more_follows": True})
        await closed_by_client(peer)

    async with scripted(script) as server, await server.connect() as conn:
        with pytest.raises(RemoteProtocolError, match="more_follows, but no events"):
            await anext(aiter(conn.query_all(QueryTimeseriesParams())))


async def test_latest_of_a_server_that_knows_no_pages_of_it() -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        for _ in range(2):
            query = await peer.receive()
            event: dict[str, Any] = {"type": ["a"]}
            event["id"] = {"server": 1, "session": 1, "instance": 1}
            event |= {"timestamp": {"s": 0, "us": 0}, "source_timestamp": None, "payload": None}
            answer = {"query_id": query["query_id"], "events": [event], "more_follows": True}
            peer.send({"msg_type": "query_res", **answer})
        await closed_by_client(peer)

    async with scripted(script) as server, await server.connect() as conn:
        events = aiter(conn.query_all(QueryLatestParams()))
        await anext(events)
        with pytest.raises(RemoteProtocolError, match="query fewer types"):
            await anext(events)


async def test_status_changes() -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        for status in ("STANDBY", "OPERATIONAL"):
            await peer.receive()
            peer.send({"msg_type": "status", "status": status})
        await closed_by_client(peer)

    async with scripted(script) as server, await server.connect() as conn:
        for status in (Status.STANDBY, Status.OPERATIONAL):
            waiting = asyncio.ensure_future(conn.wait_status(status))
            asking = asyncio.ensure_future(conn.ping())
            await waiting
            assert conn.status is status
            asking.cancel()


async def test_pings_of_the_server_are_answered() -> None:
    answered = asyncio.get_running_loop().create_future()

    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        peer.send({"msg_type": "ping_req", "ping_id": 77})
        answered.set_result(await peer.receive())

    async with scripted(script) as server, await server.connect():
        assert await answered == {"msg_type": "ping_res", "ping_id": 77}


@pytest.mark.parametrize(
    ("message", "most"),
    [
        ({"msg_type": "up_to_date"}, 100),
        ({"msg_type": "events", "events": []}, 100),
        ({"msg_type": "gap", "server_id": 1, "oldest": None}, 100),
        (
            {
                "msg_type": "gap",
                "server_id": 1,
                "oldest": None,
                "other_history": {"last": 0, "reason": "x" * 9 * limits.EVENT_BYTES},
            },
            10,
        ),
    ],
    ids=["mark", "no events", "gap", "reason"],
)
async def test_what_holds_no_events_takes_memory_too(
    monkeypatch: pytest.MonkeyPatch, message: dict[str, Any], most: int
) -> None:
    n_bytes = 100 * limits.EVENT_BYTES
    monkeypatch.setattr(limits, "MAX_NOTIFICATIONS_BYTES", n_bytes)

    async def script(peer: ScriptedPeer) -> None:
        assert (await peer.receive())["msg_type"] == "init_req"
        peer.send_together([{**INIT_RES, "extensions": ["replay"]}, *[message] * 1_000])
        await closed_by_client(peer)

    async with scripted(script) as server, await server.connect(start="earliest") as conn:
        await until(lambda: conn._connection.is_reading_paused)
        assert conn._replayed is not None
        assert len(conn._replayed._batches) == most
        n_taken = 0
        async for _ in conn._replayed:  # and it goes on when there is room
            n_taken += 1
            if n_taken == 1_000:
                break


async def test_silent_server_is_noticed() -> None:
    received: list[Any] = []

    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        received.append(await peer.receive())
        await closed_by_client(peer)

    async with (
        scripted(script) as server,
        await server.connect(ping_delay_s=0.05, ping_timeout_s=0.05) as conn,
    ):
        await conn.wait_closed()
    assert conn.close_reason == "no answer to a ping within 0.05 s"
    assert [message["msg_type"] for message in received] == ["ping_req"]


async def test_answered_pings_keep_the_connection() -> None:
    pings: list[int] = []

    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        while True:
            pings.append((await peer.receive())["ping_id"])
            peer.send({"msg_type": "ping_res", "ping_id": pings[-1]})

    async with (
        scripted(script) as server,
        await server.connect(ping_delay_s=0.02, ping_timeout_s=2) as conn,
    ):
        await until(lambda: len(pings) == 2)
        assert conn.is_open


async def test_closing_does_not_wait_for_ever_for_a_server_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net_limits, "CLOSE_TIMEOUT_S", 0.1)
    may_end = asyncio.Event()

    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        await may_end.wait()

    async with scripted(script) as server:
        conn = await server.connect()
        event = register_event("large", value="x" * MIB)
        requests = [asyncio.ensure_future(conn.register([event])) for _ in range(30)]
        await until(lambda: conn._connection.is_write_blocked)
        async with asyncio.timeout(60):
            await conn.async_close()
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        # some were handed over to be sent, and others never
        assert {(type(i), str(i)) for i in outcomes} == {
            (OutcomeUnknownError, f"outcome unknown: {conn.address}: closed by this client"),
            (ConnectionLostError, f"{conn.address}: closed by this client"),
        }
        may_end.set()
