"""An engine whose backend commits when a test says so, and for which few events are many."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any, Final

from eventer_bridge.backends.base import failed
from eventer_bridge.backends.request_keys import KeyRetention
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.backends.rocksdb.opening import Opened, ext_open_temporary
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core import engine
from eventer_bridge.core.base import Observer
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import StorageError
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    QueryResult,
    RegisterEvent,
    Source,
    SourceType,
    Status,
    Timestamp,
)
from eventer_bridge.packed import Batch
from eventer_bridge.slices import Steps

SOURCE: Final = Source(SourceType.CONNECTION, 1)

LARGE: Final = 10
"""Events of the largest session that is not large yet."""


class SlowBackend(RocksDbBackend):
    """Commits when the test says so, and fails when it says so."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened, None, (), opened.clock, KeyRetention())
        self.is_slow = False
        self.commits: list[asyncio.Future[None]] = []
        self.asked: list[tuple[int, TypeQuota | None, int]] = []
        self.in_steps: list[int] = []
        self.queries: list[tuple[object, ...]] = []
        self.on_register: Callable[[], None] = lambda: None

    @classmethod
    async def create(cls) -> "SlowBackend":
        return cls(await asyncio.to_thread(ext_open_temporary))

    def fail(self, why: str | None) -> None:
        self.failure = why
        self.failure_cbs.notify()

    def reserve(self, server_id: int, session: int) -> asyncio.Future[None]:
        if self.failure is None:
            return super().reserve(server_id, session)
        return failed(asyncio.get_running_loop().create_future(), StorageError(self.failure))

    def register(self, batches: list[Batch]) -> Steps[asyncio.Future[None]]:
        self.on_register()
        self.in_steps += [len(i) for i in batches if i.is_stepwise]
        if self.failure is not None:
            commit = failed(asyncio.get_running_loop().create_future(), StorageError(self.failure))
        else:
            commit = yield from super().register(batches)
        self.asked += [(len(i), i.quota, i.requested) for i in batches]
        if self.failure is not None:
            return commit
        if not self.is_slow:
            return commit
        if not self.commits or self.commits[-1].done():
            self.commits.append(asyncio.get_running_loop().create_future())
        return self.commits[-1]  # those that are committed together share it

    async def answer(
        self, query: VisibleQuery, client: str = "", holding: ExitStack | None = None
    ) -> QueryResult:
        self.queries.append((query, client, holding))
        return await super().answer(query, client, holding)


class Recorder(Observer):
    """An observer that remembers what it was told."""

    def __init__(self, core: Engine) -> None:
        self.told: list[tuple[int, bool]] = []
        self.sources: list[Source] = []
        self.statuses: list[Status] = []
        core.add_observer(self)

    def on_session(self, session: Batch, persisted: bool) -> None:
        self.told.append((len(session.events), persisted))
        self.sources.append(session.source)

    def on_status(self, status: Status) -> None:
        self.statuses.append(status)


class Patient(Recorder):
    """An observer that takes its time."""

    def __init__(self, core: Engine) -> None:
        super().__init__(core)
        self.in_steps: list[tuple[int, bool]] = []

    def on_large_session(self, session: Batch, persisted: bool) -> Steps[None]:
        self.in_steps.append((len(session.events), persisted))
        yield


@contextlib.asynccontextmanager
async def running(backend: SlowBackend, **arguments: Any) -> AsyncIterator[Engine]:
    """Server 7; in the end everything is committed."""
    core = await engine.create(backend, 7, **arguments)
    backend.asked.clear()  # STARTED
    backend.queries.clear()
    try:
        yield core
    finally:
        backend.is_slow = False
        for commit in backend.commits:
            if not commit.done():
                commit.set_result(None)
        backend.fail(None)
        await core.async_close()


def events_of(n: int, value: object = 1, name: str = "a") -> list[RegisterEvent]:
    return [RegisterEvent((name,), None, JsonPayload.of(value))] * n


def remote(session: int, n: int = 1, server: int = 2) -> list[Event]:
    return [
        Event(EventId(server, session, i), ("a",), Timestamp(1, 0), None, None) for i in range(n)
    ]


async def handed_over(backend: SlowBackend, n_sessions: int) -> None:
    """So many sessions reached the backend, and what is told of at once was."""
    while len(backend.asked) < n_sessions:
        await asyncio.sleep(0)
    for _ in range(9):
        await asyncio.sleep(0)


async def done(*sessions: Batch) -> list[BaseException | None]:
    await asyncio.wait([i.committed for i in sessions])
    for _ in range(9):
        await asyncio.sleep(0)
    return [i.committed.exception() for i in sessions]
