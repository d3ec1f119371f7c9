"""A clock that jumps ahead, and back: what is registered, refused, told and kept."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import passed_time, rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.core import engine
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import NotOperationalError
from eventer_bridge.model import (
    Event,
    EventId,
    QueryTimeseriesParams,
    RegisterEvent,
    Source,
    SourceType,
    Status,
    Timestamp,
)
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends.oracle import draft, request_key
from tests.eventer_bridge.backends.putting import put
from tests.support.shifted import ShiftedClock

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
YEARS_S: Final = 10 * 365 * DAY_S
DURATION_S: Final = 2 * HOUR_S
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
    async with await rocksdb.create_temporary() as backend, await engine.create(backend, 1) as core:
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
    async with await rocksdb.create_temporary() as backend, await engine.create(backend, 1) as core:
        clock.seconds = HOUR_S
        first = await register(core)
        clock.seconds = 0
        warning = await told(caplog, "events are ahead of the clock of this machine")
        assert vars(warning)["ahead_s"] == pytest.approx(HOUR_S, abs=60)
        assert vars(warning)["newest"] == first.timestamp.to_iso()
        assert core.status is Status.OPERATIONAL
        assert (await register(core)).timestamp == first.timestamp


async def test_nothing_is_registered_after_a_restart_either(clock: ShiftedClock) -> None:
    async with await rocksdb.create_temporary() as backend:
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


@contextlib.asynccontextmanager
async def engine_on(path: Path | None, *rules: RetentionRule) -> AsyncIterator[Engine]:
    """An engine on a store; None: in memory."""
    opened = (
        await rocksdb.create_temporary(rules)
        if path is None
        else await rocksdb.create(path, retention=rules)
    )
    async with opened as backend, await engine.create(backend, 1) as core:
        yield core


def let_pass(core: Engine, clock: ShiftedClock, seconds: float) -> None:
    clock.passed_s += seconds
    core._clock.look()


async def left_after_looks(core: Engine, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many events are left after retention looked again."""
    n_looks = 0
    before = PassedTime.before

    def counted(clock: PassedTime, seconds: float | None) -> Timestamp | None:
        nonlocal n_looks
        n_looks += 1
        return before(clock, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(PassedTime, "before", counted)
        while n_looks < 20:
            await asyncio.sleep(0.001)
    return len((await core.query(QueryTimeseriesParams([("a",)]))).events)


@pytest.mark.parametrize("is_in_memory", [False, True])
async def test_retention_does_not_follow_a_clock_that_jumps(
    clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_in_memory: bool
) -> None:
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.001)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.001)
    rule = RetentionRule((("a",),), duration_s=DURATION_S)
    path = None if is_in_memory else tmp_path / "store"
    async with engine_on(path, rule) as core:
        let_pass(core, clock, 2 * DURATION_S)
        for _ in range(5):
            await register(core)
        clock.seconds = 3 * DAY_S
        assert await left_after_looks(core, monkeypatch) == 5
        let_pass(core, clock, DURATION_S / 2)
        await register(core)
        assert await left_after_looks(core, monkeypatch) == 6
        clock.seconds = 0
        assert await left_after_looks(core, monkeypatch) == 6
        let_pass(core, clock, DURATION_S)
        while await left_after_looks(core, monkeypatch) > 1:
            pass


@pytest.mark.parametrize("is_off", [False, True])
async def test_nor_one_that_jumped_while_nothing_ran(
    clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_off: bool
) -> None:
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.001)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.001)
    rule = RetentionRule((("a",),), duration_s=DURATION_S)
    async with engine_on(tmp_path / "store", rule) as core:
        let_pass(core, clock, 2 * DURATION_S)
        for _ in range(5):
            await register(core)
    clock.seconds = 3 * DAY_S
    if is_off:
        clock.start_machine(tmp_path / "boot_id")
    async with engine_on(tmp_path / "store", rule) as core:
        assert await left_after_looks(core, monkeypatch) == 5
    clock.passed_s += DURATION_S + 60
    async with engine_on(tmp_path / "store", rule) as core:
        while await left_after_looks(core, monkeypatch) > 1:
            pass


