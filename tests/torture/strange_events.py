"""A server has stored what no client may register: it is replicated, and relayed to.

Hat's own clients hear of what the replica and the relay take: what is strange would end their
connections, and what is too large would end those of all others.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import msgspec
from hat.drivers import net
from hat.event import common
from hat.event import eventer as hat_eventer
from hat.mariner import client as hat_mariner

from eventer_bridge.model import (
    BinaryPayload,
    JsonPayload,
    Payload,
    RegisterEvent,
    SourceType,
    Status,
)
from mariner.gateway.gateway import Gateway as Source
from tests.support.event_servers import event_server, eventer_port
from tests.support.gateway import Gateway, gateway
from tests.torture.clients import connected
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress

LARGEST_BYTES: int = 24 << 20
"""Of a payload. The server has to buffer it for three connections, and holds 160 MB at the most."""

_TOO_LARGE_BYTES: Final = 17 << 20

TIMEOUT_S: Final = 60.0
"""Until all has arrived."""

_GOOD: Final = ("good", "*")
_STRANGE: Final = ("strange", "*")


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Have a server register strange events among good ones, ``rounds`` times.

    Raises:
        ViolationError: a client heard of a strange one, not of each good one once and in order,
            or lost its connection; or what was left out was not counted.
    """
    async with contextlib.AsyncExitStack() as stack:
        source = await stack.enter_async_context(event_server(directory, 1))
        remote = {"host": "127.0.0.1", "port": eventer_port(source)}
        core = {
            "server_id": 2,
            "eventer_server": {"host": "127.0.0.1", "port": 0},
            "replication": [{"server_id": 1, **remote}],
        }
        replica = await stack.enter_async_context(
            gateway(directory / "replica", core=core, http=True)
        )
        relay = await stack.enter_async_context(
            gateway(directory / "relay", remote={**remote, "token": None}, http=True)
        )
        await _until_operational(relay)
        hearings = [
            await stack.enter_async_context(_hearing_eventer(replica)),
            await stack.enter_async_context(_hearing_mariner(replica, "replica")),
            await stack.enter_async_context(_hearing_mariner(relay, "relay")),
        ]
        n_good = n_strange = 0
        for n in range(1, rounds + 1):
            strange = _strange(chance)
            for payload in strange:
                await _register(source, [n_good, payload, n_good + 1])
                await _register(source, [payload])
                n_good += 2
                n_strange += 2
            progress(n, rounds)
        await _register(source, [n_good])
        n_good += 1
        for hearing in hearings:
            await hearing.check(n_good)
        n_counted = [await _n_refused(i) for i in (replica, relay)]
        if min(n_counted) < n_strange:
            raise ViolationError(f"{n_strange} strange events, counted were {n_counted}")
        for checked in (replica, relay):
            await _check_latest(checked, n_good)
    return (
        f"{n_strange} strange events among {n_good} good ones: each good one heard of once by"
        f" {len(hearings)} clients of Hat, none of the strange ones"
    )


def _strange(chance: random.Random) -> list[Payload]:
    depth = chance.randrange(129, 500)
    n_digits = chance.choice([1_001, 4_301, 6_001, 100_000])
    payloads: list[Payload] = [
        JsonPayload(msgspec.Raw(b"[" * depth + b"]" * depth)),
        JsonPayload(msgspec.Raw(b'{"a":' * depth + b"1" + b"}" * depth)),
        JsonPayload(msgspec.Raw(b"1" * n_digits)),
        JsonPayload(msgspec.Raw(b'[1, "2", 3.' + b"4" * n_digits + b"]")),
    ]
    if LARGEST_BYTES > _TOO_LARGE_BYTES:
        payloads.append(BinaryPayload("film", bytes(LARGEST_BYTES)))
        payloads.append(BinaryPayload("x" * _TOO_LARGE_BYTES, b""))
    return payloads


async def _register(source: Source, values: list[int | Payload]) -> None:
    """Store what no wire would take, as a server of another make may have done."""
    events = [
        RegisterEvent(("good", str(i % 5)), None, JsonPayload.of(i))
        if isinstance(i, int)
        else RegisterEvent(("strange", str(number)), None, i)
        for number, i in enumerate(values)
    ]
    await source.core.register(source.core.create_source(SourceType.CONNECTION), events).committed


class _Hearing:
    """What a client of Hat hears."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._events: list[Any] = []
        self._changed = asyncio.Event()
        self.connection: Any = None

    def hear(self, _: object, events: Any) -> None:
        self._events.extend(events)
        self._changed.set()

    async def check(self, n_good: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                while len(self._events) < n_good and self.connection.is_open:
                    self._changed.clear()
                    closing = asyncio.ensure_future(self.connection.wait_closing())
                    hearing = asyncio.ensure_future(self._changed.wait())
                    await asyncio.wait([closing, hearing], return_when=asyncio.FIRST_COMPLETED)
                    closing.cancel()
                    hearing.cancel()
        if not self.connection.is_open:
            raise ViolationError(f"{self._name}: a client lost its connection")
        values = [event.payload.data for event in self._events]
        if values != [*range(n_good)]:
            raise ViolationError(f"{self._name}: heard of {len(values)} events of {n_good}")


@contextlib.asynccontextmanager
async def _hearing_eventer(server: Gateway) -> AsyncIterator[_Hearing]:
    assert server.eventer_port is not None
    hearing = _Hearing("replica, Eventer")
    hearing.connection = await hat_eventer.connect(
        net.TcpAddress(server.host, server.eventer_port),
        "torture",
        subscriptions=[_GOOD, _STRANGE],
        persisted=True,
        events_cb=hearing.hear,
    )
    try:
        yield hearing
    finally:
        await hearing.connection.async_close()


@contextlib.asynccontextmanager
async def _hearing_mariner(server: Gateway, name: str) -> AsyncIterator[_Hearing]:
    hearing = _Hearing(f"{name}, Mariner")
    hearing.connection = await hat_mariner.connect(
        net.TcpAddress(server.host, server.port),
        "app",
        client_token="secret",
        subscriptions=[_GOOD, _STRANGE],
        persisted=True,
        events_cb=hearing.hear,
    )
    try:
        yield hearing
    finally:
        await hearing.connection.async_close()


async def _until_operational(relay: Gateway) -> None:
    async with connected(relay) as client, asyncio.timeout(TIMEOUT_S):
        await client.wait_status(Status.OPERATIONAL)


async def _check_latest(server: Gateway, n_good: int) -> None:
    """The latest events of all types, as Hat's client reads them."""
    connection = await hat_mariner.connect(
        net.TcpAddress(server.host, server.port), "app", client_token="secret"
    )
    try:
        result = await connection.query(common.QueryLatestParams([_GOOD, _STRANGE]))
    finally:
        await connection.async_close()
    found = sorted(event.payload.data for event in result.events)
    if found != [*range(max(0, n_good - 5), n_good)]:
        raise ViolationError(f"the latest events are {found}")


async def _n_refused(server: Gateway) -> float:
    def read() -> str:
        with urlopen(f"http://{server.host}:{server.http_port}/metrics") as response:
            text: str = response.read().decode()
            return text

    lines = (await asyncio.to_thread(read)).splitlines()
    name = "mariner_remote_events_refused_total"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
