"""Connections between servers that are cut, delayed and split at any byte.

Events are registered all the time: at the servers themselves, and through a gateway that
relays to one of them, whose subscribers hear of all.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from eventer_bridge import chatter
from eventer_bridge.eventer import client as eventer
from eventer_bridge.eventer.client import EventerClient
from eventer_bridge.model import Event, EventId, QueryServerParams, Status
from eventer_bridge.net import limits
from mariner import client as mariner
from mariner.client.client import Client
from mariner.errors import OutcomeUnknownError, RegisterError
from mariner.gateway.gateway import Gateway
from tests.support import proxy
from tests.support.event_servers import event_server, eventer_port
from tests.support.hat_peers import hat_event_server
from tests.support.inprocess import running_gateway
from tests.support.proxy import PASS, Proxy
from tests.torture.hearing import Hearing
from tests.torture.ledger import OURS, Ledger, ViolationError, entry_of
from tests.torture.report import Progress

MAX_CUT_BYTES: Final = 100_000
"""A connection is cut before so many bytes; some hundred milliseconds of it."""

RESTART_EVERY: int = 20
"""Cuts after which the server that replicates is started anew."""

PAUSE_S: Final = 0.002
"""Between two registrations of the same client."""

CATCH_UP_TIMEOUT_S: Final = 60.0
"""When nothing is cut any more, until everything has arrived."""


async def run_replication(
    directory: Path, rounds: int, chance: random.Random, progress: Progress
) -> str:
    """Cut ``rounds`` connections of a server that replicates another, or a few more.

    It is started anew after each :data:`RESTART_EVERY` of them.

    Raises:
        ViolationError: an event is missing, came twice, or in another order.
    """
    async with event_server(directory, 1) as source:
        return await _replicate(directory, eventer_port(source), rounds, chance, progress)


async def run_replication_hat(
    directory: Path, rounds: int, chance: random.Random, progress: Progress
) -> str:
    """The same of a server that replicates hat-event-server."""
    async with hat_event_server(directory, flush_period_s=0.1) as source:
        return await _replicate(directory, source.port, rounds, chance, progress)


async def _replicate(
    directory: Path, port: int, rounds: int, chance: random.Random, progress: Progress
) -> str:
    """Replicate, over cut connections, the event server that listens there and has the id 1."""
    ledger = Ledger()
    n_starts = 0
    async with _direct(port) as reader:
        async with proxy.create(port) as link, _registering(reader, ledger):
            link.plans = proxy.by_chance(chance, MAX_CUT_BYTES)
            for n_cuts in range(min(RESTART_EVERY, rounds), rounds + 1, RESTART_EVERY):
                with _impatient():
                    async with event_server(directory, 2, remotes={1: link.port}) as replica:
                        await _cut(link, n_cuts, lambda: progress(link.n_cuts, rounds))
                        async with _direct(eventer_port(replica)) as client:
                            kept = await _stored(client, 1)
                n_starts += 1
                _compare(kept, (await _stored(reader, 1))[: len(kept)])
        ledger.check(stored := await _stored(reader, 1))
        async with (
            event_server(directory, 2, remotes={1: port}) as replica,
            _direct(eventer_port(replica)) as client,
        ):
            _compare(await _until_stored(client, stored[-1].id), stored)
    return (
        f"{link.n_cuts} cuts, the replica started {n_starts} times: {len(stored)} events"
        " registered, each of them kept once, in order, with its session"
    )


async def run_relay(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Cut ``rounds`` connections of a gateway to a server of ours, which replicates another.

    Raises:
        ViolationError: an acknowledged event is missing, or came twice; or a subscriber did
            not hear of each stored event once, in order.
    """
    ledger = Ledger()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(_impatient())
        second = await stack.enter_async_context(event_server(directory, 2))
        reader = await stack.enter_async_context(_direct(eventer_port(second)))
        far = await stack.enter_async_context(proxy.create(eventer_port(second)))
        far.plans = proxy.by_chance(chance, MAX_CUT_BYTES)
        first = await stack.enter_async_context(event_server(directory, 1, remotes={2: far.port}))
        relay = await stack.enter_async_context(_relaying(eventer_port(first)))
        async with _registering(reader, ledger):
            await relay.cut(chance, rounds, progress)
        far.plans = itertools.repeat(PASS)
        far.cut()
        ledger.check(stored := await _stored(reader, 2))
        facts = await relay.finish({2: stored})
    return f"{relay.link.n_cuts} cuts, {far.n_cuts} of the replication behind it: {facts}"


