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
    port: int = 0,
    arguments: Sequence[str] = (),
    wrapper: Sequence[str] = (),
    program: str = "mariner",
    environment: Mapping[str, str] | None = None,
    is_fresh: bool = False,
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
        modules: ``event_core.modules`` of the configuration.
        core: what is different in ``event_core`` of the configuration.
        schemas: ``schemas`` of the configuration.
        remote: ``eventer`` of the configuration, in place of ``event_core``.
        store: where the store is, if not in ``directory``.
        port: where it listens: the port of a gateway that ended, for those who wait for it.
        arguments: of ``serve``, besides ``--conf``.
        wrapper: see ``process.child``.
        program: module that is run in place of ``mariner``, with its arguments.
        environment: see ``process.child``.
        is_fresh: see ``process.child``.

    Raises:
        ChildError: it did not start, or did not end with exit code 0.
    """
    conf: dict[str, Any] = {
        "type": "mariner",
        "name": "gateway",
        "mariner": {"host": HOST, "port": port},
        "event_core": {"server_id": 1, "backend": {"type": backend}, "modules": [*modules]},
        "clients": CLIENTS if clients is None else clients,
        "schemas": [*schemas],
    }
    if backend == "rocksdb":
        conf["event_core"]["backend"]["path"] = str(store or directory / "events")
    conf["event_core"].update(core or {})
    if remote is not None:
        del conf["event_core"]
        conf["eventer"] = remote
    if tls is not None:
        conf["mariner"]["tls"] = tls
    if http:
        conf["http"] = {"host": HOST, "port": 0}
    conf_path = write_conf(directory / "gateway.json", conf)
    output = directory / "gateway.log"
    output.unlink(missing_ok=True)

    async with processes.child(
        program,
        "serve",
        "--conf",
        str(conf_path),
        *arguments,
        output=output,
        wrapper=wrapper,
        environment=environment,
        is_fresh=is_fresh,
    ) as process:
        core_conf = conf.get("event_core", {})
        wanted = {
            "mariner": True,
            "http": http,
            "eventer": "eventer_server" in core_conf,
            "rsb": core_conf.get("rsb", {}).get("mode") == "server",
        }
        expected = {name for name, is_wanted in wanted.items() if is_wanted}
        ports = await _wait_ports(process, output, expected)
        yield Gateway(
            HOST,
            ports["mariner"],
            ports.get("http"),
            ports.get("rsb"),
            ports.get("eventer"),
            process.pid,
            process,
            output,
        )


def listening(text: str) -> dict[str, int]:
    """The ports that a gateway told to listen at, by what listens there."""
    return {name: int(port) for name, port in _LISTENING.findall(text)}


async def _wait_ports(process: Process, output: Path, expected: set[str]) -> dict[str, int]:
    async def probe() -> dict[str, int] | None:
        ports = listening(processes.tail(output))
        return ports if ports.keys() >= expected else None

    return await processes.wait_ready(process, output, probe)
