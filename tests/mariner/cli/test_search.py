"""Queries for a payload, span by span."""

import contextlib
from collections.abc import AsyncIterator
from typing import cast

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
    """A client, and events of which every fourth is wanted, each with its own timestamp."""
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
            events += await connected.register([RegisterEvent(("a", str(i % 3)), None, payload)])
        yield connected, events


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("search_s", [0.0, 60.0])
async def test_the_same_as_one_query(
    registered: tuple[client.Client, list[Event]],
    monkeypatch: pytest.MonkeyPatch,
    order: Order,
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
                    event_types, t_from, events[36].timestamp, order=order, payload=WANTED
                )
                found, told = await Recorder(connected).search(params, limit)
                assert found == [i async for i in connected.query_all(params, limit=limit)]
                assert told == sorted(told)
                assert limit is not None or not told or told[-1][0] == told[-1][1]


async def test_it_ends_when_there_are_enough(
    registered: tuple[client.Client, list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, events = registered
    monkeypatch.setattr(limits, "SEARCH_S", 0.0)
    monkeypatch.setattr(limits, "SLOW_SEARCH", 0)
    monkeypatch.setattr(limits, "FIRST_SEARCH_SPAN_US", 0)
    params = QueryTimeseriesParams(payload=WANTED)
    recorder = Recorder(connected)
    found, _ = await recorder.search(params, 1)
    assert found == [events[36]]
    of_payload = [i for i in recorder.queries if getattr(i, "payload", None) is not None]
    assert [getattr(i, "t_from", None) for i in of_payload] == [
        i.timestamp for i in reversed(events[36:])
    ]


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


@pytest.mark.parametrize(
    "more", [{"order_by": OrderBy.SOURCE_TIMESTAMP}, {"unique_type": True}, {"ids": []}]
)
async def test_what_cannot_be_cut_is_one_query(
    registered: tuple[client.Client, list[Event]], more: dict[str, object]
) -> None:
    connected, _ = registered
    params = QueryTimeseriesParams(payload=WANTED, **more)  # type: ignore[arg-type]
    recorder = Recorder(connected)
    found, told = await recorder.search(params)
    assert found == [i async for i in connected.query_all(params)]
    assert (recorder.queries, told) == ([params], [])
