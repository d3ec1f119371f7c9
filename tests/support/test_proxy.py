"""The proxy does what its plans say, to the byte."""

import asyncio
import random

from tests.support import proxy
from tests.support.proxy import PASS, Plan

DATA = bytes(range(256)) * 100


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """What comes until the end, or until the connection fails."""
    received = b""
    try:
        while data := await reader.read(1 << 16):
            received += data
    except ConnectionError:
        pass
    return received


async def through(plan: Plan) -> tuple[bytes, int]:
    """What comes back of the data that is sent to an echo through the proxy; its cuts."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, proxy.create(server.sockets[0].getsockname()[1], [plan]) as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        writer.write(DATA)
        writer.write_eof()
        received = await read_all(reader)
        writer.close()
        return received, it.n_cuts


async def test_everything_is_passed_on() -> None:
    for plan in (PASS, Plan(max_chunk_bytes=100, max_delay_s=0.0001, seed=1)):
        assert await through(plan) == (DATA, 0)


async def test_cut_at_a_byte() -> None:
    assert await through(Plan(cut_after_bytes=0)) == (b"", 1)
    received, n_cuts = await through(Plan(cut_after_bytes=len(DATA) + 1000))
    assert DATA.startswith(received)
    assert 1000 <= len(received) < len(DATA)
    assert n_cuts == 1
    received, n_cuts = await through(Plan(cut_after_bytes=len(DATA) // 2, is_reset=True))
    assert DATA.startswith(received)
    assert n_cuts == 1


async def test_cut_now_and_nobody_there() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, proxy.create(server.sockets[0].getsockname()[1]) as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        writer.write(b"a")
        assert await reader.read(1) == b"a"
        it.cut()
        await it.until_cuts(1)
        assert await read_all(reader) == b""
        writer.close()
        server.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        assert await read_all(reader) == b""
        writer.close()
        assert it.n_connections == 2


def test_plans_depend_on_the_seed_only() -> None:
    first, second = (proxy.by_chance(random.Random(3), 10_000) for _ in range(2))
    plans = [next(first) for _ in range(100)]
    assert plans == [next(second) for _ in range(100)]
    cuts = [plan.cut_after_bytes or 0 for plan in plans]
    assert min(cuts) < 100
    assert max(cuts) > 1_000


async def test_it_holds_one_direction_and_refuses() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, proxy.create(server.sockets[0].getsockname()[1]) as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        it.hold(1)
        it.is_refusing = True
        writer.write(b"b")
        refused, other = await asyncio.open_connection("127.0.0.1", it.port)
        assert await read_all(refused) == b""
        other.close()
        coming = asyncio.create_task(reader.readexactly(1))
        assert not coming.done()
        it.go_on()
        assert await coming == b"b"
        writer.close()
