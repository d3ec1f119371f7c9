"""Engine: commits that are slow, shared, or fail, and who is told of them."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.engine import ENGINE_SOURCE, Engine
from eventer_bridge.core.session import REMOTE_SOURCE
from eventer_bridge.errors import InvalidEventError, ModuleError, StorageError
from eventer_bridge.model import QueryServerParams, Status
from eventer_bridge.packed import Batch, stored_batch
from eventer_bridge.subscription import NOTHING
from tests.eventer_bridge.backends.oracle import seen
from tests.eventer_bridge.core.slow_engine.support import (
    LARGE,
    SOURCE,
    Recorder,
    SlowBackend,
    done,
    events_of,
    handed_over,
    remote,
)


async def under_way(core: Engine, backend: SlowBackend, sizes: Sequence[int]) -> list[Batch]:
    """Sessions of so many events, and a replicated one of four, in one commit that waits."""
    backend.is_slow = True
    sessions = [core.register(SOURCE, events_of(n)) for n in sizes]
    replicated = stored_batch(remote(1, 4), core.types)
    replicated.committed = core.replicate(remote(1, 4))
    sessions.append(replicated)
    await handed_over(backend, len(sessions))
    return sessions


# --- when ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1, 2, 3), (1, LARGE + 1, 2), (LARGE + 1, LARGE + 2)])
async def test_sessions_are_durable_when_the_backend_says_so(
    core: Engine, backend: SlowBackend, sizes: tuple[int, ...]
) -> None:
    recorder = Recorder(core)
    sessions = await under_way(core, backend, sizes)
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
    recorder = Recorder(core)
    sessions = await under_way(core, backend, sizes)
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
        asyncio.ensure_future(core.answer(seen(QueryServerParams(7), None), after=after))
        for after in ([session.committed], [session.committed, later], [])
    ]
    assert len((await waiting[2]).events) == 3  # with STARTED, and the history
    assert not waiting[0].done()
    backend.commits[0].set_result(None)
    assert len((await waiting[0]).events) == 3
    assert not waiting[1].done()
    later.set_exception(StorageError("full"))  # which is not its business
    assert len((await waiting[1]).events) == 3


async def test_queries_are_the_backends(core: Engine, backend: SlowBackend) -> None:
    query = seen(QueryServerParams(7), NOTHING)
    with ExitStack() as holding:
        await core.answer(query, "app", (), holding)
        assert backend.queries == [(query, "app", holding)]


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
    # STARTED, ours twice, another server's, our end, STOPPED; of each, that it is durable too
    expected = [ENGINE_SOURCE, SOURCE, SOURCE, REMOTE_SOURCE, SOURCE, ENGINE_SOURCE] * 2
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
