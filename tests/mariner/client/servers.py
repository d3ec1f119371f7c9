"""Servers that the client connects to: ours, and hat-mariner-server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from eventer_bridge.model import JsonPayload, RegisterEvent
from mariner import client
from tests.support.gateway import gateway
from tests.support.hat_peers import CLIENTS, hat_gateway

READER: Final = {
    "name": "reader",
    "token": "reads",
    "subscriptions": [["*"]],
    "register_events": [],
}

MIB: Final = 1 << 20


class Server(NamedTuple):
    host: str
    port: int
    is_ours: bool

    async def connect(self, name: str = "app", **options: Any) -> client.Client:
        options = {"client_token": "secret", **options}
        return await client.connect(self.host, self.port, client_name=name, **options)


@contextlib.asynccontextmanager
async def running(kind: str, directory: Path) -> AsyncIterator[Server]:
    clients = [*CLIENTS, READER]
    if kind == "hat":
        async with hat_gateway(directory, clients=clients) as theirs:
            yield Server(theirs.host, theirs.mariner_port, False)
    else:
        async with gateway(directory, clients=clients) as ours:
            yield Server(ours.host, ours.port, True)


def register_event(*event_type: str, value: Any = None) -> RegisterEvent:
    return RegisterEvent(event_type, None, JsonPayload.of(value))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a state; the test's timeout is the bound."""
    while not condition():
        await asyncio.sleep(0.005)