async def register_keyed(core: Engine, key: str) -> Event:
    events = [RegisterEvent(("a",), None, None)]
    batch = core.register(SOURCE, events, None, request_key(key, *events))
    await batch.committed
    return (batch.first or batch).events[0]


@pytest.mark.parametrize("jump_s", [3 * DAY_S, YEARS_S])
async def test_request_keys_are_known_whatever_the_clock_says(
    clock: ShiftedClock, tmp_path: Path, jump_s: float
) -> None:
    path = tmp_path / "store"
    async with engine_on(path) as core:
        let_pass(core, clock, 3 * DAY_S)
        first = await register_keyed(core, "1")
        clock.seconds = jump_s
        core._clock.look()
        later = await register_keyed(core, "2")  # with its timestamp
        assert await register_keyed(core, "1") == first
        assert await register_keyed(core, "2") == later
    for _ in range(2):  # while it runs, and while it does not
        clock.seconds += jump_s
        async with engine_on(path) as core:
            assert await register_keyed(core, "1") == first
            clock.seconds += jump_s
            assert await register_keyed(core, "3") != first
            assert await register_keyed(core, "1") == first
        clock.start_machine(tmp_path / "boot_id")
    async with engine_on(path) as core:
        let_pass(core, clock, limits.REQUEST_KEYS_S - 60)
        assert await register_keyed(core, "1") == first
        let_pass(core, clock, 120)
        assert await register_keyed(core, "1") != first
        assert await register_keyed(core, "2") != later


async def test_replicated_keys_of_a_slow_clock_forget_no_others(
    clock: ShiftedClock, tmp_path: Path
) -> None:
    async with engine_on(tmp_path / "store") as core:
        await register_keyed(core, "0")
        for session in range(3):
            at = Timestamp.from_float(Timestamp.now().to_float() - 2 * DAY_S)
            event = Event(EventId(2, session, 1), ("a",), at, None, None)
            key = request_key(f"of another server {session}", draft("a"))
            if session == 0:  # from here on, they are kept with others
                let_pass(core, clock, 2 * DAY_S)
            await put(core._backend, [event], None, 0, key)
            if session == 0:
                first = await register_keyed(core, "1")
        assert await register_keyed(core, "1") == first


class Holder:
    """A connection that has a cursor."""

    def on_cursor_lost(self, reason: str) -> None:
        """It is not looked at."""

    def redeliver(self) -> None:
        """It is not looked at."""


async def test_what_is_held_for_cursors_is_held_over_jumps(
    clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.001)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.001)
    rule = RetentionRule((("a",),), max_entries=1)
    async with (
        await rocksdb.create_temporary([rule]) as backend,
        await engine.create(backend, 1, hold_s=DURATION_S) as core,
    ):
        let_pass(core, clock, 2 * DURATION_S)
        assert core.cursors is not None
        everything = Subscription([("*",)]), None
        core.cursors.take("app", "c", Holder(), {1: EventId(1, 1, 1)}, everything)
        for _ in range(5):
            await register(core)
        clock.seconds = 3 * DAY_S
        assert await left_after_looks(core, monkeypatch) == 5
        let_pass(core, clock, DURATION_S + 60)
        while await left_after_looks(core, monkeypatch) > 1:
            pass


async def test_passed_time_is_kept_without_events(
    clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "IDLE_COURSE_PERIOD_S", 0.05)
    async with engine_on(tmp_path / "store") as core:
        clock.passed_s = DAY_S
        passed_us = 0
        while passed_us < DAY_S * 1e6:
            await asyncio.sleep(0.01)
            rows = core._backend._store.iterator("default")  # type: ignore[attr-defined]
            rows.seek(keys.CLOCK_KEY)
            passed_us = passed_time.decode(rows.value()).passed_us
