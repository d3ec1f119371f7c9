"""What a peer does wrong over a real socket: closed with the reason, and others go on."""

import asyncio
import contextlib
import logging
import random
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from eventer_bridge import limits
from eventer_bridge.chatter.codec import Dialect, Msg, encode
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.framing import encode_frame
from tests.eventer_bridge.chatter.peers import (
    ANY,
    Echo,
    RawPeer,
    Recorder,
    connected,
    listening,
)

HELLO = Msg(1, 1, True, True, True, "T.Hello", b"")


def wire(*msgs: Msg) -> bytes:
    return b"".join(encode_frame(encode(i, Dialect.CURRENT)) for i in msgs)


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (wire(Msg(2, 1, True, True, False, "T.A", b"")), "conversation 1 of its sender, which"),
        (wire(Msg(1, 1, False, True, False, "T.A", b"")), "conversation 1 of its receiver, which"),
        (wire(HELLO, Msg(2, 1, True, True, True, "T.A", b"")), "never began or has ended"),
        (
            wire(
                Msg(1, 1, True, True, False, "T.A", b""), Msg(2, 1, True, True, False, "T.B", b"")
            ),
            "message 2 (T.B) belongs to <conversation 1, the peer's>,"
            " whose token its sender does not hold",
        ),
        (wire(Msg(1, 1, True, False, False, "T.A", b"")) * 2, "is open already"),
        (wire(HELLO, Msg(2, 2, False, True, True, "HatChatter.Pong", b"")), "never began"),
        (b"\x00", "frame header: first byte is 0, expected 1 to 255"),
        (b"\x01\x00", "empty frame, expected a chatter message"),
        (b"\x03\x01\x00\x01", "frame of 65537 bytes announced, at most 65536 are allowed"),
        (wire(HELLO) + b"\x04\x01\x00\x00\x01", "frame of 16777217 bytes announced, at most"),
        (b"\xff" * 256, "frame of 2**64 or more bytes announced, at most 65536 are allowed"),
        (b"\x01\x05hello", "the message ends before its type"),
        (wire(HELLO) + b"\x01\x05\x81\x81\x02\x00\x00", "expected bytes that are 00 or 01"),
        (b"GET / HTTP/1.1\r\nHost: " + b"x" * 100, "announced"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60), "announced"),
    ],
)
async def test_a_violation_closes_with_the_reason(
    data: bytes, detail: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "eventer_bridge")
    async with listening() as there, connected(there.address) as other:
        other.connection.send("T.A", b"")
        good: Recorder = await there.handlers.get()
        await good.messages.get()
        async with await RawPeer.connect(there.address) as raw:
            raw.writer.write(data)
            assert await raw.is_closed_by_peer()
            handler = await there.handlers.get()
            assert await handler.closed == "protocol error"
        [record] = [i for i in caplog.records if i.message == "closing connection"]
        assert record.__dict__["reason"] == "protocol error"
        assert detail in record.__dict__["detail"]
        assert len(record.__dict__["detail"]) <= limits.MAX_LOG_CHARACTERS
        other.connection.send("T.B", b"")
        assert (await good.messages.get()).type == "T.B"


async def test_nothing_is_kept_of_what_a_lost_connection_sent() -> None:
    n_bytes = 1 << 20
    half = wire(HELLO) + b"\x04" + (2 * n_bytes).to_bytes(4, "big") + bytes(n_bytes)
    handlers = []
    tracemalloc.start()
    try:
        async with listening() as there:
            for _ in range(4):
                async with await RawPeer.connect(there.address) as raw:
                    raw.writer.write(half)
                    await raw.writer.drain()
                handlers.append(await there.handlers.get())
                assert await handlers[-1].closed == "protocol error"
        assert tracemalloc.get_traced_memory()[0] < n_bytes
    finally:
        tracemalloc.stop()


