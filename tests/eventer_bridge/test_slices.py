"""Costly work of several: whoever's it is, the event loop looks at everybody between slices."""

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from eventer_bridge import limits, slices
from eventer_bridge.slices import Many, Steps, WorkQueue


class Turns:
    """Counts how often the event loop looked at everybody."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.count += 1
        self._handle = self._loop.call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


@pytest.fixture
async def turns(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Turns]:
    monkeypatch.setattr(limits, "SLICE_S", 0.0)  # each step is a slice
    turns = Turns()
    yield turns
    turns.stop()


def work(turns: Turns, steps: "list[tuple[str, int]]", name: str, n_steps: int) -> Steps[str]:
    for _ in range(n_steps):
        steps.append((name, turns.count))
        yield
    return name


async def test_of_several_one_slice_is_done_at_a_time(turns: Turns) -> None:
    steps: list[tuple[str, int]] = []
    done = await asyncio.gather(*(slices.run(work(turns, steps, i, 5)) for i in "abc"))
    assert "".join(done) == "abc"
    later = steps[3:]  # the first one of each is done at once
    assert "".join(name for name, _ in later) == "abc" * 4
    assert max(Counter(turn for _, turn in later).values()) == 1


async def test_who_gives_up_does_not_hold_up_the_others(turns: Turns) -> None:
    steps: list[tuple[str, int]] = []
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    a, b, c = (asyncio.create_task(slices.run(work(turns, steps, i, 3))) for i in "abc")
    await asyncio.sleep(0)
    b.cancel()
    assert (await a, await c) == ("a", "c")
    assert "".join([name for name, _ in steps]) == "abcacac"
    assert b.cancelled()
    assert failures == []


async def test_short_work_of_a_line_is_in_slices_too(turns: Turns) -> None:
    steps: list[tuple[str, int]] = []
    line = WorkQueue()
    for i in "abcde":
        line.add(functools.partial(note, turns, steps, i))
    while line.is_busy:
        await asyncio.sleep(0)
    assert "".join([name for name, _ in steps]) == "abcde"
    assert len({turn for _, turn in steps}) == 5


def note(turns: Turns, steps: list[tuple[str, int]], name: str) -> Steps[None]:
    steps.append((name, turns.count))
    if name == "c":
        raise ValueError("others go on")
    yield from ()


class Freed:
    """Tells when it is freed."""

    def __init__(self, turns: Turns, freed: list[int]) -> None:
        self._turns = turns
        self._freed = freed

    def __del__(self) -> None:
        self._freed.append(self._turns.count)


async def test_many_are_freed_in_slices(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FREED_OBJECTS", 10)
    freed: list[int] = []
    many = Many(Freed(turns, freed) for _ in range(95))
    kept = many[0]
    del many
    assert freed == []
    while len(freed) < 94:
        await asyncio.sleep(0)
    assert max(Counter(freed).values()) == 10
    del kept
    assert len(freed) == 95


async def test_without_a_loop_many_are_freed_at_once(turns: Turns) -> None:
    freed: list[int] = []
    many = [Many(Freed(turns, freed) for _ in range(3))]
    await asyncio.to_thread(many.clear)
    assert len(freed) == 3


async def test_an_iteration_of_the_loop_that_took_long_is_late() -> None:
    turns = slices.Turns()
    assert not any(turns.is_late() for _ in range(limits.READS_IN_TIME + 1))
    time.sleep(2 * limits.ITERATION_S)  # noqa: ASYNC251  # what other connections took
    assert turns.is_late()
    await asyncio.sleep(0)  # the next iteration
    assert not any(turns.is_late() for _ in range(limits.READS_IN_TIME + 1))
