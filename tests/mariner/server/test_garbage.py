"""Connections that are gone leave no garbage that waits for a collection.

Thousands come and go each second where somebody means ill, and a collection holds up everybody.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mariner.gateway.gateway import Gateway
from tests.support.certificates import make_certificates
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer

LISTENS = {"host": "127.0.0.1", "port": 0}
CORE = {
    "server_id": 1,
    "backend": {"type": "memory"},
    "rsb": {"host": "127.0.0.1", "port": 0, "mode": "server"},
}


async def mariner_stranger(gateway: Gateway) -> None:
    await come_and_go(gateway.mariner.port)


async def mariner_client(gateway: Gateway) -> None:
    async with await RawPeer.init(gateway.mariner.port):
        pass


async def eventer_stranger(gateway: Gateway) -> None:
    assert gateway.eventer_server is not None
    await come_and_go(gateway.eventer_server.address.port)


async def rsb_participant(gateway: Gateway) -> None:
    assert gateway.rsb is not None
    assert gateway.rsb.port is not None
    await come_and_go(gateway.rsb.port)


async def come_and_go(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await writer.wait_closed()


async def lose_slot(gateway: Gateway) -> None:
    async with await RawPeer.connect(gateway.mariner.port) as peer:
        admission = gateway._admission
        async with asyncio.timeout(60):
            while not len(admission._new):
                await asyncio.sleep(0.001)
        slot = admission._new.victim_of_all()
        admission._new.remove(slot)
        slot._evict()
        assert await peer.is_closed_by_server()


async def speak_no_tls(gateway: Gateway) -> None:
    async with await RawPeer.connect(gateway.mariner.port) as peer:
        peer.send_raw(bytes(100))
        assert await peer.is_closed_by_server()


@pytest.fixture
def kept_garbage() -> Iterator[list[Any]]:
    """What a collection finds from now on."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()


PLAIN = [mariner_stranger, mariner_client, eventer_stranger, lose_slot, rsb_participant]
TLS = [mariner_stranger, speak_no_tls, lose_slot, eventer_stranger]


@pytest.mark.parametrize("visit", PLAIN)
async def test_who_comes_and_goes_leaves_none(
    visit: Callable[[Gateway], Awaitable[None]], kept_garbage: list[Any]
) -> None:
    await leaves_none(visit, kept_garbage, LISTENS)


@pytest.mark.parametrize("visit", TLS)
async def test_who_does_not_end_the_handshake_leaves_none(
    visit: Callable[[Gateway], Awaitable[None]],
    kept_garbage: list[Any],
    tmp_path: Path,
) -> None:
    made = make_certificates(tmp_path)
    files = {"cert": str(made.server_cert), "key": str(made.server_key)}
    await leaves_none(visit, kept_garbage, {**LISTENS, "tls": files})


async def leaves_none(
    visit: Callable[[Gateway], Awaitable[None]], kept_garbage: list[Any], listens: dict[str, Any]
) -> None:
    core = {**CORE, "eventer_server": listens}
    async with running_gateway(mariner=listens, event_core=core) as gateway:
        for _ in range(5):
            await visit(gateway)
        assert gateway.eventer_server is not None
        assert gateway.rsb is not None
        parts = gateway.mariner.stats, gateway.eventer_server.stats, gateway.rsb.stats
        async with asyncio.timeout(60):
            while any(stats.connections for stats in parts):
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)  # for what was left to the next turns of the loop
        gc.collect()
        assert sum(stats.accepted for stats in parts) == 5
        kinds = {type(i).__name__ for i in kept_garbage}
    ours = "Connection", "Session", "Protocol", "Slot", "Opening"
    assert not [kind for kind in kinds if any(i in kind for i in ours)], kinds
