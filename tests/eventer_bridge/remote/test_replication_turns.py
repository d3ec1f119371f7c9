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
from eventer_bridge.core.engine import Engine
from eventer_bridge.core.session import REMOTE_SOURCE, Session
from eventer_bridge.eventer import client
from eventer_bridge.model import JsonPayload, RegisterEvent, SourceType, Status
from eventer_bridge.remote import limits as remote_limits
from eventer_bridge.remote import replication
from eventer_bridge.remote.replication import Replication
from mariner.gateway.gateway import Gateway
from tests.support.event_servers import event_server, eventer_port

N_SESSIONS = 1_500


class Turns:
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

    def on_session(self, session: Session, persisted: bool) -> None:
        if persisted or session.source is not REMOTE_SOURCE:
            return
        self.n_events += len(session.events)
        self.most_events = max(self.most_events, self.n_events)
        self.most_under_way = max(self.most_under_way, self._core.pending_events)

    def on_status(self, status: Status) -> None:
        pass


@contextlib.asynccontextmanager
async def replica(path: Path) -> AsyncIterator[Engine]:
    async with await rocksdb.create(path) as backend, await engine.create(backend, 2) as core:
        yield core


async def register(server: Gateway, n_sessions: int) -> None:
    source = server.core.create_source(SourceType.CONNECTION)
    for i in range(n_sessions):
        events = [RegisterEvent(("a",), None, JsonPayload.of(i))] * 2
        session = server.core.register(source, events)
    await session.committed


def replicate(first: Gateway, core: Engine) -> Replication:
    address = chatter.Address("127.0.0.1", eventer_port(first), is_tls=False)
    return replication.create(core, 1, functools.partial(client.connect, address, "event/2"))


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