async def test_a_connection_that_is_cut_in_a_message(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as there:
        async with await RawPeer.connect(there.address) as raw:
            raw.writer.write(wire(HELLO) + b"\x01\x30abc")
        handler = await there.handlers.get()
        assert await handler.closed == "protocol error"
        assert (await handler.messages.get()).type == "T.Hello"
    [record] = [i for i in caplog.records if i.message == "closing connection"]
    assert record.__dict__["detail"] == (
        "connection ended in the middle of a frame of 48 bytes, 3 received"
    )


async def test_byte_by_byte() -> None:
    async with listening(Echo) as there, await RawPeer.connect(there.address) as raw:
        for byte in wire(Msg(1, 1, True, True, False, "HatChatter.Ping", b""), HELLO) + wire(
            Msg(300, 300, True, True, False, "T.A", b"x" * 300)
        ):
            raw.writer.write(bytes([byte]))
            await raw.writer.drain()
            await asyncio.sleep(0)
        assert await raw.receive() == Msg(1, 1, False, True, True, "HatChatter.Pong", b"")
        assert await raw.receive() == Msg(2, 300, False, True, True, "Test.MsgEcho", b"x" * 300)


async def test_garbage_costs_nobody_else_anything() -> None:
    generator = random.Random(1)
    async with listening(Echo) as there, connected(there.address) as here:
        for _ in range(100):
            async with await RawPeer.connect(there.address) as raw:
                data = bytearray(
                    wire(*(Msg(i, i, True, True, False, "T.A", b"x") for i in range(9)))
                )
                for _ in range(generator.randint(1, 5)):
                    data[generator.randrange(len(data))] = generator.randrange(256)
                raw.writer.write(data)
                raw.writer.write_eof()
                await raw.reader.read()
            assert await here.ask() == b"what"
        assert len(there.listener.connections) == 1


async def test_pings_without_reading_the_pongs_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net_limits, "SEND_HIGH_WATER_BYTES", 50_000)
    pings = wire(*(Msg(i, i, True, True, False, "HatChatter.Ping", b"") for i in range(1, 2000)))
    async with listening() as there:
        raw = await RawPeer.connect(there.address, receive_buffer_bytes=5_000)
        async with raw:
            raw.send(Msg(9999, 9999, True, True, True, "T.Hello", b""))
            handler = await there.handlers.get()
            await handler.messages.get()
            while not handler.connection.is_write_blocked:
                raw.writer.write(pings)
                await asyncio.sleep(0)
            for _ in range(40):
                raw.writer.write(pings)
                await asyncio.sleep(0)
            assert handler.connection.unread_bytes < 500_000
            assert handler.connection.is_open


def pings(first: int, count: int) -> list[Msg]:
    ids = range(first, first + count)
    return [Msg(i, i, True, True, False, "HatChatter.Ping", b"") for i in ids]


@contextlib.asynccontextmanager
async def blocked_by_its_server() -> AsyncIterator[tuple[Recorder, RawPeer]]:
    """Who connected to a raw peer, and sent it more than is read."""
    peers: asyncio.Queue[RawPeer] = asyncio.Queue()
    server = await asyncio.start_server(
        lambda reader, writer: peers.put_nowait(RawPeer(reader, writer)), ANY.host, 0
    )
    address = ANY._replace(port=server.sockets[0].getsockname()[1])
    async with server, connected(address) as here, await peers.get() as peer:
        while not here.connection.is_write_blocked:
            here.connection.send("T.A", bytes(100_000))
            await asyncio.sleep(0)
        yield here, peer


async def test_who_connected_bounds_the_pongs_that_are_not_read() -> None:
    async with blocked_by_its_server() as (here, peer):
        n_bytes = here.connection.unread_bytes
        n_sent = 0
        while not here.closed.done():
            peer.send(*pings(n_sent + 1, 500))
            n_sent += 500
            await asyncio.sleep(0)
            assert here.connection.unread_bytes < n_bytes + 500_000
        assert await here.closed == "slow consumer"
        text = here.connection.close_text
        assert text is not None
        assert text.endswith("pongs are not read")


async def test_who_connected_answers_pings_while_it_is_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net_limits, "MAX_SEND_BUFFER_BYTES", 1)  # a large message is no reason
    async with blocked_by_its_server() as (here, peer):
        peer.send(
            *pings(1, net_limits.MAX_UNREAD_PONGS),
            Msg(9999, 9999, True, True, True, "T.Hello", b""),
        )
        assert (await here.messages.get()).type == "T.Hello"
        pongs = 0
        while pongs < net_limits.MAX_UNREAD_PONGS:
            pongs += (await peer.receive()).type == "HatChatter.Pong"
        assert here.connection.is_open
