"""Clients of all gateways of a group, while these fail: what they are told goes to a ledger."""

import asyncio
import contextlib
import functools
import random
import time
import traceback
from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any, Final, TypeVar

from eventer_bridge.model import Event, EventId, RegisterEvent, Status
from mariner import client
from mariner.client.client import Client
from mariner.client.reconnecting import ReconnectingClient
from mariner.errors import (
    ConnectError,
    ConnectionLostError,
    CursorLostError,
    InitError,
    OutcomeUnknownError,
    RegisterError,
)
from tests.torture.group_site import GroupSite, Machine
from tests.torture.ledger import OURS, Ledger, ViolationError

E = TypeVar("E", bound=Exception)

IN_FLIGHT: Final = 6
"""Requests at each gateway; as many again with keys at the active one."""

PAUSE_S: Final = 0.03
"""Between two requests of the same client: some hundred events/s are enough to fail for."""

LARGE_EVERY: Final = 2_000

RETRY_S: Final = 0.02
SILENT_S: Final = 2.0
"""After which a gateway counts as dead, and is left."""

KEYED: Final = "any"
"""In place of a gateway's name: a request that was sent again until one acknowledged it."""

CURSOR: Final = "reader"
CURSOR_S: Final = 1.0
"""In which an acknowledgement is kept for good, while registrations are (0.2 s, says the text)."""

QUIET_TIMEOUT_S: Final = 60.0
"""Until everything was answered and told, after all that failed is well again."""

_LOST: Final = (ConnectError, ConnectionLostError, InitError, CursorLostError)


class Seen:
    """Ids that came over one connection, one behind the other.

    Attributes:
        machine: whose connection it was.
        acknowledged: when, and up to which id, of a reader.
        confirmed: the last id of which the gateway is known to have read that.
        floor: what the cursor must be at when it begins, or later; None: anywhere.
    """

    def __init__(self, machine: str, floor: EventId | None = None) -> None:
        self.machine = machine
        self.ids: list[EventId] = []
        self.acknowledged: list[tuple[float, EventId]] = []
        self.confirmed: EventId | None = None
        self.floor = floor

    def check(self, order: Mapping[EventId, int], what: str) -> None:
        """Check that none is missing between the first and the last, or is not stored."""
        places = [order.get(i) for i in self.ids]
        if None in places:
            missing = self.ids[places.index(None)]
            raise ViolationError(f"{what} of {self.machine}: {missing} came, and is not stored")
        for before, after in pairwise(places):
            if after != before + 1:  # type: ignore[operator]
                raise ViolationError(f"{what} of {self.machine}: {after} comes after {before}")


