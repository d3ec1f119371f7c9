"""A module for tests, whose behaviour the test gives; and engines that have it.

As the configuration of an engine in the process of the test may hold any object, the
module is made by the function ``make`` in it.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from eventer_bridge.backends import rocksdb
from eventer_bridge.core import engine
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.engine import Engine
from eventer_bridge.model import (
    Event,
    EventType,
    JsonPayload,
    ProcessEvent,
    QueryServerParams,
    RegisterEvent,
    Source,
    SourceType,
)
from eventer_bridge.modules.base import Module, ModuleEngine, ModuleSession
from eventer_bridge.modules.loading import ModuleConf
from eventer_bridge.packed import Batch
from eventer_bridge.resources import Tasks
from eventer_bridge.subscription import EVERYTHING, Subscription

NAME = "tests.eventer_bridge.modules.scripted"
CONNECTION = Source(SourceType.CONNECTION, 1_000_000)
STARTED = ("event", "1", "engine")
HISTORY = ("event", "1", "history")

json_schema: dict[str, Any] = {}


async def create(conf: ModuleConf, module_engine: ModuleEngine) -> Any:
    return conf["make"](module_engine)


class Scripted(Module):
    """Remembers what its sessions saw; ``on_…`` is what they do.

    Attributes:
        seen: by session id, the types of each call of ``process``; sessions of the engine
            (STARTED, STOPPED) are left out.
        closed: session ids and whether committed, in order; of None where nothing was seen.
    """

    def __init__(self, module_engine: ModuleEngine, subscription: Subscription = EVERYTHING):
        self.engine = module_engine
        self.source = module_engine.create_source()
        self.seen: dict[int, list[list[EventType]]] = {}
        self.closed: list[tuple[int | None, bool]] = []
        self.n_sessions = 0
        self._subscription = subscription
        self._async_group = Tasks()
        self.on_create: OnCreate = _nothing_on_create
        self.on_process: OnProcess = _nothing_on_process
        self.on_close: OnClose = _nothing_on_close

    @property
    def async_group(self) -> Tasks:
        return self._async_group

    @property
    def subscription(self) -> Subscription:
        return self._subscription

    async def create_session(self) -> ModuleSession:
        self.n_sessions += 1
        return await self.on_create(self) or ScriptedSession(self)

    def event(self, *segments: str, value: object = None) -> ProcessEvent:
        return self.engine.create_process_event(self.source, register_event(*segments, value=value))


class ScriptedSession(ModuleSession):
    def __init__(self, module: Scripted) -> None:
        self._module = module
        self._id: int | None = None

    async def process(self, events: Sequence[ProcessEvent]) -> Sequence[ProcessEvent]:
        assert events
        if any(i.source.type is SourceType.ENGINE for i in events):
            return []
        assert events[0].id is not None
        self._id = events[0].id.session
        self._module.seen.setdefault(self._id, []).append([i.type for i in events])
        added: Sequence[ProcessEvent] = await self._module.on_process(self._module, events)
        return added

    async def async_close(self, is_committed: bool) -> None:
        self._module.closed.append((self._id, is_committed))
        await self._module.on_close(self._module, is_committed)


OnCreate: TypeAlias = Callable[[Scripted], Awaitable[Any]]
OnProcess: TypeAlias = Callable[[Scripted, Sequence[ProcessEvent]], Awaitable[Any]]
OnClose: TypeAlias = Callable[[Scripted, bool], Awaitable[None]]


async def _nothing_on_create(module: Scripted) -> None:
    return None


async def _nothing_on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
    return []


async def _nothing_on_close(module: Scripted, is_committed: bool) -> None:
    return


def answering(table: dict[EventType, Sequence[EventType]]) -> OnProcess:
    """Adds, for each event, the types that the table has for its type."""

    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[ProcessEvent]:
        return [module.event(*i) for event in events for i in table.get(event.type, ())]

    return on_process


@contextlib.asynccontextmanager
async def running(
    *subscriptions: Subscription, conditions: Conditions | None = None
) -> AsyncIterator[tuple[Engine, list[Scripted]]]:
    """An engine in memory with a scripted module for each subscription."""
    made: list[Scripted] = []

    def conf(subscription: Subscription) -> ModuleConf:
        def make(module_engine: ModuleEngine) -> Module:
            made.append(Scripted(module_engine, subscription))
            return made[-1]

        return {"module": NAME, "make": make}

    async with running_engine(*map(conf, subscriptions), conditions=conditions) as core:
        yield core, made


@contextlib.asynccontextmanager
async def running_engine(
    *confs: ModuleConf, conditions: Conditions | None = None
) -> AsyncIterator[Engine]:
    """An engine in memory with modules."""
    backend = await rocksdb.create_temporary()
    try:
        core = await engine.create(backend, 1, modules=confs, conditions=conditions)
        try:
            yield core
        finally:
            await core.async_close()
    finally:
        await backend.async_close()


def register_event(*segments: str, value: object = None) -> RegisterEvent:
    return RegisterEvent(segments, None, JsonPayload.of(value))


async def register(
    core: Engine, *events: RegisterEvent, source: Source = CONNECTION
) -> Sequence[Event]:
    """Register and wait; what was requested and what was added."""
    session: Batch = core.register(source, events)
    await session.committed
    return session.events


async def stored(core: Engine) -> list[Event]:
    """Everything that is stored but STARTED, and the history that it tells of."""
    result = await core.query(QueryServerParams(1))
    return [i for i in result.events if i.type not in {STARTED, HISTORY}]


def types(events: Sequence[Event | ProcessEvent]) -> list[str]:
    return ["/".join(i.type) for i in events]
