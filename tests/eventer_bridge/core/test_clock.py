"""A clock that jumps ahead, and back: what is registered, refused, told and kept."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import memory
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.core import engine
from eventer_bridge.core.clock import SteadyClock, ahead_s
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import NotOperationalError
from eventer_bridge.model import (
    Event,
    QueryTimeseriesParams,
    RegisterEvent,
    Source,
    SourceType,
    Status,
    Timestamp,
)
from tests.support.shifted import ShiftedClock

HOUR_S: Final = 3600.0
YEARS_S: Final = 10 * 365 * 24 * HOUR_S
SOURCE: Final = Source(SourceType.CONNECTION, 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ShiftedClock:
    monkeypatch.setattr(limits, "CLOCK_PERIOD_S", 0.001)
    return ShiftedClock(monkeypatch)


async def register(core: Engine) -> Event:
    session = core.register(SOURCE, [RegisterEvent(("a",), None, None)])
    await session.committed
    return session.events[0]


async def until(core: Engine, status: Status) -> None:
    while core.status is not status:
        await asyncio.sleep(0.001)


async def told(caplog: pytest.LogCaptureFixture, message: str) -> logging.LogRecord:
    while not (found := [i for i in caplog.records if i.getMessage() == message]):
        await asyncio.sleep(0.001)
    return found[-1]


async def test_a_jump_of_years_is_told_and_ends_registrations_when_it_is_undone(
    clock: ShiftedClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with memory.create() as backend, await engine.create(backend, 1) as core:
        before = await register(core)
        clock.seconds = YEARS_S
        jumped = await told(caplog, "the clock of this machine jumped")
        assert vars(jumped)["seconds"] == pytest.approx(YEARS_S, abs=60)
        wrong = await register(core)
        assert wrong.timestamp.to_float() - before.timestamp.to_float() > YEARS_S - 60
        assert core.clock_ahead_s == 0

        clock.seconds = 0
        await until(core, Status.STANDBY)
        assert core.clock_ahead_s == pytest.approx(YEARS_S, abs=60)
        reason = rf"^events up to {wrong.timestamp.to_iso()} are ahead of the clock of this machine"
        with pytest.raises(NotOperationalError, match=reason):
            await register(core)
        assert len((await backend.query(QueryTimeseriesParams([("a",)]))).events) == 2
        levels = [
            (await told(caplog, i)).levelname
            for i in ("events are ahead of the clock of this machine", "registrations are refused")
        ]
        assert levels == ["WARNING", "ERROR"]

        # when the clock has nearly got there
        clock.seconds = YEARS_S - limits.MAX_CLOCK_AHEAD_S + HOUR_S
        await until(core, Status.OPERATIONAL)
        assert (await register(core)).timestamp == wrong.timestamp
        clock.seconds = YEARS_S + HOUR_S
        await told(caplog, "events are no longer ahead of the clock of this machine")
        assert (await register(core)).timestamp > wrong.timestamp


async def test_an_hour_is_told_and_harms_nobody(
    clock: ShiftedClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory.create() as backend, await engine.create(backend, 1) as core:
        clock.seconds = HOUR_S
        first = await register(core)
        clock.seconds = 0
        warning = await told(caplog, "events are ahead of the clock of this machine")
        assert vars(warning)["ahead_s"] == pytest.approx(HOUR_S, abs=60)
        assert vars(warning)["newest"] == first.timestamp.to_iso()
        assert core.status is Status.OPERATIONAL
        assert (await register(core)).timestamp == first.timestamp


async def test_nothing_is_registered_after_a_restart_either(clock: ShiftedClock) -> None:
    async with memory.create() as backend:
        clock.seconds = YEARS_S
        async with await engine.create(backend, 1) as core:
            wrong = await register(core)
        clock.seconds = 0
        async with await engine.create(backend, 1) as core:
            assert core.status is Status.STANDBY
            with pytest.raises(NotOperationalError, match="ahead of the clock"):
                await register(core)
            # which other servers go by, and so it is registered all the same
            [started, _] = await engine_events(backend)
            assert started.timestamp >= wrong.timestamp
        # another server's clock is its own
        async with await engine.create(backend, 2) as other:
            assert (await register(other)).timestamp < wrong.timestamp


async def engine_events(backend: Backend) -> list[Event]:
    params = QueryTimeseriesParams([("event", "1", "engine")], max_results=2)
    return list((await backend.query(params)).events)


def test_a_steady_clock_runs_ahead_by_a_day_at_most(clock: ShiftedClock) -> None:
    steady = SteadyClock()
    for seconds in 0, -YEARS_S, -HOUR_S, HOUR_S:
        clock.seconds = seconds
        assert abs(ahead_s(steady())) < 1
        assert steady() <= Timestamp.now()
    began = Timestamp.now().to_float() - clock.seconds
    clock.seconds = YEARS_S
    assert steady().to_float() - began == pytest.approx(limits.MAX_CLOCK_AHEAD_S, abs=60)
    # what is right after a start is so from the begin
    assert SteadyClock()().to_float() - began == pytest.approx(YEARS_S, abs=60)


@pytest.mark.parametrize("is_steady", [False, True])
async def test_retention_does_not_follow_a_clock_that_runs_away(
    clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch, is_steady: bool
) -> None:
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.001)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.001)
    n_looks = 0

    def counted() -> Timestamp:
        nonlocal n_looks
        n_looks += 1
        return measure()

    measure: Callable[[], Timestamp] = SteadyClock() if is_steady else Timestamp.now
    rule = RetentionRule((("*",),), duration_s=30 * 24 * HOUR_S)
    async with (
        memory.create([rule], counted) as backend,
        await engine.create(backend, 1) as core,
    ):
        for _ in range(5):
            await register(core)
        clock.seconds = YEARS_S
        n_looks = 0
        while n_looks < 20:
            await asyncio.sleep(0.001)
        left = (await backend.query(QueryTimeseriesParams([("a",)]))).events
        assert len(left) == (5 if is_steady else 1)