class Traffic:
    """See the module.

    Attributes:
        ledger: knows all that was sent, and told.
        keyed: requests with a key that were acknowledged, by key.
        is_calm: whether nothing fails.
        lags_s: from an acknowledgement until a follower notified of the event, while it is.
        last_machine: the gateway that acknowledged a request most recently.
        n_unknown, n_refused, n_repeated: requests that were answered so, or sent again.
    """

    def __init__(self, site: GroupSite, chance: random.Random) -> None:
        self.ledger = Ledger(large_every=LARGE_EVERY)
        self.keyed: dict[str, tuple[Sequence[RegisterEvent], Sequence[Event]]] = {}
        self.is_calm = True
        self.lags_s: list[float] = []
        self.n_unknown = self.n_refused = self.n_repeated = 0
        self.machines = site.machines
        self.last_machine = next(iter(site.machines))
        self._chance = chance
        self._going = asyncio.Event()
        self._n_under_way = 0
        self._changed = asyncio.Event()
        self._acks: list[tuple[float, float, str]] = []  # answered, begun, by whom
        self._told_s: dict[EventId, float] = {}
        self._trouble_s: dict[str, float] = {}
        self._durable_s: dict[str, float] = {}
        self.at: dict[str, Client | None] = dict.fromkeys(site.machines)
        self._watching: dict[str, list[Seen]] = {i: [] for i in site.machines}
        self._reading: list[Seen] = []
        self._floor: EventId | None = None  # where a cursor must be by now
        self._reached = -1  # how far readers have come, in the order of what is stored

    async def run(self) -> None:
        """All clients; does not end by itself. ``ViolationError``: something must not be so."""
        async with asyncio.TaskGroup() as tasks:
            for machine in self.machines.values():
                tasks.create_task(self._write_at(machine))
                tasks.create_task(self._watch(machine))
            tasks.create_task(self._write_keyed())
            tasks.create_task(self._read())

    # --- for who makes things fail --------------------------------------------------------

    async def acknowledged(self, since_s: float, *, other_than: str | None = None) -> float:
        """Wait until a request was acknowledged that was sent since; seconds from then on.

        ``other_than``: not by this gateway.
        """
        async with asyncio.timeout(QUIET_TIMEOUT_S):
            while True:
                for answered_s, begun_s, machine in self._acks:
                    if begun_s >= since_s and machine not in (KEYED, other_than):
                        return answered_s - since_s
                self._changed.clear()
                await self._changed.wait()

    async def all_told(self, since_s: float) -> float:
        """Wait until all clients know that their gateway is STANDBY; seconds from then on."""
        async with asyncio.timeout(QUIET_TIMEOUT_S):
            while any(i is None or i.status is not Status.STANDBY for i in self.at.values()):
                await asyncio.sleep(RETRY_S)
        return time.monotonic() - since_s

    def check_silent(self, begin_s: float, end_s: float) -> None:
        """Check that nothing was acknowledged that was sent in this time, by its end."""
        for answered_s, begun_s, machine in self._acks:
            if begin_s <= begun_s and answered_s <= end_s:
                raise ViolationError(f"{machine} acknowledged what nobody else can have")

    def note_clean_stop(self) -> None:
        """A gateway is about to stop in good order: it keeps what was confirmed to a reader."""
        if self._reading:
            self._raise_floor(self._reading[-1].confirmed)

    async def pause(self) -> None:
        """Send nothing more, and wait until all is answered."""
        self._going.clear()
        async with asyncio.timeout(QUIET_TIMEOUT_S):
            while self._n_under_way:
                self._changed.clear()
                await self._changed.wait()

    def resume(self) -> None:
        """Send again."""
        self._acks.clear()
        self._told_s.clear()
        self.is_calm = True
        self._going.set()

    async def settle(self, active: Client) -> None:
        """Register events until all who watch and read have got the last of them.

        One who has just connected is not told of what came before.
        """
        async with asyncio.timeout(QUIET_TIMEOUT_S):
            while True:
                events = await active.register(self.ledger.request())
                self.ledger.acknowledge(events)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._until_told(events[-1].id)
                        return

    async def _until_told(self, last: EventId) -> None:
        heard = [*self._watching.values(), self._reading]
        while not all(i and last in i[-1].ids[-1:] for i in heard):
            self._changed.clear()
            await self._changed.wait()

    async def at_active(self) -> Client:
        """A connection to the active gateway."""
        async with asyncio.timeout(QUIET_TIMEOUT_S):
            while True:
                for connection in self.at.values():
                    if connection is not None and connection.status is Status.OPERATIONAL:
                        return connection
                await asyncio.sleep(RETRY_S)

    def check(self, stored: Sequence[Event]) -> None:
        """Check what watchers and readers got since the last time, of all that is stored."""
        order = {event.id: n for n, event in enumerate(stored)}
        for seen in self._watching.values():
            for one in seen:
                one.check(order, "subscriber")
            del seen[:-1]
        for one in self._reading:
            one.check(order, "reader")
            if not one.ids:
                continue
            begin = order[one.ids[0]]
            if one.floor is not None and begin <= order[one.floor]:
                text = f"{one.floor} was kept, and it goes back to {one.ids[0]}"
                raise ViolationError(f"cursor at {one.machine}: {text}")
            if begin > self._reached + 1:
                raise ViolationError(f"cursor at {one.machine}: events before {one.ids[0]} missed")
            self._reached = max(self._reached, order[one.ids[-1]])
        del self._reading[:-1]
        for seen in (*self._watching.values(), self._reading):
            del seen[-1].ids[:-1]
            seen[-1].floor = None

    async def check_keys(self, n_keys: int) -> None:
        """Send some requests again, and compare the answers."""
        for key in self._chance.sample(sorted(self.keyed), min(n_keys, len(self.keyed))):
            await self._repeat(await self.at_active(), key)

    # --- clients --------------------------------------------------------------------------

    def _connect_to(self, machine: Machine) -> Any:
        return functools.partial(
            client.connect,
            "127.0.0.1",
            machine.port,
            client_name="app",
            client_token="secret",
            connect_timeout_s=SILENT_S,
            ping_delay_s=SILENT_S,
            ping_timeout_s=SILENT_S,
        )

    @contextlib.asynccontextmanager
    async def _connected(self, machine: Machine, **keys: Any) -> AsyncIterator[Client]:
        async with await self._connect_to(machine)(**keys) as connection:
            yield connection

    async def _write_at(self, machine: Machine) -> None:
        while True:
            try:
                async with self._connected(machine) as connection, asyncio.TaskGroup() as writers:
                    self.at[machine.name] = connection
                    for _ in range(IN_FLIGHT):
                        writers.create_task(self._write(machine.name, connection))
            except* _LOST:
                self.at[machine.name] = None
            await asyncio.sleep(RETRY_S)

    async def _write(self, machine: str, connection: Client) -> None:
        while True:
            await self._going.wait()
            await connection.wait_status(Status.OPERATIONAL)
            with self._under_way():
                if self.keyed and self._chance.random() < 0.05:
                    await self._repeat(connection, self._chance.choice([*self.keyed]))
                else:
                    await self._register(machine, connection)
            await asyncio.sleep(self._chance.uniform(0, 2 * PAUSE_S))

    async def _register(self, machine: str, connection: Client) -> None:
        request, begun_s = self.ledger.request(), time.monotonic()
        try:
            events = await connection.register(request)
        except RegisterError:
            self.ledger.refuse(request)
            self.n_refused += 1
            self._trouble_s[machine] = time.monotonic()
        except OutcomeUnknownError:
            self.n_unknown += 1
            self._trouble_s[machine] = time.monotonic()
        except ConnectionLostError:
            self.ledger.refuse(request)  # it was not sent
            raise
        else:
            self._acknowledge(events, begun_s, machine)

    def _acknowledge(self, events: Sequence[Event], begun_s: float, machine: str) -> None:
        now_s = time.monotonic()
        self.ledger.acknowledge(events)
        self._acks.append((now_s, begun_s, machine))
        if machine != KEYED:
            self.last_machine = machine
        self._told_s[events[-1].id] = now_s
        if begun_s > self._trouble_s.get(machine, 0.0) + 2 * CURSOR_S:
            self._durable_s[machine] = begun_s - CURSOR_S
        self._changed.set()

    async def _repeat(self, connection: Client, key: str) -> None:
        request, expected = self.keyed[key]
        try:
            events = await connection.register(request, key)
        except (RegisterError, OutcomeUnknownError):
            return
        self.n_repeated += 1
        if list(events) != list(expected):
            raise ViolationError(f"stored twice under its key {key}: {expected}, {events}")

    async def _write_keyed(self) -> None:
        servers = [self._connect_to(i) for i in self.machines.values()]
        async with ReconnectingClient(servers) as keeping, asyncio.TaskGroup() as writers:
            for _ in range(IN_FLIGHT):
                writers.create_task(self._write_keys(keeping))

    async def _write_keys(self, keeping: ReconnectingClient) -> None:
        while True:
            await self._going.wait()
            with self._under_way():
                request = self.ledger.request()
                key = f"key {len(self.ledger.sent)}"
                begun_s = time.monotonic()
                events = await keeping.register(request, request_key=key)
                self.keyed[key] = request, events
                self._acknowledge(events, begun_s, KEYED)
            await asyncio.sleep(self._chance.uniform(0, 2 * PAUSE_S))

    async def _watch(self, machine: Machine) -> None:
        while True:
            with contextlib.suppress(*_LOST):
                its = {"subscriptions": [OURS], "persisted": True}
                async with self._connected(machine, **its) as connection:
                    seen = Seen(machine.name)
                    self._watching[machine.name].append(seen)
                    async for events in connection.events():
                        self._saw(events, seen)
                        self._note_lag(connection, events[-1].id)
            await asyncio.sleep(RETRY_S)

    def _note_lag(self, connection: Client, last: EventId) -> None:
        told_s = self._told_s.get(last)
        if self.is_calm and told_s is not None and connection.status is Status.STANDBY:
            self.lags_s.append(time.monotonic() - told_s)

    def _saw(self, events: Sequence[Event], seen: Seen) -> None:
        self.ledger.saw(events)
        seen.ids += [i.id for i in events]
        self._changed.set()

    async def _read(self) -> None:
        for machine in cycle(self.machines.values()):
            with contextlib.suppress(*_LOST):
                its = {"subscriptions": [OURS], "cursor": CURSOR}
                async with self._connected(machine, **its) as connection:
                    seen = Seen(machine.name, self._floor)
                    self._reading.append(seen)
                    try:
                        async for batch in connection.replay():
                            self._saw(batch.events, seen)
                            await batch.ack()
                            last = batch.events[-1].id
                            seen.acknowledged.append((time.monotonic(), last))
                            await connection.ping()
                            seen.confirmed = last
                    finally:
                        self._raise_floor(self._kept(seen))
            await asyncio.sleep(RETRY_S)

    def _kept(self, seen: Seen) -> EventId | None:
        """What of a reader's acknowledgements is kept whatever happened since."""
        durable_s = self._durable_s.get(seen.machine, 0.0)
        n = bisect_right(seen.acknowledged, durable_s, key=lambda i: i[0])
        return seen.acknowledged[n - 1][1] if n else None

    def _raise_floor(self, kept: EventId | None) -> None:
        if kept is not None and (self._floor is None or self._floor < kept):
            self._floor = kept

    @contextlib.contextmanager
    def _under_way(self) -> Any:
        self._n_under_way += 1
        try:
            yield
        finally:
            self._n_under_way -= 1
            self._changed.set()


@contextlib.asynccontextmanager
async def traffic(site: GroupSite, chance: random.Random) -> AsyncIterator[Traffic]:
    """Clients of a group; ``ViolationError``: one of them was told what must not be."""
    made = Traffic(site, chance)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(made.run())
            yield made
            running.cancel()
    except* ViolationError as e:
        raise first_of(e) from None


def place_of(error: BaseException) -> str:
    """The function and line that was waited for or failed, of the rig's own."""
    own = [i for i in traceback.extract_tb(error.__traceback__) if "/tests/" in i.filename]
    return " < ".join(f"{i.name}:{i.lineno}" for i in reversed(own[-3:]))


def first_of(group: ExceptionGroup[E]) -> E:
    """One of the errors of several tasks."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, ExceptionGroup) else first
