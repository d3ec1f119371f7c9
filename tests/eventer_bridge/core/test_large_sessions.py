"""Engine: large sessions, which are dealt with in steps, and those around them."""

import asyncio
from pathlib import Path

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core import engine
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import InvalidEventError, LimitError
from eventer_bridge.model import Event, EventId, JsonPayload, QueryServerParams, Timestamp
from tests.eventer_bridge.backends.consistency import check_store
from tests.eventer_bridge.core.engines import SOURCE, Recorder, register, register_event


async def test_sessions_keep_their_order_around_a_large_one(tmp_path: Path) -> None:
    n_large = limits.LARGE_SESSION_EVENTS + 1
    many = [register_event("large", str(i % 9)) for i in range(n_large)]
    async with await rocksdb.create(tmp_path / "store") as backend:
        core = await engine.create(backend, 1)
        recorder = Recorder()
        core.add_observer(recorder)
        of_kind = {False: Recorder(), True: Recorder()}
        for persisted, each in of_kind.items():
            core.add_observer(each, registered=not persisted, persisted=persisted)
        n_turns = 0

        def count() -> None:
            nonlocal n_turns
            n_turns += 1
            if not large.committed.done():
                loop.call_soon(count)

        loop = asyncio.get_running_loop()
        first = core.register(SOURCE, [register_event("a")])
        large = core.register(SOURCE, many)
        last = core.register(SOURCE, [register_event("a")])
        count()
        assert (first.events[0].id.session, large.events, last.events) == (2, (), ())
        assert not core.is_full
        await asyncio.wait([i.committed for i in (first, large, last)])
        assert [i.events[0].id.session for i in (first, large, last)] == [2, 3, 4]
        assert [i.id.instance for i in large.events] == list(range(1, n_large + 1))
        assert n_turns > 3
        assert core._large_pending_events == 0
        await core.async_close()
    both = [(session, persisted) for persisted in (False, True) for session in (2, 3, 4)]
    told = [i for i in recorder.sessions if i[0] < 5]
    assert sorted(told) == sorted(both)
    for persisted in False, True:
        told_once = [(i, persisted) for i in (2, 3, 4)]
        assert [i for i in told if i[1] is persisted] == told_once
        assert [i for i in of_kind[persisted].sessions if i[0] < 5] == told_once
    assert core.pending_events == 0


def of_server(server: int, session: int, names: list[str]) -> list[Event]:
    return [
        Event(EventId(server, session, instance), (name,), Timestamp(session, 0), None, None)
        for instance, name in enumerate(names, 1)
    ]


async def test_replicated_sessions_keep_their_order_around_a_large_one(tmp_path: Path) -> None:
    names = [f"t{n}" for n in range(limits.LARGE_SESSION_EVENTS + 1)]
    async with await rocksdb.create(tmp_path / "store") as backend:
        core = await engine.create(backend, 1)
        recorder = Recorder()
        core.add_observer(recorder)
        large = core.replicate(of_server(2, 1, names))
        # of types that the large one brings
        last = core.replicate(of_server(2, 2, ["t7"]))
        own = core.register(SOURCE, [register_event(name) for name in names[-9:]])
        assert core.pending_events == len(names) + 10
        await asyncio.wait([large, last, own.committed])
        found = (await core.query(QueryServerParams(2, max_results=2))).events
        assert [i.type for i in found] == [("t0",), ("t1",)]
        assert (core.replicated(2).session, core.pending_events) == (2, 0)
        await core.async_close()
    order = [1, 2, own.events[0].id.session]
    for persisted in False, True:
        assert [i[0] for i in recorder.sessions if i[1] is persisted][:3] == order
    check_store(tmp_path / "store")


async def test_a_large_replicated_session_can_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{n}" for n in range(limits.LARGE_SESSION_EVENTS + 1)]
    async with await rocksdb.create(tmp_path / "store") as backend:
        core = await engine.create(backend, 1)
        monkeypatch.setattr(limits, "MAX_EVENT_TYPES", len(names) + 1)
        large = core.replicate(of_server(2, 1, names))
        behind = core.replicate(of_server(2, 2, names[:1]))
        await asyncio.wait([large, behind])
        # else what failed would be taken for kept, and be missing for ever
        for commit in large, behind, core.replicate(of_server(2, 3, names[:1])):
            with pytest.raises(LimitError):
                await commit
        assert core.pending_events == 0
        assert core.replicated(2).session == 0  # from there on, it is tried again
        await core.replicate(of_server(2, 1, names[1:]))
        assert core.replicated(2).session == 1
        await core.async_close()
    check_store(tmp_path / "store")


async def test_a_session_of_many_new_types_is_dealt_with_in_steps(tmp_path: Path) -> None:
    names = [f"t{n}" for n in range(limits.MANY_NEW_TYPES + 1)]
    quota = TypeQuota("client", len(names) + 1)
    async with await rocksdb.create(tmp_path / "store") as backend:
        core = await engine.create(backend, 1)
        first = core.register(SOURCE, [register_event(name) for name in names], quota)
        assert not first.events
        await asyncio.wait([first.committed])
        assert [event.type for event in first.events] == [(name,) for name in names]
        known = core.register(SOURCE, [register_event(name) for name in names], quota)
        assert known.events  # at once
        refused = core.register(SOURCE, [register_event(f"new {name}") for name in names], quota)
        await asyncio.wait([refused.committed])
        with pytest.raises(LimitError, match="1 more are allowed"):
            refused.committed.result()
        await register(core, register_event("new"))
        assert core.pending_events == 0
        await core.async_close()
    check_store(tmp_path / "store")


async def test_a_session_of_large_payloads_is_dealt_with_in_steps(tmp_path: Path) -> None:
    text = "x" * limits.LARGE_SESSION_BYTES
    async with await rocksdb.create(tmp_path / "store") as backend:
        core = await engine.create(backend, 1)
        recorder = Recorder()
        core.add_observer(recorder)
        large = core.register(SOURCE, [register_event("a", value=text)] * 2)
        small = core.register(SOURCE, [register_event("a")])
        replicated = core.replicate(
            [
                Event(EventId(2, 1, 1), ("a",), Timestamp(1, 0), None, JsonPayload.of(text)),
            ]
        )
        assert (large.is_large, large.events, small.is_large) == (True, (), False)
        await asyncio.wait([large.committed, small.committed, replicated])
        stored = (await core.query(QueryServerParams(1))).events[2:]
        assert stored == [*large.events, *small.events]
        assert (core.replicated(2).session, core.pending_events) == (1, 0)
        await core.async_close()
    assert [i for i, persisted in recorder.sessions if persisted][:3] == [2, 3, 1]
    check_store(tmp_path / "store")


async def test_a_large_session_is_refused_as_a_small_one(core: Engine) -> None:
    many = [register_event("a")] * limits.LARGE_SESSION_EVENTS
    session = core.register(SOURCE, [*many, register_event("a", "*")])
    await asyncio.wait([session.committed])
    with pytest.raises(InvalidEventError, match="'a/\\*'"):
        session.committed.result()
    with pytest.raises(LimitError):
        core.register(SOURCE, many * 40)
    assert core.pending_events == 0
    assert (await register(core, register_event("a"))).events[0].id.session == 2
