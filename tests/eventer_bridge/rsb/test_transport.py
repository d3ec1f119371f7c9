"""The bus over real sockets: relay, shutting down, and peers that misbehave."""

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Final

import pytest

from eventer_bridge import limits
from eventer_bridge.errors import ClosedError, ConnectError
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.admission import Admission
from eventer_bridge.net.quota import Bounds
from eventer_bridge.net.stream import Pause
from eventer_bridge.rsb import codec, transport
from eventer_bridge.rsb import limits as rsb_limits
from eventer_bridge.rsb.event import RsbEvent
from eventer_bridge.rsb.transport import BusClient, BusServer, Received, RsbConnection, RsbStats
from tests.eventer_bridge.rsb.peers import RawPeer, raw_server
from tests.eventer_bridge.rsb.samples import sample
from tests.support.waiting import until

EVENT: Final = sample()
FRAME: Final = codec.encode_frame(codec.encode(EVENT))


class Recorder:
    """Keeps what comes."""

    def __init__(self) -> None:
        self.events: list[RsbEvent] = []
        self.connections: list[RsbConnection] = []

    def __call__(self, connection: RsbConnection, batch: Sequence[Received]) -> None:
        assert len(batch) <= rsb_limits.RSB_TURN_EVENTS
        self.connections.append(connection)
        self.events += [received.event for received in batch]

    async def wait(self, count: int) -> list[RsbEvent]:
        await until(lambda: len(self.events) >= count)
        return self.events


@contextlib.asynccontextmanager
async def serving(recorder: Recorder | None = None) -> AsyncIterator[BusServer]:
    bus = await transport.listen("127.0.0.1", 0, recorder or Recorder(), RsbStats())
    async with bus:
        yield bus
    assert bus._stats.connections == bus._stats.clients == 0
    assert sum(bus._stats.closed.values()) == bus._stats.accepted


@pytest.mark.parametrize("name", ["RSB_TURN_BYTES", "RSB_TURN_RELAYED_BYTES"])
async def test_turns_are_bounded_in_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rsb_limits, name, 2 * len(FRAME))
    sizes: list[int] = []

    def on_events(connection: RsbConnection, batch: Sequence[Received]) -> None:
        sizes.append(len(batch))

    bus = await transport.listen("127.0.0.1", 0, on_events, RsbStats())
    async with bus, await RawPeer.connect(bus.port) as peer:
        peer.send(*[EVENT] * 100)
        await until(lambda: sum(sizes) == 100)
    assert max(sizes) <= 3


async def test_a_full_read_lets_others_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "FULL_READ_BYTES", len(FRAME))
    is_read_on: list[bool] = []  # after a full read
    receive = RsbConnection.data_received

    def note(connection: RsbConnection, data: bytes) -> None:
        receive(connection, data)
        if len(data) >= len(FRAME):
            is_read_on.append(connection._transport.is_reading())

    monkeypatch.setattr(RsbConnection, "data_received", note)
    recorder = Recorder()
    async with serving(recorder) as bus, await RawPeer.connect(bus.port) as peer:
        for n in range(1, 4):
            peer.send(EVENT)
            await recorder.wait(n)  # goes on by itself
    assert is_read_on == [False] * 3


async def test_turns_are_short_where_there_are_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rsb_limits, "RSB_TURN_FRAMES", 8)
    sizes: list[int] = []
    senders: list[RsbConnection] = []

    def on_events(connection: RsbConnection, batch: Sequence[Received]) -> None:
        sizes.append(len(batch))
        senders.extend([connection] * len(batch))

    bus = await transport.listen("127.0.0.1", 0, on_events, RsbStats())
    async with bus, contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(await RawPeer.connect(bus.port)) for _ in range(4)]
        peers[0].send(*[EVENT] * 200)
        peers[1].send(*[EVENT] * 200)
        await until(lambda: len(senders) == 400)
        assert max(sizes) == 2
        first_done = min(len(senders) - senders[::-1].index(i) for i in set(senders))
        assert first_done > 300  # they took turns
        for n in range(2):
            for _ in range(200):
                await peers[n].receive()


