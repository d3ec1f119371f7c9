"""What a gateway has of its servers."""

import asyncio
from pathlib import Path

import pytest

from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    Order,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from mariner_spark.errors import SourceError
from mariner_spark.source import options
from mariner_spark.source.gateway import GatewayClient
from mariner_spark.source.server_events import ANY_TYPE, find_last, find_servers
from tests.mariner.client.servers import same_page, scripted
from tests.spark.source.streams import gateway_options
from tests.spark.support import fill
from tests.support.gateway import gateway


async def test_servers_are_found_of_all_pages_of_the_latest(tmp_path: Path) -> None:
    large = JsonPayload.of("x" * (6 << 20))
    stored = [
        Event(EventId(7, n, 1), ("large", str(n)), Timestamp(n, 0), None, large)
        for n in range(1, 4)
    ]
    stored.append(Event(EventId(8, 1, 1), ("small",), Timestamp(9, 0), None, None))
    fill(tmp_path / "events", stored)
    async with gateway(tmp_path) as running:
        with GatewayClient(options.parse(gateway_options(running)).gateway) as connection:
            assert connection.query(QueryLatestParams([ANY_TYPE])).more_follows
            assert find_servers(connection, [ANY_TYPE]) == {1, 7, 8}


async def test_a_gateway_that_sends_the_same_page_again() -> None:
    def read(address: dict[str, str], params: QueryTimeseriesParams | QueryServerParams) -> None:
        with GatewayClient(options.parse(address).gateway) as connection:
            pages = connection.pages(params)
            assert len(next(pages)) == 2
            with pytest.raises(SourceError, match=r"answers without progress: event 1/1/1 comes "):
                next(pages)

    def search(address: dict[str, str]) -> None:
        with (
            GatewayClient(options.parse(address).gateway) as connection,
            pytest.raises(SourceError, match="answers without progress: 1 was found after 1"),
        ):
            find_last(connection, 1, None)

    async with scripted(same_page) as server:
        address = {"host": f"{server.host}:{server.port}", "client_name": "app", "token": "secret"}
        await asyncio.to_thread(read, address, QueryTimeseriesParams(order=Order.ASCENDING))
        await asyncio.to_thread(read, address, QueryServerParams(1))
        await asyncio.to_thread(search, address)
