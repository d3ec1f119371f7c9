"""Threads that answer queries, with work that ends when the test says so."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack

import pytest

from eventer_bridge import limits
from eventer_bridge.backends.base import QueryLoad
from eventer_bridge.backends.readers import LargeCb, PauseCb, Readers
from eventer_bridge.errors import ClosedError, StorageError
from tests.support.waiting import until


class Costly:
    """Work that pauses again and again until it is released, or ended by a pause."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.release = threading.Event()
        self.has_ended = threading.Event()

    def __call__(self, pause: PauseCb, become_large: LargeCb) -> str:
        self.began.set()
        try:
            while not self.release.is_set():
                pause()
        finally:
            self.has_ended.set()
        return "costly"


class Large(Costly):
    """Work that gets large, and then goes on as any other.

    Attributes:
        is_large: whether it could get so.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_large = threading.Event()

    def __call__(self, pause: PauseCb, become_large: LargeCb) -> str:
        self.began.set()
        try:
            become_large()
        except BaseException:
            self.has_ended.set()
            raise
        self.is_large.set()
        return super().__call__(pause, become_large)


def n_large(works: Iterable[Large]) -> int:
    return sum(work.is_large.is_set() for work in works)


def cheap(pause: PauseCb, become_large: LargeCb) -> str:
    pause()
    return "cheap"


@pytest.fixture
async def readers() -> AsyncIterator[Readers]:
    is_closing = threading.Event()

    def check() -> None:
        if is_closing.is_set():
            raise ClosedError("closing")

    readers = Readers(check)
    yield readers
    is_closing.set()
    await asyncio.to_thread(readers.ext_close)
    assert readers.load.running == 0


def ask(
    readers: Readers, client: str, work: Callable[[PauseCb, LargeCb], str]
) -> asyncio.Task[str]:
    return asyncio.ensure_future(readers.run(client, work))


async def test_answers_and_errors_come_back(readers: Readers) -> None:
    def fail(pause: PauseCb, become_large: LargeCb) -> str:
        raise StorageError("so")

    assert await readers.run("a", cheap) == "cheap"
    with pytest.raises(StorageError, match=r"^so$"):
        await readers.run("a", fail)
    await until(lambda: readers.load == QueryLoad(0, 0))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ZeroDivisionError("x")])
async def test_a_thread_survives_whatever_a_query_raises(
    readers: Readers, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(pause: PauseCb, become_large: LargeCb) -> str:
        raise error

    for _ in range(2 * limits.READERS):
        with pytest.raises(StorageError, match=f"^query failed: {type(error).__name__}"):
            await readers.run("a", fail)
    assert await readers.run("a", cheap) == "cheap"
    assert {i.getMessage() for i in caplog.records} == {"query failed"}


async def test_a_cheap_query_is_answered_before_costly_ones_end(readers: Readers) -> None:
    works = [Costly() for _ in range(3 * limits.READERS)]
    costly = [ask(readers, "a", work) for work in works]
    await until(lambda: all(work.began.is_set() for work in works))
    assert readers.load == QueryLoad(len(works), 0)
    for client in "b", "c", "a":  # even of the same client
        for _ in range(10):
            assert await readers.run(client, cheap) == "cheap"
    assert not any(i.done() for i in costly)
    for work in works:
        work.release.set()
    assert await asyncio.gather(*costly) == ["costly"] * len(works)


async def test_costly_queries_go_on_however_many_cheap_ones_come(readers: Readers) -> None:
    works = [Costly() for _ in range(2 * limits.READERS)]
    costly = [ask(readers, "a", work) for work in works]
    await until(lambda: all(work.began.is_set() for work in works))
    is_over = False

    async def ask_on(client: str) -> None:
        while not is_over:
            await readers.run(client, cheap)

    crowd = [asyncio.ensure_future(ask_on(f"c{n}")) for n in range(10)]
    for work in works:
        work.release.set()
    assert await asyncio.gather(*costly) == ["costly"] * len(works)
    is_over = True
    await asyncio.gather(*crowd)


async def test_many_queries_of_one_client_leave_room_for_others(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_QUERIES_BEGUN", 8)
    works = [Costly() for _ in range(20)]
    costly = [ask(readers, "a", work) for work in works]
    await until(lambda: readers.load == QueryLoad(4, 16))
    other = Costly()
    others = ask(readers, "b", other)
    await until(other.began.is_set)
    assert sum(work.began.is_set() for work in works) == 4
    other.release.set()
    assert await others == "costly"
    for work in works:
        work.release.set()
    await asyncio.gather(*costly)


async def test_who_gives_up_frees_what_its_query_holds(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_QUERIES_BEGUN", 2 * limits.READERS)
    works = [Costly() for _ in range(20)]
    costly = [ask(readers, f"{n}", work) for n, work in enumerate(works)]
    await until(lambda: sum(work.began.is_set() for work in works) == 2 * limits.READERS)
    assert readers.load == QueryLoad(2 * limits.READERS, 20 - 2 * limits.READERS)
    for task in reversed(costly):  # those that wait first: none of them begins
        task.cancel()
    await until(lambda: readers.load == QueryLoad(0, 0))
    assert all(work.has_ended.is_set() for work in works if work.began.is_set())
    assert sum(work.began.is_set() for work in works) == 2 * limits.READERS
    assert await readers.run("a", cheap) == "cheap"


async def test_a_client_has_as_many_large_answers_as_it_leaves_to_others(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LARGE_ANSWERS", 4)
    works = [Large() for _ in range(10)]
    answers = [ask(readers, "a", work) for work in works]
    await until(lambda: all(work.began.is_set() for work in works))
    await until(lambda: n_large(works) == 2)
    assert await readers.run("a", cheap) == "cheap"  # who waits for a place has no turn
    assert n_large(works) == 2
    others = [Large(), Large()]
    answers += [ask(readers, f"{n}", other) for n, other in enumerate(others)]
    await until(lambda: n_large(others) == 2)
    assert n_large(works) == 2
    for work in works + others:
        work.release.set()
    assert await asyncio.gather(*answers) == ["costly"] * 12


async def test_the_next_large_answer_is_another_clients(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LARGE_ANSWERS", 1)
    works = [Large() for _ in range(3)]
    answers = [ask(readers, "a", work) for work in works]
    await until(lambda: all(work.began.is_set() for work in works))
    await until(lambda: n_large(works) == 1)
    other = Large()
    answers.append(ask(readers, "b", other))
    await until(other.began.is_set)
    assert await readers.run("c", cheap) == "cheap"
    assert not other.is_large.is_set()
    for work in works:
        if work.is_large.is_set():
            work.release.set()
    await until(lambda: n_large(works) == 2)  # who waited first
    for work in works:
        if work.is_large.is_set():
            work.release.set()
    await until(other.is_large.is_set)
    assert n_large(works) == 2
    for work in (*works, other):
        work.release.set()
    assert await asyncio.gather(*answers) == ["costly"] * 4


async def test_a_large_answer_keeps_its_place_until_it_is_not_held_any_more(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LARGE_ANSWERS", 1)
    first, second = Large(), Large()
    first.release.set()
    second.release.set()
    with ExitStack() as holding:
        assert await readers.run("a", first, holding) == "costly"
        waiting = ask(readers, "b", second)
        await until(second.began.is_set)
        assert await readers.run("c", cheap) == "cheap"
        await until(lambda: readers.load == QueryLoad(2, 0))
        assert not second.is_large.is_set()
    assert await waiting == "costly"
    await until(lambda: readers.load == QueryLoad(0, 0))


async def test_who_gives_up_a_large_answer_frees_its_place(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LARGE_ANSWERS", 1)
    works = [Large() for _ in range(4)]
    answers = [ask(readers, "a", work) for work in works]
    await until(lambda: all(work.began.is_set() for work in works))
    for answer in answers:  # one that has the place, and those that wait for it
        answer.cancel()
    await until(lambda: readers.load == QueryLoad(0, 0))
    assert all(work.has_ended.is_set() for work in works)
    last = Large()
    last.release.set()
    assert await readers.run("b", last) == "costly"


async def test_a_large_answer_that_fails_frees_its_place(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LARGE_ANSWERS", 1)

    def fail(pause: PauseCb, become_large: LargeCb) -> str:
        become_large()
        become_large()  # counts once
        raise StorageError("so")

    for _ in range(3):
        with pytest.raises(StorageError, match=r"^so$"):
            await readers.run("a", fail)


async def test_closing_ends_what_waits_to_get_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LARGE_ANSWERS", 1)
    is_closing = threading.Event()

    def check() -> None:
        if is_closing.is_set():
            raise ClosedError("closing")

    readers = Readers(check)
    large = Large()
    large.release.set()
    with ExitStack() as holding:
        await readers.run("a", large, holding)  # and it is held for ever
        works = [Large() for _ in range(3)]
        answers = [ask(readers, "b", work) for work in works]
        await until(lambda: all(work.began.is_set() for work in works))
        is_closing.set()
        await asyncio.to_thread(readers.ext_close)
        results = await asyncio.gather(*answers, return_exceptions=True)
        assert {type(i) for i in results} == {ClosedError}
    assert readers.load == QueryLoad(0, 0)


async def test_closing_ends_what_is_under_way() -> None:
    is_closing = threading.Event()

    def check() -> None:
        if is_closing.is_set():
            raise ClosedError("closing")

    readers = Readers(check)
    works = [Costly() for _ in range(limits.MAX_QUERIES_BEGUN)]
    costly = [ask(readers, "a", work) for work in works]
    await until(lambda: readers.load.running == limits.MAX_QUERIES_BEGUN // 2)
    is_closing.set()
    await asyncio.to_thread(readers.ext_close)
    results = await asyncio.gather(*costly, return_exceptions=True)
    assert {type(i) for i in results} == {ClosedError}
    assert readers.load == QueryLoad(0, 0)
    with pytest.raises(ClosedError):
        await readers.run("a", cheap)
    assert not any("store-reader" in i.name for i in threading.enumerate())


async def test_no_thread_for_a_query_fails_it_alone(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(2 * limits.READERS):
            with pytest.raises(StorageError, match="no thread for a query"):
                await readers.run("a", cheap)
    assert await readers.run("a", cheap) == "cheap"
