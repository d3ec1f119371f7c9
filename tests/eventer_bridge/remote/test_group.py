"""Servers of a group: who is replicated, who is not and why, who is waited for."""

import asyncio
import contextlib
import functools
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import chatter
from eventer_bridge.backends import rocksdb
from eventer_bridge.core import engine
from eventer_bridge.core.authentication import OneForAll
from eventer_bridge.core.engine import Engine
from eventer_bridge.eventer import client
from eventer_bridge.eventer import server as eventer_server
from eventer_bridge.model import Status
from eventer_bridge.remote import limits
from eventer_bridge.remote.group import ServerGroup, server_data
from eventer_bridge.remote.replication import Replication
from tests.support.gateway import gateway

POLL_INTERVAL_S = 0.01
TOKEN = "pair"


@contextlib.asynccontextmanager
async def standby(server_id: int = 1) -> AsyncIterator[Engine]:
    backend = await rocksdb.create_temporary()
    core = Engine(backend, server_id)
    try:
        yield core
    finally:
        await core.async_close()
        await backend.async_close()


@contextlib.asynccontextmanager
async def other(server_id: int = 2, port: int = 0) -> AsyncIterator[tuple[Engine, chatter.Address]]:
    """Another server, OPERATIONAL, and where it listens."""
    backend = await rocksdb.create_temporary()
    core = await engine.create(backend, server_id)
    listen = chatter.Address("127.0.0.1", port)
    server = await eventer_server.listen(core, listen, OneForAll(TOKEN))
    try:
        yield core, server.address
    finally:
        await server.async_close()
        await core.async_close()
        await backend.async_close()


async def until(core: Engine, server_id: int, *, has_events: bool = True) -> None:
    while (core.replicated(server_id).timestamp is not None) is not has_events:
        await asyncio.sleep(POLL_INTERVAL_S)


async def active(group: ServerGroup) -> None:
    while not group.is_other_active:
        await asyncio.sleep(POLL_INTERVAL_S)


async def test_servers_that_are_told_of_are_replicated() -> None:
    async with standby() as core, ServerGroup(core, TOKEN, ()) as group:
        async with other(2) as (_, second), other(3) as (_, third):
            group.update([server_data(2, second, TOKEN)])
            await until(core, 2)
            assert core.replicated(3).timestamp is None
            group.update([server_data(2, second, TOKEN), server_data(3, third, TOKEN)])
            await until(core, 3)
        # it comes back elsewhere, while its old address is told yet
        async with other(3) as (again, elsewhere):
            group.update([server_data(3, third, TOKEN)])
            group.update([server_data(3, elsewhere, TOKEN)])
            await active(group)
            await again.stop()
            await group.wait_others_standby()


async def test_others_are_waited_for_also_when_no_longer_told_of() -> None:
    async with (
        standby() as core,
        ServerGroup(core, TOKEN, ()) as group,
        other() as (active_one, address),
    ):
        group.update([server_data(2, address, TOKEN)])
        await active(group)
        group.update([])
        waiting = asyncio.create_task(group.wait_others_standby())
        await asyncio.wait([waiting], timeout=0)
        assert not waiting.done()
        await active_one.stop()
        await waiting
        assert active_one.status is Status.STANDBY


async def test_a_lost_server_is_waited_for_no_longer() -> None:
    async with standby() as core, ServerGroup(core, TOKEN, ()) as group:
        async with other() as (_, address):
            group.update([server_data(2, address, TOKEN)])
            await active(group)
            waiting = asyncio.create_task(group.wait_others_standby())
        await waiting


async def test_who_has_to_catch_up_waits_also_for_one_that_is_away() -> None:
    async with standby() as core, ServerGroup(core, TOKEN, ()) as group:
        async with other() as (_, address):
            group.update([server_data(2, address, TOKEN)])
            await group.catch_up_with([2])
            assert core.replicated(2).timestamp is not None
        group.update([])
        waiting = asyncio.create_task(group.catch_up_with([2, 3]))
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
        async with other(2) as (_, second), other(3) as (_, third):
            group.update([server_data(2, second, TOKEN)])
            group.update([])
            await asyncio.wait([waiting], timeout=0.1)
            assert not waiting.done()
            group.update([server_data(2, second, TOKEN), server_data(3, third, TOKEN)])
            await waiting
            assert core.replicated(3).timestamp is not None


async def test_one_that_is_stopped_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MEMBER_ANSWER_S", 0.2)
    conf = {"server_id": 2, "eventer_server": {"host": "127.0.0.1", "port": 0, "token": TOKEN}}
    async with (
        standby() as core,
        ServerGroup(core, TOKEN, ()) as group,
        gateway(tmp_path, core=conf) as other_one,
    ):
        assert other_one.eventer_port is not None
        address = chatter.Address(other_one.host, other_one.eventer_port)
        group.update([server_data(2, address, TOKEN)])
        await active(group)
        waiting = asyncio.create_task(group.wait_others_standby())
        await asyncio.wait([waiting], timeout=3 * limits.MEMBER_ANSWER_S)
        assert not waiting.done()  # it answers
        os.kill(other_one.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(10):
                await waiting
        finally:
            os.kill(other_one.pid, signal.SIGCONT)


async def test_configured_replications_are_members() -> None:
    async with standby() as core, other() as (_, address):
        connect = functools.partial(client.connect, address, "event/1", client_token=TOKEN)
        configured: Replication = Replication(core, 2, connect)
        async with configured, ServerGroup(core, "another", [configured]) as group:
            await until(core, 2)
            assert not group.is_other_active  # it may be of another group
            # over TLS no address is told, and none is needed
            data = server_data(2, chatter.Address("localhost", 1, True), None)
            assert data["eventer_server"] is None
            group.update([data])
            await active(group)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "Expected `object`, got `null`"),
        ({}, "Object missing required field `server_id`"),
        ({"server_id": True, "eventer_server": None}, "Expected `int`, got `bool`"),
        ({"server_id": 1 << 63, "eventer_server": None}, "Expected `int` <="),
        ({"server_id": 2, "eventer_server": {"host": "a", "port": 0}}, "Expected `int` >= 1"),
        (
            {"server_id": 1, "eventer_server": {"host": "a", "port": 1}},
            "server_id 1 is that of this server",
        ),
        (
            {"server_id": 2, "eventer_server": {"host": "a", "port": 1}, "server_token": "x"},
            "server 2 has another token",
        ),
        ({"server_id": 2, "eventer_server": None}, "server 2 requires TLS: list it in replication"),
    ],
)
async def test_who_is_not_replicated(
    data: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        standby() as core,
        ServerGroup(core, TOKEN, ()) as group,
        other(3) as (_, address),
    ):
        for _ in range(2):
            group.update([data, server_data(3, address, TOKEN)])
            await until(core, 3)
        warnings = [i for i in caplog.records if i.levelno >= logging.WARNING]
        assert [i.message for i in warnings] == ["a server of the group is not replicated"]
        assert reason in vars(warnings[0])["reason"]


async def test_many_servers_are_too_many(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        standby() as core,
        ServerGroup(core, TOKEN, ()) as group,
        other(2) as (_, address),
    ):
        ids = range(2, limits.MAX_GROUP_SERVERS + 4)
        group.update([server_data(i, address, TOKEN) for i in ids])
        await until(core, 2)
        reasons = {vars(i).get("reason") for i in caplog.records}
        assert f"more than {limits.MAX_GROUP_SERVERS} servers" in reasons
