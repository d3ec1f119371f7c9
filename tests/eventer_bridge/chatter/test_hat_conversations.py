"""Random conversations with the real ``hat.drivers.chatter``: both hear the same.

Both send whenever it is their turn, in bursts, so that messages cross each other. What
hat-drivers does not keep track of (whose turn it is) is kept here.
"""

import asyncio
import random
from collections import deque
from typing import Any, Final, NamedTuple

import pytest
from hat.drivers import chatter as hat

from tests.eventer_bridge.chatter.peers import Recorder, connected, listening
from tests.eventer_bridge.chatter.test_hat_peer import hat_connected, hat_listening

BURSTS: Final = 150


class Sent(NamedTuple):
    is_first: bool
    last: bool
    token: bool
    data: bytes


class Talk:
    """Random conversations of a connection of ours and one of theirs."""

    def __init__(self, recorder: Recorder, theirs: Any, chance: random.Random) -> None:
        self.recorder = recorder
        self.theirs = theirs
        self.chance = chance
        self.ours_to_send: list[Any] = []
        self.theirs_to_send: list[Any] = []
        self.from_us: deque[Sent] = deque()
        self.from_them: deque[Sent] = deque()
        self.messages = 0

    async def burst(self) -> None:
        """Some messages in both directions, then hear all of them."""
        for _ in range(self.chance.randrange(1, 12)):
            if self.chance.random() < 0.5:
                self._send_ours()
            else:
                await self._send_theirs()
        if self.chance.random() < 0.2:
            await self.recorder.connection.ping()
        while self.from_us:
            await self._hear_ours()
        while self.from_them:
            await self._hear_theirs()

    def _choose(self, to_send: list[Any]) -> tuple[Any, Sent]:
        """A conversation (None for a new one), taken from ``to_send``, and what to say in it."""
        index = self.chance.randrange(-1, len(to_send))
        conversation = to_send.pop(index) if index >= 0 else None
        last, token = self.chance.random() < 0.4, self.chance.random() < 0.7
        data = self.chance.randbytes(self.chance.choice((0, 1, 100, 300, 70_000)))
        self.messages += 1
        return conversation, Sent(conversation is None, last, token, data)

    def _send_ours(self) -> None:
        conversation, sent = self._choose(self.ours_to_send)
        conversation = self.recorder.connection.send(
            "T.Ours", sent.data, conversation=conversation, last=sent.last, token=sent.token
        )
        assert conversation.may_send is not (sent.last or sent.token)
        if conversation.may_send:
            self.ours_to_send.append(conversation)
        self.from_us.append(sent)

    async def _send_theirs(self) -> None:
        conv, sent = self._choose(self.theirs_to_send)
        data = hat.Data("T.Theirs", sent.data)
        conv = await self.theirs.send(data, conv=conv, last=sent.last, token=sent.token)
        if not sent.last and not sent.token:
            self.theirs_to_send.append(conv)
        self.from_them.append(sent)

    async def _hear_ours(self) -> None:
        msg, sent = await self.theirs.receive(), self.from_us.popleft()
        assert Sent(msg.first, msg.last, msg.token, bytes(msg.data.data)) == sent
        if msg.token and not msg.last:
            self.theirs_to_send.append(msg.conv)

    async def _hear_theirs(self) -> None:
        message, sent = await self.recorder.messages.get(), self.from_them.popleft()
        assert (message.is_first, message.is_last, message.data) == (
            sent.is_first, sent.last, sent.data,
        )  # fmt: skip
        if sent.token and not sent.last:
            assert message.conversation.may_send
            self.ours_to_send.append(message.conversation)


@pytest.mark.parametrize("seed", range(3))
async def test_our_client_and_their_listener(seed: int) -> None:
    async with hat_listening() as theirs, connected(theirs.address) as recorder:
        connection = await theirs.connections.get()
        await connection.send(hat.Data("T.Hello", b""))  # the first message has to be short
        await recorder.messages.get()
        await _talk(Talk(recorder, connection, random.Random(seed)))


@pytest.mark.parametrize("seed", range(3))
async def test_their_client_and_our_listener(seed: int) -> None:
    async with listening() as ours, hat_connected(ours.address) as theirs:
        await theirs.send(hat.Data("T.Hello", b""))
        recorder = await ours.handlers.get()
        await recorder.messages.get()
        await _talk(Talk(recorder, theirs, random.Random(seed)))


async def _talk(talk: Talk) -> None:
    async with asyncio.timeout(60):
        for _ in range(BURSTS):
            await talk.burst()
    assert talk.messages > 5 * BURSTS
    protocol = talk.recorder.connection._protocol
    assert protocol.open_conversations >= len(talk.ours_to_send) + len(talk.theirs_to_send)
    assert talk.recorder.timeouts.empty()
