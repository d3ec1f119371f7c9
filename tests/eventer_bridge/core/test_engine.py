"""Engine: sessions, ids, the clock, refusals, observers, closing."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.core import engine
from eventer_bridge.core.base import Observer
from eventer_bridge.core.engine import Engine
from eventer_bridge.core.session import REMOTE_SOURCE
from eventer_bridge.errors import InvalidEventError, LimitError, NotOperationalError
from eventer_bridge.model import Event, EventId, JsonPayload, QueryServerParams, Status, Timestamp
from eventer_bridge.packed import Batch
from eventer_bridge.slices import Steps
from tests.eventer_bridge.core.engines import SOURCE, Recorder, register, register_event


async def test_a_request_is_one_session(core: Engine) -> None:
    first = await register(core, register_event("a"), register_event("b"))
    second = await register(core, register_event("a"))
    ids = [(e.id.server, e.id.session, e.id.instance) for e in [*first.events, *second.events]]
    assert ids == [(7, 2, 1), (7, 2, 2), (7, 3, 1)]  # the first was STARTED
    assert first.events[0].timestamp == first.events[1].timestamp
    assert [e.type for e in first.events] == [("a",), ("b",)]
    assert first.source == SOURCE


async def test_an_empty_request_is_no_session(core: Engine) -> None:
    nothing = await register(core)
    assert (nothing.events, nothing.source) == ((), SOURCE)
    assert (nothing.requested, nothing.payload_bytes) == (0, 0)
    session = await register(core, register_event("a"))
    assert session.events[0].id.session == 2


async def test_the_clock_never_goes_backwards(
    core: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = 1 << 40
    readings = iter([Timestamp(s, 0) for s in (start, start - 3600, start + 1)])
    monkeypatch.setattr(Timestamp, "now", lambda: next(readings, Timestamp(0, 0)))
    timestamps = [(await register(core, register_event("a"))).events[0].timestamp for _ in range(3)]
    assert timestamps == [Timestamp(start, 0), Timestamp(start, 0), Timestamp(start + 1, 0)]


async def test_clock_and_ids_continue_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "store"
    last_timestamp = Timestamp(Timestamp.now().s + 3_600, 0)  # of a clock that is put back
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Timestamp, "now", lambda: last_timestamp)
        backend = await rocksdb.create(path)
        core = await engine.create(backend, 1)
        for _ in range(3):
            await register(core, register_event("a"))
        await core.async_close()
        await backend.async_close()

    backend = await rocksdb.create(path)
    core = await engine.create(backend, 1)
    session = await register(core, register_event("a"))
    # closed cleanly, the reserved ids that were not used are given back: STARTED, three
    # sessions and STOPPED came before, and STARTED again
    assert session.events[0].id.session == 7
    assert session.events[0].timestamp == last_timestamp
    await core.async_close()
    await backend.async_close()


async def test_ids_that_were_reserved_are_not_given_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "store"
    backend = await rocksdb.create(path)
    core = await engine.create(backend, 1)
    await register(core, register_event("a"))
    await backend.async_close()  # the engine cannot give anything back any more
    await core.async_close()

    backend = await rocksdb.create(path)
    core = await engine.create(backend, 1)
    session = await register(core, register_event("a"))
    assert session.events[0].id.session == limits.RESERVED_SESSIONS + 2
    await core.async_close()
    await backend.async_close()


async def test_more_sessions_than_were_reserved(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESERVED_SESSIONS", 8)
    core = await engine.create(backend, 1)
    for expected in range(2, 50):
        session = await register(core, register_event("a"))
        assert session.events[0].id.session == expected
        assert backend.high_water_mark(1).session >= expected
    await core.async_close()
    assert backend.high_water_mark(1).session == 50


async def test_refusals_store_nothing(core: Engine) -> None:
    with pytest.raises(InvalidEventError, match=r"event type 'a/\?': '\?' and '\*' are for quer"):
        core.register(SOURCE, [register_event("ok"), register_event("a", "?")])
    with pytest.raises(InvalidEventError, match=r"65 segments, at most 64 are allowed"):
        core.register(SOURCE, [register_event(*["a"] * 65)])
    with pytest.raises(InvalidEventError, match="1025 bytes, at most 1024 are allowed"):
        core.register(SOURCE, [register_event("a" * 1025)])
    with pytest.raises(LimitError, match="65537 events in one request, at most 65536"):
        core.register(SOURCE, [register_event("a")] * 65_537)
    result = await core.query(QueryServerParams(7))
    assert [e.type[-1] for e in result.events] == ["engine", "history"]


async def test_an_observer_that_leaves_meanwhile_costs_the_others_nothing(
    core: Engine, backend: Backend
) -> None:
    class Leaving(Recorder):
        def on_session(self, session: Batch, persisted: bool) -> None:
            super().on_session(session, persisted)
            core.remove_observer(self)
            core.set_hearing(self, registered=True, persisted=True)  # it is not there any more

    leaving, staying = Leaving(), Recorder()
    core.add_observer(leaving)
    core.add_observer(staying)
    for _ in range(2):
        await register(core, register_event("a"))
        await backend.flush()
    assert leaving.sessions == [(2, False)]
    assert staying.sessions == [(2, False), (2, True), (3, False), (3, True)]


async def test_observers_hear_twice_in_order(core: Engine, backend: Backend) -> None:
    recorder = Recorder()
    core.add_observer(recorder)
    futures = [core.register(SOURCE, [register_event("a")]).committed for _ in range(3)]
    assert recorder.sessions == [(2, False), (3, False), (4, False)]
    await backend.flush()
    assert all(future.done() for future in futures)
    assert recorder.sessions[3:] == [(2, True), (3, True), (4, True)]
    core.set_hearing(recorder, registered=False, persisted=False)
    await register(core, register_event("a"))
    await backend.flush()
    assert len(recorder.sessions) == 6
    core.set_hearing(recorder, registered=True, persisted=True)
    await register(core, register_event("a"))
    await backend.flush()
    assert recorder.sessions[6:] == [(6, False), (6, True)]
    for persisted in False, True:
        core.set_hearing(recorder, registered=not persisted, persisted=persisted)
        await register(core, register_event("a"))
        await backend.flush()
    assert recorder.sessions[8:] == [(7, False), (8, True)]
    core.remove_observer(recorder)
    await register(core, register_event("a"))
    await backend.flush()
    assert len(recorder.sessions) == 10


class Raising(Recorder):
    """An observer that raises whatever it is told."""

    def on_session(self, session: Batch, persisted: bool) -> None:
        super().on_session(session, persisted)
        raise ZeroDivisionError

    def on_status(self, status: Status) -> None:
        super().on_status(status)
        raise ZeroDivisionError


async def test_what_is_persisted_is_told_of_before_it_is_acknowledged(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []

    class Noting(Recorder):
        def on_session(self, session: Batch, persisted: bool) -> None:
            told.append((session.events[0].id.session, "persisted" if persisted else "registered"))

    async with await rocksdb.create(tmp_path) as backend, await engine.create(backend, 1) as core:
        core.add_observer(Noting())
        sessions = [core.register(SOURCE, [register_event("a")]) for _ in "123"]
        first = sessions[0].events[0].id.session
        assert sessions[1].committed is sessions[2].committed, "they are committed together"
        for session in sessions:
            noted = (session.events[0].id.session, "acknowledged")
            session.committed.add_done_callback(partial(lambda noted, _: told.append(noted), noted))
        await asyncio.wait([sessions[-1].committed])
        await asyncio.sleep(0)
        for number in range(first, first + 3):
            of_session = [what for i, what in told if i == number]
            assert of_session == ["registered", "persisted", "acknowledged"]


@pytest.mark.parametrize("n_events", [1, limits.LARGE_SESSION_EVENTS + 1])
async def test_an_observer_that_raises_costs_the_others_nothing(
    core: Engine, monkeypatch: pytest.MonkeyPatch, n_events: int
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_EVENTS", n_events - 1)
    observers = [Raising(), Recorder(), Raising(), Recorder()]
    for observer in observers:
        core.add_observer(observer)
    sessions = [core.register(SOURCE, [register_event("a")] * n_events) for _ in range(3)]
    drained = asyncio.Event()

    def cannot_go_on() -> None:
        raise ZeroDivisionError

    for callback in (cannot_go_on, drained.set):
        core.wait_for_room("a", callback)
    async with asyncio.timeout(60):
        await asyncio.wait([i.committed for i in sessions])
        if n_events == 1:
            await drained.wait()
        while any(len(i.sessions) < 6 for i in observers):
            await asyncio.sleep(0)
        await core.stop()
    assert core.pending_events == 0
    assert {i.committed.exception() for i in sessions} == {None}
    for observer in observers:
        for persisted in False, True:
            told = [i[0] for i in observer.sessions if i[1] is persisted]
            assert told[:3] == [2, 3, 4]
        assert observer.statuses == [Status.STOPPING, Status.STANDBY]


async def test_closing_finishes_what_is_under_way(backend: Backend) -> None:
    core = await engine.create(backend, 1)
    recorder = Recorder()
    core.add_observer(recorder)
    futures = [core.register(SOURCE, [register_event("a")]).committed for _ in range(10)]
    core.close()
    await core.wait_closed()
    assert [future.done() and not future.exception() for future in futures] == [True] * 10
    assert recorder.statuses == [Status.STOPPING, Status.STANDBY]
    with pytest.raises(NotOperationalError, match="server is STANDBY, not OPERATIONAL"):
        await register(core, register_event("a"))


async def test_a_full_engine_says_so_until_it_is_drained(
    core: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_EVENTS", 5)
    drained = asyncio.Event()
    futures = [core.register(SOURCE, [register_event("a")]).committed for _ in range(6)]
    full = [core.is_full]
    core.wait_for_room("a", drained.set)
    assert not drained.is_set()
    await drained.wait()
    assert [*full, core.is_full] == [True, False]
    await asyncio.gather(*futures)
    assert core.pending_events == 0


async def test_large_payloads_fill_the_engine_too(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_BYTES", 1000)
    async with await engine.create(backend, 7) as core:
        future = core.register(SOURCE, [register_event("a", value="x" * 2000)]).committed
        full = [core.is_full]
        await future
        await asyncio.sleep(0)  # the engine is told beside us
        assert [*full, core.is_full] == [True, False]


async def test_it_stops_and_starts_again(core: Engine) -> None:
    recorder = Recorder()
    core.add_observer(recorder)
    await core.stop()
    await core.stop()
    assert recorder.statuses == [Status.STOPPING, Status.STANDBY]
    with pytest.raises(NotOperationalError, match="server is STANDBY, not OPERATIONAL"):
        core.register(SOURCE, [register_event("a")])
    assert len((await core.query(QueryServerParams(7))).events) == 3  # with the history
    await core.start()
    await core.start()
    await register(core, register_event("a"))
    assert recorder.statuses[2:] == [Status.STARTING, Status.OPERATIONAL]
    events = [*(await core.query(QueryServerParams(7))).events]
    assert [e.type[-1] for e in events] == ["engine", "history", "engine", "engine", "a"]
    del events[1]
    states = [e.payload.value() for e in events if isinstance(e.payload, JsonPayload)]
    assert states == ["STARTED", "STOPPED", "STARTED", 1]


async def test_stopping_does_not_wait_for_ever_for_a_commit(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("STOP_TIMEOUT_S", "DRAIN_TIMEOUT_S"):
        monkeypatch.setattr(limits, name, 0.02)
    async with await engine.create(backend, 7) as core:
        never = asyncio.get_running_loop().create_future()

        def register(_: object) -> Steps[asyncio.Future[None]]:
            yield
            return never

        monkeypatch.setattr(backend, "register", register)
        core.register(SOURCE, [register_event("a")])
        async with asyncio.timeout(60):
            await core.stop()
        assert core.status is Status.STANDBY
        [record] = [i for i in caplog.records if i.message == "sessions do not end"]
        assert vars(record)["sessions"] == 1
        never.set_result(None)
        await asyncio.sleep(0)
        assert core.pending_events == 0


class BusyReplication(Observer):
    """Hands over a replicated session whenever one is durable, so that one always waits."""

    def __init__(self, core: Engine) -> None:
        self.n_sessions = 0
        self._core = core
        core.add_observer(self)
        self._replicate()

    def on_session(self, session: Batch, persisted: bool) -> None:
        if persisted and session.source == REMOTE_SOURCE:
            self._replicate()

    def _replicate(self) -> None:
        self.n_sessions += 1
        event_id = EventId(2, self.n_sessions, 1)
        self._core.replicate([Event(event_id, ("a",), Timestamp(1, 0), None, None)])


async def test_it_stops_while_sessions_are_replicated(core: Engine) -> None:
    replication = BusyReplication(core)
    own = core.register(SOURCE, [register_event("a")])
    async with asyncio.timeout(60):
        await core.stop()
    assert own.committed.done()
    last = (await core.query(QueryServerParams(7))).events[-1]
    assert last.payload == JsonPayload.of("STOPPED")
    n_sessions = replication.n_sessions
    async with asyncio.timeout(60):
        while replication.n_sessions == n_sessions:  # which goes on
            await asyncio.sleep(0)
    core.remove_observer(replication)


async def test_what_observers_are_notified_of_is_known_as_persisted(tmp_path: Path) -> None:
    backend = await rocksdb.create(tmp_path / "store")
    found: list[tuple[EventId, int]] = []

    class Looking(Recorder):
        def on_session(self, session: Batch, persisted: bool) -> None:
            last = session.last_id
            found.append((last, core.last_persisted(last.server)))

    core = await engine.create(backend, 1)
    core.add_observer(Looking(), registered=False)
    small = [core.register(SOURCE, [register_event("a")]) for _ in range(3)]
    many = [register_event("a")] * (limits.LARGE_SESSION_EVENTS + 1)
    assert core.last_persisted(1) == 1  # STARTED
    large = core.register(SOURCE, many)
    later = core.register(SOURCE, [register_event("a")])
    other = core.replicate([Event(EventId(2, 9, 1), ("a",), Timestamp.now(), None, None)])
    while len(found) < 6:
        await asyncio.sleep(0.001)
    assert all(persisted >= last.session for last, persisted in found)
    assert core.last_persisted(1) == later.last_id.session == large.last_id.session + 1
    assert (core.last_persisted(2), core.last_persisted(3)) == (9, 0)
    assert core.servers() == [1, 2]
    assert all(i.committed.done() for i in small)
    await other
    await core.async_close()
    again = await engine.create(backend, 1)
    assert again.servers() == [1, 2]
    assert again.last_persisted(2) == 9
    await again.async_close()
    await backend.async_close()
