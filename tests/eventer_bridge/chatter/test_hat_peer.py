"""Ours and the real ``hat.drivers.chatter``, over a socket, in both roles."""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from hat.drivers import chatter as hat
from hat.drivers import net

from eventer_bridge import chatter, limits, tls
from eventer_bridge.net import limits as net_limits
from tests.eventer_bridge.chatter.peers import ANY, Echo, Recorder, connected, listening
from tests.support.certificates import make_certificates

COUNT: Final = 3000  # more than hat-drivers' queues hold


class HatListener:
    """A listener of hat-drivers; its connections in their order."""

    def __init__(self) -> None:
        self.connections: asyncio.Queue[hat.Connection] = asyncio.Queue()
        self.address = ANY


@contextlib.asynccontextmanager
async def hat_listening(**arguments: Any) -> AsyncIterator[HatListener]:
    it = HatListener()
    server = await hat.listen(
        it.connections.put_nowait, net.TcpAddress("127.0.0.1", 0), **arguments
    )
    try:
        it.address = ANY._replace(port=server.info.addresses[0].port, is_tls="ssl" in arguments)
        yield it
    finally:
        await server.async_close()


@contextlib.asynccontextmanager
async def hat_connected(address: chatter.Address, **arguments: Any) -> AsyncIterator[Any]:
    tcp = net.TcpAddress(address.host, address.port)
    connection = await hat.connect(tcp, **arguments)
    try:
        yield connection
    finally:
        await connection.async_close()


async def talk_to_hat(ours: chatter.Connection, recorder: Recorder, theirs: Any) -> None:
    """A conversation of several messages that we begin, and one that hat-drivers begins."""
    asked = ours.send("T.MsgA", b"1", last=False, token=False)
    ours.send("T.MsgA", b"2", conversation=asked, last=False)
    first, second = [await theirs.receive() for _ in range(2)]
    assert (first.first, first.token, first.last, first.data.type) == (True, False, False, "T.MsgA")
    assert (second.first, second.token, second.last) == (False, True, False)
    assert second.conv == first.conv
    await theirs.send(hat.Data("T.MsgB", b"3"), conv=first.conv, last=False)
    message = await recorder.messages.get()
    assert message.conversation is asked
    assert asked.may_send
    ours.send("T.MsgC", b"4", conversation=asked)
    third = await theirs.receive()
    assert (third.first, third.last, bytes(third.data.data)) == (False, True, b"4")

    conv = await theirs.send(hat.Data("T.MsgD", b"5"), last=False, token=False)
    await theirs.send(hat.Data("T.MsgD", b"6"), conv=conv, last=False)
    messages = [await recorder.messages.get() for _ in range(2)]
    assert [(i.data, i.is_first, i.is_last) for i in messages] == [
        (b"5", True, False),
        (b"6", False, False),
    ]
    conversation = messages[0].conversation
    ours.send("T.MsgE", b"7", conversation=conversation, last=False)
    answer = await theirs.receive()
    assert (answer.conv, answer.first, answer.last) == (conv, False, False)
    await theirs.send(hat.Data("T.MsgF", b"8"), conv=conv)
    last = await recorder.messages.get()
    assert last.is_last
    assert last.conversation is conversation


async def test_their_client_and_our_listener() -> None:
    async with listening() as ours, hat_connected(ours.address) as theirs:
        await theirs.send(hat.Data("T.MsgHello", b"x" * 300))
        recorder = await ours.handlers.get()
        message = await recorder.messages.get()
        assert (message.data, message.is_last) == (b"x" * 300, True)
        await talk_to_hat(recorder.connection, recorder, theirs)
    assert await recorder.closed == "peer closed"


async def test_our_client_and_their_listener() -> None:
    async with hat_listening() as theirs, connected(theirs.address) as recorder:
        connection = await theirs.connections.get()
        await talk_to_hat(recorder.connection, recorder, connection)
        await connection.async_close()
        assert await recorder.closed == "peer closed"


async def test_tls_in_both_roles(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    server, client = (
        tls.server_context(made.server_cert, made.server_key),
        tls.client_context(made.ca),
    )
    tls_any = ANY._replace(is_tls=True)
    async with (
        listening(Echo, tls_any, tls=server) as ours,
        hat_connected(ours.address, ssl=client) as theirs,
    ):
        await theirs.send(hat.Data("T.MsgA", b"1"), last=False)
        assert bytes((await theirs.receive()).data.data) == b"1"
    async with (
        hat_listening(ssl=server) as theirs,
        connected(theirs.address, tls=client) as recorder,
    ):
        assert recorder.connection.ssl_object is not None
        await talk_to_hat(recorder.connection, recorder, await theirs.connections.get())


async def test_pings_in_both_directions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each peer is kept alive by the other's pongs for several time-outs."""
    monkeypatch.setattr(limits, "SWEEP_PERIOD_S", 0.02)
    caplog.set_level(logging.DEBUG, "hat.drivers.chatter")
    timeouts: list[tuple[str, float, dict[str, Any]]] = [
        ("received ping request", 0.1, {"ping_delay": None}),
        ("received ping response", math.inf, {"ping_delay": 0.1, "ping_timeout": 30}),
    ]
    for record, delay_s, theirs in timeouts:
        monkeypatch.setattr(net_limits, "PING_DELAY_S", delay_s)
        async with (
            listening(Echo) as our_listener,
            hat_connected(our_listener.address, **theirs) as their_client,
            hat_listening(**theirs) as their_listener,
            connected(their_listener.address) as recorder,
        ):
            # a listener does not ping before it knows the peer's dialect
            await their_client.send(hat.Data("T.MsgA", b""), last=False)
            await their_client.receive()
            caplog.clear()
            while sum(i.message.startswith(record) for i in caplog.records) < 6:
                await asyncio.sleep(0.01)
            await their_client.send(hat.Data("T.MsgA", b"1"), last=False)
            assert bytes((await their_client.receive()).data.data) == b"1"
            connection = await their_listener.connections.get()
            recorder.connection.send("T.MsgA", b"2", last=False)
            assert bytes((await connection.receive()).data.data) == b"2"


async def test_thousands_of_conversations_at_once() -> None:
    async with listening(Echo) as ours, hat_connected(ours.address) as theirs:

        async def receive_all() -> set[bytes]:
            return {bytes((await theirs.receive()).data.data) for _ in range(COUNT)}

        expected = {str(i).encode() for i in range(COUNT)}
        _, received = await asyncio.gather(
            asyncio.gather(*(theirs.send(hat.Data("T.MsgA", i), last=False) for i in expected)),
            receive_all(),
        )
        assert received == expected


async def test_our_client_answers_to_a_burst() -> None:
    async with hat_listening() as theirs, connected(theirs.address) as recorder:
        connection = await theirs.connections.get()

        async def echo() -> None:
            for _ in range(COUNT):
                message = await connection.receive()
                await connection.send(message.data, conv=message.conv)

        asked = [recorder.connection.send("T.MsgA", b"%d" % i, last=False) for i in range(COUNT)]
        await echo()
        received = [await recorder.messages.get() for _ in range(COUNT)]
        assert [i.conversation for i in received] == asked
        assert [i.data for i in received] == [b"%d" % i for i in range(COUNT)]
