"""``Connection.ping``: the round trip of a ping, between two of ours and to a raw peer."""

import asyncio
from typing import Final

import pytest

from eventer_bridge.chatter.codec import Dialect, Msg
from eventer_bridge.errors import ClosedError, LocalProtocolError
from tests.eventer_bridge.chatter.peers import RawPeer, Recorder, connected, listening
from tests.eventer_bridge.chatter.samples import PING

HELLO: Final = Msg(1, 1, True, True, True, "T.Hello", b"")


@pytest.mark.parametrize("dialect", Dialect)
async def test_several_at_once_each_measure(dialect: Dialect) -> None:
    async with listening() as there, connected(there.address, dialect=dialect) as here:
        times = await asyncio.gather(*(here.connection.ping() for _ in range(20)))
        assert all(time_s > 0 for time_s in times)
        assert here.connection._protocol._last_id == 20
        handler = await there.handlers.get()
        assert handler.messages.empty()


async def test_a_ping_that_was_given_up_is_waited_for_by_the_next() -> None:
    async with listening() as there, await RawPeer.connect(there.address) as raw:
        raw.send(HELLO)
        handler: Recorder = await there.handlers.get()
        await handler.messages.get()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handler.connection.ping(), 0.01)
        assert await raw.receive() == PING
        second = asyncio.create_task(handler.connection.ping())
        raw.send(Msg(2, 1, False, True, True, "HatChatter.Pong", b""))
        assert await raw.receive() == Msg(2, 2, True, True, False, "HatChatter.Ping", b"")
        assert not second.done()
        raw.send(Msg(3, 2, False, True, True, "HatChatter.Pong", b""))
        assert await second > 0


async def test_a_connection_that_is_lost_meanwhile() -> None:
    async with listening() as there:
        async with await RawPeer.connect(there.address) as raw:
            raw.send(HELLO)
            handler: Recorder = await there.handlers.get()
            await handler.messages.get()
            pings = [asyncio.create_task(handler.connection.ping()) for _ in range(2)]
            assert await raw.receive() == PING
        for ping in pings:
            with pytest.raises(ClosedError, match="peer closed"):
                await ping
        with pytest.raises(ClosedError, match="peer closed"):
            await handler.connection.ping()


async def test_a_wrong_answer_is_told_with_its_reason() -> None:
    async with listening() as there, await RawPeer.connect(there.address) as raw:
        raw.send(HELLO)
        handler: Recorder = await there.handlers.get()
        await handler.messages.get()
        ping = asyncio.create_task(handler.connection.ping())
        assert await raw.receive() == PING
        raw.send(Msg(2, 1, False, True, True, "T.A", b""))
        with pytest.raises(ClosedError, match=r"protocol error: message 2.*expected a pong"):
            await ping


async def test_not_before_the_dialect_is_known() -> None:
    async with listening() as there, await RawPeer.connect(there.address):
        handler: Recorder = await there.handlers.get()
        with pytest.raises(LocalProtocolError, match="before the peer's first message"):
            await handler.connection.ping()
