"""A gateway closes in bounded time, whatever becomes of its connections."""

import asyncio
from typing import Any, Final

import pytest

from eventer_bridge import chatter
from eventer_bridge.net import limits
from eventer_bridge.rsb.transport import RsbConnection
from mariner.server.connection import ClientConnection
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer
from tests.torture.attacks import eventer, rsb
from tests.torture.attacks.attack import Target

CORE: Final = {
    "server_id": 1,
    "backend": {"type": "memory"},
    "eventer_server": {"host": "127.0.0.1", "port": 0, "token": "insider"},
    "rsb": {"host": "127.0.0.1", "port": 0, "mode": "server"},
}


async def test_connections_whose_end_nobody_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLOSE_TIMEOUT_S", 0.05)
    async with asyncio.timeout(60), running_gateway(event_core=CORE) as gateway:
        assert gateway.eventer_server is not None
        assert gateway.rsb is not None
        peer = await RawPeer.init(gateway.mariner.port)
        ports = gateway.eventer_server.address.port, gateway.rsb.port or 0
        target = Target(gateway.mariner.port, *ports, 0, 1)
        component = await asyncio.to_thread(eventer.Component, target.eventer)
        participant = await asyncio.to_thread(rsb.connect, target)

        def ignore(connection: Any, error: Exception | None) -> None:
            pass

        for kind in ClientConnection, chatter.Connection, RsbConnection:
            monkeypatch.setattr(kind, "connection_lost", ignore)
    peer.writer.close()
    component.socket.close()
    participant.close()
