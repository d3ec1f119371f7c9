"""Eventer server: who is notified of what, when, and how acknowledgements are asked for."""

import itertools
import logging
import threading
from pathlib import Path

import pytest

from eventer_bridge import chatter, limits
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.eventer import codec
from eventer_bridge.eventer.messages import MsgEventsAck, MsgEventsNotify, MsgRegisterReq
from eventer_bridge.model import Event, EventId, JsonPayload, Timestamp
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.stream import Pause
from tests.eventer_bridge.eventer.peers import (
    Peer,
    closed,
    initialised,
    register_event,
    serving,
)

LARGE = "x" * 20_000


def remote_event(session: int, instance: int, *segments: str) -> Event:
    event_id = EventId(7, session, instance)
    return Event(event_id, segments, Timestamp(session, 0), None, JsonPayload.of(1))


async def types(peer: Peer) -> list[tuple[str, ...]]:
    """Types of the next notification, which is of one session."""
    message, _ = await peer.receive(MsgEventsNotify)
    assert len({(i.id.server, i.id.session) for i in message.events}) == 1
    assert [i.id.instance for i in message.events] == sorted(i.id.instance for i in message.events)
    return [event.type for event in message.events]


async def test_notified_by_session_as_subscribed(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "store") as (server, core),
        initialised(server, [("a",), ("b", "?")]) as some,
        initialised(server, [("*",)], server_id=7) as of_seven,
        initialised(server, [("*",)], server_id=1, persisted=True) as durable,
        initialised(server, [("a",)], server_id=7) as some_of_seven,
        initialised(server, []) as nothing,
        initialised(server) as writer,
    ):
        own = [register_event(*i) for i in (("a",), ("b",), ("b", "1"), ("c",), ("a",))]
        for _ in range(3):
            writer.send(MsgRegisterReq(own))
        for _ in range(3):
            assert await types(some) == [("a",), ("b", "1"), ("a",)]
        for session in range(1, 4):
            await core.replicate([remote_event(session, 1, "c"), remote_event(session, 2, "a")])
        for _ in range(3):
            assert await types(of_seven) == [("c",), ("a",)]
            assert await types(some_of_seven) == [("a",)]
            assert await types(some) == [("a",)]
        for _ in range(3):
            while (found := await types(durable))[0][0] == "event":
                pass  # tells of a connection
            assert found == [event.type for event in own]
        assert nothing.messages.empty()


async def test_what_is_not_durable_yet_is_told_to_who_does_not_mind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    ext_sync = Store.ext_sync

    def ext_slow_sync(self: Store) -> None:
        release.wait(60)
        ext_sync(self)

    async with (
        serving(tmp_path / "store") as (server, _),
        initialised(server, [("a",)]) as at_once,
        initialised(server, [("a",)], persisted=True) as durable,
        initialised(server) as writer,
    ):
        assert await writer.register(register_event("b"))
        monkeypatch.setattr(Store, "ext_sync", ext_slow_sync)
        conversation = writer.send(MsgRegisterReq([register_event("a")]), last=False)
        assert await types(at_once) == [("a",)]
        assert durable.messages.empty()
        assert writer.messages.empty()
        release.set()
        assert await types(durable) == [("a",)]
        answer = await writer.messages.get()
        assert answer.conversation is conversation


def acknowledge(peer: Peer, message: chatter.Message) -> None:
    peer.connection.send(*codec.encode(MsgEventsAck()), conversation=message.conversation)


async def test_who_keeps_events_is_asked_whether_it_has_them() -> None:
    async with (
        serving() as (server, _),
        initialised(server, [("a",)]) as at_once,
        initialised(server, [("a",)], persisted=True) as keeper,
        initialised(server) as writer,
    ):
        for round_ in range(3):
            for i in range(4):
                assert await writer.register(register_event("a", value=i))
            messages = [(await keeper.receive(MsgEventsNotify))[1] for _ in range(4)]
            # one at a time: the others need no answer meanwhile
            assert [i.is_last for i in messages] == [False, True, True, True], round_
            for _ in range(4):
                assert (await at_once.receive(MsgEventsNotify))[1].is_last
            acknowledge(keeper, messages[0])
            # what was sent is handled before what is registered now
            await keeper.register(register_event("b"))


