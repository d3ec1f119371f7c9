"""The backend in memory: the contract, and queries beside what is registered."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import memory
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.memory_query import Reader
from eventer_bridge.errors import ClosedError
from eventer_bridge.model import (
    JsonPayload,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
)
from tests.eventer_bridge.backends.contract_keeping import KeepingContract
from tests.eventer_bridge.backends.oracle import Writer, draft, numbered


class TestMemory(KeepingContract):
    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[Backend]:
        backend = memory.create()
        yield backend
        await backend.async_close()


@pytest.mark.parametrize(
    "params",
    [
        QueryTimeseriesParams(order=Order.ASCENDING),
        QueryTimeseriesParams(order_by=OrderBy.SOURCE_TIMESTAMP),
        QueryServerParams(1),
        QueryLatestParams(),
    ],
    ids=["timeseries", "by source", "server", "latest"],
)
async def test_queries_see_whole_sessions_while_others_are_registered(params: QueryParams) -> None:
    async with memory.create() as backend:
        writer = Writer(backend)
        numbers = itertools.count()

        async def register() -> None:
            n = next(numbers)
            await writer.session(*numbered(f"a{n}", f"b{n}", f"c{n}"))

        while len(writer.events) < 3_000:
            await register()
            asking = asyncio.ensure_future(backend.query(params))
            while not asking.done():
                await register()
                await asyncio.sleep(0)
            found = (await asking).events
            n_sessions = len({event.id.session for event in found})
            if len(found) < limits.MAX_RESULTS:
                assert len(found) == 3 * n_sessions


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

        def ext_for_ever(reader: Reader, params: QueryTimeseriesParams) -> QueryResult:
            while True:
                reader._pause()

        monkeypatch.setattr(Reader, "ext_timeseries", ext_for_ever)
        asking = asyncio.ensure_future(backend.query(QueryTimeseriesParams()))
        while not backend.query_load.running:
            await asyncio.sleep(0.001)
    with pytest.raises(ClosedError):
        await asking
