"""Requests whose answers do not come as they should, or not at all."""

import asyncio

import pytest

from mariner.errors import (
    ConnectionLostError,
    OutcomeUnknownError,
    RegisterError,
    RemoteProtocolError,
)
from mariner.wire.messages import PingRes
from tests.mariner.client.servers import (
    MIB,
    ScriptedPeer,
    closed_by_client,
    register_event,
    scripted,
)
from tests.support.waiting import until


async def test_what_was_sent_is_told_from_what_was_not() -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        await peer.receive()

    async with scripted(script) as server, await server.connect() as conn:
        event = register_event("lost")
        with pytest.raises(OutcomeUnknownError, match=f"^outcome unknown: {conn.address}: the ser"):
            await conn.register([event])
        with pytest.raises(ConnectionLostError, match=f"^{conn.address}: the server closed"):
            await conn.register([event])


async def test_nothing_is_sent_when_the_transport_closes_already() -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        await closed_by_client(peer)

    async with scripted(script) as server, await server.connect() as conn:
        transport = conn._connection._transport
        assert transport is not None
        transport.close()  # of which nobody was told yet
        with pytest.raises(ConnectionLostError, match=f"^{conn.address}: connection lost"):
            await conn.register([register_event("never")])


async def test_answer_of_another_kind() -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        ping_id = (await peer.receive())["ping_id"]
        peer.send({"msg_type": "register_res", "register_id": ping_id, "success": False})
        await closed_by_client(peer)

    async with scripted(script) as server, await server.connect() as conn:
        with pytest.raises(
            RemoteProtocolError, match="RegisterRes answers request 1, expected PingRes"
        ):
            await conn.ping()
        await conn.wait_closed()


async def test_registrations_wait_for_a_server_that_does_not_read() -> None:
    may_read = asyncio.Event()

    async def script(peer: ScriptedPeer) -> None:
        await peer.accept()
        await may_read.wait()
        while True:
            register_id = (await peer.receive())["register_id"]
            peer.send({"msg_type": "register_res", "register_id": register_id, "success": False})

    async with scripted(script) as server, await server.connect() as conn:
        event = register_event("large", value="x" * MIB)
        requests = [asyncio.ensure_future(conn.register([event])) for _ in range(30)]
        await until(lambda: conn._connection.is_write_blocked)
        for _ in range(50):
            await asyncio.sleep(0)
        transport = conn._connection._transport
        assert transport is not None
        assert transport.get_write_buffer_size() < 3 * MIB, "one request above the mark at most"
        may_read.set()
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(i) for i in outcomes] == [RegisterError] * 30


async def accepting(peer: ScriptedPeer) -> None:
    """Answers pings."""
    await peer.accept()
    while True:
        peer.send({"msg_type": "ping_res", "ping_id": (await peer.receive())["ping_id"]})


async def test_nothing_is_sent_after_closing() -> None:
    """Not even before the connection knows."""
    async with scripted(accepting) as server, await server.connect() as conn:
        conn.close()
        assert conn.close_reason is None
        with pytest.raises(ConnectionLostError, match=f"^{conn.address}: closed by this client$"):
            await conn.register([register_event("never")])


async def test_nothing_is_kept_of_requests_that_nobody_waits_for() -> None:
    async with scripted(accepting) as server, await server.connect() as conn:
        await conn.ping()
        request = asyncio.ensure_future(conn.ping())
        while not conn._requests.pending:
            await asyncio.sleep(0)
        [request_id] = conn._requests.pending
        request.cancel()
        conn._requests.on_answer(request_id, PingRes(request_id))  # at the same time
        await asyncio.wait([request])
        assert request.cancelled()
        assert not conn._requests.pending
        await conn.ping()
