"""What a stream does for peers that are slow, half-closed, held back or lost."""

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from eventer_bridge import chatter, limits
from eventer_bridge.chatter.codec import Msg
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.sockets import TcpState, tcp_state
from eventer_bridge.net.stream import Pause
from eventer_bridge.rsb import transport as rsb
from mariner.client.connection import ServerConnection
from mariner.server.connection import ClientConnection
from tests.eventer_bridge.chatter.peers import ANY, Recorder, connected, listening
from tests.eventer_bridge.chatter.peers import RawPeer as RawChatterPeer
from tests.support.certificates import make_certificates
from tests.support.inprocess import running_gateway
from tests.support.peer import INIT, RawPeer, event, frame, register_req

LARGE = "x" * 200_000
QUERY = {
    "msg_type": "query_req",
    "query_id": 1,
    "query_type": "timeseries",
    "event_types": [["a"]],
    "order": "DESCENDING",
    "order_by": "TIMESTAMP",
}


async def test_who_sends_no_more_and_reads_slowly_gets_its_whole_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SWEEP_PERIOD_S", 0.01)
    monkeypatch.setattr(net_limits, "CLOSE_TIMEOUT_S", 0.02)
    monkeypatch.setattr(net_limits, "LINGER_S", 0.01)
    n_sweeps = 0
    sweep = ClientConnection.sweep

    def count(connection: ClientConnection, now: float) -> None:
        nonlocal n_sweeps
        n_sweeps += connection.is_write_blocked
        sweep(connection, now)

    monkeypatch.setattr(ClientConnection, "sweep", count)
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        for i in range(60):
            await peer.request(register_req(i, event("a", value=LARGE)))
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.send(QUERY)
        peer.writer.write_eof()
        async with asyncio.timeout(60):
            while n_sweeps < 20:
                await asyncio.sleep(0.001)
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        message = await peer.receive()
        while message["msg_type"] == "ping_req":
            message = await peer.receive()
        assert len(message["events"]) == 60


async def test_the_kernel_takes_little_for_who_does_not_read() -> None:
    async with listening() as there, connected(there.address) as here:
        here.connection.send("T.A", b"")
        handler = await there.handlers.get()
        here.connection.pause_reading(Pause.USER)
        while not handler.connection.is_write_blocked:
            handler.connection.send("T.A", bytes(50_000))
            await asyncio.sleep(0)
        # what is on its way, by the receive buffer of the peer, and what is not
        assert handler.connection.left_bytes < 2 << 20


async def test_a_conversation_does_not_expire_while_its_answer_is_not_read() -> None:
    async with listening() as there, connected(there.address) as here:
        here.connection.send("T.Begin", b"")
        handler = await there.handlers.get()
        await handler.messages.get()
        connection = handler.connection
        connection.send("T.Ask", b"", last=False, timeout_s=0.0)
        connection.pause_reading(Pause.CORE_FULL)
        question = await here.messages.get()
        here.connection.send("T.Answer", b"", conversation=question.conversation)
        connection.sweep(time.monotonic())
        connection.resume_reading(Pause.CORE_FULL)
        connection.sweep(time.monotonic())  # before the loop has looked at the socket
        assert connection.close_reason is None
        assert (await handler.messages.get()).type == "T.Answer"


@asynccontextmanager
async def resetting(greeting: bytes = b"") -> AsyncIterator[int]:
    """Port of a server that resets each connection."""

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()
        await reader.read(1)
        tcp = writer.get_extra_info("socket")
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_who_connected_learns_why_it_was_lost() -> None:
    async with resetting() as port:
        client = ServerConnection(lambda message: None, lambda: None)
        await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", port)
        client._transport.write(b"x")
        await client.lost
        assert client.close_text == "connection reset by peer"
        connection, _ = await chatter.connect(ANY._replace(port=port), Recorder)
        connection.send("T.A", b"")
        await connection.lost
        assert connection.close_reason == "connection lost"
    async with resetting(bytes(4)) as port:
        participant = await rsb.connect("127.0.0.1", port, lambda connection, batch: None)
        participant.write(b"x")
        await participant.lost
        assert participant.close_reason == "connection lost"


def test_a_reset_that_is_not_noticed_yet_does_not_end_the_sweep() -> None:
    """Sending our end fails then, with asyncio's own loop."""

    async def close_after_reset() -> None:
        async with listening() as there, await RawChatterPeer.connect(there.address) as raw:
            raw.send(Msg(1, 1, True, True, False, "T.A", b""))
            connection = (handler := await there.handlers.get()).connection
            message = await handler.messages.get()
            connection.send("T.B", b"", conversation=message.conversation)  # it has to be read
            connection.pause_reading(Pause.USER)
            tcp = raw.writer.get_extra_info("socket")
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.writer.transport.abort()
            async with asyncio.timeout(60):
                while tcp_state(connection._transport) is not TcpState.RESET:
                    await asyncio.sleep(0.001)
                connection.close()
                await connection.lost
            assert await handler.closed == "closed by this side"

    asyncio.run(close_after_reset())


async def test_nothing_is_sent_behind_the_end() -> None:
    class Closing(Recorder):
        def on_message(self, message: chatter.Message) -> None:
            self.connection.close()

    async with listening(Closing) as there, await RawChatterPeer.connect(there.address) as raw:
        pings = [Msg(i, i, True, True, False, "HatChatter.Ping", b"") for i in (1, 3)]
        raw.send(pings[0], Msg(2, 2, True, True, True, "T.A", b""), pings[1])
        pong = await raw.receive()
        assert (pong.type, pong.first) == ("HatChatter.Pong", 1)
        assert await raw.is_closed_by_peer()
        raw.writer.write_eof()
        assert await (await there.handlers.get()).closed == "closed by this side"


async def test_over_tls_what_came_before_the_end_is_heard(tmp_path: Path) -> None:
    """Though some of it is refused, and answered at once."""
    made = make_certificates(tmp_path)
    tls = {"cert": str(made.server_cert), "key": str(made.server_key)}
    listens = {"host": "127.0.0.1", "port": 0, "tls": tls}
    context = ssl.create_default_context(cafile=made.ca)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    async with running_gateway(mariner=listens) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.mariner.port)
        while True:
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65_536))
        stats = gateway.mariner.stats
        session.write(frame(msgspec.json.encode(INIT)))
        writer.write(outgoing.read())
        while not stats.clients:
            await asyncio.sleep(0.001)
        for i in range(net_limits.TURN_MESSAGES + 72):
            session.write(frame(msgspec.json.encode({**register_req(i), "register_events": [5]})))
        for i in range(50):
            session.write(frame(msgspec.json.encode(register_req(i, event("good")))))
        with pytest.raises(ssl.SSLWantReadError):
            session.unwrap()
        writer.write(outgoing.read())
        async with asyncio.timeout(60):
            while stats.events_registered < 50:
                await asyncio.sleep(0.001)
        assert stats.rejected == {"invalid message": net_limits.TURN_MESSAGES + 72}
        writer.close()
