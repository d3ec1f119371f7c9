"""The public packages hat-event, hat-mariner and hat-monitor as real peers, in own processes.

``hat-mariner-server`` in front of ``hat-event-server``, and ``hat-monitor-server``; all on the
loopback interface, with ports that the kernel chose.
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

MASTER_HOST: Final = "127.0.0.2"
"""Where Monitor Servers listen for each other: of their two ports, it tells which is which."""

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
    """A running hat-event-server."""

    host: str
    port: int
    pid: int


class MonitorServer(NamedTuple):
    """A running hat-monitor-server.

    Attributes:
        port: where components connect to, on :data:`HOST`.
        master_port: where other Monitor Servers connect to, on :data:`MASTER_HOST`.
        process: the server.
    """

    port: int
    master_port: int
    process: Process


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
    listen: tuple[str, int] = (HOST, 0),
    monitor_component: dict[str, Any] | None = None,
    status: hat_common.Status = hat_common.Status.OPERATIONAL,
    backend: dict[str, Any] | None = None,
) -> AsyncIterator[HatEventServer]:
    """Run hat-event-server, on its LMDB backend unless told.

    Args:
        directory: where its configuration, output and database (``events.db``) are; a
            database that is there already is continued.
        server_id: identifier of the server.
        server_token: what Eventer clients have to give, where they give any.
        flush_period_s: how often it writes to the disk; only then are events persisted.
        listen: host and port; a Monitor Server tells of what is given here.
        monitor_component: of its configuration: where the Monitor Server is, and the group.
        status: what it is to become before it is used.
        backend: of its configuration, in place of LMDB.

    Raises:
        ChildError: it did not start, or did not end well.
    """
    conf = _event_server_conf(directory, server_id, server_token)
    conf["backend"]["flush_period"] = flush_period_s
    if backend is not None:
        conf["backend"] = backend
    host, conf["eventer_server"]["port"] = listen
    conf["eventer_server"]["host"] = host
    if monitor_component is not None:
        conf["monitor_component"] = monitor_component
    conf_path = write_conf(directory / "hat-event.json", conf)
    output = directory / "hat-event.log"
    async with processes.child(
        "hat.event.server", "--conf", str(conf_path), output=output
    ) as process:
        port = await processes.wait_listening(process, output)
        await _wait_status(process, output, net.TcpAddress(host, port), status)
        yield HatEventServer(host, port, process.pid)


@contextlib.asynccontextmanager
async def hat_gateway(
    directory: Path, *, clients: list[dict[str, Any]] | None = None, flush_period_s: float = 10
) -> AsyncIterator[HatGateway]:
    """Run hat-mariner-server in front of hat-event-server (LMDB backend).

    Args:
        directory: where configurations, outputs and the database are; a database that is
            there already is continued.
        clients: as in a hat-mariner configuration; None: :data:`CLIENTS`.
        flush_period_s: see :func:`hat_event_server`.

    Raises:
        ChildError: one of them did not start, or did not end well.
    """
    async with (
        hat_event_server(directory, flush_period_s=flush_period_s) as event_server,
        _mariner_server(directory, event_server.port, clients) as (port, pid),
    ):
        yield HatGateway(HOST, port, event_server.port, event_server.pid, pid)


@contextlib.asynccontextmanager
async def hat_mariner_server(directory: Path, eventer_port: int) -> AsyncIterator[int]:
    """Run hat-mariner-server in front of an Event Server that is there; gives its port.

    Args:
        directory: where its configuration and output are.
        eventer_port: of the Event Server, on this machine.

    Raises:
        ChildError: it did not start, or did not end well.
    """
    async with _mariner_server(directory, eventer_port, None) as (port, _):
        yield port


def mariner_conf(eventer_port: int, clients: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Configuration of hat-mariner-server."""
    return {
        "type": "mariner",
        "name": "hat",
        "mariner": {"host": HOST, "port": 0},
        "eventer": {"host": HOST, "port": eventer_port, "token": None},
        "clients": CLIENTS if clients is None else clients,
    }


@contextlib.asynccontextmanager
async def _mariner_server(
    directory: Path, eventer_port: int, clients: list[dict[str, Any]] | None
) -> AsyncIterator[tuple[int, int]]:
    conf = write_conf(directory / "hat-mariner.json", mariner_conf(eventer_port, clients))
    output = directory / "hat-mariner.log"
    async with processes.child("hat.mariner.server", "--conf", str(conf), output=output) as process:
        yield await processes.wait_listening(process, output), process.pid


@contextlib.asynccontextmanager
async def monitor_server(
    directory: Path, *, rank: int = 1, port: int = 0, master_port: int | None = None
) -> AsyncIterator[MonitorServer]:
    """Run hat-monitor-server, which blesses one component of each group.

    Args:
        directory: where its configuration and output are.
        rank: of its components; the lowest is preferred.
        port: where components connect to.
        master_port: of the Monitor Server that this one follows; None: this one decides.

    Raises:
        ChildError: it did not start, or did not end well.
    """
    parents = [] if master_port is None else [{"host": MASTER_HOST, "port": master_port}]
    conf = {
        "type": "monitor",
        "default_algorithm": "BLESS_ONE",
        "group_algorithms": {},
        "server": {"host": HOST, "port": port, "default_rank": rank},
        "master": {"host": MASTER_HOST, "port": 0},
        "slave": {
            "parents": parents,
            "connect_timeout": 5,
            "connect_retry_count": 3,
            "connect_retry_delay": 0.1,
        },
    }
    conf_path = write_conf(directory / "hat-monitor.json", conf)
    output = directory / "hat-monitor.log"
    async with processes.child(
        "hat.monitor.server", "--conf", str(conf_path), output=output
    ) as process:
        listening = await processes.wait_listening(process, output, HOST)
        master_listening = await processes.wait_listening(process, output, MASTER_HOST)
        yield MonitorServer(listening, master_listening, process)


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


async def _wait_status(
    process: Process, output: Path, address: net.TcpAddress, status: hat_common.Status
) -> None:
    """Wait for a status; where it is OPERATIONAL, two events of this are left in the store."""
    client = await eventer.connect(address, "readiness")

    async def probe() -> bool | None:
        return client.status == status or None

    try:
        await processes.wait_ready(process, output, probe)
    finally:
        await client.async_close()


def write_conf(path: Path, conf: dict[str, Any]) -> Path:
    """Write a configuration, into a directory that need not be there."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(conf, indent=2))
    return path
