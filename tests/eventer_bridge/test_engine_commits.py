"""Engine: commits that are slow, shared, or fail; what of a session the backend is told."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from hat import util

from eventer_bridge import engine, limits
from eventer_bridge.backends.common import failed
from eventer_bridge.backends.memory import MemoryBackend
from eventer_bridge.conditions import Conditions
from eventer_bridge.engine import ENGINE_SOURCE, Engine
from eventer_bridge.errors import (
    ConditionError,
    InvalidEventError,
    LimitError,
    ModuleError,
    StorageError,
)
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    QueryParams,
    QueryResult,
    QueryServerParams,
    RegisterEvent,
    Source,
    SourceType,
    Status,
    Timestamp,
)
from eventer_bridge.modules.base import ModuleEngine
from eventer_bridge.session import REMOTE_SOURCE, Session
from eventer_bridge.slices import Steps
from eventer_bridge.subscription import NOTHING, Subscription
from eventer_bridge.type_budget import TypeQuota
from tests.eventer_bridge.modules.scripted import NAME, Scripted, answering

SOURCE = Source(SourceType.CONNECTION, 1)
QUOTA = TypeQuota("client", 1_000)
LARGE = 10
"""Events of a session that is not large yet."""


class SlowBackend(MemoryBackend):
    """Commits when the test says so, and fails when it says so."""

    def __init__(self) -> None:
        super().__init__((), Timestamp.now)
        self.is_slow = False
        self.commits: list[asyncio.Future[None]] = []
        self.asked: list[tuple[int, TypeQuota | None, int]] = []
        self.in_steps: list[int] = []
        self.queries: list[tuple[object, ...]] = []
        self.why: str | None = None
        self.on_register: Callable[[], None] = lambda: None
        self.failure_cbs: list[Callable[[], None]] = []

    @property
    def failure(self) -> str | None:  # type: ignore[override]  # memory does not fail
        return self.why

    def register_failure_cb(self, cb: Callable[[], None]) -> util.RegisterCallbackHandle:
        self.failure_cbs.append(cb)
        return util.RegisterCallbackHandle(lambda: self.failure_cbs.remove(cb))

    def fail(self, why: str | None) -> None:
        self.why = why
        for cb in self.failure_cbs:
            cb()

    def reserve(self, server_id: int, session: int) -> asyncio.Future[None]:
        if self.why is None:
            return super().reserve(server_id, session)
        return failed(asyncio.get_running_loop().create_future(), StorageError(self.why))

    def register(
        self, events: Sequence[Event], quota: TypeQuota | None = None, n_asked: int = 0
    ) -> asyncio.Future[None]:
        self.on_register()
        self.asked.append((len(events), quota, n_asked))
        if self.why is not None:
            return failed(asyncio.get_running_loop().create_future(), StorageError(self.why))
        commit = super().register(events, quota, n_asked)
        if not self.is_slow:
            return commit
        if not self.commits or self.commits[-1].done():
            self.commits.append(asyncio.get_running_loop().create_future())
        return self.commits[-1]  # those that are committed together share it

    def register_in_steps(
        self, events: Sequence[Event], quota: TypeQuota | None = None, n_asked: int = 0
    ) -> Steps[asyncio.Future[None]]:
        self.in_steps.append(len(events))
        return super().register_in_steps(events, quota, n_asked)

    async def query(
        self,
        params: QueryParams,
        subscription: Subscription | None = None,
        client: str = "",
        holding: ExitStack | None = None,
    ) -> QueryResult:
        self.queries.append((params, subscription, client, holding))
        return await super().query(params, subscription, client, holding)


class Recorder:
    """An observer that remembers what it was told."""

    def __init__(self, core: Engine) -> None:
        self.told: list[tuple[int, bool]] = []
        self.sources: list[Source] = []
        self.statuses: list[Status] = []
        core.add_observer(self)

    def on_session(self, session: Session, persisted: bool) -> None:
        self.told.append((len(session.events), persisted))
        self.sources.append(session.source)

    def on_status(self, status: Status) -> None:
        self.statuses.append(status)


@pytest.fixture(autouse=True)
def few_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LARGE_SESSION_EVENTS", LARGE)
    monkeypatch.setattr(limits, "STEP_EVENTS", 4)
    monkeypatch.setattr(limits, "SLICE_S", 0.0)  # others get their turn after each step


@pytest.fixture
async def backend() -> AsyncIterator[SlowBackend]:
    async with SlowBackend() as backend:
        yield backend


@pytest.fixture
async def core(backend: SlowBackend) -> AsyncIterator[Engine]:
    core = await engine.create(backend, 7)
    backend.asked.clear()
    yield core
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


async def done(*sessions: Session) -> list[BaseException | None]:
    await asyncio.wait([i.committed for i in sessions])
    for _ in range(9):
        await asyncio.sleep(0)
    return [i.committed.exception() for i in sessions]


# --- when ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1, 2, 3), (1, LARGE + 1, 2), (LARGE + 1, LARGE + 2)])
async def test_sessions_are_durable_when_the_backend_says_so(
    core: Engine, backend: SlowBackend, sizes: tuple[int, ...]
) -> None:
    backend.is_slow = True
    recorder = Recorder(core)
    sessions = [core.register(SOURCE, events_of(n)) for n in sizes]
    sessions.append(Session(REMOTE_SOURCE, 4, 0, core.replicate(remote(1, 4))))
    await handed_over(backend, len(sessions))
    assert recorder.told == [(n, False) for n in (*sizes, 4)]
    assert not any(i.committed.done() for i in sessions)
    assert core.pending_events == sum(sizes) + 4
    backend.commits[0].set_result(None)
    assert await done(*sessions) == [None] * len(sessions)
    assert recorder.told[len(sessions) :] == [(n, True) for n in (*sizes, 4)]
    assert core.pending_events == 0


@pytest.mark.parametrize("sizes", [(1, 2, 3), (1, LARGE + 1, 2), (LARGE + 1, LARGE + 2)])
async def test_a_commit_that_fails_is_told_to_who_asked_only(
    core: Engine, backend: SlowBackend, sizes: tuple[int, ...]
) -> None:
    backend.is_slow = True
    recorder = Recorder(core)
    sessions = [core.register(SOURCE, events_of(n)) for n in sizes]
    sessions.append(Session(REMOTE_SOURCE, 4, 0, core.replicate(remote(1, 4))))
    await handed_over(backend, len(sessions))
    backend.commits[0].set_exception(StorageError("full"))
    assert [str(i) for i in await done(*sessions)] == ["full"] * len(sessions)
    assert all(not persisted for _, persisted in recorder.told)
    assert core.pending_events == 0
    backend.is_slow = False
    assert await done(core.register(SOURCE, events_of(1))) == [None]
    assert recorder.told[-2:] == [(1, False), (1, True)]


async def test_a_query_finds_what_it_has_to_wait_for(core: Engine, backend: SlowBackend) -> None:
    backend.is_slow = True
    session = core.register(SOURCE, events_of(1))
    later: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = [
        asyncio.ensure_future(core.query(QueryServerParams(7), after=after))
        for after in ([session.committed], [session.committed, later], [])
    ]
    assert len((await waiting[2]).events) == 2
    assert not waiting[0].done()
    backend.commits[0].set_result(None)
    assert len((await waiting[0]).events) == 2
    assert not waiting[1].done()
    later.set_exception(StorageError("full"))  # which is not its business
    assert len((await waiting[1]).events) == 2


async def test_queries_are_the_backends(core: Engine, backend: SlowBackend) -> None:
    await core.query(params := QueryServerParams(7))
    with ExitStack() as holding:
        await core.query(params, NOTHING, "app", (), holding)
        assert backend.queries == [(params, None, "", None), (params, NOTHING, "app", holding)]


# --- what is large ------------------------------------------------------------------------


class Patient(Recorder):
    """An observer that takes its time."""

    def __init__(self, core: Engine) -> None:
        super().__init__(core)
        self.in_steps: list[tuple[int, bool]] = []

    def on_large_session(self, session: Session, persisted: bool) -> Steps[None]:
        self.in_steps.append((len(session.events), persisted))
        yield


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
        core.when_drained(count)
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
    backend.is_slow = True
    core._pending._max_bytes = 3 * n_events - 1
    session = core.register(SOURCE, events_of(n_events, 123))
    full = [core.is_full]
    await handed_over(backend, 1)
    backend.commits[0].set_result(None)
    await done(session)
    full.append(core.is_full)
    core._pending._max_bytes = 3 * n_events
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

    core = await engine.create(backend, 7, modules=[{"module": NAME, "make": make}])
    backend.asked.clear()
    backend.is_slow = True
    yield core
    backend.is_slow = False
    for commit in backend.commits:
        if not commit.done():
            commit.set_result(None)
    await core.async_close()


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
    assert backend._budget.spent == {"client": 2}
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


async def test_what_modules_add_may_fill_the_engine(adding: Engine, backend: SlowBackend) -> None:
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
    adding._pending._max_bytes = 10 * len("null")
    await registered(large)
    adding._pending._max_bytes += 1
    await registered(large)
    assert full == [True, False, False, False]


async def test_conditions_of_what_modules_make_large(backend: SlowBackend) -> None:
    def make(module_engine: ModuleEngine) -> Scripted:
        module = Scripted(module_engine)
        module.on_process = answering({("a",): [("b",)] * 20})
        return module

    number: Any = {"subscriptions": [["b"]], "condition": {"type": "json", "data_type": "number"}}
    confs = [{"module": NAME, "make": make}]
    async with await engine.create(backend, 7, modules=confs, conditions=Conditions([number])) as c:
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
    assert backend._budget.spent == {"client": 4}


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
    async with await engine.create(backend, 7, conditions=conditions) as core:
        with pytest.raises(ConditionError, match=r"^event 2 \(a\) fails conditions\[0\]"):
            core.register(SOURCE, [*events_of(1), *events_of(1, "x")])
        large = core.register(SOURCE, [*events_of(LARGE), *events_of(1, "x")])
        behind = core.register(SOURCE, events_of(1, "x"))
        fine = core.register(SOURCE, events_of(1))
        errors = await done(large, behind, fine)
        assert [type(i) for i in errors] == [ConditionError, ConditionError, type(None)]
        assert core.pending_events == 0
        assert len((await core.query(QueryServerParams(7))).events) == 2  # STARTED, and this


# --- a backend that fails -----------------------------------------------------------------


async def test_a_backend_that_cannot_write_refuses_at_once(
    core: Engine, backend: SlowBackend
) -> None:
    recorder = Recorder(core)
    backend.fail("full")
    statuses = [core.status]
    with pytest.raises(StorageError, match=r"^full$"):
        core.register(SOURCE, events_of(1))
    [error] = await done(core.register(SOURCE, events_of(LARGE + 1)))
    assert isinstance(error, StorageError)
    for n_events in (1, LARGE + 1):
        with pytest.raises(StorageError, match=r"^full$"):
            await core.replicate(remote(1, n_events))
    with pytest.raises(StorageError, match=r"^full$"):
        core.replicated(2)
    assert (core.pending_events, recorder.told) == (0, [])
    backend.fail(None)
    statuses.append(core.status)
    assert recorder.statuses == statuses == [Status.STANDBY, Status.OPERATIONAL]
    assert core.replicated(2).session == 0


async def test_an_error_that_nobody_expects_fails_a_large_session_only(
    core: Engine, backend: SlowBackend, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down() -> None:
        backend.on_register = lambda: None
        raise ZeroDivisionError("x")

    backend.on_register = break_down
    large, small = [core.register(SOURCE, events_of(n)) for n in (LARGE + 1, 1)]
    error, nothing = await done(large, small)
    assert isinstance(error, StorageError)
    assert str(error) == "the session failed: ZeroDivisionError('x')"
    assert nothing is None
    backend.on_register = break_down
    with pytest.raises(StorageError, match=r"^it failed: ZeroDivisionError\('x'\)$"):
        await core.replicate(remote(1, LARGE + 1))
    assert core.pending_events == 0
    lines = [i.message for i in caplog.records if i.exc_info]
    assert lines == ["session failed", "replicated session failed"]


async def test_a_start_that_cannot_be_registered_fails(backend: SlowBackend) -> None:
    backend.fail("full")
    core = Engine(backend, 7)
    with pytest.raises(StorageError, match=r"^full$"):
        await core.start()
    assert core.status is not Status.OPERATIONAL
    await core.async_close()


async def test_an_end_that_cannot_be_registered_leaves_a_line(
    core: Engine, backend: SlowBackend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.fail("full")
    await core.stop()
    assert core.status is Status.STANDBY
    await core.async_close()
    lines = [i for i in caplog.records if i.levelname == "ERROR"]
    assert [i.message for i in lines] == [
        "engine could not register its end",
        "engine could not flush",
    ]
    assert [vars(i)["reason"] for i in lines] == ["full", "full"]


async def test_the_end_of_what_never_began_is_not_registered(backend: SlowBackend) -> None:
    core = Engine(backend, 7, [{"module": "no.such.module"}])
    with pytest.raises(ModuleError):
        await core.start()
    await core.async_close()
    assert (backend.asked, (await backend.query(QueryServerParams(7))).events) == ([], [])


async def test_an_engine_ends_with_its_backend(
    core: Engine, backend: SlowBackend, caplog: pytest.LogCaptureFixture
) -> None:
    await backend.async_close()
    await core.wait_closed()
    assert [i.message for i in caplog.records if i.levelname == "ERROR"] == []


# --- sources, types -----------------------------------------------------------------------


async def test_observers_are_told_who_asked(backend: SlowBackend) -> None:
    core = Engine(backend, 7)
    recorder = Recorder(core)
    await core.start()
    await done(core.register(SOURCE, events_of(1)))
    core.announce(SOURCE, "gui", is_connected=True)
    await core.replicate(remote(1))
    await core.async_close()
    # STARTED, ours twice, another server's, STOPPED; of each, that it is durable too
    expected = [ENGINE_SOURCE, SOURCE, SOURCE, REMOTE_SOURCE, ENGINE_SOURCE] * 2
    assert Counter(recorder.sources) == Counter(expected)


async def test_types_are_checked_once(core: Engine, backend: SlowBackend) -> None:
    checked: list[int] = []
    check_types = backend.check_types

    def count(event_types: Any, quota: TypeQuota | None = None) -> None:
        checked.append(len(event_types))
        check_types(event_types, quota)

    backend.check_types = count  # type: ignore[method-assign]
    for _ in range(2):
        await done(core.register(SOURCE, [*events_of(2), *events_of(1, name="b")]))
    assert checked == [2]
    with pytest.raises(InvalidEventError):
        core.register(SOURCE, [*events_of(2), *events_of(1, name="*")])
    assert checked == [2]
