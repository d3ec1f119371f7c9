"""Time that passes, under clocks that jump and machines that are off."""

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventer_bridge import limits
from eventer_bridge.backends import passed_time
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.model import Timestamp
from tests.support.examples import examples
from tests.support.shifted import ShiftedClock

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
YEARS_S: Final = 10 * 365 * DAY_S

DURATION_S: Final = 2 * HOUR_S


class Machine:
    """Registers events, as the engine does.

    Attributes:
        clock: its clocks.
        passed: what is tested.
        newest: timestamp of the last event.
        passed_s: when each event was registered, by its timestamp.
        on_s: how long the machine was on.
    """

    def __init__(self, clock: ShiftedClock, boot_id: Path) -> None:
        self.clock = clock
        self.passed = PassedTime()
        self.newest = Timestamp(0, 0)
        self.on_s = 0.0
        self.passed_s: list[tuple[Timestamp, float]] = []
        self._boot_id = boot_id
        self.register()
        self.look()

    def look(self) -> None:
        self.passed.note(self.newest)

    def register(self) -> None:
        now = Timestamp.now()
        if self.newest.to_float() - now.to_float() <= limits.MAX_CLOCK_AHEAD_S:
            self.newest = max(self.newest, now)
            self.passed_s.append((self.newest, self.on_s))

    def work(self, seconds: float) -> None:
        """Let time pass; register now and then."""
        for _ in range(4):
            self.register()
            self.on_s += seconds / 4
            self.clock.passed_s += seconds / 4
            self.look()
        self.register()

    def jump(self, seconds: float) -> None:
        self.clock.seconds += seconds
        self.look()

    def restart(self, off_s: float) -> None:
        """Start the process again; ``off_s``: for how long the machine was off, 0: not at all."""
        kept = self.passed.encode()
        if off_s:
            self.clock.seconds += off_s  # which no other clock tells
            self.clock.start_machine(self._boot_id)
        self.passed = PassedTime(kept)
        assert self.passed.before(0) is None
        self.look()

    def old(self, seconds: float = DURATION_S) -> int:
        """How many events are older than that; none that is not."""
        before = self.passed.before(seconds)
        assert before is not None
        old = [passed_s for timestamp, passed_s in self.passed_s if timestamp < before]
        assert all(self.on_s - i > seconds - 2 * limits.COURSE_TOLERANCE_S - 1 for i in old), (
            self.on_s,
            max(old),
        )
        return len(old)

    @property
    def old_enough(self) -> int:
        """How many should be."""
        return sum(self.on_s - i > DURATION_S + 2 for _, i in self.passed_s)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(ShiftedClock(monkeypatch), tmp_path / "boot_id")


@pytest.mark.parametrize("seconds", [HOUR_S, 3 * DAY_S, YEARS_S])
def test_a_jump_ahead_makes_nothing_older(machine: Machine, seconds: float) -> None:
    machine.work(HOUR_S)
    machine.jump(seconds)
    assert machine.old() == 0
    machine.work(HOUR_S / 2)
    assert machine.old() == 0
    machine.work(HOUR_S)
    assert machine.old() >= machine.old_enough > 0
    machine.work(10 * HOUR_S)
    assert machine.old() == machine.old_enough == len(machine.passed_s) - 1


def test_a_jump_back_keeps_nothing_for_ever(machine: Machine) -> None:
    machine.work(3 * HOUR_S)
    n_old = machine.old()
    machine.jump(-HOUR_S)
    assert 0 < machine.old() <= n_old
    machine.work(HOUR_S)
    n_kept = len(machine.passed_s)
    machine.work(DURATION_S + HOUR_S)
    assert machine.old() >= n_kept - 1


