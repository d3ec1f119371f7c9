"""What readers and writers of a pair see over a take-over; gateways in their own processes."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from eventer_bridge.model import Event, Status
from mariner import client
from mariner.client import ReconnectingClient
from mariner.client.replay import ReplayBatch
from tests.support import proxy
from tests.support.gateway import Gateway
from tests.support.pair import (
    POLL_INTERVAL_S,
    StartCb,
    client_of,
    kill,
    of,
    pair,
    reader,
    stored,
    until_stored,
    values,
)


@contextlib.asynccontextmanager
async def held_pair(start: StartCb) -> AsyncIterator[tuple[Gateway, Gateway, proxy.Proxy]]:
    """A pair, and what is between the second one and the first one's events."""
    first = await start(1)
    assert first.eventer_port is not None
    async with proxy.create(first.eventer_port) as link:
        source = {"server_id": 1, "host": proxy.HOST, "port": link.port, "token": "pair"}
        yield first, await start(2, replication=[source]), link


@contextlib.asynccontextmanager
async def outliving(*gateways: Gateway) -> AsyncIterator[AsyncIterator[ReplayBatch]]:
    """What a reader with a cursor gets that goes from one gateway to the other."""
    servers = [
        functools.partial(
            client.connect,
            i.host,
            i.port,
            client_name="app",
            client_token="secret",
            subscriptions=[("a",)],
        )
        for i in gateways
    ]
    async with ReconnectingClient(servers, cursor="outliving") as reading:
        yield reading.replay()


async def read_on(replay: AsyncIterator[ReplayBatch], n_events: int) -> list[Any]:
    """So many events more, each acknowledged."""
    events: list[Event] = []
    while len(events) < n_events:
        batch = await anext(replay)
        events += batch.events
        await batch.ack()
    return values(events)


async def start_again(first: Gateway, start: StartCb) -> Gateway:
    """Start the first one where it was."""
    listen = {"host": first.host, "port": first.eventer_port, "token": "pair"}
    return await start(1, eventer_server=listen)


async def test_a_request_is_stored_once_by_each_gateway_that_gets_it(tmp_path: Path) -> None:
    async with (
        pair(tmp_path) as (start, _),
        held_pair(start) as (first, second, link),
        client_of(second) as at_second,
    ):
        async with client_of(first, Status.OPERATIONAL) as at_first:
            (had,) = await at_first.register([of(1)], "both have it")
            await until_stored(at_second, 1)
            link.hold()
            (lost,) = await at_first.register([of(2)], "key")
        await kill(first)
        link.cut()
        await at_second.wait_status(Status.OPERATIONAL)
        (had_again,) = await at_second.register([of(1)], "both have it")
        (again,) = await at_second.register([of(2)], "key")
        assert (had_again.id.server, again.id.server) == (2, 2)
        assert await at_second.register([of(2)], "key") == [again]
        link.go_on()
        returned = await start_again(first, start)
        events = await until_stored(at_second, 4)
        assert values(events) == [1, 2, 1, 2]
        assert [i.id for i in events] == [had.id, lost.id, had_again.id, again.id]
        async with client_of(returned, Status.OPERATIONAL) as at_first:
            assert await until_stored(at_first, 4) == events
            # each goes on answering as before
            assert await at_first.register([of(2)], "key") == [lost]


async def test_one_that_comes_back_is_active_when_it_has_caught_up(tmp_path: Path) -> None:
    async with pair(tmp_path) as (start, _):
        second = await start(2)
        assert second.eventer_port is not None
        async with (
            proxy.create(second.eventer_port) as link,
            client_of(second, Status.OPERATIONAL) as at_second,
        ):
            link.hold()
            source = {"server_id": 2, "host": proxy.HOST, "port": link.port, "token": "pair"}
            first = await start(1, replication=[source])
            # the Monitor Servers know it; it has nothing
            while '"server of the group", "server": 1' not in second.stderr_path.read_text():
                await asyncio.sleep(POLL_INTERVAL_S)
            written = [(await at_second.register([of(i)]))[0] for i in range(100)]
            assert at_second.status is Status.OPERATIONAL
            link.go_on()
            async with client_of(first, Status.OPERATIONAL) as at_first:
                assert await stored(at_first) == written


async def test_each_gateway_has_its_own_cursor(tmp_path: Path) -> None:
    """A reader that lives on goes on behind what it acknowledged; others begin where it is."""
    async with pair(tmp_path) as (start, _):
        first, second = await start(1), await start(2)
        async with client_of(second) as at_second, outliving(first, second) as replay:
            async with client_of(first, Status.OPERATIONAL) as at_first:
                await at_first.register([of(i) for i in range(3)])
                async with reader(first) as reading:
                    assert await reading.read(3) == [0, 1, 2]
                assert await read_on(replay, 3) == [0, 1, 2]
                await until_stored(at_second, 3)
            first.process.terminate()
            await first.process.wait()
            await at_second.wait_status(Status.OPERATIONAL)
            await at_second.register([of(3)])
            assert await read_on(replay, 1) == [3]
            async with reader(second) as reading:
                assert await reading.read(4) == [0, 1, 2, 3]
            first = await start(1, port=first.port)
            async with client_of(first, Status.OPERATIONAL), reader(first) as reading:
                assert await reading.read(1) == [3]  # it begins where it was


async def test_a_reader_that_saw_more_than_the_standby_has_waits_for_nothing(
    tmp_path: Path,
) -> None:
    async with (
        pair(tmp_path) as (start, _),
        held_pair(start) as (first, second, link),
        client_of(second) as at_second,
    ):
        async with client_of(first, Status.OPERATIONAL) as at_first:
            await at_first.register([of(0)])
            await until_stored(at_second, 1)
            link.hold()
            (seen,) = await at_first.register([of(1)])
        await kill(first)
        link.cut()
        await at_second.wait_status(Status.OPERATIONAL)
        async with reader(second, cursor=None, start=[seen.id]) as reading:
            await at_second.register([of(2)])
            assert await reading.read(1, acknowledges=False) == [2]
            link.go_on()
            returned = await start_again(first, start)
            await until_stored(at_second, 3)  # the one that it has seen
            async with client_of(returned, Status.OPERATIONAL) as at_first:
                await at_first.register([of(3)])
                assert await reading.read(1, acknowledges=False) == [3]
