"""Backends driven by a model: random steps, each compared with what a list would answer.

The model is the log of everything that was handed over. Whatever a backend holds is what
some beginning of that log says: at least as far as it was acknowledged, or as the contract
says for a query. Closing and opening again changes nothing; a kill may cut the log behind
what was acknowledged.

``EXAMPLES`` runs as many examples of each machine, new ones each time, as ``make torture``
does; without it there are a few, always the same.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import pytest
import uvloop
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from eventer_bridge import limits
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.base import Backend, HighWaterMark
from eventer_bridge.model import (
    Event,
    EventType,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    natural_key,
)
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends.oracle import answer, is_right, seen
from tests.eventer_bridge.backends.putting import put, put_all
from tests.eventer_bridge.backends.strategies import (
    ASKED_SERVERS,
    SERVERS,
    EventMaker,
    Session,
    blocks,
    paged_params,
    params,
    query_types,
    sessions,
)
from tests.support.examples import EXAMPLES, examples

STEPS: Final = 60
"""Steps of an example."""

T = TypeVar("T")


class Reservation(NamedTuple):
    """A call of ``Backend.reserve``."""

    server: int
    session: int


class BackendMachine(RuleBasedStateMachine):
    """Steps that every backend that keeps events can take.

    Attributes:
        log: sessions and reservations, as they were handed over.
        futures: what the backend returned for each of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.log: list[list[Event] | Reservation] = []
        self.futures: list[asyncio.Future[None]] = []
        self.maker = EventMaker()
        self.backend = self.run(self.create())

    async def create(self) -> Backend:
        """Create the backend."""
        return await rocksdb.create_temporary()

    def teardown(self) -> None:
        self.run(self.backend.async_close())
        self.runner.close()
        assert self.n_durable() == len(self.log)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    # the model

    def n_durable(self) -> int:
        """How much of the log was acknowledged: always a beginning of it."""
        done = [i.done() and i.exception() is None for i in self.futures]
        n_done = sum(done)
        assert done == [True] * n_done + [False] * (len(done) - n_done)
        return n_done

    def events(self, n: int | None = None) -> list[Event]:
        """Events of the log, or of its beginning."""
        return [event for i in self.log[:n] if isinstance(i, list) for event in i]

    def mark(self, server: int, n: int | None = None) -> HighWaterMark:
        """Mark after the log, or its beginning."""
        mine = [i for i in self.events(n) if i.id.server == server]
        reserved = [
            i.session for i in self.log[:n] if isinstance(i, Reservation) and i.server == server
        ]
        sessions = [i.id.session for i in mine] + reserved[-1:]
        return HighWaterMark(
            max(sessions, default=0), max((i.timestamp for i in mine), default=None)
        )

    # steps

    @rule(session=sessions, is_patient=st.booleans())
    def register(self, session: Session, is_patient: bool) -> None:
        async def register() -> None:
            future = self.hand_over(self.maker.make(session))
            if is_patient:
                await future

        self.run(register())

    @rule(together=blocks, is_patient=st.booleans())
    def register_together(self, together: list[Session], is_patient: bool) -> None:
        async def register() -> None:
            made = self.maker.make_all(together)
            self.backend.check_types([i.type for events in made for i in events])
            futures = put_all(self.backend, made)
            self.log += made
            self.futures += futures
            if is_patient:
                await asyncio.wait(futures)

        self.run(register())

    @rule(
        server=st.sampled_from(ASKED_SERVERS), ahead=st.integers(-3, 20), is_patient=st.booleans()
    )
    def reserve(self, server: int, ahead: int, is_patient: bool) -> None:
        async def reserve() -> None:
            session = max(0, self.mark(server).session + ahead)
            future = self.hand_over(Reservation(server, session))
            if is_patient:
                await future

        self.run(reserve())

    @rule()
    def flush(self) -> None:
        self.run(self.backend.flush())
        assert self.n_durable() == len(self.log)
        self.check_marks()

    @rule(query=params, rights=query_types)
    def ask(self, query: QueryParams, rights: list[EventType] | None) -> None:
        n_durable = self.n_durable()
        result = self.run(self.backend.answer(seen(query, subscription(rights))))
        is_any = isinstance(query, QueryServerParams) and query.persisted
        self.check(query, rights, result, n_durable if is_any else len(self.log))

    @rule(query=params, rights=query_types, session=sessions)
    def ask_while_others_register(
        self, query: QueryParams, rights: list[EventType] | None, session: Session
    ) -> None:
        async def ask() -> QueryResult:
            asked = asyncio.ensure_future(self.backend.answer(seen(query, subscription(rights))))
            await asyncio.sleep(0)
            self.hand_over(self.maker.make(session))
            return await asked

        is_any = isinstance(query, QueryServerParams) and query.persisted
        n_seen = self.n_durable() if is_any else len(self.log)
        self.check(query, rights, self.run(ask()), n_seen)

    @rule(query=paged_params, rights=query_types, max_results=st.integers(1, 7))
    def ask_to_the_end(
        self,
        query: QueryTimeseriesParams | QueryServerParams,
        rights: list[EventType] | None,
        max_results: int,
    ) -> None:
        """Page after page; together they are the answer that has no limit."""
        self.run(self.backend.flush())
        query = msgspec.structs.replace(query, max_results=None, last_event_id=None)
        whole = answer(self.events(), query, visible(rights))
        query = msgspec.structs.replace(query, max_results=max_results)
        found: list[Event] = []
        has_more = True
        while has_more:
            result = self.run(self.backend.answer(seen(query, subscription(rights))))
            assert len(result.events) <= max_results
            found += result.events
            assert found == whole[: len(found)]
            has_more = result.more_follows
            if has_more:
                assert result.events
                query = msgspec.structs.replace(query, last_event_id=found[-1].id)
        assert found == whole

    # comparing

    def hand_over(self, entry: list[Event] | Reservation) -> asyncio.Future[None]:
        if isinstance(entry, Reservation):
            future = self.backend.reserve(entry.server, entry.session)
        else:
            self.backend.check_types([i.type for i in entry])
            future = put(self.backend, entry)
        self.log.append(entry)
        self.futures.append(future)
        return future

    def check(
        self,
        query: QueryParams,
        rights: list[EventType] | None,
        result: QueryResult,
        n_least: int,
    ) -> None:
        """An answer is that of a beginning of the log, at least ``n_least`` entries of it."""
        assert any(
            is_right(result, self.events(n), query, visible(rights))
            for n in range(n_least, len(self.log) + 1)
        )

    def check_marks(self) -> None:
        """Marks and statistics, when nothing is pending."""
        for server in ASKED_SERVERS:
            assert self.backend.high_water_mark(server) == self.mark(server)
        stats = self.backend.stats()
        assert stats.event_types == len({i.type for i in self.events()})
        assert stats.events == len(self.events())


