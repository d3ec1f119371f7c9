"""Readers that live on while the store is restored, made anew, or only killed.

One reader has a ``start``, one a cursor, over all connections. Whatever happened to the store,
each has in the end what is stored, once: what it was handed and is not stored any more, or as
something else, it was told of. What a cursor acknowledged, and comes back with it from a backup
after the store was made anew, was handed out before.
"""

import asyncio
import contextlib
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge.backends import rocksdb
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    Order,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.net import limits as net_limits
from mariner import client
from mariner.client import ReconnectingClient
from mariner.errors import OtherHistoryError
from tests.support.clients import connect
from tests.support.gateway import Gateway, gateway
from tests.support.restoring import restore
from tests.torture.clients import connected
from tests.torture.ledger import SERVER_ID, ViolationError
from tests.torture.report import Progress

CATCH_UP_TIMEOUT_S: Final = 60.0
MAX_EVENTS: Final = 60
"""Registered between two failures, at most."""

TYPE: Final = ("histories",)


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Do something to the store ``rounds`` times.

    Raises:
        ViolationError: a reader has not what is stored.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(net_limits, "RECONNECT_MAX_S", 0.2)
        return await _run(directory, rounds, chance, progress)


async def _run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    place, n_done = _Place(directory, chance), dict.fromkeys(("kill", "restore", "make anew"), 0)
    async with place.gateway() as running:
        pass
    place.port = running.port
    async with _Reader(place, start="earliest") as first, _Reader(place, cursor="c") as second:
        for n in range(1, rounds + 1):
            async with place.gateway() as running:
                await place.work(running)
                for reader in (first, second):
                    if chance.random() < 0.7:
                        await reader.check(running)
                os.kill(running.pid, signal.SIGKILL)
                await running.process.wait()
            what = chance.choice([*n_done])
            n_done[what] += 1
            place.strike(what)
            progress(n, rounds)
        async with place.gateway() as running:
            await place.work(running)
            for reader in (first, second):
                await reader.check(running)
        told = first.n_told, second.n_told
    done = ", ".join(f"{what} {n} times" for what, n in n_done.items())
    return f"{done}: readers were told {told[0]} and {told[1]} times, and have what is stored"


class _Place:
    """Where the gateway is.

    Attributes:
        port: of the gateway; 0: it had none yet.
    """

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.port = 0
        self._directory, self._chance = directory, chance
        self._store, self._backup = directory / "events", directory / "backup"
        self._numbers = iter(range(1, 1 << 30))

    @contextlib.asynccontextmanager
    async def gateway(self) -> AsyncIterator[Gateway]:
        async with gateway(self._directory, port=self.port) as running:
            self.port = running.port
            yield running

    async def connect(self, **options: Any) -> client.Client:
        return await connect(self.port, subscriptions=[TYPE], **options)

    async def work(self, running: Gateway) -> None:
        """Register events, and back up between them."""
        n_events = self._chance.randint(1, MAX_EVENTS)
        backed_up = self._chance.randrange(n_events * 2)  # or not
        async with connected(running) as connection:
            for n in range(n_events):
                event = RegisterEvent(TYPE, None, JsonPayload.of(next(self._numbers)))
                await connection.register([event])
                if n == backed_up or not self._backup.exists():
                    shutil.rmtree(self._backup, ignore_errors=True)
                    await asyncio.to_thread(rocksdb.checkpoint, self._store, self._backup)

    def strike(self, what: str) -> None:
        """Do something to the store of a gateway that was killed."""
        if what == "restore":
            restore(self._backup, self._store)
        elif what == "make anew":
            shutil.rmtree(self._store)


class _Reader:
    """Has what a reader was handed and not told of.

    Attributes:
        n_told: how often it was told of another history.
    """

    def __init__(self, place: _Place, **options: Any) -> None:
        self.n_told = 0
        self._place, self._options = place, options
        self._has: dict[EventId, tuple[Timestamp, Any]] = {}
        self._acknowledged: dict[tuple[EventId, Timestamp], Any] = {}  # of all histories
        self._twice: EventId | None = None

    async def __aenter__(self) -> "_Reader":
        self._client = ReconnectingClient([self._place.connect], **self._options)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.async_close()
        await self._reading

    async def _read(self) -> None:
        while self._client.is_open:
            try:
                async for batch in self._client.replay():
                    for event in batch.events:
                        if event.id in self._has:
                            self._twice = event.id
                        self._has[event.id] = _content(event)
                    if "cursor" in self._options:
                        await batch.ack()
                        self._acknowledged |= {
                            (i.id, i.timestamp): _content(i) for i in batch.events
                        }
            except OtherHistoryError as e:
                self.n_told += 1
                self._has = {i: event for i, event in self._has.items() if i.session <= e.last}

    async def check(self, running: Gateway) -> None:
        """Wait until it has what is stored, and nothing else.

        Raises:
            ViolationError: it has not.
        """
        async with connected(running) as connection:
            params = QueryTimeseriesParams([TYPE], order=Order.ASCENDING)
            stored = {i.id: _content(i) async for i in connection.query_all(params)}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
                while self._lacking(stored) and not self._reading.done():
                    await asyncio.sleep(0.02)
        lacking = len(self._lacking(stored))
        if lacking or not self._has.items() <= stored.items():
            others = sum(self._has[i] != stored.get(i) for i in self._has)
            raise ViolationError(
                f"a reader with {self._options} lacks {lacking} events of server {SERVER_ID},"
                f" and has {others} that are not stored, or are others"
            )
        if self._twice is not None:
            raise ViolationError(f"event {self._twice} came twice")

    def _lacking(self, stored: dict[EventId, tuple[Timestamp, Any]]) -> list[EventId]:
        return [
            i
            for i, content in stored.items()
            if self._has.get(i) != content and self._acknowledged.get((i, content[0])) != content
        ]


def _content(event: Event) -> tuple[Timestamp, Any]:
    assert isinstance(event.payload, JsonPayload)
    return event.timestamp, event.payload.value()
