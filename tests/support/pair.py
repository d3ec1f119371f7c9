"""A pair of gateways in processes of their own, with a real Monitor Server each."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from eventer_bridge.backends import rocksdb
from eventer_bridge.model import (
    Event,
    JsonPayload,
    QueryTimeseriesParams,
    RegisterEvent,
    Status,
)
from mariner import client
from tests.support.gateway import Gateway, gateway
from tests.support.hat_peers import HOST, MonitorServer, monitor_server

POLL_INTERVAL_S: Final = 0.02


class StartCb(Protocol):
    """Starts the gateway with this ``server_id``, 1 or 2, on its store; it ends with the pair."""

    def __call__(
        self,
        server_id: int,
        /,
        *,
        port: int = 0,
        how: Mapping[str, Any] | None = None,
        **core: Any,
    ) -> Awaitable[Gateway]:
        """See the class.

        Args:
            server_id: which of the two.
            port: where it listens; 0: at a free one.
            how: further arguments of :func:`gateway`.
            core: what is added to ``event_core``.
        """


def core(server_id: int, monitor_port: int) -> dict[str, Any]:
    """``event_core`` of a member of the group."""
    return {
        "server_id": server_id,
        "eventer_server": {"host": HOST, "port": 0, "token": "pair"},
        "monitor": {"host": HOST, "port": monitor_port, "group": "gateways"},
    }


async def begin_store(path: Path) -> None:
    """Make a store that its gateway takes for its own, without events."""
    path.parent.mkdir(exist_ok=True)
    async with await rocksdb.create(path) as backend:
        await backend.note_whole()


@contextlib.asynccontextmanager
async def pair(path: Path) -> AsyncIterator[tuple[StartCb, list[MonitorServer]]]:
    """Two Monitor Servers, and what starts the gateway at each; the first is preferred.

    Each gateway has an empty store that nothing is missing in: either may be started without the
    other one.
    """
    for server_id in (1, 2):
        await begin_store(path / str(server_id) / "events")
    async with (
        monitor_server(path / "monitor1", rank=1) as first,
        monitor_server(path / "monitor2", rank=2, master_port=first.master_port) as second,
        contextlib.AsyncExitStack() as gateways,
    ):
        monitors = [first, second]

        async def start(
            server_id: int,
            /,
            *,
            port: int = 0,
            how: Mapping[str, Any] | None = None,
            **keys: Any,
        ) -> Gateway:
            conf = {**core(server_id, monitors[server_id - 1].port), **keys}
            running = gateway(path / str(server_id), core=conf, port=port, **(how or {}))
            return await gateways.enter_async_context(running)

        yield start, monitors


@contextlib.asynccontextmanager
async def client_of(
    gateway: Gateway, status: Status | None = None, **keys: Any
) -> AsyncIterator[client.Client]:
    """A client of a gateway that has, or comes to, a status."""
    connection = await client.connect(
        gateway.host, gateway.port, client_name="app", client_token="secret", **keys
    )
    async with connection:
        if status is not None:
            await connection.wait_status(status)
        yield connection


def of(value: Any) -> RegisterEvent:
    """An event of these tests, ``a``."""
    return RegisterEvent(("a",), None, JsonPayload.of(value))


async def stored(connection: client.Client, *segments: str) -> list[Event]:
    """The events of a type, ``a`` unless told, the oldest first."""
    params = QueryTimeseriesParams([segments or ("a",)])
    return [i async for i in connection.query_all(params)][::-1]


async def until_stored(connection: client.Client, n_events: int, *segments: str) -> list[Event]:
    """The same, as soon as there are so many."""
    while len(found := await stored(connection, *segments)) < n_events:
        await asyncio.sleep(POLL_INTERVAL_S)
    return found


def values(events: list[Event]) -> list[Any]:
    """Their payloads."""
    return [i.payload.value() for i in events if isinstance(i.payload, JsonPayload)]


async def kill(gateway: Gateway) -> None:
    """``kill -9``; returns when it has ended."""
    os.kill(gateway.pid, signal.SIGKILL)
    await gateway.process.wait()


class Reading:
    """A reader with a cursor, and what it got."""

    def __init__(self, connection: client.Client) -> None:
        self._connection = connection
        self._batches = connection.replay()

    async def read(self, n_events: int, *, acknowledges: bool = True) -> list[Any]:
        """Read so many events of ours."""
        events: list[Event] = []
        while len(events) < n_events:
            batch = await anext(self._batches)
            events += [i for i in batch.events if i.type == ("a",)]
            if acknowledges:
                await batch.ack()
        await self._connection.ping()
        return values(events)

    async def park(self, n_events: int) -> None:
        """Park the next so many events."""
        batch = await anext(self._batches)
        await batch.first(n_events).ack({i.id: "bad" for i in batch.events[:n_events]})
        await self._connection.ping()


@contextlib.asynccontextmanager
async def reader(gateway: Gateway, name: str = "c", **keys: Any) -> AsyncIterator[Reading]:
    """A reader of ``a`` with a cursor."""
    keys = {"subscriptions": [("a",)], "cursor": name, **keys}
    async with client_of(gateway, **keys) as connection:
        yield Reading(connection)
