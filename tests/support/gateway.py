"""Our gateway in its own process, as an operator starts it: ``mariner serve --conf``."""

import contextlib
import re
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from tests.support import process as processes
from tests.support.hat_peers import CLIENTS, HOST, write_conf

_LISTENING: Final = re.compile(
    r"listening: (mariner|eventer|http|rsb) [\w+]+://[^ ]*:(\d+)$", re.MULTILINE
)


class Gateway(NamedTuple):
    """A running gateway that accepts connections."""

    host: str
    port: int
    http_port: int | None
    rsb_port: int | None
    eventer_port: int | None
    pid: int
    process: Process
    stderr_path: Path


@contextlib.asynccontextmanager
async def gateway(
    directory: Path,
    *,
    clients: list[dict[str, Any]] | None = None,
    tls: dict[str, Any] | None = None,
    backend: Literal["rocksdb", "memory", "dummy"] = "rocksdb",
    http: bool = False,
    modules: Sequence[dict[str, Any]] = (),
    core: Mapping[str, Any] | None = None,
    schemas: Sequence[Mapping[str, Any]] = (),
    remote: dict[str, Any] | None = None,
    store: Path | None = None,
    control: Path | None = None,
    port: int = 0,
    arguments: Sequence[str] = (),
    wrapper: Sequence[str] = (),
    program: str = "mariner",
    environment: Mapping[str, str] | None = None,
    is_fresh: bool = False,
    **keys: Any,
) -> AsyncIterator[Gateway]:
    """Run ``python -m mariner serve``; on the way out SIGTERM, which has to give exit code 0.

    The body may kill the process (SIGKILL) itself.

    Args:
        directory: where configuration, output and store (``events``) are; a store that is
            there already is continued.
        clients: ``clients`` of the configuration; None: one that may do everything
            (``app`` with token ``secret``).
        tls: ``mariner.tls`` of the configuration.
        backend: which store.
        http: also serve health and metrics.
        modules, schemas: ``event_core.modules`` and ``schemas``.
        core, remote: what is different in ``event_core``; ``eventer`` in place of that.
        store, control: where the store is, if not in ``directory``; ``control``.
        port: where it listens: the port of a gateway that ended, for those who wait for it.
        arguments: further ones of ``serve``.
        wrapper, environment, is_fresh: see ``process.child``.
        keys: further keys of the configuration.
        program: module that is run in place of ``mariner``, with its arguments.

    Raises:
        ChildError: it did not start, or did not end with exit code 0.
    """
    conf = _conf(clients, tls, port, http=http, schemas=schemas, control=control)
    if remote is None:
        conf["event_core"] = {
            "server_id": 1,
            "backend": _backend_conf(backend, store or directory / "events"),
            "modules": [*modules],
            **(core or {}),
        }
    else:
        conf["eventer"] = remote
    conf_path = write_conf(directory / "gateway.json", {**conf, **keys})
    output = directory / "gateway.log"
    output.unlink(missing_ok=True)

    async with processes.child(
        *(program, "serve", "--conf", str(conf_path), *arguments),
        output=output,
        wrapper=wrapper,
        environment=environment,
        is_fresh=is_fresh,
    ) as process:
        ports = await _wait_ports(process, output, _listeners(conf))
        http_port, rsb_port, eventer_port = map(ports.get, ("http", "rsb", "eventer"))
        ports_there = http_port, rsb_port, eventer_port
        yield Gateway(HOST, ports["mariner"], *ports_there, process.pid, process, output)


def _conf(
    clients: list[dict[str, Any]] | None,
    tls: dict[str, Any] | None,
    port: int,
    *,
    http: bool,
    schemas: Sequence[Mapping[str, Any]],
    control: Path | None,
) -> dict[str, Any]:
    conf: dict[str, Any] = {
        "type": "mariner",
        "name": "gateway",
        "mariner": {"host": HOST, "port": port},
        "clients": CLIENTS if clients is None else clients,
        "schemas": [*schemas],
    }
    if tls is not None:
        conf["mariner"]["tls"] = tls
    if control is not None:
        conf["control"] = str(control)
    if http:
        conf["http"] = {"host": HOST, "port": 0}
    return conf


def _backend_conf(backend: str, path: Path) -> dict[str, str]:
    return {"type": backend, "path": str(path)} if backend == "rocksdb" else {"type": backend}


def _listeners(conf: Mapping[str, Any]) -> set[str]:
    """Names of what listens, by the configuration."""
    core = conf.get("event_core", {})
    wanted = {
        "mariner": True,
        "http": "http" in conf,
        "eventer": "eventer_server" in core,
        "rsb": core.get("rsb", {}).get("mode") == "server",
    }
    return {name for name, is_wanted in wanted.items() if is_wanted}


def listening(text: str) -> dict[str, int]:
    """The ports that a gateway told to listen at, by what listens there."""
    return {name: int(port) for name, port in _LISTENING.findall(text)}


async def _wait_ports(process: Process, output: Path, expected: set[str]) -> dict[str, int]:
    async def probe() -> dict[str, int] | None:
        ports = listening(processes.tail(output))
        return ports if ports.keys() >= expected else None

    return await processes.wait_ready(process, output, probe)
