"""``mariner serve`` and ``mariner check``."""

import asyncio
import gc
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click
import uvloop
from hat import aio

from eventer_bridge.errors import ConfigurationError, EventerBridgeError, LimitError
from eventer_bridge.net import descriptors
from mariner import config, config_audit, gateway, logs, memory
from mariner.stopping import Stopper, block_signals

_CONF = click.option(
    "--conf",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Configuration file (.yaml, .toml or .json).",
)


@click.command()
@_CONF
def check(path: Path) -> None:
    """Check a configuration and the files it names, then exit.

    What lets in strangers is told on standard error, a line each: clients that need neither
    token nor certificate, and tokens or private keys in files that others can read. So is a
    limit of open files that leaves room for fewer connections than usual.

    Exit code 0: it can be used; 2: it cannot, and each reason is told in a line.
    """
    lines = config_audit.audit(path, _load(path))
    descriptors.raise_limit()
    try:
        found = descriptors.find()
    except LimitError as e:
        _fail(str(e), 2)
    if not found.are_enough:
        lines.append(str(found))
    for line in lines:
        click.echo(f"mariner: warning: {line}", err=True)
    click.echo(f"{path}: ok")


@click.command()
@_CONF
def serve(path: Path) -> None:
    """Run the gateway until SIGTERM or SIGINT.

    Exit code 0: stopped by a signal, with everything that was accepted on disk; 1: it
    could not start or failed; 2: the configuration cannot be used; 3: it did not stop within
    25 s of the signal (what was acknowledged is on disk, the log says what hangs).
    """
    conf = _load(path)
    block_signals()
    os.umask(0o077)  # files of the store, and of logs, are for nobody else
    logs.configure(conf.log)
    descriptors.raise_limit()
    memory.configure()
    # a reader thread gives the event loop its turn after at most so long
    sys.setswitchinterval(0.0002)
    if conf.http is not None:
        import_module("mariner.http")  # imported now, so that it is frozen, too
    memory.freeze()
    failure, code = _run(conf)
    if not logs.close():
        os._exit(code)  # nobody reads standard error, or the like: nothing to wait for
    if failure is not None:
        _fail(failure, code)


def _run(conf: config.GatewayConfig) -> tuple[str | None, int]:
    """Run the gateway; returns what went wrong, and the exit code."""
    try:
        failed = uvloop.run(_serve(conf))
    except ConfigurationError as e:
        return str(e), 2
    except (EventerBridgeError, OSError) as e:
        return str(e), 1
    return (None, 0) if failed is None else (f"{failed} failed, see the log", 1)


async def _serve(conf: config.GatewayConfig) -> str | None:
    """Run the gateway; returns what failed, if something did."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    running: gateway.Gateway | None = None

    def ask_to_stop() -> None:
        loop.call_soon_threadsafe(stop.set)

    stopper = Stopper(ask_to_stop, lambda: "start" if running is None else running.waits_for)
    running = await gateway.create(conf)
    gc.collect()  # the event types of a large store take long at the first time, and only then
    try:
        _tell(conf, running)
        stopping = asyncio.ensure_future(stop.wait())
        closing = asyncio.ensure_future(running.wait_closing())
        await asyncio.wait([stopping, closing], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        closing.cancel()
    finally:
        stopper.stop()  # from here on, time runs
        await aio.uncancellable(running.async_close())
    return running.failed or stopper.failure


def _tell(conf: config.GatewayConfig, running: gateway.Gateway) -> None:
    scheme = "tls" if conf.mariner.tls else "tcp"
    lines = [f"mariner {scheme}://{conf.mariner.host}:{running.mariner.port}"]
    if running.eventer_server:
        lines.append(f"eventer {running.eventer_server.address}")
    if conf.event_core and conf.event_core.rsb and running.rsb and running.rsb.port:
        lines.append(f"rsb tcp://{conf.event_core.rsb.host}:{running.rsb.port}")
    if conf.http and running.http:
        lines.append(f"http http://{conf.http.host}:{running.http.port}")
    for line in lines:
        click.echo(f"{conf.name}: listening: {line}", err=True)


def _load(path: Path) -> config.GatewayConfig:
    try:
        conf = config.load(path)
        config.check(conf)
    except ConfigurationError as e:
        _fail(str(e), 2)
    return conf


def _fail(text: str, code: int) -> NoReturn:
    for line in text.splitlines():
        click.echo(f"mariner: error: {line}", err=True)
    raise SystemExit(code)