class RocksDbMachine(BackendMachine):
    """The same, with the store closed, or left behind by a kill, in between."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.n_kills = 0
        super().__init__()

    async def create(self) -> Backend:
        """Open the store that the last kill left behind."""
        return await rocksdb.create(self.directory / str(self.n_kills))

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)

    @rule()
    def reopen(self) -> None:
        self.run(self.backend.async_close())
        assert self.n_durable() == len(self.log)
        self.backend = self.run(self.create())
        self.check_marks()

    @rule(n_iterations=st.integers(0, 3))
    def kill(self, n_iterations: int) -> None:
        """Go on with what the disk holds now, as after a kill at this moment."""

        async def iterate() -> None:
            for _ in range(n_iterations):
                await asyncio.sleep(0)

        self.run(iterate())
        n_durable = self.n_durable()
        left_behind = self.directory / str(self.n_kills)
        self.n_kills += 1
        copy(left_behind, self.directory / str(self.n_kills))
        self.run(self.backend.async_close())
        shutil.rmtree(left_behind)
        self.backend = self.run(self.create())
        self.forget(n_durable)
        self.check_marks()

    def forget(self, n_durable: int) -> None:
        """Cut the log to what was found."""

        async def everything() -> list[Event]:
            found: list[Event] = []
            for server in SERVERS:
                query = QueryServerParams(server)
                while (result := await self.backend.query(query)).events:
                    found += result.events
                    assert len(found) <= len(self.events())
                    query = QueryServerParams(server, last_event_id=found[-1].id)
            return found

        found = sorted(self.run(everything()), key=natural_key)
        marks = [self.backend.high_water_mark(i) for i in ASKED_SERVERS]
        n = next(
            n
            for n in range(n_durable, len(self.log) + 1)
            if sorted(self.events(n), key=natural_key) == found
            and [self.mark(i, n) for i in ASKED_SERVERS] == marks
        )
        del self.log[n:], self.futures[n:]


def subscription(rights: list[EventType] | None) -> Subscription | None:
    return None if rights is None else Subscription(rights)


def visible(rights: list[EventType] | None) -> list[EventType]:
    return [("*",)] if rights is None else rights


def copy(source: Path, target: Path) -> None:
    """Copy the files of a store as they are at one moment.

    A compaction in the background may replace some of them meanwhile.
    """
    while True:
        before = sorted(source.iterdir())
        try:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sock"))
        except shutil.Error:
            before = []
        if sorted(source.iterdir()) == before:
            return
        shutil.rmtree(target)


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that a few events reach every bound."""
    with monkeypatch.context() as patch:
        patch.setattr(limits, "MAX_RESULTS", 5)
        patch.setattr(limits, "MAX_RESULT_BYTES", 20)
        patch.setattr(limits, "MAX_GROUP_EVENTS", 8)
        patch.setattr(limits, "LATEST_CACHE_TYPES", 2)
        patch.setattr(store_limits, "FEW_MERGED_TYPES", 1)
        patch.setattr(store_limits, "MAX_PASSED_EVENTS", 2)
        patch.setattr(store_limits, "MAX_BLOCK_KEYS", 2)
        patch.setattr(store_limits, "MERGED_TYPES", 2)
        yield


def drive(machine: type[BackendMachine], few: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(few),
            stateful_step_count=STEPS,
            derandomize=EXAMPLES is None,
            print_blob=True,
            phases=(Phase.generate, Phase.shrink),
            deadline=None,
        ),
    )


def test_memory() -> None:
    drive(BackendMachine, 6)


def test_rocksdb() -> None:
    drive(RocksDbMachine, 3)


@pytest.mark.usefixtures("small_bounds")
def test_memory_with_small_bounds() -> None:
    drive(BackendMachine, 6)


@pytest.mark.usefixtures("small_bounds")
def test_rocksdb_with_small_bounds() -> None:
    drive(RocksDbMachine, 3)
