"""Sessions of other servers."""

import time
from pathlib import Path

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.base import Backend, HighWaterMark
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import InvalidEventError, LimitError
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from tests.eventer_bridge.core.engines import SOURCE, Recorder, register, register_event


def event_of(server: int, session: int, *segments: str, value: object = 1) -> Event:
    event_id = EventId(server, session, 1)
    return Event(event_id, segments, Timestamp(1, 0), None, JsonPayload.of(value))


async def test_a_session_of_another_server_is_kept_as_it_is(core: Engine, backend: Backend) -> None:
    await core.stop()  # it is replicated whatever the status is
    recorder = Recorder()
    core.add_observer(recorder)
    assert core.replicated(2) == HighWaterMark(0, None)
    event = event_of(2, 70, "a")
    commit = core.replicate([event])
    assert recorder.sessions == [(70, False)]
    await backend.flush()
    assert commit.done()
    assert recorder.sessions == [(70, False), (70, True)]
    assert core.replicated(2) == HighWaterMark(70, Timestamp(1, 0))
    assert (await core.query(QueryServerParams(2))).events == [event]
    assert core.pending_events == 0


async def test_what_is_replicated_may_fill_the_engine(
    core: Engine, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_EVENTS", 1)
    core.replicate([event_of(2, 1, "a"), event_of(2, 1, "b")])
    assert (core.pending_events, core.is_full) == (2, True)
    await backend.flush()
    assert (core.pending_events, core.is_full) == (0, False)


async def test_what_is_replicated_is_not_waited_for_as_its_own(
    core: Engine, backend: Backend
) -> None:
    core.replicate([event_of(2, 1, "a")])
    own = core.register(SOURCE, [register_event("a")])
    core.replicate([event_of(2, 2, "a")])
    assert core._n_own == 1
    await backend.flush()
    assert own.committed.done()
    assert core._n_own == 0
    assert core._own_ended.is_set()


async def test_own_events_are_not_replicated(core: Engine) -> None:
    own = Event(EventId(7, 900, 1), ("a",), Timestamp(1, 0), None, None)
    with pytest.raises(InvalidEventError, match=r"^events of server 7, which is this one"):
        await core.replicate([own])
    assert (await register(core, register_event("a"))).events[0].id.session < 900


async def test_types_that_are_too_many_are_not_replicated(
    core: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_EVENT_TYPES", 1)
    with pytest.raises(LimitError):
        await core.replicate([event_of(2, 1, "a")])
    assert core.replicated(2) == HighWaterMark(0, None)
    assert core.pending_events == 0


async def test_what_a_pair_once_told_of_keys_and_cursors_is_an_event_like_others(
    core: Engine, backend: Backend
) -> None:
    request = {"client": "app", "key": "k", "digest": "A" * 22 + "=="}
    cursor = {"client": "app", "cursor": "c", "seen": [[2, 1, 1]]}
    core.replicate([event_of(2, 1, "event", "2", "request", value=request)])
    core.replicate([event_of(2, 2, "event", "2", "cursor", "x", value=cursor)])
    own = core.register(SOURCE, [register_event("event", "7", "request")])
    await backend.flush()
    assert own.committed.exception() is None
    assert len((await core.query(QueryServerParams(2))).events) == 2
    assert backend.find_requests("app", ["k"]) == [None]
    assert core.cursors is None or [*core.cursors] == []


AHEAD_S = 30


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_a_pair_registers_after_a_take_over_is_newer_though_its_clock_is_behind(
    tmp_path: Path, is_restarted: bool
) -> None:
    async with await rocksdb.create(tmp_path / "store") as backend:
        core = Engine(backend, 7, is_in_pair=True)
        of_other = event_at(time.time() + AHEAD_S)
        await core.replicate([of_other])
        if is_restarted:
            await core.async_close()
            core = Engine(backend, 7, is_in_pair=True)
        async with core:
            await core.start()
            own = core.register(SOURCE, [register_event("a")])
            await own.committed
            assert own.events[0].timestamp > of_other.timestamp
            for query in QueryLatestParams([("a",)]), QueryTimeseriesParams([("a",)]):
                assert (await core.query(query)).events[0] == own.events[0]


@pytest.mark.parametrize(
    ("is_in_pair", "ahead_s"), [(True, limits.MAX_SEEN_AHEAD_S + 60), (False, AHEAD_S)]
)
async def test_a_clock_that_is_far_ahead_or_of_no_pair_is_not_followed(
    tmp_path: Path, is_in_pair: bool, ahead_s: float
) -> None:
    async with (
        await rocksdb.create(tmp_path / "store") as backend,
        Engine(backend, 7, is_in_pair=is_in_pair) as core,
    ):
        await core.replicate([event_at(time.time() + ahead_s)])
        await core.start()
        own = core.register(SOURCE, [register_event("a")])
        await own.committed
        assert own.events[0].timestamp.to_float() < time.time() + 1


def event_at(seconds: float) -> Event:
    return Event(EventId(2, 1, 1), ("a",), Timestamp.from_float(seconds), None, None)
