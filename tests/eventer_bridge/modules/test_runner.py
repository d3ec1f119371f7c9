"""Sessions one after the other: order of ends, tasks of modules, stopping."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.core import engine
from eventer_bridge.errors import EventerBridgeError, ModuleError, NotOperationalError
from eventer_bridge.model import (
    Event,
    JsonPayload,
    ProcessEvent,
    QueryLatestParams,
    Source,
    SourceType,
    Status,
)
from eventer_bridge.modules.base import Module, ModuleEngine
from eventer_bridge.subscription import EVERYTHING
from tests.eventer_bridge.modules.scripted import (
    CONNECTION,
    NAME,
    STARTED,
    Scripted,
    answering,
    register,
    register_event,
    running,
    stored,
    types,
)


async def test_a_failed_session_is_closed_before_the_next_is_processed() -> None:
    log: list[str] = []

    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        log.append(f"process {events[0].type[0]}")
        if events[0].type == ("bad",):
            raise RuntimeError
        return []

    async def on_close(module: Scripted, is_committed: bool) -> None:
        if module.closed[-1][0] is not None:
            log.append(f"close {module.closed[-1][0]} {is_committed}")

    async with running(EVERYTHING) as (core, [module]):
        module.on_process, module.on_close = on_process, on_close
        sessions = [core.register(CONNECTION, [register_event(i)]) for i in ("a", "bad", "c")]
        await asyncio.wait([i.committed for i in sessions])
        await core.stop()
    assert [i for i in log if not i.startswith("close 2")] == [
        "process a",
        "process bad",
        "close 3 False",
        "process c",
        "close 4 True",
    ]
    assert log.index("close 2 True") < log.index("close 4 True")


async def test_a_module_registers_from_its_task() -> None:
    async with running(EVERYTHING, EVERYTHING) as (core, modules):
        modules[1].on_process = answering({("x",): [("y",)]})
        events: Sequence[Event] = await modules[0].async_group.spawn(
            modules[0].engine.register, [modules[0].event("x", value=1), modules[0].event("z")]
        )
        assert types(events) == ["x", "z"]  # without what was added
        assert events[0].payload == JsonPayload.of(1)
        assert types(await stored(core)) == ["x", "z", "y"]
        assert modules[0].seen == {2: [[("x",), ("z",)], [("y",)]]}  # its own as well
        assert await modules[0].engine.register([]) == []
        assert modules[0].engine.server_id == 1


async def test_a_session_starts_another_from_a_task() -> None:
    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        if events[0].type == ("a",):
            module.async_group.spawn(module.engine.register, [module.event("later")])
        return []

    async with running(EVERYTHING) as (core, [module]):
        module.on_process = on_process
        await register(core, register_event("a"))
        while len(await stored(core)) < 2:
            await asyncio.sleep(0)
        assert [(i.type, i.id.session) for i in await stored(core)] == [
            (("a",), 2),
            (("later",), 3),
        ]


async def test_a_session_may_query() -> None:
    latest: list[list[str]] = []

    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        result = await module.engine.query(QueryLatestParams([("a",), ("b",)]))
        latest.append(types(result.events))
        return []

    async with running(EVERYTHING) as (core, [module]):
        module.on_process = on_process
        sessions = [core.register(CONNECTION, [register_event(i)]) for i in ("a", "b", "c")]
        await asyncio.wait([i.committed for i in sessions])
        assert [sorted(i) for i in latest] == [[], ["a"], ["a", "b"]]


async def test_stopping_ends_what_runs_and_stores_stopped_last() -> None:
    release = asyncio.Event()
    entered = asyncio.Event()

    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        entered.set()
        await release.wait()
        return [module.event("added")] if events[0].type == ("a",) else []

    async with running(EVERYTHING) as (core, [module]):
        module.on_process = on_process
        sessions = [core.register(CONNECTION, [register_event("a")]) for _ in range(2)]
        await entered.wait()
        stopping = asyncio.ensure_future(core.stop())
        while core.status is Status.OPERATIONAL:
            await asyncio.sleep(0)
        with pytest.raises(NotOperationalError, match="server is STOPPING, not OPERATIONAL"):
            core.register(CONNECTION, [register_event("b")])
        with pytest.raises(NotOperationalError):
            await module.engine.register([module.event("x")])
        release.set()
        await stopping
        assert [types(i.events) for i in sessions] == [["a", "added"]] * 2
        events = await core.query(QueryLatestParams())
        [last] = [i for i in events.events if i.type == STARTED]
        assert last.payload == JsonPayload.of("STOPPED")
        assert last.id.session > max(i.events[0].id.session for i in sessions)
        assert module.is_closed
        assert len(module.closed) == module.n_sessions


async def test_stopping_does_not_wait_for_a_module_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(*_: object) -> list[Any]:
        await asyncio.Event().wait()
        return []

    async def on_close(module: Scripted, is_committed: bool) -> None:
        if is_committed:
            await asyncio.Event().wait()

    monkeypatch.setattr(limits, "STOP_TIMEOUT_S", 0.05)
    async with running(EVERYTHING, EVERYTHING) as (core, modules):
        modules[0].on_close = on_close
        await register(core, register_event("a"))
        modules[0].on_process = hang
        modules[1].async_group.spawn(_cancelled_reluctantly, released := asyncio.Event())
        sessions = [core.register(CONNECTION, [register_event("b")]) for _ in range(3)]
        await asyncio.sleep(0)
        await core.stop()
        assert all(isinstance(i.committed.exception(), ModuleError) for i in sessions)
        assert "interrupted" in str(sessions[0].committed.exception())
        assert str(sessions[2].committed.exception()) == (
            "the server stopped before modules processed the session"
        )
        assert [i.payload for i in await _engine_events(core)] == [JsonPayload.of("STOPPED")]
        assert types([i for i in await stored(core) if i.type != STARTED]) == ["a"]
        released.set()
        await modules[1].wait_closed()
    messages = [i.message for i in caplog.records]
    assert "modules do not end their sessions, which fail now" in messages
    assert "modules do not close their sessions" in messages
    assert "modules do not close" in messages


async def _cancelled_reluctantly(released: asyncio.Event) -> None:
    while not released.is_set():
        try:
            await released.wait()
        except asyncio.CancelledError:
            continue


async def _engine_events(core: engine.Engine) -> Sequence[Event]:
    return (await core.query(QueryLatestParams([STARTED]))).events


async def test_modules_before_the_one_that_cannot_be_created_are_closed() -> None:
    made: list[Scripted] = []

    def good(module_engine: ModuleEngine) -> Module:
        made.append(Scripted(module_engine))
        return made[-1]

    def bad(module_engine: ModuleEngine) -> Module:
        raise ZeroDivisionError("no luck")

    backend = await rocksdb.create_temporary()
    confs = [{"module": NAME, "make": good}, {"module": NAME, "make": bad}]
    with pytest.raises(ModuleError, match=f"^module {NAME} failed: ZeroDivisionError: no luck$"):
        await engine.create(backend, 1, modules=confs)
    assert made[0].is_closed
    await backend.async_close()


async def test_a_failed_commit_is_told_to_the_modules() -> None:
    async with running(EVERYTHING) as (core, [module]):
        await register(core, register_event("a"))
        release = asyncio.Event()

        async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
            await release.wait()
            return []

        module.on_process = on_process
        session = core.register(CONNECTION, [register_event("b")])
        await core._backend.async_close()
        release.set()
        await asyncio.wait([session.committed])
        assert isinstance(session.committed.exception(), EventerBridgeError)
        await core.wait_closed()
        assert (3, False) in module.closed


async def test_connections_and_modules_share_no_source() -> None:
    async with running(EVERYTHING) as (core, [module]):
        connection: Source = core.create_source(SourceType.CONNECTION)
        assert connection.id != module.source.id
