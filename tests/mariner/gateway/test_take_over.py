"""What a pair keeps over a take-over: request keys and cursors; gateways in their own processes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from eventer_bridge.model import Status
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
    until_told,
    values,
)

PARKED_OF_FIRST = ("event", "1", "parked", "?")


@contextlib.asynccontextmanager
async def held_pair(start: StartCb) -> AsyncIterator[tuple[Gateway, Gateway, proxy.Proxy]]:
    """A pair, and what is between the second one and the first one's events."""
    first = await start(1)
    assert first.eventer_port is not None
    async with proxy.create(first.eventer_port) as link:
        source = {"server_id": 1, "host": proxy.HOST, "port": link.port, "token": "pair"}
        yield first, await start(2, replication=[source]), link


async def start_again(first: Gateway, start: StartCb) -> Gateway:
    """Start the first one where it was."""
    listen = {"host": first.host, "port": first.eventer_port, "token": "pair"}
    return await start(1, eventer_server=listen)


async def test_a_request_that_the_standby_has_is_stored_once(tmp_path: Path) -> None:
    async with pair(tmp_path) as (start, _):
        first, second = await start(1), await start(2)
        large = [of(i) for i in range(3_000)]
        async with client_of(first, Status.OPERATIONAL) as at_first:
            answers = [
                await at_first.register([of(1), of(2)], "some"),
                await at_first.register(large, "large"),
                *await asyncio.gather(*(at_first.register([of(i)], f"k{i}") for i in range(20))),
            ]
        async with client_of(second) as at_second:
            await until_stored(at_second, 3_022)
            await kill(first)
            await at_second.wait_status(Status.OPERATIONAL)
            assert await at_second.register([of(1), of(2)], "some") == answers[0]
            assert await at_second.register(large, "large") == answers[1]
            for i in range(20):
                assert (
                    await at_second.register([of(i)], f"k{i}", after_key="some") == answers[2 + i]
                )
            assert len(await stored(at_second)) == 3_022
            first = await start(1)
            async with client_of(first, Status.OPERATIONAL) as at_first:
                assert await at_first.register([of(1), of(2)], "some") == answers[0]


async def test_what_the_standby_has_not_is_stored_twice_and_told_of(tmp_path: Path) -> None:
    async with (
        pair(tmp_path) as (start, _),
        held_pair(start) as (first, second, link),
        client_of(second) as at_second,
    ):
        async with client_of(first, Status.OPERATIONAL) as at_first:
            await at_first.register([of(1)], "both have it")
            await until_stored(at_second, 1)
            link.hold()
            (lost,) = await at_first.register([of(2)], "key")
        await kill(first)
        link.cut()
        await at_second.wait_status(Status.OPERATIONAL)
        (again,) = await at_second.register([of(2)], "key")
        assert again.id.server == 2
        link.go_on()
        returned = await start_again(first, start)
        events = await until_stored(at_second, 3)
        assert values(events) == [1, 2, 2]
        assert {i.id for i in events[1:]} == {lost.id, again.id}
        async with client_of(returned, Status.OPERATIONAL) as at_first:
            assert await until_stored(at_first, 3) == events
            # each goes on answering as before
            assert await at_first.register([of(2)], "key") == [lost]
        for gateway in (returned, second):
            while (
                "a request is stored twice, by two servers" not in gateway.stderr_path.read_text()
            ):
                await asyncio.sleep(POLL_INTERVAL_S)


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
            answers = [await at_second.register([of(i)], str(i)) for i in range(100)]
            assert at_second.status is Status.OPERATIONAL
            link.go_on()
            async with client_of(first, Status.OPERATIONAL) as at_first:
                for i, answer in enumerate(answers):
                    assert await at_first.register([of(i)], str(i)) == answer


async def test_cursors_are_taken_over(tmp_path: Path) -> None:
    async with pair(tmp_path) as (start, _):
        first, second = await start(1), await start(2)
        async with client_of(second) as at_second:
            async with client_of(first, Status.OPERATIONAL) as at_first:
                last = (await at_first.register([of(i) for i in range(3)]))[-1].id
                async with reader(first) as reading:
                    assert await reading.read(3) == [0, 1, 2]
                    await until_told(at_second, last)
                    await at_first.register([of(3)])
                    await until_stored(at_second, 4)
                    await kill(first)
            await at_second.wait_status(Status.OPERATIONAL)
            async with reader(second) as reading:
                assert await reading.read(1) == [3]
                # and back: what was acknowledged last is handed over
                first = await start(1)
                async with client_of(first, Status.OPERATIONAL) as at_first:
                    await at_first.register([of(4)])
                    async with reader(first) as reading_again:
                        assert await reading_again.read(1) == [4]


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


async def test_no_rule_of_users_deletes_what_the_standby_is_to_know(tmp_path: Path) -> None:
    n_events = 60
    rule = {"subscriptions": [["*"]], "max_entries": 2}

    def backend(server_id: int) -> dict[str, Any]:
        path = str(tmp_path / str(server_id) / "events")
        return {"type": "rocksdb", "path": path, "retention": [rule]}

    async with pair(tmp_path) as (start, _):
        first = await start(1)
        async with client_of(first, Status.OPERATIONAL) as at_first:
            answers = [await at_first.register([of(i)], str(i)) for i in range(n_events)]
            async with reader(first, start=[]) as reading:
                await reading.park(20)
            await until_stored(at_first, 20, *PARKED_OF_FIRST)
        await kill(first)
        first = await start(1, backend=backend(1))
        async with client_of(first, Status.OPERATIONAL) as at_first:
            while len(await stored(at_first)) == n_events:
                await asyncio.sleep(POLL_INTERVAL_S)
            second = await start(2, backend=backend(2))
            async with client_of(second) as at_second:
                await at_first.register([of("last")])
                while "last" not in values(await stored(at_second)):
                    await asyncio.sleep(POLL_INTERVAL_S)
                await kill(first)
                await at_second.wait_status(Status.OPERATIONAL)
                assert len(await stored(at_second, *PARKED_OF_FIRST)) >= 20
                for i, answer in enumerate(answers):
                    assert await at_second.register([of(i)], str(i)) == answer
