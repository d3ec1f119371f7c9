"""The client's side of replay and cursors, against a gateway."""

import asyncio
from typing import Any

import pytest

from eventer_bridge.model import Event, EventId, JsonPayload, RegisterEvent
from mariner import client
from mariner.errors import (
    ConnectionLostError,
    CursorLostError,
    GapError,
    InitError,
    LocalProtocolError,
    UnsupportedError,
)
from mariner.gateway.gateway import Gateway
from tests.mariner.gateway.test_cursors import cursors_of, find
from tests.mariner.gateway.test_replay import connect, register, serving, timeseries
from tests.support.inprocess import running_gateway


async def reader(gateway: Gateway, **keys: Any) -> client.Client:
    return await connect(gateway, subscriptions=[("a",)], **keys)


async def take(connection: client.Client, n_events: int) -> list[Event]:
    events: list[Event] = []
    async for batch in connection.replay():
        events += batch.events
        if len(events) >= n_events:
            break
    return events


async def test_from_the_earliest_and_then_live() -> None:
    async with serving(None) as gateway, await connect(gateway) as writer:
        before = await register(writer, *range(5))
        async with await reader(gateway, start="earliest") as connection:
            await connection.wait_up_to_date()
            after = await register(writer, 5)
            batches = connection.replay()
            assert (await anext(batches)).events == before
            live = await anext(batches)
            assert live.is_live
            assert live.events == after
            with pytest.raises(LocalProtocolError, match=r"^ack: connect with a cursor$"):
                await live.ack()
        for start in ([before[2].id], {1: before[2].id}):
            async with await reader(gateway, start=start) as connection:
                assert await take(connection, 3) == [*before[3:], *after]


async def test_until_up_to_date() -> None:
    async with serving(None) as gateway, await connect(gateway) as writer:
        before = await register(writer, *range(5))
        async with await reader(gateway, start="earliest") as connection:
            missed = [i async for i in connection.replay(until_up_to_date=True)]
            assert [event for batch in missed for event in batch.events] == before
            assert not any(batch.is_live for batch in missed)
            after = await register(writer, 5)
            assert await take(connection, 1) == after
        async with await reader(gateway, start=[after[-1].id]) as connection:
            assert not [i async for i in connection.replay(until_up_to_date=True)]


async def test_the_connection_is_lost_before_the_client_is_up_to_date() -> None:
    async with serving(None) as gateway, await connect(gateway) as writer:
        await register(writer, *range(5))
        connection = await reader(gateway, start="earliest")
        await connection.async_close()
        with pytest.raises(ConnectionLostError, match=r": closed by this client$"):
            _ = [i async for i in connection.replay(until_up_to_date=True)]


async def test_a_cursor_goes_on_behind_what_was_acknowledged() -> None:
    async with serving(None) as gateway, await connect(gateway) as writer:
        before = await register(writer, *range(5))
        async with await reader(gateway, cursor="c") as connection:
            batch = await anext(connection.replay())
            await batch.first(3).ack({before[1].id: "not now"})
            await connection.ping()
        assert [*cursors_of(gateway).parked(find(gateway))] == [before[1].id]
        cursors_of(gateway).redeliver(find(gateway), [before[1].id])
        async with await reader(gateway, cursor="c") as connection:
            batches = connection.replay()
            redelivered = await anext(batches)
            assert redelivered.is_redelivered
            assert redelivered.events == [before[1]]
            await redelivered.ack()
            assert (await anext(batches)).events == before[3:]
            await connection.ping()
        assert not cursors_of(gateway).parked(find(gateway))


async def test_who_loses_the_cursor_is_told() -> None:
    async with serving(None) as gateway, await connect(gateway) as writer:
        await register(writer, 1)
        async with await reader(gateway, cursor="c") as first:
            batches = first.replay()
            batch = await anext(batches)
            async with await reader(gateway, cursor="c"):
                text = r": another connection has the cursor now$"
                with pytest.raises(CursorLostError, match=text):
                    await anext(batches)
                with pytest.raises(CursorLostError, match=text):
                    await batch.ack()


async def test_a_gap_is_raised_and_what_follows_is_there() -> None:
    rules = [{"subscriptions": [["a"]], "max_entries": 3}]
    async with serving(None, retention=rules) as gateway, await connect(gateway) as writer:
        events = await register(writer, *range(10))
        while len((await writer.query(timeseries("a"))).events) > 3:
            await asyncio.sleep(0.01)
        async with await reader(gateway, start=[events[0].id]) as connection:
            with pytest.raises(GapError) as caught:
                await take(connection, 3)
            assert caught.value.server_id == 1
            assert caught.value.oldest == events[7].id
            assert await take(connection, 3) == events[7:]


async def test_a_server_without_replay() -> None:
    core = {"server_id": 1, "backend": {"type": "memory"}}
    listen = {"host": "127.0.0.1", "port": 0}
    async with running_gateway(event_core={**core, "eventer_server": listen}) as remote:
        assert remote.eventer_server is not None
        address = {"host": "127.0.0.1", "port": remote.eventer_server.address.port}
        async with running_gateway(eventer=address) as relay, await connect(relay) as connection:
            with pytest.raises(UnsupportedError, match=r"does not know 'request_key'$"):
                await connection.register([RegisterEvent(("a",), None, JsonPayload.of(1))], "k")
            with pytest.raises(LocalProtocolError, match="connect with start or cursor"):
                await anext(connection.replay())
            with pytest.raises(InitError, match="this server does not keep events"):
                await reader(relay, start=[EventId(1, 1, 1)])
