"""Catching up with another server leaves the others their turns."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from eventer_bridge import chatter, limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.core import engine
from eventer_bridge.core.base import Observer
from eventer_bridge.core.engine import Engine
from eventer_bridge.core.session import REMOTE_SOURCE
from eventer_bridge.eventer import client
from eventer_bridge.memory import account_of_process
from eventer_bridge.model import (
    JsonPayload,
    QueryServerParams,
    RegisterEvent,
    SourceType,
)
from eventer_bridge.packed import Batch
from eventer_bridge.remote import limits as remote_limits
from eventer_bridge.remote import replication
from eventer_bridge.remote.replication import Replication
from mariner.gateway.gateway import Gateway
from tests.support.event_servers import event_server, eventer_port

N_SESSIONS = 1_500


class Turns(Observer):
    """Counts what is replicated between two turns of others, and what is under way then."""

    def __init__(self, core: Engine) -> None:
        self.most_events = 0
        self.most_under_way = 0
        self._core = core
        self.n_events = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._take_turn)
        core.add_observer(self)

    def _take_turn(self) -> None:
        self.n_events = 0
        self._handle = self._loop.call_soon(self._take_turn)

    def stop(self) -> None:
        self._handle.cancel()

    def on_session(self, session: Batch, persisted: bool) -> None:
        if persisted or session.source is not REMOTE_SOURCE:
            return
        self.n_events += len(session.events)
        self.most_events = max(self.most_events, self.n_events)
        self.most_under_way = max(self.most_under_way, self._core.pending_events)


@contextlib.asynccontextmanager
async def replica(path: Path) -> AsyncIterator[Engine]:
    async with await rocksdb.create(path) as backend, await engine.create(backend, 2) as core:
        yield core


async def register(server: Gateway, n_sessions: int, n_bytes: int = 0) -> None:
    source = server.core.create_source(SourceType.CONNECTION)
    for i in range(n_sessions):
        events = [RegisterEvent(("a",), None, JsonPayload.of(f"{i:0{n_bytes}}"))] * 2
        session = server.core.register(source, events)
    await session.committed


def replicate(first: Gateway, core: Engine) -> Replication:
    address = chatter.Address("127.0.0.1", eventer_port(first), is_tls=False)
    return replication.Replication(core, 1, functools.partial(client.connect, address, "event/2"))


async def test_a_session_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SLICE_S", 0.0)  # each step is a turn
    monkeypatch.setattr(remote_limits, "MAX_FOLLOWED_EVENTS", 100)
    async with event_server(tmp_path, 1) as first, replica(tmp_path / "store2") as core:
        await register(first, N_SESSIONS)
        turns = Turns(core)
        async with replicate(first, core) as replicating:
            while not replicating.is_synced:
                await asyncio.sleep(0.01)
        turns.stop()
        assert core.replicated(1).session > N_SESSIONS
        assert turns.most_events <= 2 * 2  # and no page of thousands
        assert 2 <= turns.most_under_way <= 100 + 2


async def test_what_is_registered_here_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SLICE_S", 0.0)
    monkeypatch.setattr(limits, "GIVE_WAY_S", 3_600.0)  # as long as it takes
    async with event_server(tmp_path, 1) as first, replica(tmp_path / "store2") as core:
        await register(first, 200)
        turns = Turns(core)
        turns.stop()
        source = core.create_source(SourceType.CONNECTION)
        n_meanwhile: list[int] = []
        async with replicate(first, core) as replicating:
            while not replicating.is_synced:
                before = turns.n_events
                session = core.register(source, [RegisterEvent(("b",), None, None)])
                await session.committed
                n_meanwhile.append(turns.n_events - before)
                await asyncio.sleep(0)
        assert turns.n_events > 400
        assert max(n_meanwhile) <= 2 * 2


async def test_live_events_do_not_fill_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_limits, "MAX_FOLLOWED_EVENTS", 20)
    async with event_server(tmp_path, 1) as first, replica(tmp_path / "store2") as core:
        async with replicate(first, core) as replicating:
            while not replicating.is_synced:
                await asyncio.sleep(0.01)
            turns = Turns(core)
            await register(first, 500)
            while core.replicated(1).session < 500:
                await asyncio.sleep(0.01)
            turns.stop()
        assert 2 <= turns.most_under_way <= 20 + 2


async def test_large_events_are_bounded_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it catches up, and while new ones come; all of it is on the account of memory, and so
    is what waits of a page."""
    monkeypatch.setattr(limits, "SLICE_S", 0.0)
    monkeypatch.setattr(remote_limits, "MAX_FOLLOWED_BYTES", 100_000)
    most_bytes = most_taken_bytes = 0
    async with event_server(tmp_path, 1) as first, replica(tmp_path / "store2") as core:
        await register(first, 200, 10_000)
        account = account_of_process()
        async with replicate(first, core) as replicating:
            new = asyncio.create_task(register(first, 100, 10_000))
            while not replicating.is_synced or core.replicated(1).session < 300:
                feed = replicating._feed
                taken_bytes = feed._share.n_bytes - feed._page_bytes
                most_taken_bytes = max(most_taken_bytes, taken_bytes)
                most_bytes = max(most_bytes, feed._share.n_bytes)
                assert feed._share.n_bytes <= account.n_bytes
                await asyncio.sleep(0)
            await new
    # what is delivered, what waits behind it, and the session that begins
    assert 20_000 < most_taken_bytes < 2 * 100_000 + 3 * 21_000
    assert most_bytes > 200 * 20_000 * 0.9


async def test_of_a_session_without_end_the_first_events_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_limits, "MAX_FOLLOWED_SESSION_EVENTS", 1_000)
    async with event_server(tmp_path, 1) as first, replica(tmp_path / "store2") as core:
        source = first.core.create_source(SourceType.CONNECTION)
        events = [RegisterEvent(("a",), None, JsonPayload.of(i)) for i in range(5_000)]
        await first.core.register(source, events).committed
        await register(first, 1)
        async with replicate(first, core) as replicating:
            while not replicating.is_synced:
                await asyncio.sleep(0.01)
            assert replicating.refused_events == 4_000
        kept = (await core.query(QueryServerParams(1))).events
        instances = [i.id.instance for i in kept if i.type == ("a",) and len(kept) > 1_000]
        assert [i for i in instances if i > 2] == [*range(3, 1_001)]
