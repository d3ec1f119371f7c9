"""Rounds: order, concurrency, bounds, and what a module can do wrong."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.core.base import Observer
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.errors import ConditionError, InvalidEventError, LimitError, ModuleError
from eventer_bridge.model import (
    BinaryPayload,
    JsonPayload,
    Payload,
    ProcessEvent,
    RegisterEvent,
    Source,
    SourceType,
)
from eventer_bridge.modules.base import ModuleSession
from eventer_bridge.packed import Batch
from eventer_bridge.resources import Tasks
from eventer_bridge.subscription import EVERYTHING, NOTHING, Subscription
from tests.eventer_bridge.modules.scripted import (
    CONNECTION,
    NAME,
    Scripted,
    answering,
    register,
    register_event,
    running,
    stored,
    types,
)


async def test_rounds_order_and_what_each_module_sees() -> None:
    only_b = Subscription([("b",)])
    async with running(EVERYTHING, only_b, NOTHING) as (core, [first, second, third]):
        first.on_process = answering({("a",): [("b",), ("c",)], ("d",): [("e",)]})
        second.on_process = answering({("b",): [("d",)]})
        events = await register(core, register_event("a"), register_event("b"))
        # round 1: first adds b, c, second (of the requested b) d; round 2: e, and d again
        assert types(events) == ["a", "b", "b", "c", "d", "e", "d", "e"]
        assert [(i.id.session, i.id.instance) for i in events] == [(2, i) for i in range(1, 9)]
        assert first.seen == {
            2: [
                [("a",), ("b",)],
                [("b",), ("c",), ("d",)],
                [("e",), ("d",)],
                [("e",)],
            ]
        }
        assert second.seen == {2: [[("b",)], [("b",)]]}
        assert third.seen == {}
        assert third.n_sessions == 2  # STARTED, and this one: told of, if not of events
        assert await stored(core) == events


async def test_sources_are_unique_and_known_only_in_the_session() -> None:
    sources: list[Source] = []

    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        sources.extend(i.source for i in events)
        assert {i.id.server for i in events if i.id is not None} == {1}
        return [module.event("b")] if ("a",) in [i.type for i in events] else []

    async with running(EVERYTHING, EVERYTHING) as (core, [first, second]):
        second.on_process = on_process
        events = await register(core, register_event("a"))
        assert sources == [CONNECTION, second.source]
        assert first.source.type is second.source.type is SourceType.MODULE
        others = {first.source.id, second.source.id, core.create_source(SourceType.CONNECTION).id}
        assert len(others) == 3
        assert not any(hasattr(i, "source") for i in [*events, *await stored(core)])


async def test_modules_run_at_the_same_time_one_session_after_the_other() -> None:
    met = asyncio.Barrier(2)
    under_way: set[Scripted] = set()

    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        assert module not in under_way  # sequential within the module
        under_way.add(module)
        await met.wait()  # both are here
        under_way.remove(module)
        return [module.event("b")] if events[0].type == ("a",) else []

    async with running(EVERYTHING, EVERYTHING) as (core, modules):
        for module in modules:
            module.on_process = on_process
        sessions = [core.register(CONNECTION, [register_event("a")]) for _ in range(3)]
        await asyncio.wait([i.committed for i in sessions])
        assert [types(i.events) for i in sessions] == [["a", "b", "b"]] * 3
        assert [list(module.seen) for module in modules] == [[2, 3, 4]] * 2


async def test_endless_additions_are_refused_and_nothing_is_stored() -> None:
    async with running(EVERYTHING) as (core, [module]):
        module.on_process = answering({("a",): [("a",)]})
        with pytest.raises(LimitError, match=r"^modules still add events after 64 rounds$"):
            await register(core, register_event("a"))
        assert len(module.seen[2]) == limits.MAX_MODULE_ROUNDS
        assert module.closed[1:] == [(2, False)]
        assert await stored(core) == []
        assert core.pending_events == 0
        assert types(await register(core, register_event("ok"))) == ["ok"]


async def test_too_many_additions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SESSION_EVENTS", 10)
    async with running(EVERYTHING) as (core, [module]):
        module.on_process = answering({("a",): [("b",)] * 10})
        with pytest.raises(
            LimitError, match=r"^a session with the events that modules added has more than 10"
        ):
            await register(core, register_event("a"))
        assert await stored(core) == []


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (
            JsonPayload(msgspec.Raw(b"[" * 129 + b"]" * 129)),
            "payload: nested deeper than 128 levels",
        ),
        (
            BinaryPayload("x", bytes(limits.MAX_PAYLOAD_BYTES)),
            f"payload has {limits.MAX_PAYLOAD_BYTES + 1} bytes,"
            f" at most {limits.MAX_PAYLOAD_BYTES} are allowed",
        ),
    ],
)
async def test_of_modules_no_payload_is_taken_that_breaks_clients(
    payload: Payload, reason: str
) -> None:
    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        is_asked = events[0].type == ("a",)
        return [ProcessEvent(module.source, ("b",), None, payload)] if is_asked else []

    async with running(EVERYTHING) as (core, [module]):
        module.on_process = on_process
        with pytest.raises(ModuleError) as added:
            await register(core, register_event("a"))
        with pytest.raises(InvalidEventError) as registered:
            await module.engine.register([ProcessEvent(module.source, ("c",), None, payload)])
        assert str(added.value) == f"module {NAME} failed: InvalidEventError: {reason}"
        assert str(registered.value) == reason
        assert await stored(core) == []


async def test_a_module_that_raises_fails_that_registration_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        if events[0].type == ("bad",):
            raise ZeroDivisionError("secret detail")
        return []

    async with running(EVERYTHING, EVERYTHING, EVERYTHING) as (core, modules):
        modules[1].on_process = on_process
        sessions = [core.register(CONNECTION, [register_event(i)]) for i in ("a", "bad", "c")]
        await asyncio.wait([i.committed for i in sessions])
        assert str(sessions[1].committed.exception()) == (
            "module tests.eventer_bridge.modules.scripted failed: ZeroDivisionError"
        )
        assert isinstance(sessions[1].committed.exception(), ModuleError)
        assert types(await stored(core)) == ["a", "c"]
        await core.stop()
        for module in modules:  # of the others too, every session was closed
            closings = dict(module.closed)
            assert [closings[i] for i in (2, 3, 4)] == [True, False, True]
            assert module.n_sessions == len(module.closed)
    [record] = [i for i in caplog.records if i.message == "module failed"]
    assert record.exc_info is not None
    assert "secret detail" in caplog.text


async def test_additions_of_a_failed_session_are_not_stored() -> None:
    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        if events[0].type == ("b",):
            raise RuntimeError
        return [module.event("b")]

    async with running(EVERYTHING) as (core, [module]):
        module.on_process = on_process
        with pytest.raises(ModuleError):
            await register(core, register_event("a"))
        assert await stored(core) == []


class NoSession:
    pass


@pytest.mark.parametrize("wrong", [NoSession(), ZeroDivisionError()])
async def test_a_module_that_cannot_open_a_session(
    wrong: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def on_create(module: Scripted) -> object:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    async with running(EVERYTHING, EVERYTHING, EVERYTHING) as (core, modules):
        modules[1].on_create = on_create
        with pytest.raises(ModuleError, match=r"failed: (TypeError|ZeroDivisionError)$"):
            await register(core, register_event("a"))
        assert [i.n_sessions for i in modules] == [2, 2, 1]
        assert len(modules[0].closed) == 2  # opened before the one that failed
        del modules[1].on_create
        modules[1].on_create = modules[0].on_create
        await register(core, register_event("a"))
        assert types(await stored(core)) == ["a"]


async def test_a_module_that_cannot_close_a_session(caplog: pytest.LogCaptureFixture) -> None:
    async def on_close(module: Scripted, is_committed: bool) -> None:
        raise ZeroDivisionError

    async with running(EVERYTHING, EVERYTHING) as (core, modules):
        modules[0].on_close = on_close
        for _ in range(2):
            await register(core, register_event("a"))  # not concerned
        await core.stop()
        assert modules[1].closed[1:3] == [(2, True), (3, True)]  # closed nevertheless
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("junk", [None, 1, "abc", [1], [register_event("a")], iter([])])
async def test_junk_in_place_of_events(junk: object, caplog: pytest.LogCaptureFixture) -> None:
    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> object:
        return junk

    async with running(EVERYTHING) as (core, [module]):
        module.on_process = on_process
        with pytest.raises(ModuleError, match=r"failed: TypeError$"):
            await register(core, register_event("a"))
        assert await stored(core) == []
    assert "process returned" in caplog.text


async def test_events_that_cannot_be_stored(caplog: pytest.LogCaptureFixture) -> None:
    def junk(module: Scripted, event_type: Any, payload: Any) -> ProcessEvent:
        return ProcessEvent(module.source, event_type, None, payload)

    async with running(EVERYTHING) as (core, [module]):
        for event in [
            junk(module, ("?",), None),
            junk(module, (1,), None),
            junk(module, ("ok",), 1),
        ]:

            async def on_process(
                module: Scripted, events: Sequence[ProcessEvent], event: ProcessEvent = event
            ) -> list[ProcessEvent]:
                return [event] if events[0].type == ("a",) else []

            module.on_process = on_process
            with pytest.raises((ModuleError, ValueError)):
                await register(core, register_event("a"))
            assert core.pending_events == 0
        assert types(await register(core, register_event("b"))) == ["b"]
        assert types(await stored(core)) == ["b"]
        # what makes them by the book is told where
        for wrong in (RegisterEvent(["a"], None, None), RegisterEvent(("a",), None, 1)):  # type: ignore[arg-type]  # as a careless module would
            with pytest.raises(TypeError, match="expected"):
                module.engine.create_process_event(module.source, wrong)
        with pytest.raises(TypeError, match=r"^source_timestamp 1: expected a Timestamp or None$"):
            module.engine.create_process_event(module.source, RegisterEvent(("a",), 1, None))  # type: ignore[arg-type]  # as above


async def test_a_module_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        if events[0].type == ("slow",):
            await asyncio.Event().wait()
        return []

    async with running(EVERYTHING, EVERYTHING) as (core, modules):
        modules[1].on_process = on_process
        with monkeypatch.context() as patch:
            patch.setattr(limits, "MODULE_TIMEOUT_S", 0.05)
            with pytest.raises(
                ModuleError,
                match=r"^modules took too long for a session \(at most 0\.05 s, less while the"
                r" server stops\): interrupted tests\.eventer_bridge\.modules\.scripted$",
            ):
                await register(core, register_event("slow"))
        assert types(await register(core, register_event("a"))) == ["a"]
        assert modules[0].closed[1] == (2, False)
    assert "modules take too long" in caplog.text


async def test_a_module_that_takes_too_long_to_close(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        monkeypatch.setattr(limits, "MODULE_TIMEOUT_S", 0.05)  # of what comes next: closing
        return []

    async def on_close(module: Scripted, is_committed: bool) -> None:
        if is_committed:
            await asyncio.Event().wait()

    async with running(EVERYTHING, EVERYTHING) as (core, modules):
        modules[0].on_process, modules[0].on_close = on_process, on_close
        await register(core, register_event("a"))
        await core.stop()
        assert (2, True) in modules[1].closed
    assert "module takes too long to close" in caplog.text


async def test_a_module_whose_own_task_is_cancelled() -> None:
    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        if events[0].type == ("bad",):
            task = asyncio.ensure_future(asyncio.Event().wait())
            asyncio.get_running_loop().call_soon(task.cancel)
            await task
        return []

    for n_modules in (1, 2):
        async with running(*[EVERYTHING] * n_modules) as (core, modules):
            modules[0].on_process = on_process
            with pytest.raises(ModuleError, match=r"failed: CancelledError$"):
                await register(core, register_event("bad"))
            assert types(await register(core, register_event("a"))) == ["a"]


async def test_a_module_session_may_not_wait_for_another_session() -> None:
    errors: list[str] = []

    async def try_to_register(module: Scripted, *_: object) -> list[Any]:
        with pytest.raises(ModuleError) as raised:
            await module.engine.register([module.event("x")])
        errors.append(str(raised.value))
        return []

    async def on_create(module: Scripted) -> ModuleSession | None:
        await try_to_register(module)
        return None

    async def on_close(module: Scripted, is_committed: bool) -> None:
        await try_to_register(module)

    for n_modules in (1, 2):
        async with running(*[EVERYTHING] * n_modules) as (core, modules):
            errors.clear()
            modules[0].on_create = on_create
            modules[0].on_process = try_to_register
            modules[0].on_close = on_close
            await register(core, register_event("a"))
            while len(errors) < 3:
                await asyncio.sleep(0)
            assert set(errors) == {
                "a module session may not wait for another session: return the events from"
                " process, or register from a task of the module"
            }
            assert types(await stored(core)) == ["a"]


async def test_a_module_that_closes_by_itself_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(EVERYTHING, EVERYTHING) as (core, modules):
        await register(core, register_event("a"))
        await modules[0].async_close()
        await register(core, register_event("b"))
        assert list(modules[0].seen) == [2]
        assert list(modules[1].seen) == [2, 3]
    assert [i.message for i in caplog.records if i.levelname == "ERROR"] == [
        "module closed by itself"
    ]


async def test_conditions_hold_for_what_modules_add() -> None:
    conditions = Conditions(
        [{"subscriptions": [["b"]], "condition": {"type": "json", "data_type": "number"}}]
    )
    async with running(EVERYTHING, conditions=conditions) as (core, [module]):
        module.on_process = answering({("a",): [("b",)]})
        with pytest.raises(ConditionError, match=r"^event 2 \(b\) fails conditions\[0\]: the pay"):
            await register(core, register_event("a"))
        assert module.closed[1:] == [(2, False)]
        assert await stored(core) == []


async def test_the_response_has_what_was_requested_subscribers_see_all() -> None:
    class Noting(Observer):
        def __init__(self) -> None:
            self.calls: list[tuple[list[str], bool]] = []

        def on_session(self, session: Batch, persisted: bool) -> None:
            self.calls.append((types(session.events), persisted))

    async with running(EVERYTHING) as (core, [module]):
        module.on_process = answering({("a",): [("b",)]})
        observer = Noting()
        core.add_observer(observer)
        session = core.register(CONNECTION, [register_event("a")])
        await session.committed
        assert session.requested == 1
        await asyncio.sleep(0)  # the observer is told beside us
        assert observer.calls == [(["a", "b"], False), (["a", "b"], True)]


async def test_payloads_and_timestamps_come_through() -> None:
    async with running(EVERYTHING) as (core, [module]):
        group = Tasks()
        events = await group.spawn(register, core, register_event("a", value={"x": [1]}))
        assert events[0].payload == JsonPayload.of({"x": [1]})
        await group.async_close()
        assert module.seen == {2: [[("a",)]]}
