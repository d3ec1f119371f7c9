"""Modules that raise what they should not, or never give way: what it costs, and whom."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.core import engine
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import ModuleError, NotOperationalError
from eventer_bridge.model import JsonPayload, ProcessEvent, QueryLatestParams, Status
from eventer_bridge.modules.base import Module, ModuleEngine
from eventer_bridge.modules.loading import ModuleConf
from eventer_bridge.modules.runner import ModuleRunner
from eventer_bridge.modules.specialized import SpecializedModule
from eventer_bridge.subscription import EVERYTHING
from tests.eventer_bridge.modules.scripted import (
    CONNECTION,
    NAME,
    STARTED,
    OnClose,
    Scripted,
    register,
    register_event,
    running,
    running_engine,
    stored,
    types,
)


class PanicError(BaseException):
    """What extension modules raise: theirs derive from BaseException, too."""


RAISED = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
RAISED.append(PanicError("at the disco"))
IDS = [type(i).__name__ for i in RAISED]


@pytest.mark.parametrize("n_modules", [1, 2])
@pytest.mark.parametrize("raised", RAISED, ids=IDS)
async def test_whatever_a_module_raises_fails_that_registration_only(
    raised: BaseException, n_modules: int
) -> None:
    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        if events[0].type == ("bad",):
            raise raised
        return []

    async def on_create(module: Scripted) -> None:
        if module.n_sessions == 5:
            raise raised

    async def on_close(module: Scripted, is_committed: bool) -> None:
        raise raised

    async with running(*[EVERYTHING] * n_modules) as (core, modules):
        modules[0].on_process, modules[0].on_create = on_process, on_create
        modules[-1].on_close = on_close
        sessions = [core.register(CONNECTION, [register_event(i)]) for i in ("a", "bad", "b", "c")]
        async with asyncio.timeout(60):
            await asyncio.wait([i.committed for i in sessions])
        reason = f"^module {NAME} failed: {type(raised).__name__}$"
        for failed in (sessions[1], sessions[3]):
            with pytest.raises(ModuleError, match=reason):
                failed.committed.result()
        assert types(await stored(core)) == ["a", "b"]
        assert core.pending_events == 0
        async with asyncio.timeout(60):
            await core.stop()
        for module in modules:
            assert len(module.closed) == module.n_sessions - (module is modules[0])


@pytest.mark.parametrize("raised", RAISED, ids=IDS)
async def test_a_sub_module_that_cannot_close_a_session_keeps_no_other_from_it(
    raised: BaseException,
) -> None:
    made: list[Scripted] = []

    async def on_close(module: Scripted, is_committed: bool) -> None:
        raise raised

    def make(module_engine: ModuleEngine) -> Module:
        made.extend(Scripted(module_engine) for _ in range(2))
        made[0].on_close = on_close
        return SpecializedModule("parts", made)

    async with running_engine({"module": NAME, "make": make}) as core:
        await register(core, register_event("a"))
        await core.stop()
        assert (2, True) in made[1].closed


@pytest.mark.parametrize("raised", RAISED, ids=IDS)
async def test_a_module_that_cannot_be_made_or_closed(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Scripted):
        async def async_close(self) -> None:
            self.close()
            raise raised

    made: list[Scripted] = []

    def good(module_engine: ModuleEngine) -> Module:
        made.append((Stubborn if not made else Scripted)(module_engine))
        return made[-1]

    def bad(module_engine: ModuleEngine) -> Module:
        raise raised

    confs = [{"module": NAME, "make": i} for i in (good, good, bad)]
    async with await rocksdb.create_temporary() as backend:
        with pytest.raises(ModuleError, match=f"^module {NAME} failed: {type(raised).__name__}"):
            await engine.create(backend, 1, modules=confs)
    assert [i.is_closed for i in made] == [True, True]
    assert "module failed to close" in [i.message for i in caplog.records]


async def test_a_loop_that_dies_fails_what_waits_and_ends_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(EVERYTHING) as (core, [module]):

        async def die(*_: object) -> None:
            raise PanicError("our own mistake")

        await register(core, register_event("a"))
        monkeypatch.setattr(ModuleRunner, "_process", die)
        sessions = [core.register(CONNECTION, [register_event("b")]) for _ in range(3)]
        async with asyncio.timeout(60):
            await asyncio.wait([i.committed for i in sessions])
            for session in sessions:
                with pytest.raises(ModuleError, match=r"^modules cannot go on, the server stops$"):
                    session.committed.result()
            with pytest.raises(NotOperationalError):
                core.register(CONNECTION, [register_event("c")])
            await core.wait_closed()
        assert core.status is Status.STANDBY
        assert core.pending_events == 0
        assert types(await stored(core)) == ["a"]
        assert await last_state(core) == "STOPPED"
        assert module.is_closed
    assert "modules cannot go on, the server stops" in [i.message for i in caplog.records]


async def last_state(core: Engine) -> Any:
    [event] = (await core.query(QueryLatestParams([STARTED]))).events
    assert isinstance(event.payload, JsonPayload)
    return event.payload.value()


@contextlib.contextmanager
def never_giving_way(module: Scripted) -> Iterator[None]:
    """Have it go on until the end of this, whatever it is told."""
    released = asyncio.Event()

    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return [module.event("too late")]

    module.on_process = on_process
    try:
        yield
    finally:
        released.set()


async def test_a_module_that_never_gives_way_ends_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("MODULE_TIMEOUT_S", "INTERRUPTED_TIMEOUT_S", "SWEEP_PERIOD_S", "STOP_TIMEOUT_S"):
        monkeypatch.setattr(limits, name, 0.02)
    async with running(EVERYTHING) as (core, [module]):
        with never_giving_way(module):
            sessions = [core.register(CONNECTION, [register_event("b")]) for _ in range(3)]
            async with asyncio.timeout(60):
                await asyncio.wait([i.committed for i in sessions])
                await core.wait_closed()
        assert all(isinstance(i.committed.exception(), ModuleError) for i in sessions)
        assert await stored(core) == []
        assert await last_state(core) == "STOPPED"
    reasons = [str(i.exc_info[1]) for i in caplog.records if i.exc_info is not None]
    assert f"module {NAME} keeps running although it was interrupted" in reasons


async def test_stopping_does_not_wait_for_a_module_that_never_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("INTERRUPTED_TIMEOUT_S", "STOP_TIMEOUT_S"):
        monkeypatch.setattr(limits, name, 0.02)
    async with running(EVERYTHING) as (core, [module]):
        with never_giving_way(module):
            sessions = [core.register(CONNECTION, [register_event("b")]) for _ in range(3)]
            await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await core.stop()
        reasons = [str(i.committed.exception()) for i in sessions]
        assert (
            reasons
            == ["a module did not end when the server stopped"]
            + ["the server stopped before modules processed the session"] * 2
        )
        while module.closed[-1:] != [(2, False)]:  # what it added was of no use any more
            await asyncio.sleep(0)
        assert await stored(core) == []
        assert await last_state(core) == "STOPPED"
        assert core.pending_events == 0


class LastWord(Scripted):
    """Does what the test gives when the server stops."""

    async def before_stop(self) -> None:
        await self.on_close(self, False)


def last_word(on_stop: OnClose, made: list[Scripted]) -> ModuleConf:
    def make(module_engine: ModuleEngine) -> Module:
        made.append(LastWord(module_engine))
        made[-1].on_close = on_stop
        return SpecializedModule("parts", made[-1:])

    return {"module": NAME, "make": make}


async def test_the_last_word_of_modules(caplog: pytest.LogCaptureFixture) -> None:
    made: list[Scripted] = []
    refused: list[Exception] = []

    async def fail(module: Scripted, _: bool) -> None:
        raise PanicError

    async def register_last(module: Scripted, is_committed: bool) -> None:
        if not is_committed:
            await module.engine.register([module.event("last")])
            try:  # clients can no more
                core.register(CONNECTION, [register_event("too late")])
            except NotOperationalError as e:
                refused.append(e)

    async with running_engine(last_word(fail, made), last_word(register_last, made)) as core:
        await register(core, register_event("a"))
        await core.stop()
        assert types(await stored(core)) == ["a", "last"]
        assert await last_state(core) == "STOPPED"
        assert [len(i.seen) for i in made] == [2, 2]  # each was told of both
    assert len(refused) == 1
    assert "module failed before the stop" in [i.message for i in caplog.records]


async def test_stopping_does_not_wait_for_a_last_word_that_has_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STOP_TIMEOUT_S", 0.02)
    made: list[Scripted] = []

    async def hang(module: Scripted, _: bool) -> None:
        await asyncio.Event().wait()

    async with running_engine(last_word(hang, made)) as core:
        async with asyncio.timeout(60):
            await core.stop()
        assert await last_state(core) == "STOPPED"
