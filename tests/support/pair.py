"""A pair of gateways in processes of their own, with a real Monitor Server each."""

import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, Protocol

from tests.support.gateway import Gateway, gateway
from tests.support.hat_peers import HOST, MonitorServer, monitor_server


class StartCb(Protocol):
    """Starts the gateway with this ``server_id``, 1 or 2, on its store; it ends with the pair."""

    def __call__(self, server_id: int, /, *, port: int = 0, **core: Any) -> Awaitable[Gateway]:
        """See the class.

        Args:
            server_id: which of the two.
            port: where it listens; 0: at a free one.
            core: what is added to ``event_core``.
        """


def core(server_id: int, monitor_port: int) -> dict[str, Any]:
    """``event_core`` of a member of the group."""
    return {
        "server_id": server_id,
        "eventer_server": {"host": HOST, "port": 0, "token": "pair"},
        "monitor": {"host": HOST, "port": monitor_port, "group": "gateways"},
    }


@contextlib.asynccontextmanager
async def pair(path: Path) -> AsyncIterator[tuple[StartCb, list[MonitorServer]]]:
    """Two Monitor Servers, and what starts the gateway at each; the first is preferred."""
    async with (
        monitor_server(path / "monitor1", rank=1) as first,
        monitor_server(path / "monitor2", rank=2, master_port=first.master_port) as second,
        contextlib.AsyncExitStack() as gateways,
    ):
        monitors = [first, second]

        async def start(server_id: int, /, *, port: int = 0, **keys: Any) -> Gateway:
            conf = {**core(server_id, monitors[server_id - 1].port), **keys}
            running = gateway(path / str(server_id), core=conf, port=port)
            return await gateways.enter_async_context(running)

        yield start, monitors
