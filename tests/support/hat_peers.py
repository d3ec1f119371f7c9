"""The public packages hat-event and hat-mariner as real peers, each in its own process.

``hat-mariner-server`` in front of ``hat-event-server``, all on 127.0.0.1, with ports that
the kernel chose.
"""

import contextlib
import json
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from hat.drivers import net
from hat.event import common as hat_common
from hat.event import eventer

from tests.support import process as processes

HOST: Final = "127.0.0.1"

CLIENTS: Final[list[dict[str, Any]]] = [
    {
        "name": "app",
        "token": "secret",
        "subscriptions": [["*"]],
        "register_events": [{"subscriptions": [["*"]]}],
    }
]
"""One client that may do everything: what a gateway of the tests has unless told."""


class HatEventServer(NamedTuple):
    """A running hat-event-server, OPERATIONAL."""

    host: str
    port: int
    pid: int


class HatGateway(NamedTuple):
    """A running hat-mariner-server and the hat-event-server behind it."""

    host: str
    mariner_port: int
    eventer_port: int
    event_server_pid: int
    mariner_server_pid: int


@contextlib.asynccontextmanager
async def hat_event_server(
    directory: Path,
    *,
    server_id: int = 1,
    server_token: str | None = None,
    flush_period_s: float = 10,
) -> AsyncIterator[HatEventServer]:
    """Run hat-event-server on its LMDB backend.

    Args:
        directory: where its configuration, output and database (``events.db``) are; a
            database that is there already is continued.
        server_id: identifier of the server.
        server_token: what Eventer clients have to give, where they give any.
        flush_period_s: how often it writes to the disk; only then are events persisted.

    Raises:
        ChildError: it did not start, or did not end well.
    """
    conf = _event_server_conf(directory, server_id, server_token)
    conf["backend"]["flush_period"] = flush_period_s
    conf_path = _write(directory / "hat-event.json", conf)
    output = directory / "hat-event.log"
    async with processes.child(
        "hat.event.server", "--conf", str(conf_path), output=output
    ) as process:
        port = await processes.wait_listening(process, output)
        await _wait_operational(process, output, port)
        yield HatEventServer(HOST, port, process.pid)


@contextlib.asynccontextmanager
async def hat_gateway(
    directory: Path, *, clients: list[dict[str, Any]] | None = None
) -> AsyncIterator[HatGateway]:
    """Run hat-mariner-server in front of hat-event-server (LMDB backend).

    Args:
        directory: where configurations, outputs and the database are; a database that is
            there already is continued.
        clients: as in a hat-mariner configuration; None: :data:`CLIENTS`.

    Raises:
        ChildError: one of them did not start, or did not end well.
    """
    async with hat_event_server(directory) as event_server:
        mariner_conf = {
            "type": "mariner",
            "name": "hat",
            "mariner": {"host": HOST, "port": 0},
            "eventer": {"host": HOST, "port": event_server.port, "token": None},
            "clients": CLIENTS if clients is None else clients,
        }
        conf = _write(directory / "hat-mariner.json", mariner_conf)
        output = directory / "hat-mariner.log"
        async with processes.child(
            "hat.mariner.server", "--conf", str(conf), output=output
        ) as process:
            port = await processes.wait_listening(process, output)
            yield HatGateway(HOST, port, event_server.port, event_server.pid, process.pid)


def _event_server_conf(directory: Path, server_id: int, server_token: str | None) -> dict[str, Any]:
    everything = [["*"]]
    return {
        "type": "event",
        "name": "hat",
        "server_id": server_id,
        "server_token": server_token,
        "eventer_server": {"host": HOST, "port": 0},
        "backend": {
            "module": "hat.event.backends.lmdb",
            "db_path": str(directory / "events.db"),
            "identifier": None,
            # these two have no default in its schema
            "flush_period": 10,
            "cleanup_period": 60,
            "conditions": [],
            "latest": {"subscriptions": everything},
            "timeseries": [
                {"order_by": "TIMESTAMP", "subscriptions": everything},
                {"order_by": "SOURCE_TIMESTAMP", "subscriptions": everything},
            ],
        },
        "modules": [],
    }


async def _wait_operational(process: Process, output: Path, port: int) -> None:
    """Wait until registration is possible; leaves two events of its own in the store."""
    client = await eventer.connect(net.TcpAddress(HOST, port), "readiness")

    async def probe() -> bool | None:
        return client.status == hat_common.Status.OPERATIONAL or None

    try:
        await processes.wait_ready(process, output, probe)
    finally:
        await client.async_close()


def _write(path: Path, conf: dict[str, Any]) -> Path:
    path.write_text(json.dumps(conf, indent=2))
    return path
