"""Sessions that wait for their commit as they came, and who is notified of them meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from eventer_bridge.core.session_core import SessionCore
from eventer_bridge.eventer import encoding as eventer_encoding
from eventer_bridge.eventer.messages import MsgEventsNotify, MsgRegisterReq, MsgRegisterRes
from eventer_bridge.eventer.server import EventerServer
from eventer_bridge.model import BinaryPayload, Event, JsonPayload, RegisterEvent
from eventer_bridge.packed import Batch, assign, batch_of
from eventer_bridge.slices import Many, Steps, at_once
from mariner.server import encoding
from tests.eventer_bridge.backends.faults import held_sync
from tests.eventer_bridge.backends.putting import TYPES
from tests.eventer_bridge.eventer.peers import Peer, initialised, register_event
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req

NAMES = ("a", "b", "a")

TIMEOUT_S = 30.0

SUBSCRIPTIONS = [("?",)]
"""To what is registered here, and not to the events of the server."""


class Serving(NamedTuple):
    """Servers of one core, and the batches that it got."""

    port: int
    eventer: EventerServer
    submitted: list[Batch]

    async def mariner(self, stack: AsyncExitStack, **keys: Any) -> RawPeer:
        return await stack.enter_async_context(await RawPeer.init(self.port, **keys))


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    found: list[Batch] = []
    submit = SessionCore.submit

    def note(self: SessionCore, batches: list[Batch]) -> None:
        submit(self, batches)
        found.extend(batches)

    monkeypatch.setattr(SessionCore, "submit", note)
    return found


@pytest.fixture
async def it(tmp_path: Path, submitted: list[Batch]) -> AsyncIterator[Serving]:
    core = {
        "server_id": 1,
        "backend": {"type": "rocksdb", "path": str(tmp_path / "store")},
        "eventer_server": {"host": "127.0.0.1", "port": 0, "token": None},
    }
    async with running_gateway(event_core=core) as gateway:
        assert gateway.eventer_server is not None
        yield Serving(gateway.mariner.port, gateway.eventer_server, submitted)


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


async def until_submitted(it: Serving, count: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while len(it.submitted) < count:
            await asyncio.sleep(0)


async def test_whoever_comes_before_the_commit_hears_of_what_is_durable(it: Serving) -> None:
    async with AsyncExitStack() as stack:
        first = await it.mariner(stack)
        second = await stack.enter_async_context(initialised(it.eventer))
        with held_sync():
            register(first)
            register_by_eventer(second)
            await until_submitted(it, 2)
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


async def test_who_hears_of_what_is_registered_does_so_before_the_commit(it: Serving) -> None:
    async with AsyncExitStack() as stack:
        first = await it.mariner(stack)
        second = await it.mariner(stack, subscriptions=SUBSCRIPTIONS)
        third = await stack.enter_async_context(initialised(it.eventer, SUBSCRIPTIONS))
        with held_sync():
            register(first)
            await until_submitted(it, 1)
            heard = await received(second)
            check(heard)
            notified, _ = await third.receive(MsgEventsNotify)
            assert [*notified.events] == heard
        assert await received(first) == heard
        fourth = await stack.enter_async_context(initialised(it.eventer))
        register_by_eventer(fourth)
        response, _ = await fourth.receive(MsgRegisterRes)
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


async def test_what_others_hear_of_when_it_is_durable(it: Serving) -> None:
    async with AsyncExitStack() as stack:
        first = await it.mariner(stack)
        second = await it.mariner(stack, subscriptions=SUBSCRIPTIONS, persisted=True)
        register(first)
        check(await received(first))
        check(await received(second))


async def test_what_is_under_way_is_repeated_to_who_asks_again(it: Serving) -> None:
    async with AsyncExitStack() as stack:
        first, again = await it.mariner(stack), await it.mariner(stack)
        with held_sync():
            register(first, request_key="once")
            await until_submitted(it, 1)
            register(again, request_key="once")
            again.send({"msg_type": "ping_req", "ping_id": 1})
            assert (await again.receive())["ping_id"] == 1
        answer = await received(first)
        check(answer)
        assert await received(again) == answer


async def test_several_sessions_are_answered_each_with_its_own(it: Serving) -> None:
    async with AsyncExitStack() as stack:
        peer = await it.mariner(stack)
        eventer_peer = await stack.enter_async_context(initialised(it.eventer))
        with held_sync():
            for i in range(5):
                register(peer, i)
                await until_submitted(it, 2 * i + 1)
                register_by_eventer(eventer_peer)
                await until_submitted(it, 2 * i + 2)
        answers: list[Sequence[Event]] = []
        for _ in range(5):
            answers.append(await received(peer))
            response, _ = await eventer_peer.receive(MsgRegisterRes)
            answers.append(response.events or ())
        for answer in answers:
            check(answer)
        sessions = [answer[0].id.session for answer in answers]
        assert sessions == [*range(sessions[0], sessions[0] + 10)]


@pytest.mark.parametrize("prepare", [encoding.prepare, eventer_encoding.prepare])
def test_objects_of_a_large_session_are_freed_in_slices(
    prepare: Callable[[Batch], Steps[None]],
) -> None:
    batch = batch_of([RegisterEvent(("a",), None, BinaryPayload("x", b"1"))] * 3, TYPES)
    assign([batch], 1, 2, 3, 4)
    at_once(prepare(batch))
    assert type(batch.events) is Many
