"""The honest client, which notices what an attack costs: it pings, queries, registers, connects.

It sends on schedule, whether the answer before came or not: a gateway that stands still for
three seconds is noticed by every ping of these three seconds, not by one.
"""

import asyncio
import contextlib
import itertools
import json
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

from tests.torture.attacks.attack import HOST
from tests.torture.attacks.wire import (
    encode,
    event,
    init_req,
    latest_req,
    register_req,
    timeseries_req,
)

NAME: Final = "observer"

TYPE: Final = ["observed", "value"]

PING_PERIOD_S: Final = 0.02

QUERY_PERIOD_S: Final = 0.1

REGISTER_PERIOD_S: Final = 0.2

CONNECT_PERIOD_S: Final = 0.5

ANSWER_TIMEOUT_S: Final = 20.0
"""After it, an answer is lost. Nothing that ends well takes so long."""

_STREAM_BYTES: Final = 1 << 20


class Address(NamedTuple):
    """Where the gateway listens, and how.

    Attributes:
        port: its port.
        tls: over which; None for plain TCP.
    """

    port: int
    tls: ssl.SSLContext | None = None


class LostError(Exception):
    """The gateway does not answer, or closed the connection."""


class Honest:
    """A connection of a client that keeps to the protocol; answers come by their id.

    Attributes:
        status: of the gateway, as it was told at the beginning.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._waiting: dict[tuple[str, int], asyncio.Future[Any]] = {}
        self._first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._receiving = asyncio.create_task(self._receive())
        self.status = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, address: Address) -> AsyncIterator["Honest"]:
        """Connect and initialise.

        Raises:
            LostError: it was not possible.
        """
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(
                    HOST, address.port, ssl=address.tls, limit=_STREAM_BYTES
                )
        except (OSError, TimeoutError) as e:
            raise LostError(f"no connection: {e!r}") from None
        self = cls(reader, writer)
        try:
            writer.write(encode(init_req(NAME, NAME)))
            answer = await self._within(self._first)
            if not answer["success"]:
                raise LostError(answer["error"])
            self.status = answer["status"]
            yield self
        finally:
            self._receiving.cancel()
            writer.close()

    async def ping(self) -> None:
        """Ping; LostError as everywhere."""
        number = next(self._ids)
        await self._request("ping", number, {"msg_type": "ping_req", "ping_id": number})

    async def latest(self) -> Any:
        """Value of the latest event that was registered, by a query for the latest."""
        number = next(self._ids)
        return await self._query(number, latest_req(number, [TYPE]))

    async def newest(self) -> Any:
        """The same by a query for a sequence, which takes a reader of the store."""
        number = next(self._ids)
        return await self._query(number, timeseries_req(number, [TYPE], max_results=1))

    async def register(self, value: Any, event_type: list[str] = TYPE) -> None:
        """Register an event."""
        number = next(self._ids)
        request = register_req(number, [event(event_type, value)])
        answer = await self._request("register", number, request)
        if not answer["success"]:
            raise LostError(answer.get("error"))

    async def _query(self, number: int, message: Any) -> Any:
        answer = await self._request("query", number, message)
        return answer["events"][0]["payload"]["data"] if answer["events"] else None

    async def _request(self, kind: str, number: int, message: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        if self._receiving.done():
            raise LostError("connection closed")
        self._waiting[kind, number] = future
        self._writer.write(encode(message))
        try:
            return await self._within(future)
        finally:
            del self._waiting[kind, number]

    async def _within(self, future: asyncio.Future[Any]) -> Any:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise LostError(f"no answer in {ANSWER_TIMEOUT_S:.0f} s") from None

    async def _receive(self) -> None:
        try:
            while True:
                size = (await self._reader.readexactly(1))[0]
                length = int.from_bytes(await self._reader.readexactly(size), "big")
                self._take(json.loads(await self._reader.readexactly(length)))
        except (OSError, asyncio.IncompleteReadError):
            for future in (self._first, *self._waiting.values()):
                if not future.done():
                    future.set_exception(LostError("connection closed"))
            self._first.exception()  # nobody may be waiting for it any more

    def _take(self, message: Any) -> None:
        if message["msg_type"] == "init_res":
            self._first.set_result(message)
            return
        kind = message["msg_type"].split("_")[0]
        future = self._waiting.get((kind, message.get(f"{kind}_id")))
        if kind == "ping" and message["msg_type"] == "ping_req":
            reply = {"msg_type": "ping_res", "ping_id": message["ping_id"]}
            self._writer.write(encode(reply))
        elif future is not None and not future.done():
            future.set_result(message)


class Times(NamedTuple):
    """How long something took, in milliseconds."""

    n: int
    median_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Times":
        """Of what was measured."""
        if not seconds:
            return cls(0, 0.0, 0.0, 0.0)
        ordered = sorted(i * 1000 for i in seconds)
        at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99)]
        return cls(len(ordered), at[0], at[1], ordered[-1])

    def __str__(self) -> str:
        return f"{self.median_ms:.1f}/{self.p99_ms:.1f}/{self.max_ms:.0f} ms"


class Observation:
    """What the honest client saw.

    Attributes:
        times_s: of what succeeded, by kind: ping, query, register, connect. What did not
            succeed counts as what was waited for it.
        lost: what failed, by kind and reason.
    """

    def __init__(self) -> None:
        self.times_s: dict[str, list[float]] = {}
        self.lost: Counter[tuple[str, str]] = Counter()

    def times(self, kind: str) -> Times:
        """Of one kind."""
        return Times.of(self.times_s.get(kind, []))

    async def time(self, kind: str, act: Callable[[], Awaitable[Any]]) -> None:
        """Do something and note how long it took."""
        began = time.perf_counter()
        try:
            await act()
        except LostError as e:
            self.lost[kind, str(e)[:200]] += 1
        self.times_s.setdefault(kind, []).append(time.perf_counter() - began)


class Observer:
    """Observes whenever it is told to, over connections that are kept meanwhile.

    Args:
        address: where the gateway listens.
        pinging, asking, registering: each does this and nothing else. A query waits for what
            was registered before it on the same connection, to find it.
    """

    def __init__(
        self, address: Address, pinging: Honest, asking: Honest, registering: Honest
    ) -> None:
        self._address = address
        self._pinging = pinging
        self._asking = asking
        self._registering = registering
        self._stopping = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, address: Address) -> AsyncIterator["Observer"]:
        """Connect.

        Raises:
            LostError: it was not possible.
        """
        async with (
            Honest.connected(address) as pinging,
            Honest.connected(address) as asking,
            Honest.connected(address) as registering,
        ):
            yield cls(address, pinging, asking, registering)

    @contextlib.asynccontextmanager
    async def observing(self, seen: Observation | None = None) -> AsyncIterator[Observation]:
        """Observe while the body runs; what is under way then is waited for.

        Args:
            seen: what is added to; None: it begins anew.
        """
        seen = Observation() if seen is None else seen
        numbers = itertools.count()
        acts: list[tuple[str, float, Callable[[], Awaitable[Any]]]] = [
            ("ping", PING_PERIOD_S, self._pinging.ping),
            ("query", QUERY_PERIOD_S, self._asking.latest),
            ("query", QUERY_PERIOD_S, self._asking.newest),
            ("register", REGISTER_PERIOD_S, lambda: self._registering.register(next(numbers))),
            ("connect", CONNECT_PERIOD_S, self._connect),
        ]
        self._stopping.clear()
        loops = [asyncio.create_task(self._schedule(seen, *act)) for act in acts]
        try:
            yield seen
        finally:
            self._stopping.set()
            await asyncio.gather(*loops)

    async def _connect(self) -> None:
        async with Honest.connected(self._address):
            pass

    async def _schedule(
        self, seen: Observation, kind: str, period_s: float, act: Callable[[], Awaitable[Any]]
    ) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        under_way = []
        while not self._stopping.is_set():
            under_way.append(asyncio.create_task(seen.time(kind, act)))
            due += period_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._stopping.wait()
        await asyncio.gather(*under_way)
