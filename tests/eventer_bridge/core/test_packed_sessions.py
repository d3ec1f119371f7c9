"""Events of what clients register: made when somebody looks at them, and not before."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import packed
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core import engine
from eventer_bridge.core.engine import Engine
from eventer_bridge.eventer.messages import MsgRegisterReq, MsgRegisterRes
from eventer_bridge.model import Event, SourceType
from eventer_bridge.packed import Batch
from mariner.wire import codec
from tests.eventer_bridge.backends.oracle import request_key
from tests.eventer_bridge.core.engines import SOURCE, Recorder, submit
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
    types = core.type_table(codec.read_type)

    def register(*counts: int) -> list[Batch]:
        texts = [[event_text("a", n) for n in range(1, 1 + count)] for count in counts]
        requests = [packed.read_json(request(*i), types) for i in texts]
        batches = [i for i in requests if i is not None]
        for batch in batches:
            batch.source, batch.quota = core.create_source(SourceType.CONNECTION), QUOTA
        core.submit(batches)
        return batches

    return register


async def test_they_become_sessions_of_one_commit(register: Any) -> None:
    batches = register(2, 1, 3)
    assert [i.requested for i in batches] == [len(i.events) for i in batches] == [2, 1, 3]
    assert not any(i.is_large or i.is_stepwise for i in batches)
    assert len({i.source for i in batches}) == 3
    assert len({i.committed for i in batches}) == 1
    ids = [i.events[0].id.session for i in batches]
    assert ids == [*range(ids[0], ids[0] + 3)] == [i.session for i in batches]
    await batches[0].committed


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Event]]:
    """Events that were made of what is registered, as somebody looked at them."""
    found: list[Sequence[Event]] = []

    def note(batch: Batch) -> Sequence[Event]:
        found.append(session_events(batch))
        return found[-1]

    session_events = packed.session_events
    monkeypatch.setattr(packed._packed, "session_events", note)
    return found


@pytest.mark.parametrize("heard", [(False,), (True,), (False, True)])
async def test_who_hears_of_them_has_them_made(
    heard: tuple[bool, ...], core: Engine, register: Any, made: list[Sequence[Event]]
) -> None:
    recorder = Recorder()
    core.add_observer(recorder, registered=False in heard, persisted=True in heard)
    found = register(1, 2)
    await found[0].committed
    assert len(made) == 2
    assert core.last_persisted(1) == found[-1].last_id.session
    ids = [i.events[0].id.session for i in found]
    assert recorder.sessions == [(i, persisted) for persisted in heard for i in ids]


@pytest.mark.parametrize("has_keys", [False, True])
async def test_nobody_looks_at_what_clients_only_register(
    has_keys: bool, tmp_path: Path, made: list[Sequence[Event]]
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
        assert not made  # notifications are encoded without them, too


async def test_nobody_looks_at_what_clients_of_eventer_only_register(
    tmp_path: Path, made: list[Sequence[Event]]
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
    types = core.type_table(codec.read_type)

    def batches() -> list[Batch]:
        found = [packed.read_json(request(event_text("a", n)), types) for n in range(2, 5)]
        return [i for i in found if i is not None]

    keys = [request_key(f"k{n}") for n in range(3)]
    first = submit(core, batches(), keys, QUOTA)
    again = submit(core, batches()[::-1], keys[::-1], QUOTA)
    assert [i.first for i in again] == first[::-1]
    await first[0].committed
    assert not core._keyed._by_commit
