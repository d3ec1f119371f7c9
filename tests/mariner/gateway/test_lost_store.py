"""A member of a pair that starts with less than it had: the other one knows what is missing."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from eventer_bridge.backends import history
from eventer_bridge.model import (
    Event,
    EventId,
    QueryLatestParams,
    QueryServerParams,
    RegisterEvent,
    Status,
)
from mariner import client
from tests.support.gateway import Gateway
from tests.support.pair import (
    POLL_INTERVAL_S,
    StartCb,
    client_of,
    kill,
    of,
    pair,
    stored,
    until_stored,
    values,
)
from tests.support.restoring import restore

N_BEFORE = 10
N_EVENTS = 40
HTTP = {"http": True}


def lose(store: Path, backup: Path) -> None:
    """The disk is lost."""
    shutil.rmtree(store)


def copy_back(store: Path, backup: Path) -> None:
    """A copy of the directory takes its place."""
    shutil.rmtree(store)
    shutil.copytree(backup, store)


def restore_back(store: Path, backup: Path) -> None:
    """The same, by ``mariner restore``."""
    restore(backup, store)


DAMAGES = pytest.mark.parametrize("damage", [lose, copy_back, restore_back])


class Written:
    """What the first one registered, and where it is.

    Attributes:
        events: their payloads are their numbers.
    """

    def __init__(self, path: Path) -> None:
        self.events: list[Event] = []
        self.store = path / "1" / "events"
        self.backup = path / "backup"

    async def write(self, connection: client.Client, n_events: int) -> None:
        """Register more, so that there are so many."""
        for i in range(len(self.events), n_events):
            self.events += await connection.register([of(i)])

    async def check(self, connection: client.Client) -> None:
        """Check that all is there, and that ids go on."""
        (new,) = await connection.register([of("new")])
        assert new.id.session > self.events[-1].id.session
        assert await stored(connection) == [*self.events, new]


@contextlib.asynccontextmanager
async def written(tmp_path: Path) -> AsyncIterator[tuple[StartCb, Written, Gateway]]:
    """A pair whose first one was killed when the second one had all that it registered."""
    written = Written(tmp_path)
    async with pair(tmp_path) as (start, _):
        first = await start(1)
        async with client_of(first, Status.OPERATIONAL) as at_first:
            await written.write(at_first, N_BEFORE)
        first.process.terminate()
        await first.process.wait()
        shutil.copytree(written.store, written.backup)
        first, second = await start(1), await start(2)
        async with (
            client_of(first, Status.OPERATIONAL) as at_first,
            client_of(second) as at_second,
        ):
            await written.write(at_first, N_EVENTS)
            await until_stored(at_second, N_EVENTS)
        await kill(first)
        yield start, written, second


async def readiness(gateway: Gateway) -> str:
    """What ``/readyz`` answers."""
    url = f"http://{gateway.host}:{gateway.http_port}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return (await response.text()).strip()


async def until_not_ready(gateway: Gateway, reason: str) -> None:
    while reason not in (found := await readiness(gateway)):
        assert found.startswith("STANDBY: ")
        await asyncio.sleep(POLL_INTERVAL_S)


async def all_of(connection: client.Client, server_id: int) -> dict[EventId, Event]:
    params = QueryServerParams(server_id, persisted=True)
    events = [i async for i in connection.query_all(params)]
    found = {i.id: i for i in events}
    assert len(found) == len(events)
    return found


@DAMAGES
async def test_a_member_gets_back_what_it_lost(
    tmp_path: Path, damage: Callable[[Path, Path], None]
) -> None:
    async with written(tmp_path) as (start, done, second), client_of(second) as at_second:
        await at_second.wait_status(Status.OPERATIONAL)
        before = await all_of(at_second, 1)
        (of_second,) = await at_second.register([of("second")])
        damage(done.store, done.backup)
        first = await start(1)
        async with client_of(first, Status.OPERATIONAL) as at_first:
            assert of_second in await stored(at_first)
            (new,) = await at_first.register([of("new")])
            assert new.id.server == 1
            assert new.id.session > max(before).session
            while new.id not in (now := await all_of(at_second, 1)):
                await asyncio.sleep(POLL_INTERVAL_S)
            here = await all_of(at_first, 1)
            for known in (before, now):  # no id was given twice
                assert all(here[i] == known[i] for i in here.keys() & known.keys())
            assert values(await stored(at_first)) == [*range(N_EVENTS), "second", "new"]
            assert await stored(at_second) == await stored(at_first)
            # others that saw more of the lost store than this notice
            latest = await at_first.query(QueryLatestParams([history.type_of(1)]))
            told = history.read_all(latest.events)[1]
            assert told.before[-1].last == max(before).session
            assert told.id != told.before[-1].id


@DAMAGES
async def test_it_does_not_become_active_without_an_answer(
    tmp_path: Path, damage: Callable[[Path, Path], None]
) -> None:
    async with written(tmp_path) as (start, done, second):
        await kill(second)
        damage(done.store, done.backup)
        first = await start(1, how=HTTP)
        await until_not_ready(first, "it waits for another server of the group to tell")
        async with client_of(first) as at_first:
            assert at_first.status is Status.STANDBY
            await start(2)
            await at_first.wait_status(Status.OPERATIONAL)
            await done.check(at_first)
        assert await readiness(first) == "OPERATIONAL"


async def test_one_that_lost_nothing_needs_no_answer(tmp_path: Path) -> None:
    async with written(tmp_path) as (start, done, second):
        await kill(second)
        for server_id in (1, 2, 1):  # also one that was never active alone
            gateway = await start(server_id)
            async with client_of(gateway, Status.OPERATIONAL) as connection:
                assert await stored(connection) == done.events
            await kill(gateway)


async def test_its_operator_may_have_it_go_on(tmp_path: Path) -> None:
    async with written(tmp_path) as (start, done, second):
        await kill(second)
        lose(done.store, done.backup)
        first = await start(1, how={"arguments": ["--accept-loss"]})
        async with client_of(first, Status.OPERATIONAL) as at_first:
            (new,) = await at_first.register([of(0)])
            assert new.id.session > done.events[-1].id.session + 10**9
        await kill(first)
        first = await start(1)  # once was enough
        async with client_of(first, Status.OPERATIONAL) as at_first:
            assert await stored(at_first) == [new]


async def test_a_store_of_something_else_is_not_mixed_in(tmp_path: Path) -> None:
    async with written(tmp_path) as (start, done, second):
        lose(done.store, done.backup)
        other = tmp_path / "other"
        other.mkdir()
        async with pair(other) as (start_other, _):
            gateway = await start_other(1)
            async with client_of(gateway, Status.OPERATIONAL) as connection:
                await connection.register([of("other")])
            gateway.process.terminate()
            await gateway.process.wait()
        shutil.copytree(other / "1" / "events", done.store)
        async with client_of(second, Status.OPERATIONAL) as at_second:
            before = await all_of(at_second, 1)
            first = await start(1, how=HTTP)
            await until_not_ready(first, "events of this one that do not continue those here")
            assert at_second.status is Status.OPERATIONAL
            assert await all_of(at_second, 1) == before


async def test_what_retention_deleted_is_not_missed(tmp_path: Path) -> None:
    """The last that the other one had of it is not what it gets back."""
    store = tmp_path / "2" / "events"
    rule = {"subscriptions": [["b"]], "max_entries": 1}
    backend = {"type": "rocksdb", "path": str(store), "retention": [rule]}
    last = RegisterEvent(("b",), None, None)
    async with pair(tmp_path) as (start, _):
        first, second = await start(1), await start(2, backend=backend)
        async with client_of(second) as at_second:
            async with client_of(first, Status.OPERATIONAL) as at_first:
                reported = ("event", "2", "synced", "1")
                while "SYNCED" not in [
                    i["state"] for i in values(await stored(at_first, *reported))
                ]:
                    await asyncio.sleep(POLL_INTERVAL_S)
                (deleted,) = await at_first.register([last])  # nothing follows it
                await until_stored(at_second, 1, "b")
                await kill(first)
            await at_second.wait_status(Status.OPERATIONAL)
            kept = await at_second.register([last])
            while await stored(at_second, "b") != kept:
                await asyncio.sleep(POLL_INTERVAL_S)
            shutil.rmtree(tmp_path / "1" / "events")
            first = await start(1)
            async with client_of(first, Status.OPERATIONAL) as at_first:
                (new,) = await at_first.register([of("new")])
                assert new.id.session > deleted.id.session
                assert await until_stored(at_second, 1) == [new]
