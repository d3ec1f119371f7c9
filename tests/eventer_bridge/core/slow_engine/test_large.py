"""Engine: large sessions and small ones, what modules add, and how much is under way."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import ConditionError, InvalidEventError, LimitError
from eventer_bridge.model import QueryServerParams, RegisterEvent
from eventer_bridge.modules.base import ModuleEngine
from tests.eventer_bridge.core.slow_engine.support import (
    LARGE,
    SOURCE,
    Patient,
    Recorder,
    SlowBackend,
    done,
    events_of,
    handed_over,
    remote,
    running,
)
from tests.eventer_bridge.modules.scripted import NAME, Scripted, answering

QUOTA = TypeQuota("client", 1_000)


# --- what is large ------------------------------------------------------------------------


async def test_what_is_large_is_dealt_with_in_steps(
    core: Engine, backend: SlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MANY_NEW_TYPES", 2)
    patient = Patient(core)
    at_once = [
        core.register(SOURCE, events_of(LARGE)),
        core.register(SOURCE, [*events_of(1, name="b"), *events_of(1, name="c")]),
    ]
    core.replicate(remote(1, LARGE))
    assert patient.told == [(LARGE, False), (2, False), (LARGE, False)]
    await done(*at_once)
    assert (patient.in_steps, backend.in_steps) == ([], [])

    many_types = [RegisterEvent((f"{i}",), None, None) for i in range(3)]
    in_steps = [core.register(SOURCE, i) for i in (events_of(LARGE + 1), many_types)]
    commit = core.replicate(remote(2, LARGE + 1))
    await done(*in_steps)
    await commit
    assert backend.in_steps == [LARGE + 1, 3, LARGE + 1]
    assert [n for n, persisted in patient.in_steps if persisted] == backend.in_steps
    assert [n for n, persisted in patient.in_steps if not persisted] == backend.in_steps


async def test_a_large_session_that_fails_leaves_nothing_behind(
    core: Engine, backend: SlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_EVENTS", 2)
    wrong = [*events_of(LARGE), *events_of(1, name="*")]
    for _ in range(2):
        [error] = await done(core.register(SOURCE, wrong))
        assert isinstance(error, InvalidEventError)
    backend.is_slow = True
    core.register(SOURCE, events_of(2))
    full = [core.is_full]
    core.register(SOURCE, events_of(1))
    assert [*full, core.is_full] == [False, True]


# --- how much is under way ----------------------------------------------------------------


async def test_large_sessions_do_not_fill_the_engine(
    core: Engine, backend: SlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_EVENTS", 3)
    n_drained = 0

    def count() -> None:
        nonlocal n_drained
        n_drained += 1

    for n_times in range(1, 3):
        backend.is_slow = True
        n_asked = len(backend.asked)
        large = [core.register(SOURCE, events_of(LARGE + i)) for i in (1, 2)]
        await handed_over(backend, n_asked + 2)
        assert (core.pending_events, core.is_full) == (2 * LARGE + 3, False)
        small = core.register(SOURCE, events_of(4))
        core.wait_for_room("a", count)
        assert (core.pending_events, core.is_full) == (2 * LARGE + 7, True)
        await handed_over(backend, len(backend.asked))
        assert n_drained == n_times - 1
        backend.commits[-1].set_result(None)
        assert await done(*large, small) == [None] * 3
        assert (core.pending_events, core.is_full, n_drained) == (0, False, n_times)


async def test_large_sessions_of_other_servers_do(
    core: Engine, backend: SlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_EVENTS", LARGE)
    for number in range(1, 3):
        backend.is_slow = True
        commit = core.replicate(remote(number, LARGE + 1))
        assert (core.pending_events, core.is_full) == (LARGE + 1, True)
        await handed_over(backend, number)
        backend.commits[-1].set_result(None)
        await commit
        assert (core.pending_events, core.is_full) == (0, False)


@pytest.mark.parametrize("n_events", [2, LARGE + 1])
async def test_payloads_fill_it_whatever_the_session(
    core: Engine, backend: SlowBackend, monkeypatch: pytest.MonkeyPatch, n_events: int
) -> None:
    def allow(n_bytes: int) -> None:
        core._max_pending_bytes = n_bytes
        monkeypatch.setattr(limits, "MAX_LARGE_PENDING_BYTES", n_bytes)

    backend.is_slow = True
    allow(3 * n_events - 1)
    session = core.register(SOURCE, events_of(n_events, 123))
    full = [core.is_full]
    await handed_over(backend, 1)
    backend.commits[0].set_result(None)
    await done(session)
    full.append(core.is_full)
    allow(3 * n_events)
    session = core.register(SOURCE, events_of(n_events, 123))
    assert [*full, core.is_full] == [True, False, False]


# --- what modules add ---------------------------------------------------------------------


@pytest.fixture
async def adding(backend: SlowBackend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    """An engine whose module adds ten events to each of type more, and nine to one of type nine."""
    monkeypatch.setattr(limits, "MAX_PENDING_EVENTS", 5)

    def make(module_engine: ModuleEngine) -> Scripted:
        module = Scripted(module_engine)
        module.on_process = answering({("more",): [("b",)] * 10, ("nine",): [("b",)] * 9})
        return module

    async with running(backend, modules=[{"module": NAME, "make": make}]) as core:
        backend.is_slow = True
        yield core


async def test_events_that_modules_add_do_not_count_for_who_asked(
    adding: Engine, backend: SlowBackend
) -> None:
    recorder = Recorder(adding)
    asked = [
        events_of(1),
        events_of(1, name="more"),  # made large
        events_of(1),  # waits for it
        events_of(LARGE + 1),
        [*events_of(LARGE + 1), *events_of(1, name="more")],
    ]
    sessions = [adding.register(SOURCE, i, QUOTA) for i in asked]
    await handed_over(backend, len(asked))
    sizes = [1, 11, 1, LARGE + 1, LARGE + 12]
    assert backend.asked == [(n, QUOTA, len(i)) for n, i in zip(sizes, asked, strict=True)]
    assert recorder.told == [(n, False) for n in sizes]
    backend.commits[0].set_result(None)
    assert await done(*sessions) == [None] * len(asked)
    assert recorder.told[len(asked) :] == [(n, True) for n in sizes]
    assert [i.events[0].id.session for i in sessions] == [2, 3, 4, 5, 6]
    assert backend.in_steps == [11, LARGE + 1, LARGE + 12]
    assert [i.type for i in sessions[1].events] == [("more",), *[("b",)] * 10]
    assert backend.types_cost("client") == 2
    assert adding.pending_events == 0


async def test_what_modules_look_at_is_dealt_with_in_steps_too(
    adding: Engine, backend: SlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MANY_NEW_TYPES", 2)
    backend.is_slow = False
    patient = Patient(adding)
    types = [RegisterEvent((f"{i}",), None, None) for i in range(3)]
    sizes = ((events_of(LARGE), 0), (types, 3), (events_of(LARGE + 1), LARGE + 1))
    for asked, n_in_steps in sizes:
        backend.in_steps.clear()
        patient.in_steps.clear()
        await done(adding.register(SOURCE, asked))
        expected = [n_in_steps] if n_in_steps else []
        assert backend.in_steps == expected
        assert patient.in_steps == [(n, i) for i in (False, True) for n in expected]


async def test_payloads_that_modules_add_make_a_session_large(
    adding: Engine, backend: SlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.is_slow = False
    n_bytes = len("1") + 9 * len("null")
    for max_bytes, in_steps in ((n_bytes, []), (n_bytes - 1, [LARGE])):
        monkeypatch.setattr(limits, "LARGE_SESSION_BYTES", max_bytes)
        await done(adding.register(SOURCE, events_of(1, name="nine")))
        assert backend.in_steps == in_steps


async def test_what_modules_add_may_fill_the_engine(
    adding: Engine, backend: SlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    full: list[bool] = []

    async def registered(*events: RegisterEvent) -> None:
        sessions = [adding.register(SOURCE, [event]) for event in events]
        n_before = len(backend.asked)
        await handed_over(backend, n_before + len(events))
        full.append(adding.is_full)
        backend.commits[-1].set_result(None)
        assert await done(*sessions) == [None] * len(sessions)
        full.append(adding.is_full)

    small, large = events_of(1)[0], events_of(1, name="more")[0]
    await registered(*[small] * 6)
    assert full == [True, False]
    # what they make large does not, whether or not there is something small
    await registered(large, *[small] * 5)
    assert full[2:] == [False, False]
    await registered(large, *[small] * 6)
    assert full[4:] == [True, False]
    larger = [*events_of(LARGE + 1), large]
    for n_small in (5, 6):
        session = adding.register(SOURCE, larger)
        await handed_over(backend, len(backend.asked) + 1)
        await registered(large, *[small] * n_small)
        assert await done(session) == [None]
        await registered(*[small] * n_small)
    assert full[6:] == [False, False] * 2 + [True, False] * 2
    full.clear()
    # of as many events as a large session has not, they do
    await registered(events_of(1, name="nine")[0])
    assert full == [True, False]
    full.clear()
    # but its payloads do
    monkeypatch.setattr(limits, "MAX_LARGE_PENDING_BYTES", 10 * len("null"))
    await registered(large)
    monkeypatch.setattr(limits, "MAX_LARGE_PENDING_BYTES", 11 * len("null"))
    await registered(large)
    assert full == [True, False, False, False]


async def test_conditions_of_what_modules_make_large(backend: SlowBackend) -> None:
    def make(module_engine: ModuleEngine) -> Scripted:
        module = Scripted(module_engine)
        module.on_process = answering({("a",): [("b",)] * 20})
        return module

    number: Any = {"subscriptions": [["b"]], "condition": {"type": "json", "data_type": "number"}}
    confs = [{"module": NAME, "make": make}]
    async with running(backend, modules=confs, conditions=Conditions([number])) as c:
        [error] = await done(c.register(SOURCE, events_of(1)))
        assert isinstance(error, ConditionError)
        assert c.pending_events == 0


# --- what the backend is told -------------------------------------------------------------


async def test_new_types_count_for_who_asked(core: Engine, backend: SlowBackend) -> None:
    # the second and third wait for the first
    sessions = [
        core.register(SOURCE, events_of(n, name=f"{n}"), QUOTA) for n in (LARGE + 1, 2, LARGE + 2)
    ]
    sessions.append(core.register(SOURCE, events_of(3, name="3")))
    await done(*sessions)
    sessions.append(core.register(SOURCE, events_of(4, name="4"), QUOTA))
    assert backend.asked == [
        (LARGE + 1, QUOTA, LARGE + 1),
        (2, QUOTA, 2),
        (LARGE + 2, QUOTA, LARGE + 2),
        (3, None, 3),
        (4, QUOTA, 4),
    ]
    assert backend.types_cost("client") == 4


async def test_many_new_types_are_checked_in_steps(
    core: Engine, backend: SlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STEP_EVENTS", 1_000)
    checked: list[set[Any]] = []
    check_types = backend.check_types

    def check(event_types: Any, quota: TypeQuota | None = None) -> None:
        assert quota is QUOTA
        checked.append(set(event_types))
        check_types(event_types, quota)

    monkeypatch.setattr(backend, "check_types", check)
    events = [RegisterEvent((f"{i}",), None, None) for i in range(2 * limits.STEP_NEW_TYPES + 3)]
    await done(core.register(SOURCE, events, QUOTA))
    assert [len(i) for i in checked] == [limits.STEP_NEW_TYPES, limits.STEP_NEW_TYPES, 3]
    assert set().union(*checked) == {i.type for i in events}


@pytest.mark.parametrize("n_events", [3, LARGE + 1])
async def test_more_types_than_who_asked_may_bring(core: Engine, n_events: int) -> None:
    few = TypeQuota("few", 2)
    many = [RegisterEvent((f"{i}",), None, None) for i in range(n_events)]
    if n_events <= LARGE:
        with pytest.raises(LimitError, match="max_event_types: 2"):
            core.register(SOURCE, many, few)
    else:
        [error] = await done(core.register(SOURCE, many, few))
        assert isinstance(error, LimitError)
    assert core.pending_events == 0
    assert await done(core.register(SOURCE, many)) == [None]  # nobody's quota


async def test_conditions_hold_for_every_session(backend: SlowBackend) -> None:
    number: Any = {"subscriptions": [["a"]], "condition": {"type": "json", "data_type": "number"}}
    conditions = Conditions([number])
    async with running(backend, conditions=conditions) as core:
        with pytest.raises(ConditionError, match=r"^event 2 \(a\) fails conditions\[0\]"):
            core.register(SOURCE, [*events_of(1), *events_of(1, "x")])
        large = core.register(SOURCE, [*events_of(LARGE), *events_of(1, "x")])
        behind = core.register(SOURCE, events_of(1, "x"))
        fine = core.register(SOURCE, events_of(1))
        errors = await done(large, behind, fine)
        assert [type(i) for i in errors] == [ConditionError, ConditionError, type(None)]
        assert core.pending_events == 0
        # STARTED, the history, and this
        assert len((await core.query(QueryServerParams(7))).events) == 3
