"""What several clients send at the same time is registered together, and each hears of its own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core import engine
from eventer_bridge.core.engine import Engine
from eventer_bridge.core.session_core import SessionCore
from eventer_bridge.errors import QuotaError, StorageError
from eventer_bridge.model import QueryResult, Source, SourceType
from eventer_bridge.packed import Batch, batch_of
from tests.eventer_bridge.backends.faults import being_synced, held_sync
from tests.eventer_bridge.core.engines import register_event
from tests.support.inprocess import APP, running_gateway
from tests.support.peer import RawPeer, event, register_req

CLIENTS = [{**APP, "name": name} for name in "abcde"]
"""Each has a quota of its own for new types."""


@contextlib.asynccontextmanager
async def peers_of(port: int) -> AsyncIterator[list[RawPeer]]:
    async with contextlib.AsyncExitStack() as stack:
        peers = []
        for client in CLIENTS:
            peer = await RawPeer.init(port, client_name=client["name"])
            peers.append(await stack.enter_async_context(peer))
        for peer in peers:  # the type is known from now on
            assert (await peer.request(register_req(0, event("a"))))["success"]
        yield peers


def send_at_the_same_time(peers: Sequence[RawPeer], *messages: dict[str, Any]) -> None:
    """Each sends a message; the gateway, in this thread, reads all of them in one iteration."""
    for peer, message in zip(peers, messages, strict=True):
        peer.send(message)  # asyncio sends at once


def latest(*segments: str) -> dict[str, Any]:
    return {
        "msg_type": "query_req",
        "query_id": 1,
        "query_type": "latest",
        "event_types": [segments],
    }


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[Source]]:
    """The sources of each call of the core."""
    found: list[list[Source]] = []
    submit = SessionCore.submit

    def noting(core: SessionCore, batches: list[Batch]) -> None:
        found.append([batch.source for batch in batches])
        submit(core, batches)

    monkeypatch.setattr(SessionCore, "submit", noting)
    return found


@pytest.fixture
def awaited(monkeypatch: pytest.MonkeyPatch) -> list[list[asyncio.Future[None]]]:
    """The commits that each query waits for."""
    found: list[list[asyncio.Future[None]]] = []
    answer = Engine.answer

    async def noting(core: Engine, *args: Any) -> QueryResult:
        found.append([commit for commit in args[2] if not commit.done()])
        return await answer(core, *args)

    monkeypatch.setattr(Engine, "answer", noting)
    return found


async def test_each_is_answered(tmp_path: Path, calls: list[list[Source]]) -> None:
    async with (
        running_gateway(CLIENTS, path=tmp_path) as gateway,
        peers_of(gateway.mariner.port) as peers,
    ):
        calls.clear()
        requests = [register_req(i, event("a", value=i)) for i in range(5)]
        send_at_the_same_time(peers, *requests)
        answers = [await peer.receive() for peer in peers]
    assert [len(set(sources)) for sources in calls] == [5]
    assert [i["register_id"] for i in answers] == [*range(5)]
    assert [i["events"][0]["payload"]["data"] for i in answers] == [*range(5)]
    assert len({i["events"][0]["id"]["session"] for i in answers}) == 5


async def test_many_take_several_calls(
    tmp_path: Path, calls: list[list[Source]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running_gateway(CLIENTS, path=tmp_path) as gateway,
        peers_of(gateway.mariner.port) as peers,
    ):
        calls.clear()
        monkeypatch.setattr(limits, "MAX_GATHERED_EVENTS", 4)
        requests = [register_req(i, event("a"), event("a")) for i in range(5)]
        send_at_the_same_time(peers, *requests)
        for i, peer in enumerate(peers):
            assert (await peer.receive())["register_id"] == i
    assert [len(sources) for sources in calls] == [2, 2, 1]


async def test_what_one_sends_does_not_fail_the_others(tmp_path: Path) -> None:
    async with (
        running_gateway(CLIENTS, path=tmp_path) as gateway,
        peers_of(gateway.mariner.port) as peers,
    ):
        keyed = {**register_req(3, event("a")), "request_key": "k"}
        requests = [
            register_req(0, event("a")),
            register_req(1, event("?")),
            register_req(2, event("new")),
            keyed,
            register_req(4),
        ]
        for _ in range(2):
            send_at_the_same_time(peers, *requests)
            answers = [await peer.receive() for peer in peers]
            assert [i["success"] for i in answers] == [True, False, True, True, True]
        assert answers[3]["repeated"]


async def test_who_goes_at_once_is_heard(tmp_path: Path) -> None:
    async with (
        running_gateway(CLIENTS, path=tmp_path) as gateway,
        peers_of(gateway.mariner.port) as peers,
    ):
        send_at_the_same_time(peers, *(register_req(1, event("last", str(i))) for i in range(5)))
        for peer in peers[:2]:
            peer.writer.write_eof()
        for peer in peers[2:4]:
            peer.writer.transport.abort()
        for peer in (*peers[:2], peers[4]):
            assert (await peer.receive_answer())["success"]
        assert len((await peers[4].request(latest("last", "?")))["events"]) == 5


async def test_a_query_finds_what_came_before(tmp_path: Path) -> None:
    async with (
        running_gateway(CLIENTS, path=tmp_path) as gateway,
        peers_of(gateway.mariner.port) as peers,
    ):
        for peer in peers:
            messages = register_req(1, event("b")), latest("b")
            peer.send_together(messages)
        for peer in peers:
            answers = {i["msg_type"]: i for i in (await peer.receive(), await peer.receive())}
            assert answers["register_res"]["success"]
            assert len(answers["query_res"]["events"]) == 1


async def test_a_query_waits_for_the_commit_of_what_came_before(
    tmp_path: Path, awaited: list[list[asyncio.Future[None]]]
) -> None:
    async with (
        running_gateway(CLIENTS, path=tmp_path) as gateway,
        await RawPeer.init(gateway.mariner.port, client_name="a") as peer,
    ):
        await peer.request(register_req(0, event("a")))
        messages = register_req(1, event("a")), register_req(2, event("a")), latest("a")
        peer.send_together(messages)
        for _ in messages:
            await peer.receive()
    assert [len(commits) for commits in awaited] == [1]


async def test_a_query_waits_for_the_last_of_several_commits(
    tmp_path: Path, awaited: list[list[asyncio.Future[None]]]
) -> None:
    async with (
        running_gateway(CLIENTS, path=tmp_path) as gateway,
        await RawPeer.init(gateway.mariner.port, client_name="a") as peer,
    ):
        await peer.request(register_req(0, event("a")))
        with held_sync() as may_sync:
            peer.send(register_req(1, event("a")))
            await being_synced(gateway.backend)
            messages = register_req(2, event("a")), latest("a")
            peer.send_together(messages)
            while not awaited:
                await asyncio.sleep(0)
            may_sync.release()
            assert (await peer.receive())["register_id"] == 1
            assert [commit.done() for commit in awaited[0]] == [False]
        last = await peer.receive()
        assert last["register_id"] == 2
        assert (await peer.receive())["events"] == last["events"]


async def test_all_of_a_commit_that_fails_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(store: Store) -> None:
        raise StorageError("disk full")

    monkeypatch.setattr(limits, "MAX_REGISTRATIONS_IN_FLIGHT", 4)
    async with (
        running_gateway(CLIENTS, path=tmp_path) as gateway,
        await RawPeer.init(gateway.mariner.port, client_name="a") as peer,
    ):
        await peer.request(register_req(0, event("a")))
        requests = [register_req(i, event("a")) for i in range(1, 5)]
        with monkeypatch.context() as patch:
            patch.setattr(Store, "ext_sync", fail)
            peer.send_together(requests)
            assert (await peer.receive())["status"] == "STANDBY"
            answers = [await peer.receive() for _ in requests]
        assert [(i["register_id"], i["outcome"]) for i in answers] == [
            (i, "unknown") for i in range(1, 5)
        ]
        assert gateway.mariner.stats.outcome_unknown == 4
        peer.send({"msg_type": "ping_req", "ping_id": 1})  # none of them is under way any more
        while (await peer.receive())["msg_type"] != "ping_res":
            pass


async def test_a_mistake_of_ours_ends_their_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a mistake")

    async with (
        running_gateway(CLIENTS, path=tmp_path) as gateway,
        peers_of(gateway.mariner.port) as peers,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(SessionCore, "submit", fail)
            send_at_the_same_time(peers[:2], *[register_req(1, event("a"))] * 2)
            for peer in peers[:2]:
                assert await peer.is_closed_by_server()
        assert (await peers[2].request(register_req(2, event("a"))))["success"]


async def test_new_types_count_for_who_brings_them(tmp_path: Path) -> None:
    known, new = register_event("a"), register_event("new")
    ours, other = Source(SourceType.CONNECTION, 1), Source(SourceType.CONNECTION, 2)
    quotas = TypeQuota("client a", 5), TypeQuota("client b", 0)
    async with await rocksdb.create(tmp_path) as backend, await engine.create(backend, 7) as core:
        first = core.register(ours, [known])
        await first.committed
        core.check_types([new.type])  # it is known to be a type, but nobody brought it

        async def submit(*sources: Source) -> list[BaseException | None]:
            """Register the known type and the new one, each for another source."""
            batches = [batch_of([i], core.types) for i in (known, new)]
            for batch, source in zip(batches, sources, strict=True):
                batch.source, batch.quota = source, quotas[source.id - 1]
            core.submit(batches)
            await asyncio.wait({batch.committed for batch in batches})
            return [batch.committed.exception() for batch in batches]

        assert [*map(type, await submit(ours, other))] == [type(None), QuotaError]
        assert await submit(other, ours) == [None, None]
        await backend.flush()
        assert backend.types_cost("client a") > 0
        assert backend.types_cost("client b") == 0