async def test_a_server_relays_to_all_others_as_it_came() -> None:
    recorder = Recorder()
    odd = codec.encode(EVENT) + b"\x98\x06\x2a"  # with a field that we do not know
    async with (
        serving(recorder) as bus,
        await RawPeer.connect(bus.port) as sender,
        await RawPeer.connect(bus.port) as first,
        await RawPeer.connect(bus.port) as second,
    ):
        sender.writer.write(codec.encode_frame(odd))
        assert await first.receive_notification() == odd
        assert await second.receive_notification() == odd
        first.send(sample(2))
        assert await sender.receive() == sample(2)  # and nothing before it
        bus.send(codec.encode(sample(3)))
        assert await sender.receive() == sample(3)
        assert await recorder.wait(2) == [EVENT, sample(2)]
        assert bus._stats.relayed == 4


async def test_byte_by_byte_and_many_at_a_time() -> None:
    recorder = Recorder()
    async with serving(recorder) as bus, await RawPeer.connect(bus.port) as peer:
        for byte in FRAME:
            peer.writer.write(bytes([byte]))
            await peer.writer.drain()
            await asyncio.sleep(0)
        await recorder.wait(1)
        many = [sample(i) for i in range(1000)]
        peer.send(*many)
        assert await recorder.wait(1001) == [EVENT, *many]


async def test_two_of_ours() -> None:
    at_server, at_client = Recorder(), Recorder()
    async with (
        serving(at_server) as bus,
        await transport.connect("127.0.0.1", bus.port, at_client) as connection,
    ):
        connection.write(FRAME)
        bus.send(codec.encode(sample(1)))
        assert await at_server.wait(1) == [EVENT]
        assert await at_client.wait(1) == [sample(1)]


async def test_shutting_down_is_the_end_of_stream_then_the_peers() -> None:
    async with raw_server() as server:
        connecting = asyncio.create_task(transport.connect("127.0.0.1", server.port, Recorder()))
        peer = await server.accept()
        connection = await connecting
        connection.write(FRAME)
        connection.close()
        assert await peer.receive() == EVENT
        assert await peer.is_ended()
        assert not connection.is_closed  # it waits for us
        peer.writer.write_eof()
        await connection.wait_closed()
        with pytest.raises(ClosedError, match="closed by this side"):
            await connection.drain()


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_server_that_closes_does_the_same(is_paused: bool) -> None:
    recorder = Recorder()
    async with serving(recorder) as bus, await RawPeer.connect(bus.port) as peer:
        peer.send(EVENT)
        await recorder.wait(1)
        if is_paused:
            recorder.connections[0].pause_reading(Pause.USER)
        bus.close()
        assert await peer.is_ended()
        assert not bus.is_closed
        peer.writer.write_eof()
        await bus.wait_closed()


async def test_a_peer_that_does_not_end_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "CLOSE_TIMEOUT_S", 0.05)
    async with serving() as bus, await RawPeer.connect(bus.port) as peer:
        await bus.async_close()
        assert await peer.is_ended()


async def test_at_the_peers_end_everything_is_heard_and_closed_at_once() -> None:
    recorder = Recorder()
    many = [sample(i) for i in range(300)]
    async with serving(recorder) as bus, await RawPeer.connect(bus.port) as peer:
        peer.send(*many)
        peer.writer.write_eof()
        assert await peer.is_ended()
        assert recorder.events == many
        await until(lambda: bus._stats.closed == {"peer closed": 1})


