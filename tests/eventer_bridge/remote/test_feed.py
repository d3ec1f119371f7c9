"""A feed of a real server's events."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from eventer_bridge import chatter
from eventer_bridge.eventer import client
from eventer_bridge.eventer.client import EventerClient
from eventer_bridge.memory import account_of_process
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    RegisterEvent,
    SourceType,
)
from eventer_bridge.remote.feed import Feed, FeedState
from tests.support.event_servers import event_server, eventer_port


async def test_one_that_is_closed_while_its_connection_ends_holds_no_memory(
    tmp_path: Path,
) -> None:
    account = account_of_process()
    synced = asyncio.Event()

    def deliver(session: Sequence[Event]) -> asyncio.Future[None]:
        delivery: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if session[0].type != ("a",):  # that one takes for ever
            delivery.set_result(None)
        return delivery

    def on_state(state: FeedState, _: int | None) -> None:
        if state is FeedState.SYNCED:
            synced.set()

    def on_client(connection: EventerClient | None) -> None:
        if connection is None:
            feed.close()

    async def known(_: EventerClient) -> dict[int, EventId | None]:
        return {1: None}

    async with event_server(tmp_path, 1) as server:
        address = chatter.Address("127.0.0.1", eventer_port(server))
        connect = partial(client.connect, address, "feed", subscriptions=[("*",)], persisted=True)
        feed = Feed(
            "1",
            lambda on_events: connect(on_events=on_events),
            known,
            deliver,
            on_client=on_client,
            on_state=on_state,
        )
        await synced.wait()
        event = RegisterEvent(("a",), None, JsonPayload.of("x" * 100_000))
        source = server.core.create_source(SourceType.CONNECTION)
        await server.core.register(source, [event]).committed
        while "server 1" not in account._owners:
            await asyncio.sleep(0.01)
    await feed.wait_closed()
    assert "server 1" not in account._owners
