"""Exactly once, from writers to readers, whatever is killed and cut.

Each writer has an outbox of requests under keys of their own, and sends a request again until it
is answered. Each reader has a cursor. In a round the gateway is killed (``kill -9``) or stopped,
connections are cut at any byte, writers and readers are dropped, or a reader's cursor is taken
over, while retention deletes what others write beside.

In the end every request is stored once, with the ids that were answered. What a reader got over
one connection is a part of what is stored, without a gap, a double, or another order; and each
connection begins no later than behind what was acknowledged before.
"""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

from eventer_bridge.model import EventId, JsonPayload, QueryServerParams, RegisterEvent
from mariner import client
from mariner.errors import ClosedError, ConnectError, InitError, OutcomeUnknownError, RegisterError
from tests.support import proxy
from tests.support.gateway import Gateway, gateway
from tests.torture.clients import connected
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress

N_WRITERS: Final = 3
N_READERS: Final = 3
IN_FLIGHT: Final = 8
"""Requests of a writer that are under way."""

ROUNDS_OF_A_GATEWAY: Final = 5
"""Rounds, the last of which ends it."""

MAX_WORK_S: float = 0.2
"""How long a round works before something happens."""

MAX_CUT_BYTES: Final = 1 << 20
"""Connections are cut after so many bytes at the most."""

RECONNECT_S: Final = 0.01
FINISH_TIMEOUT_S: Final = 120.0

TYPE: Final = "edge"
RETENTION: Final = [{"subscriptions": [["noise"]], "max_entries": 50}]


class Writer:
    """Requests of one to three events.

    Attributes:
        answered: events of each request, by its number.
        n_again: requests that were sent again.
    """

    def __init__(self, number: int) -> None:
        self.answered: dict[int, list[EventId]] = {}
        self.n_again = 0
        self._number = number
        self._n_begun = 0
        self._outbox: list[int] = []  # what was sent, and not answered

    @property
    def n_begun(self) -> int:
        """Requests that were sent."""
        return self._n_begun

    async def write(self, connection: client.Client, *, is_last: bool) -> None:
        """Send requests until the connection is lost; the last time, only what is left."""
        while self._outbox or not is_last:
            if self._outbox:
                request = self._outbox.pop(0)
                self.n_again += 1
            else:
                self._n_begun += 1
                request = self._n_begun
            if not await self._send(connection, request):
                return

    async def _send(self, connection: client.Client, request: int) -> bool:
        events = [
            RegisterEvent((TYPE, str(self._number)), None, JsonPayload.of([request, part]))
            for part in range(request % 3 + 1)
        ]
        try:
            answer = await connection.register(events, f"{self._number}-{request}")
        except RegisterError:  # the gateway stops
            self._outbox.append(request)
            await asyncio.sleep(RECONNECT_S)
            return True
        except BaseException as e:
            self._outbox.append(request)
            if isinstance(e, OutcomeUnknownError | ClosedError):
                return False
            raise
        ids = [event.id for event in answer]
        if self.answered.setdefault(request, ids) != ids:
            raise ViolationError(f"request {self._number}-{request}: answered with other events")
        return True


class Part(NamedTuple):
    """What a reader got over one connection.

    Attributes:
        acked: the last event that it had acknowledged before.
        ids: of the events.
    """

    acked: EventId | None
    ids: list[EventId]


class Reader:
    """Reads with a cursor.

    Attributes:
        name: of the cursor.
        parts: what it got.
        acked: the last event that it acknowledged.
    """

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self.parts: list[Part] = []
        self.acked: EventId | None = None
        self._chance = chance

    async def read(self, connection: client.Client, until: EventId | None = None) -> None:
        """Read until the connection is lost, or up to an event."""
        part = Part(self.acked, [])
        self.parts.append(part)
        with contextlib.suppress(ClosedError):  # lost, or another one has the cursor
            async for batch in connection.replay():
                part.ids.extend(event.id for event in batch.events)
                if self._chance.random() < 0.7 or part.ids[-1] == until:
                    self.acked = part.ids[-1]
                    await batch.ack()
                if part.ids[-1] == until:
                    await connection.ping()
                    return

    def check(self, stored: list[EventId]) -> int:
        """Compare what it got with what is stored.

        Returns:
            Events that came again.

        Raises:
            ViolationError: an event was missed, came twice over one connection, or out of order.
        """
        index = {event_id: i for i, event_id in enumerate(stored)}
        n_received = 0
        for number, (acked, ids) in enumerate(self.parts):
            if not ids:
                continue
            begin = index.get(ids[0], -1)
            if ids != stored[begin : begin + len(ids)]:
                raise ViolationError(f"{self.name}: part {number} is not what is stored")
            if begin > (0 if acked is None else index[acked] + 1):
                raise ViolationError(f"{self.name}: part {number} begins behind {acked}")
            n_received += len(ids)
        if {i for _, ids in self.parts for i in ids} != {*stored}:
            raise ViolationError(f"{self.name}: not all events came")
        return n_received - len(stored)