def _huge() -> bytes:
    return (rsb_limits.MAX_NOTIFICATION_BYTES + 1).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("data", "is_ended", "detail"),
    [
        (_huge(), False, "frame of 16777217 bytes announced, at most 16777216 are allowed"),
        (b"GET / HTTP/1.1\r\n\r\n", False, "frame of 542393671 bytes announced"),
        (codec.encode_frame(b""), False, "notification: event_id: missing"),
        (codec.encode_frame(b"\xff"), False, "notification: not in the form of protocol buffers"),
        (FRAME[:-1], True, f"ended within a frame, {len(FRAME) - 1} bytes of it came"),
        (b"\x01", True, "ended within a frame, 1 bytes of it came"),
    ],
)
async def test_a_broken_frame_closes_that_connection_only(
    data: bytes, is_ended: bool, detail: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "eventer_bridge")
    recorder = Recorder()
    async with (
        serving(recorder) as bus,
        await RawPeer.connect(bus.port) as good,
        await RawPeer.connect(bus.port) as other,
        await RawPeer.connect(bus.port) as bad,
    ):
        bad.writer.write(FRAME + data)
        if is_ended:
            bad.writer.write_eof()
        assert await good.receive() == EVENT  # what came before is heard
        # what the others sent comes first or not at all
        with contextlib.suppress(ConnectionError):
            await bad.reader.read()
        await until(lambda: bus._stats.closed == {"protocol error": 1})
        other.send(sample(1))
        assert await good.receive() == sample(1)
        assert recorder.events == [EVENT, sample(1)]
    [record] = [i for i in caplog.records if i.message == "closing connection"]
    assert record.__dict__["detail"].startswith(detail)


async def test_a_participant_that_is_killed_within_a_frame() -> None:
    recorder = Recorder()
    async with serving(recorder) as bus, await RawPeer.connect(bus.port) as good:
        bad = socket.create_connection(("127.0.0.1", bus.port))
        bad.sendall(FRAME[:-5])
        # the kernel of a killed process resets what has unread data
        bad.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: bus._stats.accepted == 2)
        bad.close()
        await until(lambda: bus._stats.connections == 1)
        bus.send(codec.encode(EVENT))
        assert await good.receive() == EVENT
        assert recorder.events == []


async def test_a_participant_that_does_not_read_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(net_limits, "MAX_SEND_BUFFER_BYTES", 4 << 20)
    large = sample(1, "bytes", bytes(1 << 20))
    async with (
        serving() as bus,
        await RawPeer.connect(bus.port) as sender,
        await RawPeer.connect(bus.port) as good,
        await RawPeer.connect(bus.port) as deaf,
    ):
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]  # uvloop's has it
        sent = 0
        while not bus._stats.closed:
            sender.send(large)
            sent += 1
            assert await good.receive() == large
            assert sent < 100
        assert bus._stats.closed == {"slow consumer": 1}
    assert "slow consumer" in [i.__dict__.get("reason") for i in caplog.records]


async def test_what_stalls_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "WRITE_STALL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(limits, "SWEEP_PERIOD_S", 0.02)
    async with serving() as bus, await RawPeer.connect(bus.port) as deaf:
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]  # uvloop's has it
        for _ in range(16):
            bus.send(codec.encode(sample(1, "bytes", bytes(1 << 20))))
        await until(lambda: bus._stats.closed == {"write stalled": 1})


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rsb_limits, "MAX_RSB_CONNECTIONS", 1)
    async with serving() as bus, await RawPeer.connect(bus.port) as peer:
        second = RawPeer(*await asyncio.open_connection("127.0.0.1", bus.port))
        assert await second.is_ended()
        second.writer.close()
        bus.send(codec.encode(EVENT))
        assert await peer.receive() == EVENT
        assert bus._stats.closed == {"too many connections": 1}


