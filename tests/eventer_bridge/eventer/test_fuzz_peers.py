"""Random peers on real sockets: an Eventer server and a client outlive whatever they say.

What they say is Eventer messages, right and wrong ones, in conversations that are mostly in
order, cut anywhere. Nothing of it may be an error of ours, or cost anybody else anything.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Sequence
from typing import Final

import pytest

from eventer_bridge import chatter
from eventer_bridge.backends import rocksdb
from eventer_bridge.chatter.codec import Dialect, Msg, encode
from eventer_bridge.core import engine
from eventer_bridge.core.authentication import OneForAll
from eventer_bridge.errors import EventerBridgeError, InvalidMessageError
from eventer_bridge.eventer import client, codec, server
from eventer_bridge.eventer.messages import MsgInitReq, MsgInitRes, RefusedReq
from eventer_bridge.model import JsonPayload, QueryTimeseriesParams, RegisterEvent, Status
from eventer_bridge.net.framing import encode_frame
from tests.eventer_bridge.chatter.peers import RawPeer
from tests.eventer_bridge.eventer.message_generator import MessageGenerator

SEEDS: Final = range(4)
CONNECTIONS: Final = 40
"""Of each seed."""

INIT_REQ: Final = codec.encode(MsgInitReq("fuzz", None, (("*",),), None, False))
INIT_RES: Final = codec.encode(MsgInitRes(Status.OPERATIONAL))

REQUESTS: Final = ("HatEventer.MsgRegisterReq", "HatEventer.MsgQueryReq")
NOTIFICATIONS: Final = ("HatEventer.MsgEventsNotify", "HatEventer.MsgStatusNotify")
QUERIES: Final = REQUESTS[1:]
ONE_WAY: Final = NOTIFICATIONS[1:]

FINE: Final = {
    "peer closed", "connection lost", "protocol error", "declined", "slow consumer",
    "query failed",  # of types that no query may have, if it is reached before the next mistake
}  # fmt: skip


def stream(chance: random.Random, generator: MessageGenerator, expected: Sequence[str]) -> bytes:
    """What a peer sends after its first message: at first what is ``expected`` of it."""
    frames = bytearray()
    n_right, n_any = chance.randrange(10), chance.randrange(10)
    for msg_id in range(2, 2 + n_right + n_any):
        is_right = msg_id < 2 + n_right
        name, data = _right(generator, expected) if is_right else generator.message()
        first = msg_id if is_right or chance.random() < 0.8 else chance.randrange(1, msg_id)
        last = name in ONE_WAY or (chance.random() < 0.3 and name not in QUERIES)
        is_owner, token = is_right or chance.random() < 0.8, is_right or chance.random() < 0.8
        frames += frame(msg_id, first, (name, data), owner=is_owner, last=last, token=token)
    if chance.random() < 0.2:
        del frames[chance.randrange(len(frames) + 1) :]
    if frames and chance.random() < 0.2:
        frames[chance.randrange(len(frames))] ^= 1 << chance.randrange(8)
    return bytes(frames)


def _right(generator: MessageGenerator, expected: Sequence[str]) -> tuple[str, bytes]:
    while True:
        name, data = generator.message()
        if name in expected:
            with contextlib.suppress(InvalidMessageError):
                if not isinstance(codec.decode(name, data), RefusedReq) or name not in QUERIES:
                    return name, data


def frame(
    msg_id: int,
    first: int,
    message: tuple[str, bytes],
    *,
    owner: bool,
    last: bool,
    token: bool = True,
) -> bytes:
    return encode_frame(encode(Msg(msg_id, first, owner, token, last, *message), Dialect.CURRENT))


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[server.EventerServer]:
    backend = await rocksdb.create_temporary()
    core = await engine.create(backend, 1)
    address = chatter.Address("127.0.0.1", 0)
    it = await server.listen(core, address, OneForAll(None))
    try:
        yield it
    finally:
        await core.stop()
        await it.async_close()
        await core.async_close()
        await backend.async_close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_server_outlives_its_clients(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    chance, generator = random.Random(seed), MessageGenerator(seed)
    caplog.set_level(logging.WARNING)
    async with serving() as it, await client.connect(it.address, "good") as good:
        for number in range(CONNECTIONS):
            async with await RawPeer.connect(it.address) as raw:
                if chance.random() < 0.9:
                    raw.writer.write(frame(1, 1, INIT_REQ, owner=True, last=False))
                raw.writer.write(stream(chance, generator, REQUESTS))
                if chance.random() < 0.8:
                    raw.writer.write_eof()
                    with contextlib.suppress(ConnectionError):
                        async with asyncio.timeout(60):
                            await raw.reader.read()
            payload = JsonPayload.of(number)
            async with asyncio.timeout(60):
                [event] = await good.register([RegisterEvent(("good",), None, payload)])
                found = await good.query(QueryTimeseriesParams((("good",),), max_results=1))
            assert found.events == [event]
        async with asyncio.timeout(60):
            while it.stats.connections > 1:
                await asyncio.sleep(0.001)
        assert it.stats.clients == 1
        assert it.stats.accepted == CONNECTIONS + 1
        assert set(it.stats.closed) <= FINE, it.stats.closed
        assert it.stats.closed["protocol error"] > CONNECTIONS / 4
        assert it.stats.events_registered > 1.5 * CONNECTIONS
    assert [i for i in caplog.records if i.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_client_outlives_its_servers(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    chance, generator = random.Random(seed), MessageGenerator(seed)
    caplog.set_level(logging.WARNING)
    ends: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        if chance.random() < 0.9:
            writer.write(frame(1, 1, INIT_RES, owner=False, last=True))
        writer.write(stream(chance, generator, NOTIFICATIONS))
        writer.close()

    async def talk(address: chatter.Address) -> str:
        try:
            async with await client.connect(address, "fuzz") as it:
                query = asyncio.create_task(it.query(QueryTimeseriesParams()))
                await it.wait_closing()
                with contextlib.suppress(EventerBridgeError):
                    await query
                return str(it.close_reason).partition(":")[0]
        except EventerBridgeError as e:
            return type(e).__name__

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        address = chatter.Address(*listener.sockets[0].getsockname())
        for _ in range(CONNECTIONS):
            async with asyncio.timeout(60):
                ends.append(await talk(address))
    assert ends.count("protocol error") > CONNECTIONS / 4
    errors = {i.getMessage() for i in caplog.records if i.levelno >= logging.ERROR}
    assert errors == {"events of a remote server are left out: they are not valid here"}
