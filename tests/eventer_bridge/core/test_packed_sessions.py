"""Sessions of packed requests: made when somebody looks at them, and not before."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import packed
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core import engine
from eventer_bridge.core.engine import Engine
from eventer_bridge.core.session import PackedSessions, Session, joined, packed_of
from eventer_bridge.eventer.messages import MsgRegisterReq, MsgRegisterRes
from eventer_bridge.model import SourceType
from mariner.wire import codec
from tests.eventer_bridge.backends.oracle import request_key
from tests.eventer_bridge.core.engines import SOURCE, Recorder
from tests.eventer_bridge.eventer.peers import initialised, serving
from tests.eventer_bridge.eventer.peers import register_event as draft
from tests.eventer_bridge.packed.support import compiled, decode_events, event_text, request
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req

pytestmark = compiled

QUOTA = TypeQuota("client", 300)


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[Engine]:
    async with (
        await rocksdb.create(tmp_path / "store") as backend,
        await engine.create(backend, 1) as core,
    ):
        await core.register(SOURCE, decode_events(request(event_text("a", 1)))).committed
        yield core


@pytest.fixture
def register(core: Engine) -> Any:
    """Registers requests with so many events each."""
    known = core.known_types(codec.read_type)
    assert known is not None

    def register(*counts: int) -> PackedSessions:
        texts = [[event_text("a", n) for n in range(1, 1 + count)] for count in counts]
        requests = [packed.pack(request(*i), known, decode_events) for i in texts]
        asked = [i for i in requests if i is not None]
        sources = [core.create_source(SourceType.CONNECTION) for _ in asked]
        found = core.register_all(sources, asked, [QUOTA] * len(asked))
        assert isinstance(found, PackedSessions)
        return found

    return register


def looked_at(sessions: Sequence[Session]) -> list[tuple[object, ...]]:
    return [(i.source, i.requested, i.payload_bytes, *i.events) for i in sessions]


async def test_they_are_what_they_would_be_otherwise(register: Any) -> None:
    found = register(2, 1, 3)
    assert not found._made
    assert len(found) == 3
    assert (found.n_events, found.n_bytes) == (6, sum(i.payload_bytes for i in found.packed))
    sessions = [*found]
    assert all(i.decoded == () and i.packed is not None for i in sessions)
    assert not any(i.is_large or i.is_stepwise for i in sessions)
    assert [i.requested for i in sessions] == [len(i.events) for i in sessions] == [2, 1, 3]
    assert [i.payload_bytes for i in sessions] == [i.payload_bytes for i in found.packed]
    assert len({i.source for i in sessions}) == 3
    assert {i.committed for i in sessions} == {found.committed}
    ids = [i.events[0].id.session for i in sessions]
    assert ids == [*range(ids[0], ids[0] + 3)]
    await found.committed


async def test_each_is_made_once(register: Any) -> None:
    found = register(1, 1, 1)
    assert found[1] is [*found][1] is found[-2]
    assert [*found[1:]] == [*found][1:]
    assert packed_of([*found]) == packed_of(found) == found.packed


async def test_some_of_them_are_as_lazy(register: Any) -> None:
    found = register(2, 1, 3)
    some = found[1:]
    assert isinstance(some, PackedSessions)
    assert (len(some), some.n_events, some.committed) == (2, 4, found.committed)
    assert some.n_bytes == sum(i.payload_bytes for i in found.packed[1:])
    assert not some._made
    assert looked_at(some) == looked_at(found)[1:]


async def test_some_after_the_others_are_as_lazy(register: Any) -> None:
    first: PackedSessions = register(2)
    second: PackedSessions = register(1, 3)
    both = joined([first, second])
    assert isinstance(both, PackedSessions)
    assert (len(both), both.n_events, both.n_bytes) == (3, 6, first.n_bytes + second.n_bytes)
    assert not any(i._made for i in (both, first, second))
    assert looked_at(both) == looked_at(first) + looked_at(second)
    listed = joined([first, [*second]])
    assert isinstance(listed, list)
    assert listed == [*first, *second]
    assert packed_of(listed) == first.packed + second.packed


@pytest.mark.parametrize("heard", [(False,), (True,), (False, True)])
async def test_who_hears_of_them_has_them_made(
    heard: tuple[bool, ...], core: Engine, register: Any
) -> None:
    recorder = Recorder()
    core.add_observer(recorder, registered=False in heard, persisted=True in heard)
    found = register(1, 2)
    await found.committed
    assert core.last_persisted(1) == found[-1].last_id.session
    ids = [i.events[0].id.session for i in found]
    assert recorder.sessions == [(i, persisted) for persisted in heard for i in ids]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[PackedSessions]:
    """Those of which somebody looked at a session."""
    found: list[PackedSessions] = []
    make = PackedSessions._sessions

    def note(self: PackedSessions) -> Sequence[Session]:
        found.append(self)
        return make(self)

    monkeypatch.setattr(PackedSessions, "_sessions", note)
    return found


@pytest.mark.parametrize("has_keys", [False, True])
async def test_nobody_looks_at_what_clients_only_register(
    has_keys: bool, tmp_path: Path, made: list[PackedSessions]
) -> None:
    def asked(number: int, client: str) -> dict[str, Any]:
        keys = {"request_key": f"{client} {number}"} if has_keys else {}
        return {**register_req(number, event("a")), **keys}

    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
        await RawPeer.init(gateway.mariner.port) as other,
    ):
        await peer.request(register_req(0, event("a")))
        for clients in ([peer], [peer, other]):
            for number, client in enumerate(clients):
                name = f"{len(clients)} {number}"
                client.send_together([asked(n, name) for n in range(1, 21)])
            for client in clients:
                answers = [await client.receive() for _ in range(20)]
                assert [i["register_id"] for i in answers] == [*range(1, 21)]
                assert all(i["success"] for i in answers)
        assert not made
        async with await RawPeer.init(gateway.mariner.port, subscriptions=[["*"]]) as hearing:
            await peer.request(asked(1, "heard"))
            assert (await hearing.receive())["msg_type"] == "events"
        assert made


async def test_nobody_looks_at_what_clients_of_eventer_only_register(
    tmp_path: Path, made: list[PackedSessions]
) -> None:
    async with serving(tmp_path / "store") as (server, _), initialised(server) as peer:
        for _ in range(2):  # once the type is known
            asked = [peer.send(MsgRegisterReq([draft("a")]), last=False) for _ in range(20)]
            for conversation in asked:
                response, message = await peer.receive(MsgRegisterRes)
                assert message.conversation is conversation
                assert response.events
        assert not made


async def test_repeated_requests_share_their_session(core: Engine) -> None:
    known = core.known_types(codec.read_type)
    assert known is not None
    messages = [request(event_text("a", n)) for n in range(2, 5)]
    asked = [packed.pack(i, known, decode_events) for i in messages]
    requests = [i for i in asked if i is not None]
    keys = [request_key(f"k{n}") for n in range(3)]
    found = core.register_keyed(SOURCE, requests, QUOTA, keys)
    assert isinstance(found, PackedSessions)
    again = core.register_keyed(SOURCE, requests[::-1], QUOTA, keys[::-1])
    assert [getattr(i, "session", None) for i in again] == [*found][::-1]
    await found.committed
    assert not core._keyed._turns