async def test_a_paused_connection_is_not_read_from() -> None:
    recorder = Recorder()
    async with serving(recorder) as bus, await RawPeer.connect(bus.port) as peer:
        peer.send(EVENT)
        await recorder.wait(1)
        connection = recorder.connections[0]
        connection.pause_reading(Pause.USER)
        connection.pause_reading(Pause.CORE_FULL)
        peer.send(*[sample(i, "bytes", bytes(100_000)) for i in range(100)])
        connection.resume_reading(Pause.USER)
        connection.resume_reading(Pause.QUERIES_FULL)
        bus.send(codec.encode(EVENT))
        assert await peer.receive() == EVENT
        assert len(recorder.events) == 1
        connection.resume_reading(Pause.CORE_FULL)
        await recorder.wait(101)


async def test_a_callback_that_fails_closes_that_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Recorder):
        def __call__(self, connection: RsbConnection, batch: Sequence[Received]) -> None:
            raise RuntimeError("a mistake of ours")

    async with serving(Failing()) as bus, await RawPeer.connect(bus.port) as peer:
        peer.send(EVENT)
        assert await peer.is_ended()
        await until(lambda: bus._stats.closed == {"internal error": 1})
    assert "handler failed" in caplog.text


@pytest.mark.parametrize(
    ("handshake", "reason"),
    [
        (b"\0\0\1\0", "protocol error"),
        (b"HTTP", "protocol error"),
        (b"\0\0", "no connection and handshake within 0.1 s"),
    ],
)
async def test_who_is_no_bus(
    handshake: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_limits, "CONNECT_TIMEOUT_S", 0.1 if len(handshake) < 4 else 10.0)
    async with raw_server() as server:
        connecting = asyncio.create_task(transport.connect("127.0.0.1", server.port, Recorder()))
        await server.accept(handshake)
        with pytest.raises(ConnectError, match=f"127.0.0.1:{server.port}: {reason}"):
            await connecting


async def test_nobody_listens() -> None:
    async with raw_server() as server:
        port = server.port
    with pytest.raises(ConnectError, match=f"127.0.0.1:{port}: connection refused"):
        await transport.connect("127.0.0.1", port, Recorder())


async def test_a_client_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eventer_bridge")
    recorder = Recorder()
    async with raw_server() as server:
        connected: list[int] = []
        client = BusClient(
            "127.0.0.1", server.port, recorder, RsbStats(), lambda: connected.append(1)
        )
        async with client:
            peer = await server.accept()
            await until(lambda: client.is_connected)
            peer.send(EVENT)
            await recorder.wait(1)
            peer.writer.close()
            peer = await server.accept()
            await until(lambda: len(connected) == 2)
            client.send(codec.encode(EVENT))
            assert await peer.receive() == EVENT
            peer.writer.write_eof()
    assert [i.message for i in caplog.records][:3] == [
        "RSB bus is connected",
        "RSB bus is lost",
        "RSB bus is connected",
    ]


async def test_a_client_waits_for_its_server(caplog: pytest.LogCaptureFixture) -> None:
    async with raw_server() as server:
        port = server.port
    client = BusClient("127.0.0.1", port, Recorder(), RsbStats(), lambda: None)
    async with client:
        client.send(codec.encode(EVENT))  # lost
        await until(lambda: "RSB bus is not reachable" in caplog.text)
        async with raw_server(port) as server:
            peer = await server.accept()
            await until(lambda: client.is_connected)
            client.send(codec.encode(sample(1)))
            assert await peer.receive() == sample(1)
            peer.writer.write_eof()
            await client.async_close()


async def test_the_bus_takes_only_a_part_of_the_slots_of_the_process() -> None:
    admission = Admission(Bounds(100, 100, 8, 8))
    async with await transport.listen(
        "127.0.0.1", 0, Recorder(), stats := RsbStats(), admission=admission
    ) as bus:
        peers = [await asyncio.open_connection("127.0.0.1", bus.port) for _ in range(8)]
        await until(lambda: stats.accepted == 8 and stats.connections == 1)
        assert stats.closed == {"too many connections": 7}
        for _, writer in peers:
            writer.close()
