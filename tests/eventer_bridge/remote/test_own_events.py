"""Asking the other servers of a group what they have of this one's events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from eventer_bridge import chatter
from eventer_bridge.backends import dummy, memory
from eventer_bridge.backends.base import Backend
from eventer_bridge.core.engine import Engine
from eventer_bridge.remote import own_events
from eventer_bridge.remote.group import ServerGroup, server_data

TOKEN = "pair"
NOBODY = chatter.Address("127.0.0.1", 1)


@contextlib.asynccontextmanager
async def member(backend: Backend) -> AsyncIterator[tuple[Engine, ServerGroup]]:
    """A server, and its group, of which nobody is listed."""
    core = Engine(backend, 1, is_in_group=True)
    async with ServerGroup(core, TOKEN, ()) as group:
        yield core, group
    await core.async_close()
    await backend.async_close()


@pytest.mark.parametrize("backend", ["memory", "dummy"])
async def test_one_that_misses_nothing_does_not_wait_for_ever(backend: str) -> None:
    made = memory.create() if backend == "memory" else dummy.create()
    if backend == "memory":
        await made.note_whole()
    async with member(made) as (core, group):
        assert await own_events.regain(core, group, 60, accepts_loss=False) == set()
        group.update([server_data(2, NOBODY, TOKEN)])
        assert await own_events.regain(core, group, 0.2, accepts_loss=False) == set()
        assert core.waits_for == "it asks server 2 what that has of its events"


async def test_one_that_may_miss_something_waits_for_an_answer() -> None:
    async with member(memory.create()) as (core, group):
        asking = asyncio.create_task(own_events.regain(core, group, 0.0, accepts_loss=False))
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


async def test_a_loss_is_accepted() -> None:
    backend = memory.create()
    async with member(backend) as (core, group):
        group.update([server_data(2, NOBODY, TOKEN)])
        assert await own_events.regain(core, group, 0.2, accepts_loss=True) == set()
        await core.start()
        assert backend.last_session(1).session > 10**9
