"""The clients of ``crowd``: some register and hear of each other, most are only connected."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from eventer_bridge.model import Event, EventId, JsonPayload, RegisterEvent
from mariner import client
from tests.support.gateway import Gateway
from tests.torture.ledger import ViolationError

CROWD: Final = "crowd"
IDLE: Final = "idle"
TOKEN: Final = "secret"

GROUP: Final = 4
"""Active clients that share a subscription: each event is notified to so many."""

PERIOD_S: Final = 0.2
"""Between two registrations of a client."""

PING_DELAY_S: Final = 10.0
"""Silence after which every second of the idle clients pings; the others never do."""

CONNECTING: Final = 50
"""Connections that are opened at a time."""

FINISH_TIMEOUT_S: Final = 60.0
"""For what is under way at the end."""


class Active:
    """Registers an event now and then, and hears of those of its group, its own included.

    Attributes:
        n_registered: its events that were acknowledged.
        n_heard: events that it was notified of.
    """

    def __init__(self, number: int, n_active: int) -> None:
        self.name: Final = f"active-{number}"
        self.group: Final = number // GROUP
        self.n_registered = 0
        self.n_heard = 0
        self._number = number
        members = range(self.group * GROUP, min(n_active, (self.group + 1) * GROUP))
        self._next = dict.fromkeys(members, 0)
        self._last = EventId(0, 0, 0)
        self._heard = asyncio.Event()

    @property
    def subscription(self) -> tuple[str, ...]:
        """What it is notified of."""
        return (CROWD, str(self.group), "*")

    async def register(
        self, connection: client.Client, is_over: asyncio.Event, chance: random.Random
    ) -> None:
        """Register on schedule until it is over; a gateway that is late is not sent more at once.

        Raises:
            MarinerError: an event was refused, or the connection was lost.
        """
        loop = asyncio.get_running_loop()
        event_type = (CROWD, str(self.group), str(self._number))
        due_s = loop.time() + chance.uniform(0, PERIOD_S)
        while not is_over.is_set():
            await asyncio.sleep(due_s - loop.time())
            due_s = max(due_s + PERIOD_S, loop.time())
            payload = JsonPayload.of({"position": self.n_registered})
            await connection.register([RegisterEvent(event_type, None, payload)])
            self.n_registered += 1

    async def listen(self, connection: client.Client) -> None:
        """Take what comes until the connection is closed.

        Raises:
            ViolationError: see :meth:`hear`.
        """
        async for events in connection.events():
            self.hear(events)
        raise ViolationError(f"{self.name}: closed: {connection.close_reason}")

    def hear(self, events: Sequence[Event]) -> None:
        """A notification came.

        Raises:
            ViolationError: an event is missing, came twice, or out of order.
        """
        for event in events:
            assert isinstance(event.payload, JsonPayload)
            source, position = int(event.type[2]), event.payload.value()["position"]
            expected = self._next[source]
            if position != expected:
                raise ViolationError(
                    f"{self.name} hears of event {position} of active-{source}, not {expected}"
                )
            if event.id <= self._last:
                raise ViolationError(f"{self.name} hears of {event.id} after {self._last}")
            self._next[source] = position + 1
            self._last = event.id
            self.n_heard += 1
        self._heard.set()

    async def until_heard(self, n_registered: Sequence[int]) -> None:
        """Wait until it heard of everything.

        Args:
            n_registered: events of each active client, by its number.
        """
        while any(self._next[i] < n_registered[i] for i in self._next):
            self._heard.clear()
            await self._heard.wait()

    def check(self, n_registered: Sequence[int]) -> None:
        """Compare what it heard of with what was registered.

        Raises:
            ViolationError: it is not the same.
        """
        expected = {i: n_registered[i] for i in self._next}
        if self._next != expected:
            raise ViolationError(f"{self.name} heard of {self._next}, registered are {expected}")


class Crowd:
    """All clients, over one connection each. Created by :func:`crowd`.

    Attributes:
        active: those that register.
    """

    def __init__(self, n_idle: int, n_active: int, chance: random.Random) -> None:
        self.active: Final = [Active(i, n_active) for i in range(n_active)]
        self._n_idle = n_idle
        self._chance = chance
        self._idle_connections: list[client.Client] = []
        self._connections: list[client.Client] = []
        self._is_over = asyncio.Event()
        self._listening: list[asyncio.Task[None]] = []
        self._registering: list[asyncio.Task[None]] = []

    async def connect(self, gateway: Gateway) -> None:
        """Open all connections; none registers yet."""
        gate = asyncio.Semaphore(CONNECTING)

        async def one(name: str, subscription: tuple[str, ...], delay_s: float | None) -> Any:
            async with gate:
                return await client.connect(
                    gateway.host,
                    gateway.port,
                    client_name=name,
                    client_token=TOKEN,
                    subscriptions=[subscription],
                    ping_delay_s=delay_s,
                )

        self._idle_connections = await asyncio.gather(
            *(one(IDLE, (IDLE, str(i)), (None, PING_DELAY_S)[i % 2]) for i in range(self._n_idle))
        )
        self._connections = await asyncio.gather(
            *(one(i.name, i.subscription, PING_DELAY_S) for i in self.active)
        )
        listening = [_listen_idle(connection) for connection in self._idle_connections]
        listening += [i.listen(j) for i, j in zip(self.active, self._connections, strict=True)]
        self._listening = [asyncio.create_task(i) for i in listening]

    def begin(self) -> None:
        """Begin to register."""
        for active, connection in zip(self.active, self._connections, strict=True):
            work = active.register(connection, self._is_over, self._chance)
            self._registering.append(asyncio.create_task(work))

    def look(self) -> None:
        """Raise what went wrong so far.

        Raises:
            ViolationError: with a notification or a connection.
            MarinerError: with a registration.
        """
        for task in (*self._listening, *self._registering):
            if task.done():
                task.result()

    async def finish(self) -> None:
        """Register no more, and wait until everybody heard of everything, once.

        Raises:
            ViolationError: something is missing, or there is too much.
        """
        self._is_over.set()
        await asyncio.gather(*self._registering)
        n_registered = [i.n_registered for i in self.active]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                await asyncio.gather(*(i.until_heard(n_registered) for i in self.active))
        # an answer comes behind whatever was notified too much, also to those that never ping
        await asyncio.gather(*(i.ping() for i in (*self._connections, *self._idle_connections)))
        await asyncio.sleep(0)  # what came is taken
        self.look()
        for active in self.active:
            active.check(n_registered)

    async def close(self) -> None:
        """Close all connections."""
        for task in (*self._registering, *self._listening):
            task.cancel()
        await asyncio.gather(*self._registering, *self._listening, return_exceptions=True)
        every = (*self._connections, *self._idle_connections)
        await asyncio.gather(*(i.async_close() for i in every))


async def _listen_idle(connection: client.Client) -> None:
    async for events in connection.events():
        raise ViolationError(f"an idle client hears of {events[0].type}")
    raise ViolationError(f"an idle connection was closed: {connection.close_reason}")


def configured(n_active: int) -> list[dict[str, Any]]:
    """``clients`` of the gateway for these: each active one has a name and a token of its own."""
    everything = [{"subscriptions": [["*"]]}]
    active = [
        {
            "name": f"active-{i}",
            "token": TOKEN,
            "subscriptions": [[CROWD, str(i // GROUP), "*"]],
            "register_events": everything,
        }
        for i in range(n_active)
    ]
    idle = {
        "name": IDLE,
        "token": TOKEN,
        "subscriptions": [[IDLE, "?"]],
        "register_events": [],
    }
    return [idle, *active]


@contextlib.asynccontextmanager
async def crowd(
    gateway: Gateway, n_idle: int, n_active: int, chance: random.Random
) -> AsyncIterator[Crowd]:
    """All of them, connected."""
    made = Crowd(n_idle, n_active, chance)
    try:
        await made.connect(gateway)
        yield made
    finally:
        await made.close()
