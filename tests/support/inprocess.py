"""A gateway in the process of the test."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from mariner.gateway import config_file
from mariner.gateway.gateway import Gateway, create

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
    gateway = await create(config_file.parse(data, "test"))
    try:
        yield gateway
    finally:
        await gateway.async_close()


async def metrics_text_of(http_port: int | None) -> str:
    """What ``/metrics`` of a gateway of this machine tells."""
    url = f"http://127.0.0.1:{http_port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


async def metrics_of(gateway: Gateway, prefix: str) -> dict[str, float]:
    """What ``/metrics`` of a gateway tells: values by names without this prefix."""
    assert gateway.http is not None
    lines = (await metrics_text_of(gateway.http.port)).splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith(prefix)]
    return {name.removeprefix(prefix): float(value) for name, value in pairs}


async def metrics_of_wire(gateway: Gateway, wire: str) -> dict[str, float]:
    """What ``/metrics`` of a gateway tells of a wire: values by names without ``mariner_`` and
    without the label ``wire``."""
    found: dict[str, float] = {}
    for series, value in (await metrics_of(gateway, "mariner_")).items():
        name, _, labels = series.partition("{")
        rest = [i for i in labels.removesuffix("}").split(",") if i]
        if f'wire="{wire}"' in rest:
            rest.remove(f'wire="{wire}"')
            found[f"{name}{{{','.join(rest)}}}" if rest else name] = value
    return found
