"""The backend that stores nothing: the contract, and that an engine lives on it."""

from collections.abc import AsyncIterator

import pytest

from eventer_bridge.backends import dummy
from eventer_bridge.backends.base import Backend, StoreStats
from eventer_bridge.core import engine
from eventer_bridge.model import (
    Event,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
    Source,
    SourceType,
)
from tests.eventer_bridge.backends.contract import BackendContract
from tests.eventer_bridge.backends.oracle import Writer, draft, numbered


class TestDummy(BackendContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        backend = dummy.DummyBackend()
        yield backend
        await backend.async_close()


async def test_nothing_is_stored() -> None:
    async with dummy.DummyBackend() as backend:
        for query in QueryTimeseriesParams(), QueryServerParams(1), QueryLatestParams():
            await Writer(backend).session(*numbered("a", "b"))
            result = await backend.query(query)
            assert (result.events, result.more_follows) == ([], False)
        assert backend.stats() == StoreStats(0, 0, 0)


async def test_ids_and_clock_go_on_with_the_next_engine() -> None:
    source = Source(SourceType.CONNECTION, 1)
    async with dummy.DummyBackend() as backend:
        events: list[Event] = []
        for _ in range(2):
            async with await engine.create(backend, 7) as core:
                for _ in range(2):
                    session = core.register(source, [draft("a"), draft("b")])
                    await session.committed
                    events += session.events
    assert len({i.id for i in events}) == 8
    assert [i.id for i in events] == sorted(i.id for i in events)
    assert [i.timestamp for i in events] == sorted(i.timestamp for i in events)
