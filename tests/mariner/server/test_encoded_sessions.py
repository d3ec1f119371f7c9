"""Sessions that wait for their commit in the form of their answers, or of their requests."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from eventer_bridge.backends import rocksdb
from eventer_bridge.core.authentication import Authenticator
from eventer_bridge.core.engine import Engine
from eventer_bridge.core.payload_schemas import PayloadSchemas
from eventer_bridge.core.rights import ClientConfig, RegisterRule
from eventer_bridge.core.session import REMOTE_SOURCE, Session
from eventer_bridge.core.session_core import SessionCore
from eventer_bridge.errors import EventerBridgeError
from eventer_bridge.eventer.messages import MsgEventsNotify, MsgRegisterReq, MsgRegisterRes
from eventer_bridge.eventer.server import EventerServer
from eventer_bridge.model import Event, EventId, JsonPayload, Timestamp
from mariner.server import server
from tests.eventer_bridge.backends.faults import held_sync
from tests.eventer_bridge.eventer.peers import Peer, initialised, register_event
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req

NAMES = ("a", "b", "a")

TIMEOUT_S = 30.0

SUBSCRIPTIONS = [("?",)]
"""To what is registered here, and not to the events of the server."""


class Serving(NamedTuple):
    """Servers of one core, and the sessions that became encoded."""

    port: int
    eventer: EventerServer
    encoded: list[Session]

    async def mariner(self, stack: AsyncExitStack, **keys: Any) -> RawPeer:
        return await stack.enter_async_context(await RawPeer.init(self.port, **keys))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    found: list[Session] = []
    keep_encoded = Session.keep_encoded

    def note(self: Session, *args: Any) -> None:
        keep_encoded(self, *args)
        found.append(self)

    register_all = SessionCore.register_all

    def note_all(self: SessionCore, *args: Any) -> Sequence[Session | EventerBridgeError]:
        outcomes = register_all(self, *args)
        found.extend(i for i in outcomes if isinstance(i, Session) and i.packed)
        return outcomes

    monkeypatch.setattr(Session, "keep_encoded", note)
    monkeypatch.setattr(SessionCore, "register_all", note_all)
    return found


@pytest.fixture
async def it(tmp_path: Path, encoded: list[Session]) -> AsyncIterator[Serving]:
    core = {
        "server_id": 1,
        "backend": {"type": "rocksdb", "path": str(tmp_path / "store")},
        "eventer_server": {"host": "127.0.0.1", "port": 0, "token": None},
    }
    async with running_gateway(event_core=core) as gateway:
        assert gateway.eventer_server is not None
        yield Serving(gateway.mariner.port, gateway.eventer_server, encoded)


def register(peer: RawPeer, register_id: int = 0, **keys: Any) -> None:
    events = [event(name, value=n) for n, name in enumerate(NAMES)]
    peer.send({**register_req(register_id, *events), **keys})


def register_by_eventer(peer: Peer) -> None:
    events = [register_event(name, value=n) for n, name in enumerate(NAMES)]
    peer.send(MsgRegisterReq(events), last=False)


async def received(peer: RawPeer) -> list[Event]:
    """The events of the next message."""
    message = await peer.receive_answer()
    return msgspec.json.decode(msgspec.json.encode(message["events"]), type=list[Event])


def check(events: Iterable[Event]) -> None:
    """They are those that were registered."""
    found = [*events]
    assert [i.type for i in found] == [(name,) for name in NAMES]
    assert [i.payload for i in found] == [JsonPayload.of(n) for n in range(len(NAMES))]
    assert [i.id.instance for i in found] == [*range(1, len(NAMES) + 1)]


async def until_encoded(it: Serving, count: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while len(it.encoded) < count:
            await asyncio.sleep(0)
    assert all(i.is_encoded and not i.decoded for i in it.encoded)


async def test_whoever_comes_before_the_commit_hears_of_what_is_encoded(it: Serving) -> None:
    async with AsyncExitStack() as stack:
        first = await it.mariner(stack)
        second = await stack.enter_async_context(initialised(it.eventer))
        with held_sync():
            register(first)
            register_by_eventer(second)
            await until_encoded(it, 2)
            third = await it.mariner(stack, subscriptions=SUBSCRIPTIONS, persisted=True)
            fourth = await stack.enter_async_context(
                initialised(it.eventer, SUBSCRIPTIONS, persisted=True)
            )
        response, _ = await second.receive(MsgRegisterRes)
        answers = [await received(first), [*(response.events or ())]]
        for answer in answers:
            check(answer)
        assert answers == [await received(third), await received(third)]
        notified = [(await fourth.receive(MsgEventsNotify))[0].events for _ in answers]
        assert answers == [[*i] for i in notified]


async def test_who_hears_of_what_is_registered_does_so_before_it_is_encoded(it: Serving) -> None:
    async with AsyncExitStack() as stack:
        first = await it.mariner(stack)
        second = await it.mariner(stack, subscriptions=SUBSCRIPTIONS)
        third = await stack.enter_async_context(initialised(it.eventer, SUBSCRIPTIONS))
        with held_sync():
            register(first)
            await until_encoded(it, 1)
            heard = await received(second)
            check(heard)
            notified, _ = await third.receive(MsgEventsNotify)
            assert [*notified.events] == heard
        assert await received(first) == heard
        fourth = await stack.enter_async_context(initialised(it.eventer))
        register_by_eventer(fourth)
        response, _ = await fourth.receive(MsgRegisterRes)
        assert len(it.encoded) == 2
        assert await received(second) == [*(response.events or ())]


async def test_who_hears_of_some_of_the_events_hears_of_them_in_their_order(it: Serving) -> None:
    async with AsyncExitStack() as stack:
        first = await it.mariner(stack)
        second = await it.mariner(stack, subscriptions=[("a",)])
        for _ in range(2):  # the second time, its types are known
            register(first)
            answer = await received(first)
            check(answer)
            assert await received(second) == [answer[0], answer[2]]
        assert it.encoded[-1].packed


async def test_what_others_hear_of_when_it_is_durable_is_not_encoded(it: Serving) -> None:
    async with AsyncExitStack() as stack:
        first = await it.mariner(stack)
        second = await it.mariner(stack, subscriptions=SUBSCRIPTIONS, persisted=True)
        register(first)
        check(await received(first))
        check(await received(second))
        assert not it.encoded


async def test_what_is_encoded_is_repeated_to_who_asks_again(it: Serving) -> None:
    async with AsyncExitStack() as stack:
        first, again = await it.mariner(stack), await it.mariner(stack)
        with held_sync():
            register(first, request_key="once")
            await until_encoded(it, 1)
            register(again, request_key="once")
            again.send({"msg_type": "ping_req", "ping_id": 1})
            assert (await again.receive())["ping_id"] == 1
        answer = await received(first)
        check(answer)
        assert await received(again) == answer


async def test_several_encoded_sessions_are_answered_each_with_its_own(it: Serving) -> None:
    async with AsyncExitStack() as stack:
        peer = await it.mariner(stack)
        eventer_peer = await stack.enter_async_context(initialised(it.eventer))
        with held_sync():
            for i in range(5):
                register(peer, i)
                await until_encoded(it, 2 * i + 1)
                register_by_eventer(eventer_peer)
                await until_encoded(it, 2 * i + 2)
        answers: list[Sequence[Event]] = []
        for _ in range(5):
            answers.append(await received(peer))
            response, _ = await eventer_peer.receive(MsgRegisterRes)
            answers.append(response.events or ())
        for answer in answers:
            check(answer)
        sessions = [answer[0].id.session for answer in answers]
        assert sessions == [*range(sessions[0], sessions[0] + 10)]
        assert all(i.is_encoded for i in it.encoded)  # nobody needed the events


async def test_what_gains_nothing_is_not_encoded(it: Serving) -> None:
    async with AsyncExitStack() as stack:
        peer = await it.mariner(stack)
        assert (await peer.request(register_req(0, event("a"))))["success"]
        eventer_peer = await stack.enter_async_context(initialised(it.eventer))
        unanswered = MsgRegisterReq([register_event("a"), register_event("a")])
        eventer_peer.send(unanswered)
        await eventer_peer.register(register_event("a"))
        assert all(i.packed for i in it.encoded)  # as the requests came


def test_what_is_decoded_stays_so() -> None:
    loop = asyncio.new_event_loop()
    made = [Event(EventId(1, 1, i), ("a",), Timestamp(1, 0), None, None) for i in (1, 2)]
    session = Session(REMOTE_SOURCE, 2, 0, loop.create_future(), made)
    loop.close()
    session.keep_encoded(lambda: [*made])
    assert session.is_encoded
    assert len(session.decoded) == 0
    found = session.events
    assert found == made
    assert session.events is found
    session.keep_encoded(lambda: [*made])
    session.events = made[:1]
    assert session.events == made[:1]


async def test_what_is_told_to_other_servers_is_no_part_of_the_answer(
    tmp_path: Path, encoded: list[Session]
) -> None:
    """In a group, a session has one event more: it tells of the request key."""
    client = ClientConfig("app", "secret", (("*",),), (RegisterRule((("*",),)),))
    authenticator = Authenticator([client], PayloadSchemas({}))
    async with (
        await rocksdb.create(tmp_path / "store") as backend,
        Engine(backend, 1, is_in_group=True) as core,
    ):
        await core.start()
        async with (
            await server.listen(core, authenticator, "127.0.0.1", 0) as served,
            await RawPeer.init(served.port) as peer,
        ):
            for i in range(3):  # the first one is registered alone
                register(peer, i, request_key=f"key {i}")
                check(await received(peer))
            events = [event(name, value=n) for n, name in enumerate(NAMES)]
            for _ in range(2):  # the second time, they are repeated
                together = (register_req(i, *events) | {"request_key": str(i)} for i in range(5))
                peer.send_together(together)
                for _ in range(5):
                    check(await received(peer))
        assert not encoded
