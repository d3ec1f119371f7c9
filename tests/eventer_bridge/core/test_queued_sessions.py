"""Small sessions that come while a large one is handed over: they wait, and are then together."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits, packed
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.request_keys import RequestKey
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core import engine
from eventer_bridge.core.engine import Engine
from eventer_bridge.core.keyed_requests import KeyedRequests
from eventer_bridge.core.validation import TypeChecks
from eventer_bridge.errors import (
    OutcomeUnknownError,
    QuotaError,
    RequestOrderError,
    StorageError,
)
from eventer_bridge.model import QueryServerParams, RegisterEvent
from eventer_bridge.packed import Batch
from eventer_bridge.slices import Steps
from mariner.wire import codec
from tests.eventer_bridge.backends.consistency import check_store
from tests.eventer_bridge.backends.faults import full_disk, recovered
from tests.eventer_bridge.backends.oracle import request_key
from tests.eventer_bridge.core.engines import SOURCE, Recorder, register_event, submit
from tests.eventer_bridge.packed.support import compiled, decode_events, event_text, request
from tests.support.waiting import until

QUOTA = TypeQuota("client", 300)

Make = Callable[[bytes], Sequence[RegisterEvent]]
"""Makes the events of a request out of its message."""


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[RocksDbBackend]:
    async with await rocksdb.create(tmp_path / "store") as backend:
        yield backend
    check_store(tmp_path / "store")


@pytest.fixture
async def core(backend: RocksDbBackend) -> AsyncIterator[Engine]:
    """With a type that is known, and follows in the order of its source timestamps."""
    async with await engine.create(backend, 1) as core:
        known = decode_events(request(event_text("a", 10), event_text("b", 10)))
        await core.register(SOURCE, known).committed
        yield core


@pytest.fixture(params=["decoded", pytest.param("packed", marks=compiled)])
def make(request: pytest.FixtureRequest, core: Engine) -> Make:
    if request.param == "decoded":
        return decode_events
    types = core.type_table(codec.read_type)

    def pack(message: bytes) -> Sequence[RegisterEvent]:
        found = packed.read_json(message, types)
        assert found is not None
        return found

    return pack


@pytest.fixture
def calls(backend: RocksDbBackend, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many small sessions came with each call of the backend."""
    found: list[int] = []
    register = backend.register

    def noted(batches: list[Batch]) -> Steps[asyncio.Future[None]]:
        if not batches[0].is_stepwise:
            found.append(len(batches))
        return register(batches)

    monkeypatch.setattr(backend, "register", noted)
    return found


def begin_large(core: Engine, *, key: RequestKey | None = None) -> Batch:
    """A session that is handed over in steps: of many new types."""
    names = [f"t{n}" for n in range(limits.MANY_NEW_TYPES + 1)]
    large = core.register(SOURCE, [register_event(i) for i in names], QUOTA, key)
    assert large.is_stepwise
    assert not large.events
    return large


def register_all(
    core: Engine,
    requests: Sequence[Sequence[RegisterEvent]],
    keys: Sequence[RequestKey] = (),
) -> list[Batch]:
    return submit(core, requests, keys, QUOTA)


async def decided(sessions: Sequence[Batch]) -> list[BaseException | None]:
    await asyncio.wait({i.committed for i in sessions})
    return [i.committed.exception() for i in sessions]


async def check_idle(core: Engine) -> None:
    assert (core.pending_events, core._pending_bytes, core._n_own) == (0, 0, 0)
    assert core._large_pending_events == 0
    # a queue ends after what it did last, by as many slices as a busy machine makes of it
    await until(lambda: not core._handing_over.is_busy)


async def test_they_are_handed_over_and_committed_together(
    core: Engine, make: Make, calls: list[int]
) -> None:
    recorder = Recorder()
    core.add_observer(recorder)
    large = begin_large(core)
    first = register_all(
        core, [make(request(event_text("a", 11, "x"), event_text("b", 11))), make(one("a", 12))]
    )
    second = register_all(core, [make(one("b", 12)), make(one("a", 13)), make(one("a", 14))])
    n_bytes = large.payload_bytes + sum(i.payload_bytes for i in (*first, *second))
    n_events = limits.MANY_NEW_TYPES + 7
    assert (core.pending_events, core._pending_bytes) == (n_events, n_bytes)
    for together in first, second:
        assert len({i.committed for i in together}) == 1
        assert not any(i.events for i in together)  # they have no ids yet
    assert await decided([large, *first, *second]) == [None] * 6
    ids = [i.events[0].id.session for i in (large, *first, *second)]
    assert ids == [*range(ids[0], ids[0] + 6)]
    assert [(i.requested, len(i.events)) for i in first] == [(2, 2), (1, 1)]
    assert first[0].payload_bytes == 3
    assert calls == [2, 3]
    found = (await core.query(QueryServerParams(1))).events
    stored = [event for i in (*first, *second) for event in i.events]
    assert [*found[-6:]] == stored
    assert [i.type[0] for i in stored] == [*"abab", "a", "a"]
    for persisted in False, True:
        assert [i for i, j in recorder.sessions if j is persisted][-6:] == ids
    await check_idle(core)


def one(event_type: str, source: int) -> bytes:
    return request(event_text(event_type, source, [source]))


