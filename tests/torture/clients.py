"""Clients that register, and one that watches, until they are stopped or the gateway is gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from eventer_bridge.model import EventType
from mariner import client
from mariner.client.client import Client
from mariner.errors import ConnectionLostError, OutcomeUnknownError, RegisterError
from tests.support.gateway import Gateway
from tests.torture.ledger import OURS, Ledger, entry_of

IN_FLIGHT: Final = 16
"""Requests of one client that wait for their answer."""

REFUSED_DELAY_S: Final = 0.02
"""Before the next request, after one was refused."""


@contextlib.asynccontextmanager
async def connected(
    gateway: Gateway, subscriptions: Iterable[EventType] = (), *, persisted: bool = False
) -> AsyncIterator[Client]:
    """A client of a gateway."""
    connection = await client.connect(
        gateway.host,
        gateway.port,
        client_name="app",
        client_token="secret",
        subscriptions=subscriptions,
        persisted=persisted,
    )
    async with connection:
        yield connection


class Load:
    """Registers through several clients, and watches through one more.

    Attributes:
        refusals: why requests were refused, in the order of the answers.
        unknown: requests of which nobody knew whether they are stored, by number.
    """

    def __init__(self, ledger: Ledger, watcher: Client, clients: Iterable[Client]) -> None:
        self.refusals: list[str] = []
        self.unknown: set[int] = set()
        self._ledger = ledger
        self._is_stopping = False
        self._answered = asyncio.Event()
        self._watching = asyncio.create_task(self._watch(watcher))
        self._registering = [
            asyncio.create_task(self._register(i)) for i in clients for _ in range(IN_FLIGHT)
        ]

    @property
    def n_acknowledged(self) -> int:
        """Acknowledged events."""
        return len(self._ledger.acknowledged)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; looked at after every answer.

        Raises:
            ConnectionLostError: there will be no more answers.
        """
        while not condition():
            if all(i.done() for i in self._registering):
                raise ConnectionLostError("the gateway is gone")
            self._answered.clear()
            await self._answered.wait()

    async def until_acknowledged(self, n_events: int) -> None:
        """Wait until so many more events are acknowledged."""
        target = self.n_acknowledged + n_events
        await self.until(lambda: self.n_acknowledged >= target)

    async def stop(self) -> None:
        """Wait until what is under way was answered, or was lost with the gateway."""
        self._is_stopping = True
        await asyncio.gather(*self._registering)

    async def end(self) -> None:
        """Wait until all was watched; the clients are closed."""
        await self._watching

    async def _register(self, connection: Client) -> None:
        with contextlib.suppress(ConnectionLostError):
            while not self._is_stopping:
                request = self._ledger.request()
                try:
                    self._ledger.acknowledge(await connection.register(request))
                except RegisterError as e:
                    self._ledger.refuse(request)
                    self.refusals.append(str(e))
                    await asyncio.sleep(REFUSED_DELAY_S)
                except OutcomeUnknownError:
                    self.unknown.add(entry_of(request[0]).request)
                    await asyncio.sleep(REFUSED_DELAY_S)
                self._answered.set()
        self._answered.set()

    async def _watch(self, connection: Client) -> None:
        async for events in connection.events():
            self._ledger.saw(events)


@contextlib.asynccontextmanager
async def loaded(gateway: Gateway, ledger: Ledger, n_clients: int = 3) -> AsyncIterator[Load]:
    """Clients at work; on the way out they stop, and everything they saw is in the ledger.

    Args:
        gateway: the gateway, which the body may kill.
        ledger: is told of everything.
        n_clients: clients that register.
    """
    async with contextlib.AsyncExitStack() as stack:
        watcher = await stack.enter_async_context(connected(gateway, [OURS]))
        clients = [await stack.enter_async_context(connected(gateway)) for _ in range(n_clients)]
        load = Load(ledger, watcher, clients)
        try:
            yield load
        finally:
            await load.stop()
    await load.end()
