"""Metrics of remote Event Servers: whether a relay or a replication works."""

import asyncio
import contextlib
import socket
from pathlib import Path

from mariner.gateway.gateway import Gateway
from tests.support.event_servers import event_server, eventer_port
from tests.support.inprocess import metrics_of, running_gateway

HTTP = {"host": "127.0.0.1", "port": 0}


async def until_metrics(gateway: Gateway, expected: dict[str, float]) -> None:
    """Wait until ``/metrics`` tells exactly these of connections and replications."""
    while True:
        metrics = await metrics_of(gateway, "mariner_re")
        names = ("mote_connected", "plication_synced")
        if {k: v for k, v in metrics.items() if k.startswith(names)} == expected:
            return
        await asyncio.sleep(0.01)


async def test_of_a_relay(tmp_path: Path) -> None:
    async with event_server(tmp_path, 1) as remote:
        port = eventer_port(remote)
        conf = {"host": "127.0.0.1", "port": port, "token": None}
        async with running_gateway(eventer=conf, http=HTTP) as relay:
            connected = f'mote_connected{{server="127.0.0.1:{port}"}}'
            await until_metrics(relay, {connected: 1})
            await remote.async_close()
            await until_metrics(relay, {connected: 0})


async def test_of_replications(tmp_path: Path) -> None:
    def expected(is_connected: int, is_synced: int) -> dict[str, float]:
        return {
            'mote_connected{server="server 1"}': is_connected,
            'mote_connected{server="server 3"}': 0,
            'plication_synced{server="server 1"}': is_synced,
            'plication_synced{server="server 3"}': 0,
        }

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens there
        async with contextlib.AsyncExitStack() as stack:
            first = await stack.enter_async_context(event_server(tmp_path, 1))
            port = eventer_port(first)
            remotes = {1: port, 3: unused.getsockname()[1]}
            replica = await stack.enter_async_context(
                event_server(tmp_path, 2, remotes=remotes, http=HTTP)
            )
            await until_metrics(replica, expected(1, 1))
            await first.async_close()
            await until_metrics(replica, expected(0, 0))
            await stack.enter_async_context(event_server(tmp_path, 1, port=port))
            await until_metrics(replica, expected(1, 1))
