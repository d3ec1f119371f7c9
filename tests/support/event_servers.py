"""Gateways in the process of the test that serve Eventer clients and replicate each other."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eventer_bridge.model import Event, QueryServerParams
from mariner.gateway.gateway import Gateway
from tests.support.inprocess import running_gateway


@contextlib.asynccontextmanager
async def event_server(
    path: Path,
    server_id: int,
    *,
    port: int = 0,
    remotes: dict[int, int] | None = None,
    retention: Sequence[dict[str, Any]] = (),
    core: Mapping[str, Any] = {},
    **keys: Any,
) -> AsyncIterator[Gateway]:
    """A gateway with an Eventer server that replicates others (server id → port); ``core`` is
    added to its ``event_core``, ``keys`` to its configuration."""
    event_core = {
        "server_id": server_id,
        "backend": {
            "type": "rocksdb",
            "path": str(path / f"store{server_id}"),
            "retention": [*retention],
        },
        "eventer_server": {"host": "127.0.0.1", "port": port},
        "replication": [
            {"server_id": i, "host": "127.0.0.1", "port": p} for i, p in (remotes or {}).items()
        ],
        **core,
    }
    async with running_gateway(event_core=event_core, **keys) as gateway:
        yield gateway


def eventer_port(gateway: Gateway) -> int:
    """Where its Eventer server listens."""
    assert gateway.eventer_server is not None
    return gateway.eventer_server.address.port


async def events_of(gateway: Gateway, server_id: int) -> list[Event]:
    """Everything that is kept of a server."""
    found: list[Event] = []
    more = True
    while more:
        last = found[-1].id if found else None
        result = await gateway.core.query(QueryServerParams(server_id, last_event_id=last))
        found.extend(result.events)
        more = result.more_follows
    return found
