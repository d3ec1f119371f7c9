"""A gateway catches up with large events of another one, which goes on registering more of them."""

import asyncio
import random
from pathlib import Path
from typing import Final

import psutil

from eventer_bridge.model import BinaryPayload, EventId, RegisterEvent
from mariner.client.client import Client
from tests.support.gateway import Gateway, gateway
from tests.torture.catching_up import has
from tests.torture.clients import connected
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress

EVENT_BYTES: int = 11_000_000
"""Of a payload, which Mariner sends as base64: messages of 15 MB."""

N_STORED: int = 60
N_LIVE: int = 40

MAX_MORE_BYTES: Final = 300 << 20
"""Memory that the replica may take more than before."""

LOOK_PERIOD_S: Final = 0.02


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Have ``rounds`` new gateways catch up, one after the other.

    Raises:
        ViolationError: one takes too much memory.
    """
    listen = {"host": "127.0.0.1", "port": 0}
    facts: list[str] = []
    async with (
        gateway(directory / "source", core={"eventer_server": listen}) as source,
        connected(source) as client,
    ):
        await _register(client, N_STORED, chance)
        for n in range(1, rounds + 1):
            facts.append(await _catch_up(directory / f"replica{n}", source, client, chance))
            progress(n, rounds)
    return f"{N_STORED} events of {EVENT_BYTES / 1e6:g} MB, {N_LIVE} live ones: " + "; ".join(facts)


async def _register(client: Client, n_events: int, chance: random.Random) -> EventId:
    """Register large events, and a small one, whose id is returned."""
    for _ in range(n_events):
        payload = BinaryPayload("large", chance.randbytes(EVENT_BYTES))
        await client.register([RegisterEvent(("large",), None, payload)])
    return (await client.register([RegisterEvent(("small",), None, None)]))[0].id


async def _catch_up(path: Path, source: Gateway, client: Client, chance: random.Random) -> str:
    remote = {"server_id": 1, "host": "127.0.0.1", "port": source.eventer_port}
    core = {"server_id": 2, "replication": [remote]}
    async with gateway(path, core=core) as replica, connected(replica) as reader:
        process = psutil.Process(replica.pid)
        before = most = process.memory_info().rss
        registering = asyncio.create_task(_register(client, N_LIVE, chance))
        while not (registering.done() and await has(reader, registering.result())):
            most = max(most, process.memory_info().rss)
            await asyncio.sleep(LOOK_PERIOD_S)
    more_bytes = most - before
    if more_bytes > MAX_MORE_BYTES:
        raise ViolationError(f"memory +{more_bytes >> 20} MB, at most +{MAX_MORE_BYTES >> 20}")
    return f"memory +{more_bytes >> 20} MB"