async def run_hat(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Cut ``rounds`` connections of a gateway to hat-event-server; raises as :func:`run_relay`."""
    async with hat_event_server(directory, flush_period_s=0.1) as server:
        with _impatient():
            async with _relaying(server.port) as relay:
                await relay.cut(chance, rounds, progress)
                facts = await relay.finish({})
    return f"{relay.link.n_cuts} cuts: {facts}"


class _Relay:
    """A gateway that relays through a proxy, with clients that register and that hear."""

    def __init__(self, link: Proxy, reader: EventerClient) -> None:
        self.link = link
        self.ledger = Ledger()
        self.hearings = [Hearing(f"subscriber, persisted {i}") for i in (False, True)]
        self.registering: list[asyncio.Task[None]] = []
        self._reader = reader
        self._n_refused = 0
        self._unknown: set[int] = set()
        self._is_stopping = False

    async def register_through(self, client: Client) -> None:
        """Register at the gateway until the end."""
        while not self._is_stopping:
            request = self.ledger.request()
            try:
                self.ledger.acknowledge(await client.register(request))
            except RegisterError:
                self.ledger.refuse(request)
                self._n_refused += 1
            except OutcomeUnknownError:
                self._unknown.add(entry_of(request[0]).request)
            await asyncio.sleep(PAUSE_S)

    async def register_directly(self) -> None:
        """Register at the server until the end."""
        while not self._is_stopping:
            self.ledger.acknowledge(await self._reader.register(self.ledger.request()))
            await asyncio.sleep(PAUSE_S)

    async def cut(self, chance: random.Random, rounds: int, progress: Progress) -> None:
        """Cut so many connections, when something was registered that must not be lost."""
        async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
            while not self.ledger.acknowledged:
                await asyncio.sleep(PAUSE_S)
        self.link.plans = proxy.by_chance(chance, MAX_CUT_BYTES)
        self.link.cut()
        await _cut(self.link, rounds, lambda: progress(self.link.n_cuts, rounds))

    async def finish(self, others: Mapping[int, Sequence[Event]]) -> str:
        """Cut nothing any more, register nothing any more, and compare.

        Args:
            others: what is stored of other servers than that with the id 1.

        Raises:
            ViolationError: see the scenarios; or what was refused is stored.
        """
        self.link.plans = itertools.repeat(PASS)
        self.link.cut()
        self._is_stopping = True
        await asyncio.gather(*self.registering)
        stored = {1: await _stored(self._reader, 1), **others}
        self.ledger.check(stored[1])
        for hearing in self.hearings:
            for server_id, events in stored.items():
                async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
                    await hearing.until(events[-1].id)
                hearing.check(server_id, events)
        found = self._unknown & {entry_of(event).request for event in stored[1]}
        return (
            f"{len(self.ledger.acknowledged)} events acknowledged; {self._n_refused} requests"
            f" refused, none of them stored; the outcome of {len(self._unknown)} unknown,"
            f" {len(found)} of them stored; {sum(map(len, stored.values()))} events stored, each"
            " heard of once"
        )


@contextlib.asynccontextmanager
async def _relaying(port: int) -> AsyncIterator[_Relay]:
    """A gateway in front of the event server that listens there and has the id 1."""
    async with contextlib.AsyncExitStack() as stack:
        link = await stack.enter_async_context(proxy.create(port))
        conf = {"host": proxy.HOST, "port": link.port, "token": None}
        gateway = await stack.enter_async_context(running_gateway(eventer=conf))
        reader = await stack.enter_async_context(_direct(port))
        relay = _Relay(link, reader)
        for hearing, persisted in zip(relay.hearings, (False, True), strict=True):
            client = await stack.enter_async_context(_mariner(gateway, persisted))
            await client.wait_status(Status.OPERATIONAL)
            await stack.enter_async_context(_running(_hear(client, hearing)))
        coroutines = [relay.register_directly()]
        for _ in range(2):
            client = await stack.enter_async_context(_mariner(gateway))
            coroutines.append(relay.register_through(client))
        for coroutine in coroutines:
            task = await stack.enter_async_context(_running(coroutine))
            relay.registering.append(task)
        yield relay


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Connections that are made meanwhile are made again soon, so that all can be cut soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "RECONNECT_MAX_S", 0.2)
        yield


async def _cut(link: Proxy, n_cuts: int, on_progress: Callable[[], None]) -> None:
    while link.n_cuts < n_cuts:
        await link.until_cuts(link.n_cuts + 1)
        on_progress()


# --- clients ------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _direct(port: int) -> AsyncIterator[EventerClient]:
    """A client of an event server, with nothing in between."""
    address = chatter.Address(proxy.HOST, port, is_tls=False)
    async with await eventer.connect(address, "torture") as client:
        yield client


@contextlib.asynccontextmanager
async def _mariner(gateway: Gateway, persisted: bool | None = None) -> AsyncIterator[Client]:
    """A client of a gateway; it subscribes if ``persisted`` is given."""
    async with await mariner.connect(
        proxy.HOST,
        gateway.mariner.port,
        client_name="app",
        client_token="secret",
        subscriptions=[] if persisted is None else [OURS],
        persisted=bool(persisted),
    ) as client:
        yield client


@contextlib.asynccontextmanager
async def _running(coroutine: Coroutine[None, None, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _hear(client: Client, hearing: Hearing) -> None:
    async for events in client.events():
        hearing.hear(events)


@contextlib.asynccontextmanager
async def _registering(client: EventerClient, ledger: Ledger) -> AsyncIterator[None]:
    """Registers at a server, and has been answered at the beginning and at the end."""
    is_stopping = False

    async def register() -> None:
        while not is_stopping:
            await asyncio.sleep(PAUSE_S)
            ledger.acknowledge(await client.register(ledger.request()))

    ledger.acknowledge(await client.register(ledger.request()))
    async with _running(register()) as task:
        yield
        is_stopping = True
        await task


async def _stored(client: EventerClient, server_id: int) -> list[Event]:
    """What a server has stored of the ledger's events with this server's id."""
    found: list[Event] = []
    params = QueryServerParams(server_id)
    while True:
        result = await client.query(params)
        found.extend(result.events)
        if not result.more_follows:
            return [event for event in found if event.type[0] == OURS[0]]
        params = QueryServerParams(server_id, last_event_id=found[-1].id)


async def _until_stored(client: EventerClient, last: EventId) -> list[Event]:
    """The same, as soon as this event is among them."""
    async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
        while not (found := await _stored(client, last.server)) or found[-1].id < last:
            await asyncio.sleep(0.02)
    return found


def _compare(kept: Sequence[Event], registered: Sequence[Event]) -> None:
    if list(kept) != list(registered):
        raise ViolationError(
            f"{len(kept)} events are kept, {len(registered)} were registered, or others"
        )
