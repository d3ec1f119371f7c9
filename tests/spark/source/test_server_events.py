"""What a gateway has of its servers."""

from pathlib import Path

from eventer_bridge.model import Event, EventId, JsonPayload, QueryLatestParams, Timestamp
from mariner_spark.source import options
from mariner_spark.source.gateway import GatewayClient
from mariner_spark.source.server_events import ANY_TYPE, find_servers
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
