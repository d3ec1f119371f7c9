"""Asking the other servers of a group what they have of this one's events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from eventer_bridge import chatter, limits
from eventer_bridge.backends import dummy, rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.core.engine import Engine
from eventer_bridge.model import (
    EventId,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    SourceType,
)
from eventer_bridge.remote.group import ServerGroup, regain, server_data
from tests.support.event_servers import event_server, eventer_port

TOKEN = "pair"
NOBODY = chatter.Address("127.0.0.1", 1)


@contextlib.asynccontextmanager
async def member(
    backend: Backend, token: str | None = TOKEN
) -> AsyncIterator[tuple[Engine, ServerGroup]]:
    """A server, and its group, of which nobody is listed."""
    core = Engine(backend, 1, is_in_pair=True)
    async with ServerGroup(core, token, ()) as group:
        yield core, group
    await core.async_close()
    await backend.async_close()


@pytest.mark.parametrize("backend", ["memory", "dummy"])
async def test_one_that_misses_nothing_does_not_wait_for_ever(backend: str) -> None:
    made = await rocksdb.create_temporary() if backend == "memory" else dummy.DummyBackend()
    if backend == "memory":
        await made.note_whole()
    async with member(made) as (core, group):
        assert await regain(core, group, 60, accepts_loss=False) == set()
        group.update([server_data(2, NOBODY, TOKEN)])
        assert await regain(core, group, 0.2, accepts_loss=False) == set()
        assert core.waits_for == "it asks server 2 what that has of its events"


async def test_one_that_may_miss_something_waits_for_an_answer() -> None:
    async with member(await rocksdb.create_temporary()) as (core, group):
        asking = asyncio.create_task(regain(core, group, 0.0, accepts_loss=False))
        await asyncio.wait([asking], timeout=0.1)
        assert not asking.done()
        reason = "it waits for another server of the group to tell what that has of its events"
        assert core.waits_for is not None
        assert reason in core.waits_for
        group.update([server_data(2, NOBODY, TOKEN)])
        while "it waits for server 2 to tell" not in core.waits_for:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait([asking])


async def test_what_is_missing_of_what_comes_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention deleted it at the other server."""
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.001)
    few = [{"subscriptions": [["a"]], "max_entries": 3}]
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(event_server(tmp_path, 1))
        remotes = {1: eventer_port(first)}
        second = await stack.enter_async_context(
            event_server(tmp_path, 2, remotes=remotes, retention=few)
        )
        source = first.core.create_source(SourceType.CONNECTION)
        ids: list[EventId] = []
        for _ in range(10):
            session = first.core.register(source, [RegisterEvent(("a",), None, None)])
            await session.committed
            ids.append(session.last_id)
        params = QueryTimeseriesParams([("a",)])
        while True:
            kept = [i.id for i in (await second.core.query(params)).events]
            if sorted(kept) == ids[-3:]:
                break
            await asyncio.sleep(0.01)
        async with member(await rocksdb.create_temporary(), None) as (core, group):
            address = chatter.Address("127.0.0.1", eventer_port(second))
            group.update([server_data(2, address, None)])
            assert await regain(core, group, 60, accepts_loss=False) == {2}
            found = await core.query(QueryServerParams(1, last_event_id=ids[0]))
            assert [i.id for i in found.events if i.type == ("a",)] == ids[-3:]
            assert found.deleted == ids[-4]
            found = await core.query(QueryServerParams(1, last_event_id=ids[-4]))
            assert found.deleted is None


async def test_a_loss_is_accepted() -> None:
    backend = await rocksdb.create_temporary()
    async with member(backend) as (core, group):
        group.update([server_data(2, NOBODY, TOKEN)])
        assert await regain(core, group, 0.2, accepts_loss=True) == set()
        await core.start()
        assert backend.last_session(1).session > 10**9
