"""Waiting in a fair line, and letting in some at a time: one of each client in turn."""

import asyncio

import pytest

from eventer_bridge.slices import FairGate, FairLine
from tests.support.waiting import until


class Work:
    """What is done through a gate, until it is released."""

    def __init__(self, gate: FairGate) -> None:
        self._gate = gate
        self.begun: list[str] = []
        self.releases: dict[str, asyncio.Event] = {}

    def start(self, name: str) -> asyncio.Task[str]:
        self.releases[name] = asyncio.Event()
        return asyncio.ensure_future(self._gate.run(name[0], lambda: self._work(name)))

    async def _work(self, name: str) -> str:
        self.begun.append(name)
        await self.releases[name].wait()
        if name.endswith("!"):
            raise ZeroDivisionError
        return name


@pytest.fixture
def work() -> Work:
    return Work(FairGate(2))


async def test_clients_take_turns(work: Work) -> None:
    names = ["a1", "a2", "a3", "a4", "b1", "b2", "c1"]
    tasks = [work.start(name) for name in names]
    await until(lambda: len(work.begun) == 2, pause_s=0)
    for n in range(len(names)):
        while len(work.begun) <= n:
            await asyncio.sleep(0)
        work.releases[work.begun[n]].set()
    assert await asyncio.gather(*tasks) == names
    assert work.begun == ["a1", "a2", "a3", "b1", "c1", "a4", "b2"]


async def test_who_gives_up_waiting_never_begins(work: Work) -> None:
    tasks = [work.start(name) for name in ("a1", "a2", "a3", "b1")]
    await until(lambda: len(work.begun) == 2, pause_s=0)
    tasks[2].cancel()
    work.releases["a1"].set()
    await until(lambda: len(work.begun) == 3, pause_s=0)
    assert work.begun == ["a1", "a2", "b1"]


async def test_what_nobody_waits_for_keeps_its_place_until_it_is_done(work: Work) -> None:
    tasks = [work.start(name) for name in ("a1!", "a2", "b1")]
    await until(lambda: len(work.begun) == 2, pause_s=0)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    for _ in range(10):
        await asyncio.sleep(0)
    assert work.begun == ["a1!", "a2"]
    work.releases["a1!"].set()
    await until(lambda: len(work.begun) == 3, pause_s=0)


async def test_a_failure_gives_its_place_back(work: Work) -> None:
    tasks = [work.start(name) for name in ("a1!", "a2!", "b1")]
    for name in "a1!", "a2!", "b1":
        work.releases[name].set()
    assert await tasks[2] == "b1"
    for task in tasks[:2]:
        with pytest.raises(ZeroDivisionError):
            await task


async def test_a_client_has_few_of_the_places() -> None:
    work = Work(FairGate(3, 2))
    tasks = [work.start(name) for name in ("a1", "a2", "a3", "a4", "b1", "b2")]
    await until(lambda: len(work.begun) == 3, pause_s=0)
    assert work.begun == ["a1", "a2", "b1"]
    work.releases["b1"].set()
    await until(lambda: len(work.begun) == 4, pause_s=0)
    assert work.begun[3] == "b2"
    work.releases["b2"].set()  # nobody but a waits: its place stays free
    await tasks[5]
    work.releases["a2"].set()
    await until(lambda: len(work.begun) == 5, pause_s=0)
    assert work.begun[4] == "a3"
    for release in work.releases.values():
        release.set()
    await asyncio.gather(*tasks)


def test_a_line_is_taken_from_client_by_client() -> None:
    line: FairLine[str] = FairLine()
    for item in "a1", "a2", "a3", "b1", "c1", "c2":
        line.append(item[0], item)
    assert len(line) == 6
    assert sorted(line) == ["a1", "a2", "a3", "b1", "c1", "c2"]
    taken = []
    while line:
        taken.append(line.pop())
    assert taken == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert list(line.clients) == []


def test_the_newest_of_a_line_can_come_first() -> None:
    line: FairLine[str] = FairLine()
    for item in "a1", "a2", "b1", "a3":
        line.append(item[0], item)
    assert [line.pop(is_newest=True) for _ in range(4)] == ["a3", "b1", "a2", "a1"]


def test_what_leaves_a_line_is_not_taken() -> None:
    line: FairLine[str] = FairLine()
    for item in "a1", "a2", "b1":
        line.append(item[0], item)
    line.remove("a", "a1")
    line.remove("b", "b1")
    assert list(line.clients) == ["a"]
    assert line.pop("a") == "a2"
    assert len(line) == 0
