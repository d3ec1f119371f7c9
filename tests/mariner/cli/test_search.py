"""Queries for a payload, span by span."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from eventer_bridge.model import (
    Event,
    JsonPayload,
    Order,
    OrderBy,
    QueryParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
)
from mariner import client, limits
from mariner.cli.search import search
from mariner.cli.target import TargetClient
from tests.support.inprocess import running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

WANTED = JsonPayload.of("wanted")


class Recorder:
    """A client that can only query, and keeps what it is asked."""

    def __init__(self, connected: client.Client) -> None:
        self._connected = connected
        self.queries: list[QueryParams] = []

    def query_all(self, params: QueryParams, *, limit: int | None = None) -> AsyncIterator[Event]:
        self.queries.append(params)
        return self._connected.query_all(params, limit=limit)

    async def search(
        self, params: QueryParams, limit: int | None = None
    ) -> tuple[list[Event], list[tuple[int, int]]]:
        """What is found, and the progress that was told."""
        told: list[tuple[int, int]] = []
        found = search(cast("TargetClient", self), params, limit, lambda *i: told.append(i))
        return [i async for i in found], told


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def registered() -> AsyncIterator[tuple[client.Client, list[Event]]]:
    """A client, and events of which every fourth is wanted, each with its own timestamp.

    Some have no source timestamp, others the same.
    """
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway())
        connected = await stack.enter_async_context(
            await client.connect(
                "127.0.0.1", gateway.mariner.port, client_name="app", client_token="secret"
            )
        )
        events: list[Event] = []
        for i in range(40):
            payload = JsonPayload.of(i) if i % 4 else WANTED
            source = None if i % 5 == 0 else Timestamp(0, i * 7 % 11)
            events += await connected.register([RegisterEvent(("a", str(i % 3)), source, payload)])
        yield connected, events


@pytest.mark.parametrize("unique_type", [False, True])
@pytest.mark.parametrize("order_by", OrderBy)
@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("search_s", [0.0, 60.0])
async def test_the_same_as_one_query(
    registered: tuple[client.Client, list[Event]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    order: Order,
    order_by: OrderBy,
    unique_type: bool,
    search_s: float,
) -> None:
    connected, events = registered
    monkeypatch.setattr(limits, "SEARCH_S", search_s)  # spans become shorter, or longer
    monkeypatch.setattr(limits, "SLOW_SEARCH", 0)
    monkeypatch.setattr(limits, "FIRST_SEARCH_SPAN_US", 0)
    for event_types in (None, [("a", "1")], [("none",)]):
        for t_from in (None, events[4].timestamp):
            for limit in (None, 0, 3):
                params = QueryTimeseriesParams(
                    event_types,
                    t_from,
                    events[36].timestamp,
                    order=order,
                    order_by=order_by,
                    payload=WANTED,
                    unique_type=unique_type,
                )
                found, told = await Recorder(connected).search(params, limit)
                assert found == [i async for i in connected.query_all(params, limit=limit)]
                assert told == sorted(told)
                assert limit is not None or not told or told[-1][0] == told[-1][1]


@pytest.mark.parametrize("unique_type", [False, True])
async def test_it_ends_when_there_are_enough(
    registered: tuple[client.Client, list[Event]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    unique_type: bool,
) -> None:
    connected, events = registered
    monkeypatch.setattr(limits, "SEARCH_S", 0.0)
    monkeypatch.setattr(limits, "SLOW_SEARCH", 0)
    monkeypatch.setattr(limits, "FIRST_SEARCH_SPAN_US", 0)

    async def search(params: QueryTimeseriesParams) -> tuple[list[Event], list[Any]]:
        recorder = Recorder(connected)
        found, _ = await recorder.search(params, 1)
        return found, [i for i in recorder.queries if getattr(i, "payload", None) is not None]

    params = QueryTimeseriesParams(payload=WANTED, unique_type=unique_type)
    found, asked = await search(params)
    assert found == [events[36]]
    assert [i.t_from for i in asked] == [i.timestamp for i in reversed(events[36:])]

    by_source = msgspec.structs.replace(params, order_by=OrderBy.SOURCE_TIMESTAMP)
    [event], asked = await search(by_source)
    sources = {i.source_timestamp for i in events if i.source_timestamp is not None}
    assert event.source_timestamp is not None
    assert [i.source_t_from for i in asked] == sorted(
        (i for i in sources if i >= event.source_timestamp), reverse=True
    )


async def test_a_slow_link_makes_no_span_short(
    registered: tuple[client.Client, list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, events = registered
    monkeypatch.setattr(limits, "SEARCH_S", 0.0)  # every query is slow, but so is one for an event
    monkeypatch.setattr(limits, "SLOW_SEARCH", 10_000)
    recorder = Recorder(connected)
    found, _ = await recorder.search(QueryTimeseriesParams(payload=WANTED))
    assert found == [*reversed(events[::4])]
    assert len(recorder.queries) < len(events)  # two for each event otherwise


@pytest.mark.parametrize("more", [{"ids": []}, {"payload": None}])
async def test_what_is_found_at_once_is_one_query(
    registered: tuple[client.Client, list[Event]], more: dict[str, Any]
) -> None:
    connected, _ = registered
    params = QueryTimeseriesParams(**{"payload": WANTED} | more)
    recorder = Recorder(connected)
    found, told = await recorder.search(params)
    assert found == [i async for i in connected.query_all(params)]
    assert (recorder.queries, told) == ([params], [])


async def test_source_timestamps_within_bounds(
    registered: tuple[client.Client, list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, _ = registered
    monkeypatch.setattr(limits, "FIRST_SEARCH_SPAN_US", 0)
    bounds: dict[str, Any] = {"source_t_from": Timestamp(0, 2), "source_t_to": Timestamp(0, 8)}
    for names in (["source_t_from"], ["source_t_to"], [*bounds]):
        params = QueryTimeseriesParams(
            **{i: bounds[i] for i in names}, order_by=OrderBy.SOURCE_TIMESTAMP, payload=WANTED
        )
        recorder = Recorder(connected)
        found, told = await recorder.search(params)
        assert found == [i async for i in connected.query_all(params)]
        assert told[-1][0] == told[-1][1]
        orders = {getattr(i, "order_by", None) for i in recorder.queries}
        assert orders == {OrderBy.SOURCE_TIMESTAMP}  # nothing without one is looked for


async def test_events_that_the_server_leaves_out(
    registered: tuple[client.Client, list[Event]],
) -> None:
    """Other servers do not order by source timestamp what has none."""

    class Other(Recorder):
        async def query_all(
            self, params: QueryParams, *, limit: int | None = None
        ) -> AsyncIterator[Event]:
            by_source = getattr(params, "order_by", None) is OrderBy.SOURCE_TIMESTAMP
            async for event in super().query_all(params, limit=limit):
                if not by_source or event.source_timestamp is not None:
                    yield event

    connected, _ = registered
    params = QueryTimeseriesParams(order_by=OrderBy.SOURCE_TIMESTAMP, payload=WANTED)
    found, _ = await Other(connected).search(params)
    assert found == [i async for i in Other(connected).query_all(params)] != []
