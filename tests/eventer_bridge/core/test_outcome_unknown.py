"""A registration whose outcome is not known: who is told what, and when."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.core import engine
from eventer_bridge.core.base import Observer
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import OutcomeUnknownError, StorageError
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    QueryServerParams,
    RegisterEvent,
    Status,
    Timestamp,
)
from eventer_bridge.modules.base import ModuleEngine
from eventer_bridge.modules.loading import ModuleConf
from eventer_bridge.packed import Batch
from eventer_bridge.slices import Steps
from tests.eventer_bridge.backends.faults import failing_for_good, full_disk, recovered
from tests.eventer_bridge.modules.scripted import CONNECTION, NAME, Scripted

FAULTS = pytest.mark.parametrize(
    ("fault", "is_stored"), [(failing_for_good, True), (full_disk, False)], ids=["sync", "full"]
)
Fault = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORE_RETRY_PERIOD_S", 0.02)


class Hearing(Observer):
    """What an observer was told, as (server, session, persisted), and when."""

    def __init__(self, core: Engine) -> None:
        self.told: list[tuple[int, int, bool]] = []
        self.statuses: list[Status] = []
        core.add_observer(self)

    def on_session(self, session: Batch, persisted: bool) -> None:
        first = session.events[0].id
        self.told.append((first.server, first.session, persisted))

    def on_status(self, status: Status) -> None:
        self.statuses.append(status)


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[RocksDbBackend]:
    async with await rocksdb.create(tmp_path / "store") as backend:
        yield backend


def events_of(n: int = 1) -> list[RegisterEvent]:
    return [RegisterEvent(("a",), None, JsonPayload.of(i)) for i in range(n)]


def remote(session: int) -> list[Event]:
    return [Event(EventId(2, session, 1), ("a",), Timestamp(session, 0), None, None)]


async def stored(backend: RocksDbBackend, server: int = 1) -> set[int]:
    found = await backend.query(QueryServerParams(server, persisted=True))
    return {event.id.session for event in found.events}


async def told(core: Engine) -> None:
    """Everybody was told of what there is to be told."""
    await asyncio.sleep(0)
    while core._notifying.is_busy:
        await asyncio.sleep(0)


def scripted(modules: list[Scripted]) -> ModuleConf:
    """A module that notes what it is told; it is added to the list."""

    def make(module_engine: ModuleEngine) -> Scripted:
        modules.append(Scripted(module_engine))
        return modules[-1]

    return {"module": NAME, "make": make}


@FAULTS
async def test_observers_are_told_when_it_is_decided(
    backend: RocksDbBackend, fault: Fault, is_stored: bool
) -> None:
    async with await engine.create(backend, 1) as core:
        hearing = Hearing(core)
        with fault():
            session = core.register(CONNECTION, events_of(3))
            kept = core.replicate(remote(7))
            await asyncio.wait([session.committed, kept])
            assert isinstance(session.committed.exception(), OutcomeUnknownError)
            assert isinstance(kept.exception(), OutcomeUnknownError)
            with pytest.raises(StorageError):
                core.register(CONNECTION, events_of())
            with pytest.raises(StorageError):  # to go on from there
                core.replicated(2)
            assert not core.pending_events
            assert core.last_persisted(2) == 0
        registered = [(1, session.events[0].id.session, False), (2, 7, False)]
        assert hearing.told == registered
        await recovered(backend)
        later = core.register(CONNECTION, events_of())
        await later.committed
        await told(core)
        decided = [(*i[:2], True) for i in registered] if is_stored else []
        following = [(1, later.events[0].id.session, i) for i in (False, True)]
        assert sorted(hearing.told[2:]) == sorted(decided + following)
        assert hearing.told[-1] == following[-1]
        assert hearing.statuses == [Status.STANDBY, Status.OPERATIONAL]
        assert (session.events[0].id.session in await stored(backend)) is is_stored
        assert (core.replicated(2).session == 7) is is_stored
        assert core.last_persisted(2) == (7 if is_stored else 0)
        assert core.last_persisted(1) == later.events[0].id.session


async def test_who_was_not_told_yet_is_told_of_nothing_before(backend: RocksDbBackend) -> None:
    async with await engine.create(backend, 1) as core:
        hearing = Hearing(core)
        is_over = False

        def tell() -> Steps[None]:  # of something that takes long
            while not is_over:
                yield

        core._notifying.add(tell)
        with failing_for_good():
            session = core.register(CONNECTION, events_of())
            await asyncio.wait([session.committed])
            is_over = True
            await told(core)
            assert hearing.told == []
        await recovered(backend)
        await told(core)
        number = session.events[0].id.session
        assert hearing.told == [(1, number, False), (1, number, True)]


@FAULTS
async def test_modules_are_told_when_it_is_decided(
    backend: RocksDbBackend, fault: Fault, is_stored: bool
) -> None:
    modules: list[Scripted] = []
    async with await engine.create(backend, 1, modules=[scripted(modules)]) as core:
        [module] = modules
        while not module.closed:  # the session of STARTED
            await asyncio.sleep(0)
        module.closed.clear()
        with fault():
            session = core.register(CONNECTION, events_of())
            await asyncio.wait([session.committed])
            assert isinstance(session.committed.exception(), OutcomeUnknownError)
            n_sessions = module.n_sessions
            refused = core.register(CONNECTION, events_of())
            await asyncio.wait([refused.committed])
            assert isinstance(refused.committed.exception(), StorageError)
            # it does not look at what could not be stored
            assert module.n_sessions == n_sessions
            assert module.closed == []
        await recovered(backend)
        while not module.closed:
            await asyncio.sleep(0)
        number = session.events[0].id.session
        assert module.closed == [(number, is_stored)]


async def test_a_stop_does_not_wait_for_the_decision(
    backend: RocksDbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STOP_TIMEOUT_S", "DRAIN_TIMEOUT_S"):
        monkeypatch.setattr(limits, name, 600.0)
    modules: list[Scripted] = []
    core = await engine.create(backend, 1, modules=[scripted(modules)])
    with failing_for_good():
        session = core.register(CONNECTION, events_of())
        await asyncio.wait([session.committed])
        async with asyncio.timeout(60):
            await core.async_close()
    assert modules[0].closed[-1] == (session.events[0].id.session, False)
