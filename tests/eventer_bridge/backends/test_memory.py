"""The backend in memory: the contract, and queries beside what is registered."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import memory
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.event_blocks import EventBlocks
from eventer_bridge.backends.memory_query import MemoryReader
from eventer_bridge.errors import ClosedError
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    QueryLatestParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends.contract_keeping import KeepingContract
from tests.eventer_bridge.backends.oracle import Writer, draft, numbered, seen


class TestMemory(KeepingContract):
    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[Backend]:
        backend = memory.create()
        yield backend
        await backend.async_close()


class LookedAt(list[Event]):
    """A block that notes whether it is looked at."""

    n_looks = 0

    def __iter__(self) -> Iterator[Event]:
        self.n_looks += 1
        return super().__iter__()


def test_the_next_page_of_a_server_is_found_at_once() -> None:
    def make(server: int, session: int) -> Event:
        event_id = EventId(server, session, 1)
        return Event(event_id, ("a",), Timestamp(session, 0), None, None)

    servers = [1 if i % 5 else 2 for i in range(4_000)]  # and of 3 the last ones
    events = [make(3 if i >= 3_990 else server, i) for i, server in enumerate(servers)]
    blocks = [LookedAt(events[i : i + 4]) for i in range(0, len(events), 4)]
    reader = MemoryReader(blocks, Subscription([("*",)]), lambda: None, lambda: None)
    for server in 1, 2, 3:
        of_server = [event for event in events if event.id.server == server]
        for number in {0, len(of_server) // 2, len(of_server) - 4}:
            for block in blocks:
                block.n_looks = 0
            params = QueryServerParams(server, True, 3, of_server[number].id)
            result = reader.ext_server(params)
            assert list(result.events) == of_server[number + 1 : number + 4]
            if server != 3:
                assert sum(block.n_looks for block in blocks) < 50


async def test_a_query_does_not_read_in_the_middle_of_a_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[QueryResult] = []
    add = EventBlocks.add

    def ext_query() -> None:
        found.extend(
            backend._ext_query(seen(params, None), lambda: None, lambda: None)
            for params in (QueryTimeseriesParams(), QueryLatestParams())
        )

    thread = threading.Thread(target=ext_query)

    def add_slowly(blocks: EventBlocks, event: Event) -> None:
        add(blocks, event)
        if event.id.instance == 2:
            thread.start()
            thread.join(0.1)  # it waits

    monkeypatch.setattr(EventBlocks, "add", add_slowly)
    async with memory.create() as backend:
        await Writer(backend).session(*numbered("a", "b", "c"))
        await asyncio.to_thread(thread.join)
    assert [len(result.events) for result in found] == [3, 3]


async def test_large_answers_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LARGE_ANSWERS", 1)
    large = JsonPayload.of("x" * limits.LARGE_ANSWER_BYTES)
    async with memory.create() as backend:
        await Writer(backend).session(draft("small"), draft("large", payload=large))
        with ExitStack() as holding:
            first = await backend.query(QueryTimeseriesParams(), holding=holding)
            second = asyncio.ensure_future(backend.query(QueryTimeseriesParams()))
            while backend.query_load.running < 2 and not second.done():
                await asyncio.sleep(0.001)
            small = await backend.query(QueryTimeseriesParams([("small",)]))
            assert len(small.events) == 1
            assert not second.done()
        assert await second == first


async def test_queries_end_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = memory.create()
    async with backend:
        await Writer(backend).session(draft("a"))

        def ext_for_ever(reader: MemoryReader, params: QueryTimeseriesParams) -> QueryResult:
            while True:
                reader._pause()

        monkeypatch.setattr(MemoryReader, "ext_timeseries", ext_for_ever)
        asking = asyncio.ensure_future(backend.query(QueryTimeseriesParams()))
        while not backend.query_load.running:
            await asyncio.sleep(0.001)
    with pytest.raises(ClosedError):
        await asking