async def test_what_comes_out_of_order_becomes_a_session_as_well(
    core: Engine, make: Make, calls: list[int]
) -> None:
    large = begin_large(core)
    # so many that the first type is not stored in the order of source timestamps any more
    sessions = register_all(core, [make(one("a", 9 - i)) for i in range(30)])
    assert {*await decided([large, *sessions])} == {None}
    assert [i.events[0].source_timestamp.s for i in sessions if i.events[0].source_timestamp] == [
        *range(9, -21, -1)
    ]
    found = (await core.query(QueryServerParams(1))).events
    assert [*found[-30:]] == [i.events[0] for i in sessions]
    assert calls == [30]
    await check_idle(core)


async def test_types_that_are_not_stored_yet_come_one_by_one(core: Engine) -> None:
    core.check_types([("new",)], QUOTA)
    large = begin_large(core)
    sessions = register_all(core, [[register_event("a")], [register_event("new")]])
    assert sessions[0].committed is not sessions[1].committed
    assert {*await decided([large, *sessions])} == {None}
    await check_idle(core)


async def test_request_keys_are_kept(core: Engine, make: Make, calls: list[int]) -> None:
    begin_large(core)
    messages = [one("a", 11), one("a", 12)]
    keys = [request_key(name, *decode_events(i)) for name, i in zip("xy", messages, strict=True)]
    sessions = register_all(core, [*map(make, messages)], keys)
    again = register_all(core, [*map(make, messages)], keys)
    assert [i.first for i in sessions] == [None, None]
    assert await decided(sessions) == [None, None]
    assert [i.first for i in again] == sessions
    later = register_all(core, [*map(make, messages)], keys)
    assert [i.first for i in later] == later
    assert [[*i.events] for i in later] == [[*i.events] for i in sessions]
    assert calls == [2]
    await check_idle(core)


async def test_they_fail_with_the_one_that_they_come_after(core: Engine, make: Make) -> None:
    large_key, one_more = request_key("large"), TypeQuota("other", 1)
    names = [f"t{n}" for n in range(limits.MANY_NEW_TYPES + 1)]
    events = [register_event(i) for i in names]
    large = core.register(SOURCE, events, one_more, large_key)
    messages = [one("a", 11), one("a", 12)]
    after: list[str | None] = ["large", "x"]
    keys = [
        request_key(name, *decode_events(message), after=i)
        for name, message, i in zip("xy", messages, after, strict=True)
    ]
    behind = register_all(core, [*map(make, messages)], keys)
    others = register_all(core, [make(one("b", 11))])
    errors = await decided([large, *behind, *others])
    assert [type(i) for i in errors] == [QuotaError, *[RequestOrderError] * 2, type(None)]
    assert str(errors[1]) == "request_key 'large', its after_key, is not stored"
    await check_idle(core)


async def test_a_new_type_takes_no_other_off_the_common_commit(
    core: Engine, make: Make, calls: list[int]
) -> None:
    requests = [make(one("a", 11)), [register_event("new")], make(one("a", 12)), make(one("b", 12))]
    sessions = register_all(core, requests)
    assert calls == [1, 1, 2]
    assert await decided(sessions) == [None] * 4
    assert [i.session for i in sessions] == [*range(sessions[0].session, sessions[0].session + 4)]


async def test_the_order_is_checked_last(core: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before may fail while a large one is handed over."""
    steps: list[str] = []
    check_order, register = KeyedRequests.check_order, RocksDbBackend.register
    check_new = TypeChecks.check_new

    def note(name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            steps.append(name)
            return do(*args)

        return noted

    monkeypatch.setattr(KeyedRequests, "check_order", note("order", check_order))
    monkeypatch.setattr(RocksDbBackend, "register", note("register", register))
    monkeypatch.setattr(TypeChecks, "check_new", note("types", check_new))
    large = begin_large(core, key=request_key("large"))
    assert await decided([large]) == [None]
    assert steps[-3:] == ["types", "order", "register"]


def keep_busy(core: Engine) -> Callable[[], None]:
    """Have others wait until what is returned is called; nothing runs meanwhile."""
    queue = core._handing_over
    queue._task, queue.is_busy = asyncio.current_task(), True

    def nothing() -> Steps[None]:
        yield

    def end() -> None:
        queue._task = None
        queue.add(nothing)

    return end


@pytest.mark.parametrize("is_open_again", [False, True])
async def test_they_are_refused_together_when_their_types_were_lost(
    core: Engine,
    make: Make,
    backend: RocksDbBackend,
    monkeypatch: pytest.MonkeyPatch,
    is_open_again: bool,
) -> None:
    """With the commit that failed while they waited; or the store cannot be written yet."""
    monkeypatch.setattr(limits, "STORE_RETRY_PERIOD_S", 0.02 if is_open_again else 60.0)
    with full_disk():
        lost = core.register(SOURCE, [register_event("new")])
        end = keep_busy(core)
        waiting = register_all(core, [make(one("new", 1)), make(one("a", 11))])
        assert waiting[0].committed is waiting[1].committed
        assert [type(i) for i in await decided([lost])] == [OutcomeUnknownError]
    if is_open_again:
        await recovered(backend)
    end()
    errors = await decided(waiting)
    assert [type(i) for i in errors] == [StorageError] * 2
    expected = "was opened again" if is_open_again else "File too large"
    assert all(expected in str(i) for i in errors)
    if is_open_again:
        found = (await core.query(QueryServerParams(1))).events
        assert ("new",) not in {i.type for i in found}
    await check_idle(core)
