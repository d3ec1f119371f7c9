"""Who sends very much at once is dealt with in turns: others do not wait for all of it."""

import asyncio
from typing import Final

import pytest

from eventer_bridge import chatter
from eventer_bridge.chatter.codec import Msg
from eventer_bridge.net import limits
from tests.eventer_bridge.chatter.peers import RawPeer, Recorder, connected, listening

COUNT: Final = 5 * limits.TURN_MESSAGES  # some 20 kB: they come in one piece
HELLO: Final = Msg(1, 1, True, True, True, "T.Hello", b"")


def told(count: int) -> list[Msg]:
    return [Msg(i, i, True, True, True, "T.Tell", b"") for i in range(2, count + 2)]


def pings(count: int) -> list[Msg]:
    return [Msg(i, i, True, True, False, "HatChatter.Ping", b"") for i in range(2, count + 2)]


@pytest.mark.parametrize("flood", [told(COUNT), pings(COUNT)], ids=["messages", "pings"])
@pytest.mark.parametrize("ends", [False, True])
async def test_a_flood_lets_others_go_first(flood: list[Msg], ends: bool) -> None:
    connections: list[chatter.Connection] = []  # of the flooder, and of the other
    n_done: list[int] = []  # of the flood, when the other is heard

    class Noting(Recorder):
        def on_message(self, message: chatter.Message) -> None:
            super().on_message(message)
            if message.type == "T.Other":
                n_done.append(connections[0].n_messages)

    async with (
        listening(Noting) as there,
        await RawPeer.connect(there.address) as flooder,
        await RawPeer.connect(there.address) as other,
    ):
        for peer in (flooder, other):
            peer.send(HELLO)
            handler = await there.handlers.get()
            await handler.messages.get()
            connections.append(handler.connection)
        for _ in range(3):  # so that the loop is done with what came, and hears the flood first
            await asyncio.sleep(0)
        flooder.send(*flood)
        if ends:
            flooder.writer.write_eof()
        other.send(Msg(2, 2, True, True, True, "T.Other", b""))
        await handler.messages.get()
        assert n_done[0] < 1 + COUNT
        while connections[0].n_messages < 1 + COUNT:
            await asyncio.sleep(0)
        if flood[0].type == "HatChatter.Ping":
            for ping in flood:
                pong = await flooder.receive()
                assert (pong.type, pong.first) == ("HatChatter.Pong", ping.first)


@pytest.mark.parametrize("is_accepted", [True, False])
async def test_a_full_read_lets_others_go_first(
    monkeypatch: pytest.MonkeyPatch, is_accepted: bool
) -> None:
    """Where we connected, a server that closes may reset what is not read at once."""
    monkeypatch.setattr(limits, "FULL_READ_BYTES", 1_000)
    is_read_on: list[bool] = []  # after a full read
    receive = chatter.Connection.data_received

    def note(connection: chatter.Connection, data: bytes) -> None:
        receive(connection, data)
        if len(data) >= 1_000:
            is_read_on.append(connection._transport.is_reading())

    monkeypatch.setattr(chatter.Connection, "data_received", note)
    async with listening() as there, connected(there.address) as ours:
        ours.connection.send("T.Tell", b"hello")
        theirs = await there.handlers.get()
        await theirs.messages.get()
        sender, receiver = (ours, theirs) if is_accepted else (theirs, ours)
        for _ in range(3):
            sender.connection.send("T.Tell", b" " * 1_000)
            await receiver.messages.get()  # goes on by itself
    assert is_read_on == [not is_accepted] * 3