async def test_who_does_not_acknowledge_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "eventer_bridge")
    monkeypatch.setattr(limits, "ACK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(limits, "SWEEP_PERIOD_S", 0.02)
    async with (
        serving() as (server, _),
        initialised(server, [("a",)], persisted=True) as deaf,
        initialised(server, [("a",)]) as at_once,
        initialised(server) as writer,
    ):
        assert await writer.register(register_event("a"))
        assert not (await deaf.receive(MsgEventsNotify))[1].is_last
        await closed(server, "protocol error")
        assert server.stats.clients == 2
        [record] = [i for i in caplog.records if i.message == "closing connection"]
        assert record.__dict__["detail"].endswith("timed out")
        assert await writer.register(register_event("a"))
        for _ in range(2):
            assert await types(at_once) == [("a",)]


async def test_acknowledgements_that_nobody_asked_for() -> None:
    async with serving() as (server, _), initialised(server) as peer:
        peer.send(MsgEventsAck(), last=True)
        assert await peer.register(register_event("a"))
        peer.send(MsgEventsAck(), last=False)  # would wait for an answer for ever
        await peer.close_reason()
        await closed(server, "protocol error")


@pytest.mark.parametrize("token", [False, True])
async def test_an_acknowledgement_ends_the_conversation_whatever_its_flags(
    monkeypatch: pytest.MonkeyPatch, token: bool
) -> None:
    monkeypatch.setattr(net_limits, "MAX_OWN_CONVERSATIONS", 2)
    async with (
        serving() as (server, core),
        initialised(server, [("a",)], persisted=True) as keeper,
        initialised(server) as writer,
    ):
        for _ in range(4):
            assert await writer.register(register_event("a"))
            _, message = await keeper.receive(MsgEventsNotify)
            assert not message.is_last
            keeper.connection.send(
                *codec.encode(MsgEventsAck()),
                conversation=message.conversation,
                last=False,
                token=token,
            )
            await keeper.register(register_event("b"))
        assert core.pending_events == 0
        if not token:  # it goes on with what has ended
            acknowledge(keeper, message)
            await keeper.close_reason()
            await closed(server, "protocol error")
            assert await writer.register(register_event("a"))


async def test_a_client_that_cannot_be_notified_is_closed_and_costs_nobody_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        serving() as (server, core),
        initialised(server, [("a",)], persisted=True) as keeper,
        initialised(server, [("a",)], name="gui/2") as hears,
        initialised(server) as writer,
    ):
        monkeypatch.setattr(net_limits, "MAX_OWN_CONVERSATIONS", 0)  # asking for an ack raises
        writer.connection.send_alone(*codec.encode(MsgRegisterReq([register_event("a")])))
        assert await types(hears) == [("a",)]
        await keeper.close_reason()
        await closed(server, "a gap in what it gets")
        monkeypatch.undo()
        assert await writer.register(register_event("a"))
        assert await types(hears) == [("a",)]
        assert core.pending_events == 0


async def test_a_client_that_does_not_read_is_closed_and_costs_nobody_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net_limits, "MAX_SEND_BUFFER_BYTES", 1 << 20)
    async with (
        serving() as (server, _),
        initialised(server, [("a",)]) as deaf,
        initialised(server, [("a",)]) as hears,
        initialised(server) as writer,
    ):
        deaf.connection.pause_reading(Pause.USER)
        for i in itertools.count(1):
            assert await writer.register(register_event("a", value=LARGE))
            assert await types(hears) == [("a",)]
            if server.stats.closed["slow consumer"]:
                break
            assert i < 10_000
        assert server.stats.clients == 2
        assert server.stats.events_notified >= 2 * i - 1