@pytest.mark.parametrize("is_off", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 3 * DAY_S, -HOUR_S])
def test_a_jump_while_nothing_runs(machine: Machine, seconds: float, is_off: bool) -> None:
    machine.work(HOUR_S)
    machine.clock.seconds += seconds
    if not is_off:  # which is counted, whatever the clock says
        machine.on_s += HOUR_S / 2
        machine.clock.passed_s += HOUR_S / 2
    machine.restart(30 * DAY_S if is_off else 0)
    assert machine.old() == 0
    machine.work(DURATION_S)
    assert machine.old() > 0
    machine.work(DURATION_S + HOUR_S)
    assert machine.old() >= machine.old_enough - 1 > 5


def test_what_the_clock_said_between_jumps_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, passed = ShiftedClock(monkeypatch), PassedTime()
    passed.note(Timestamp(0, 0))
    clock.passed_s = HOUR_S
    for jump_s in 3 * DAY_S, -3 * DAY_S - HOUR_S / 2, HOUR_S:
        clock.seconds += jump_s
        passed.note(Timestamp(0, 0))
    between = Timestamp.from_float(Timestamp.now().to_float() - HOUR_S)
    assert passed.before(60) <= between  # type: ignore[operator]


def test_machines_that_begin_without_a_time(machine: Machine) -> None:
    for _ in range(5):
        machine.work(HOUR_S)
        machine.clock.seconds -= YEARS_S
        machine.restart(1)
        machine.register()
        assert machine.old() == 0
        machine.look()
        machine.jump(YEARS_S)
    assert machine.old() >= machine.old_enough - 5 > 5


def test_of_a_store_of_before_only_what_was_registered_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, passed = ShiftedClock(monkeypatch), PassedTime()
    newest = Timestamp.from_float(Timestamp.now().to_float() - 3 * DAY_S)
    passed.note(newest)
    old = Timestamp.from_float(newest.to_float() - HOUR_S)
    assert passed.before(DURATION_S) < old < passed.before(HOUR_S - 60)  # type: ignore[operator]
    clock.passed_s = HOUR_S + 60
    assert passed.before(DURATION_S) > old  # type: ignore[operator]


def test_many_jumps_are_counted_together(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_COURSE_POINTS", 10)
    for _ in range(30):
        machine.work(HOUR_S)
        machine.jump(DAY_S)
        machine.restart(0)
    assert len(passed_time.decode(machine.passed.encode()).course) == 10
    assert machine.old(5 * HOUR_S) > 0
    assert machine.old(20 * HOUR_S) < 4 * 10  # of that time less is known
    machine.work(40 * HOUR_S)
    assert machine.old() == machine.old_enough


_jumps = st.sampled_from([0.5, 30.0, HOUR_S, 3 * DAY_S, YEARS_S])
_steps = st.one_of(
    st.tuples(st.just("work"), st.sampled_from([1.0, 60.0, HOUR_S, 3 * HOUR_S])),
    st.tuples(st.just("jump"), _jumps | _jumps.map(lambda i: -i)),
    st.tuples(st.just("restart"), st.sampled_from([0.0, 60.0, DAY_S])),
)


@settings(max_examples=examples(60), deadline=None)
@given(steps=st.lists(_steps, max_size=12))
def test_nothing_is_old_too_early_and_all_is_in_the_end(
    steps: list[tuple[str, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        machine = Machine(ShiftedClock(monkeypatch), tmp_path_factory.mktemp("boot") / "id")
        for step, seconds in steps:
            getattr(machine, step)(seconds)
            machine.old()
            machine.old(60)
        machine.clock.seconds += max(0.0, machine.newest.to_float() - Timestamp.now().to_float())
        machine.look()
        machine.work(DURATION_S + 4 * limits.COURSE_TOLERANCE_S)
        machine.work(DURATION_S + 4 * limits.COURSE_TOLERANCE_S)
        assert machine.old() >= machine.old_enough - 1


@pytest.mark.parametrize("kept", [b"", b"\x00", b"\x94\xa0\x00\x00\x92\x92\x02\x01\x92\x01\x01"])
def test_damaged(kept: bytes) -> None:
    with pytest.raises(ValueError, match="not a course of time"):
        PassedTime(kept)
