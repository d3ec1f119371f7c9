"""A running gateway whose configuration is changed and reloaded."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from mariner.gateway import config_file
from mariner.gateway.gateway import Gateway, create
from mariner.gateway.reloading import Reloader
from tests.support.inprocess import APP
from tests.support.peer import INIT, RawPeer, event, register_req

TIMEOUT_S: Final = 60.0

QUERY: Final = {"msg_type": "query_req", "query_id": 1, "query_type": "latest"}


class Running:
    """A gateway whose configuration is changed and reloaded."""

    def __init__(self, path: Path, gateway: Gateway) -> None:
        self.path = path
        self.gateway = gateway
        self.conf = json.loads(path.read_text())
        self.reloader = Reloader(path, gateway)

    @property
    def port(self) -> int:
        return self.gateway.mariner.port

    async def reload(self, **keys: Any) -> dict[str, list[str]]:
        """With these keys of the configuration changed."""
        self.conf.update(keys)
        self.path.write_text(json.dumps(self.conf))
        return await self.reloader.reload()

    async def closed(self, peer: RawPeer) -> None:
        """Wait until the gateway closes a connection."""
        async with asyncio.timeout(TIMEOUT_S):
            assert await peer.is_closed_by_server()

    async def answer(self, **properties: Any) -> str | None:
        """Why a login is declined; None: it is not."""
        async with await RawPeer.connect(self.port) as peer:
            peer.send({**INIT, **properties})
            response = await peer.receive()
            return None if response["success"] else response["error"]


@contextlib.asynccontextmanager
async def running(tmp_path: Path, **keys: Any) -> AsyncIterator[Running]:
    conf = {
        "name": "test",
        "mariner": {"host": "127.0.0.1", "port": 0},
        "event_core": {"server_id": 1, "backend": {"type": "memory"}},
        "clients": [APP],
        "schemas": [],
        **keys,
    }
    path = tmp_path / "gateway.json"
    path.write_text(json.dumps(conf))
    gateway = await create(config_file.load(path))
    try:
        yield Running(path, gateway)
    finally:
        await gateway.async_close()


def client(**properties: Any) -> dict[str, Any]:
    return {**APP, **properties}


async def registered(peer: RawPeer, *segments: str, value: Any = 1) -> str | None:
    """Why a registration is refused; None: it is not."""
    answer = await peer.request(register_req(1, event(*segments, value=value)))
    return None if answer["success"] else answer["error"]
