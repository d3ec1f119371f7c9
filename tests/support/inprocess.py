"""A gateway in the process of the test."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from mariner import config
from mariner.gateway import Gateway, create

APP = {
    "name": "app",
    "token": "secret",
    "subscriptions": [["*"]],
    "register_events": [{"subscriptions": [["*"]]}],
}


@contextlib.asynccontextmanager
async def running_gateway(
    clients: list[dict[str, Any]] | None = None,
    *,
    path: Path | None = None,
    **keys: Any,
) -> AsyncIterator[Gateway]:
    """A gateway on a free port, in memory or with a store at ``path``; ``keys`` are added
    to its configuration."""
    backend = {"type": "memory"} if path is None else {"type": "rocksdb", "path": str(path)}
    data: dict[str, Any] = {
        "name": "test",
        "mariner": {"host": "127.0.0.1", "port": 0},
        "event_core": {"server_id": 1, "backend": backend},
        "clients": [APP] if clients is None else clients,
        "schemas": [],
        **keys,
    }
    if "eventer" in data:
        del data["event_core"]
    gateway = await create(config.parse(data, "test"))
    try:
        yield gateway
    finally:
        await gateway.async_close()