class Edge:
    """Writers and readers, over connections that are cut."""

    def __init__(self, chance: random.Random) -> None:
        self.writers = [Writer(i) for i in range(N_WRITERS)]
        self.readers = [Reader(f"reader {i}", chance) for i in range(N_READERS)]
        self.n_cuts = 0
        self._chance = chance

    @contextlib.asynccontextmanager
    async def working(self, running: Gateway) -> AsyncIterator[None]:
        """All of them are at work, and connect again when they are cut."""
        plans = proxy.by_chance(self._chance, MAX_CUT_BYTES)
        async with proxy.create(running.port, plans) as link:
            tasks = [asyncio.create_task(self._write(i, link.port)) for i in self.writers]
            tasks += [asyncio.create_task(self._read(i, link.port)) for i in self.readers]
            # one more for the first reader: they take the cursor from each other
            if self._chance.random() < 0.3:
                tasks.append(asyncio.create_task(self._read(self.readers[0], link.port)))
            try:
                yield
                for task in tasks:
                    if task.done():
                        task.result()
            finally:
                for task in tasks:  # dropped in the middle of whatever they do
                    task.cancel()
                await asyncio.wait(tasks)
            self.n_cuts += link.n_cuts

    async def _write(self, writer: Writer, port: int) -> None:
        while True:
            async with _connection(port) as connection:
                if connection is not None:
                    writing = (writer.write(connection, is_last=False) for _ in range(IN_FLIGHT))
                    await asyncio.gather(*writing)

    async def _read(self, reader: Reader, port: int) -> None:
        while True:
            async with _connection(port, cursor=reader.name) as connection:
                if connection is not None:
                    await reader.read(connection)

    async def finish(self, running: Gateway) -> str:
        """Let all requests be answered, and all events be read; then compare.

        Raises:
            ViolationError: something is missing, or there is too much.
        """
        async with asyncio.timeout(FINISH_TIMEOUT_S), connected(running) as connection:
            for writer in self.writers:
                await writer.write(connection, is_last=True)
            stored = [
                event
                async for event in connection.query_all(QueryServerParams(1, persisted=True))
                if event.type[0] == TYPE
            ]
            for reader in self.readers:
                async with _connection(running.port, cursor=reader.name) as reading:
                    assert reading is not None
                    await reader.read(reading, stored[-1].id)
        ids = [event.id for event in stored]
        answered = [i for writer in self.writers for j in writer.answered.values() for i in j]
        if sorted(answered) != ids:
            raise ViolationError(f"{len(answered)} events answered, {len(ids)} stored")
        for writer in self.writers:
            if len(writer.answered) != writer.n_begun:
                raise ViolationError("a request was not answered")
        n_again = sum(reader.check(ids) for reader in self.readers)
        n_repeated = sum(writer.n_again for writer in self.writers)
        return (
            f"{self.n_cuts} connections cut; {len(ids)} events, each stored once;"
            f" {n_repeated} requests sent again; each read in order by {N_READERS} readers,"
            f" {n_again} of them again, as they were not acknowledged"
        )


@contextlib.asynccontextmanager
async def _connection(port: int, cursor: str | None = None) -> AsyncIterator[client.Client | None]:
    """A client; None: it could not be connected, after a little while."""
    try:
        connection = await client.connect(
            "127.0.0.1",
            port,
            client_name="app",
            client_token="secret",
            subscriptions=[(TYPE, "*")] if cursor else [],
            cursor=cursor,
        )
    except (ConnectError, InitError, ClosedError):
        await asyncio.sleep(RECONNECT_S)
        yield None
        return
    async with connection:
        yield connection


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Have something happen ``rounds`` times.

    Raises:
        ViolationError: an event is missing, stored twice, or was read in another way.
    """
    edge = Edge(chance)
    core = {
        "backend": {"type": "rocksdb", "path": str(directory / "store"), "retention": RETENTION}
    }
    n_done = n_kills = 0
    while n_done < rounds:
        async with gateway(directory, core=core) as running, _noise(running):
            for _ in range(min(ROUNDS_OF_A_GATEWAY, rounds - n_done) - 1):
                async with edge.working(running):
                    await asyncio.sleep(chance.uniform(0, MAX_WORK_S))
                n_done += 1
                progress(n_done, rounds)
            async with edge.working(running):
                await asyncio.sleep(chance.uniform(0, MAX_WORK_S))
                if chance.random() < 0.7:
                    n_kills += 1
                    os.kill(running.pid, signal.SIGKILL)
                    await running.process.wait()
            n_done += 1
            progress(n_done, rounds)
    async with gateway(directory, core=core) as running:
        outcome = await edge.finish(running)
    return f"{rounds} rounds, {n_kills} kills of the gateway, {outcome}"


@contextlib.asynccontextmanager
async def _noise(running: Gateway) -> AsyncIterator[None]:
    """Events that retention deletes."""

    async def register() -> None:
        with contextlib.suppress(ClosedError, RegisterError, OutcomeUnknownError):
            async with connected(running) as connection:
                while True:
                    await connection.register([RegisterEvent(("noise",), None, None)] * 20)

    task = asyncio.create_task(register())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
