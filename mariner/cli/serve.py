"""``mariner serve`` and ``mariner check``."""

import asyncio
import faulthandler
import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click
import uvloop
from hat import aio

from eventer_bridge.errors import ConfigurationError, EventerBridgeError, LimitError, StoreLossError
from eventer_bridge.net.quota import Descriptors, raise_file_limit
from mariner.cli.run import report
from mariner.cli.store_path import ACCEPT_LOSS
from mariner.gateway import config, config_audit, config_check, config_file, gateway, logs, memory
from mariner.gateway.reloading import Reloader
from mariner.gateway.status_report import StatusReport
from mariner.gateway.stopping import Stopper, block_signals
from mariner.gateway.supervisor import Supervisor
from mariner.gateway.watching import watch

mlog = logging.getLogger(__name__)

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

    It makes everything that `serve` makes, without listening or opening the store: modules are
    created, too, with an empty store.

    Warnings on standard error, one per line, name what lets strangers in (clients that need
    neither token nor certificate, tokens where their hashes suffice, tokens or private keys in
    files that others can read), what expires within 30 days, and a limit of open files that leaves
    room for fewer connections than usual.

    Exit code 0: it can be used; 2: it cannot, for the reasons printed, one per line.
    """
    conf = _load(path)
    try:
        logs.rehearse(conf.log, conf.audit)
        asyncio.run(gateway.rehearse(conf))
    except EventerBridgeError as e:
        _fail("\n".join(f"{path}: {line}" for line in str(e).splitlines()), 2)
    lines = config_audit.audit(path, conf)
    raise_file_limit()
    try:
        found = Descriptors.find()
    except LimitError as e:
        _fail(str(e), 2)
    if not found.are_enough:
        lines.append(str(found))
    for line in lines:
        report(f"warning: {line}")
    click.echo(f"{path}: ok")


@click.command()
@_CONF
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Start a store whose log lost acknowledged events, without them. The unusable"
    " part of the log stays beside it as *.lost. In a pair, also: become active with a store that"
    " is new, was restored or copied, though the other gateway does not tell what it has of this"
    " one's events. For one start: it says what is lost, and ids continue far above.",
)
@click.option(
    "--watch",
    "is_watching",
    is_flag=True,
    help="Reload whenever the configuration file changes, or a certificate, key, revocation list or"
    " token that it names: for Kubernetes, which replaces them by itself.",
)
def serve(*, path: Path, accept_loss: bool, is_watching: bool) -> None:
    """Run the gateway until SIGTERM or SIGINT. SIGHUP reloads, as `mariner reload` does.

    It tells systemd when it is ready and that it is alive, if the unit asks for that.

    Exit code 0: stopped by a signal, with everything it accepted on disk; 1: it could not
    start, or failed and stopped in order (the log says why); 2: the configuration cannot be
    used; 3: it did not stop within 25 s of the signal (everything acknowledged is on disk, the
    log says what hangs).
    """
    conf = _load(path)
    block_signals()
    os.umask(0o077)  # files of the store and of logs are private
    try:
        logs.configure(conf.log, conf.audit)
    except ConfigurationError as e:
        _fail(f"{path}: {e}", 2)
    raise_file_limit()
    memory.configure()
    # a reader thread yields to the event loop after at most this time
    sys.setswitchinterval(0.0002)
    if conf.http is not None:
        import_module("mariner.gateway.http")  # imported now, so that it is frozen, too
    memory.collect()
    faulthandler.enable()  # a watchdog ends a process that hangs by SIGABRT
    failure, code = _run(path, conf, accept_loss=accept_loss, is_watching=is_watching)
    if not logs.close():
        os._exit(code)  # standard error is stuck: there is nothing to wait for
    if failure is not None:
        _fail(failure, code)


def _run(
    path: Path, conf: config.GatewayConfig, *, accept_loss: bool, is_watching: bool
) -> tuple[str | None, int]:
    """Run the gateway; returns the error, if any, and the exit code."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            failed = _Process(
                path, conf, runner.get_loop(), accept_loss=accept_loss, is_watching=is_watching
            ).run()
    except ConfigurationError as e:
        return str(e), 2
    except StoreLossError as e:
        return f"{e}: {ACCEPT_LOSS}", 1
    except OSError as e:  # without the number, which says no more than the text
        text = e.strerror or str(e)
        return text if e.filename is None else f"{e.filename}: {text}", 1
    except EventerBridgeError as e:
        return str(e), 1
    return (None, 0) if failed is None else (f"{failed} failed, see the log", 1)


class _Process:
    """A gateway, from its start until a signal stops it or it fails."""

    def __init__(
        self,
        path: Path,
        conf: config.GatewayConfig,
        loop: asyncio.AbstractEventLoop,
        *,
        accept_loss: bool,
        is_watching: bool,
    ) -> None:
        self._path = path
        self._is_watching = is_watching
        self._supervisor = Supervisor()
        self._conf = conf
        self._accept_loss = accept_loss
        self._loop = loop
        self._asked_to_stop = asyncio.Event()
        self._asked_to_reload = asyncio.Event()
        self._gateway: gateway.Gateway | None = None
        self._stopper = Stopper(self._ask_to_stop, self._waits_for, self._ask_to_reload)

    def run(self) -> str | None:
        """Run it; returns what failed, if anything."""
        serving = self._loop.create_task(self._serve())
        while True:
            try:
                return self._loop.run_until_complete(serving)
            except (SystemExit, KeyboardInterrupt) as e:
                # raised in a task, of a module for example: run the loop on, to stop in order
                if serving.done():
                    raise
                mlog.critical("a task ended the event loop", exc_info=e)
                self._stopper.stop(f"a task ({type(e).__name__})")

    async def _serve(self) -> str | None:
        self._gateway = running = await gateway.create(self._conf, accept_loss=self._accept_loss)
        memory.collect()
        try:
            reloader = Reloader(self._path, running)
            StatusReport(running)
            _print_check(self._conf, running)
            self._supervisor.ready()
            background = [
                asyncio.ensure_future(self._supervisor.stay_alive()),
                asyncio.ensure_future(self._reload_when_asked(reloader)),
            ]
            if self._is_watching:
                background.append(asyncio.ensure_future(watch(self._path, reloader)))
            stopping = asyncio.ensure_future(self._asked_to_stop.wait())
            closing = asyncio.ensure_future(running.wait_closing())
            await asyncio.wait([stopping, closing], return_when=asyncio.FIRST_COMPLETED)
            for task in (stopping, closing, *background):
                task.cancel()
        finally:
            self._supervisor.stopping()
            self._stopper.stop()  # starts the deadline
            await aio.uncancellable(running.async_close())
        return running.failed or self._stopper.failure

    async def _reload_when_asked(self, reloader: Reloader) -> None:
        while True:
            await self._asked_to_reload.wait()
            self._asked_to_reload.clear()
            await reloader.try_reload()

    def _ask_to_reload(self) -> None:
        self._loop.call_soon_threadsafe(self._asked_to_reload.set)

    def _ask_to_stop(self) -> None:
        self._loop.call_soon_threadsafe(self._asked_to_stop.set)

    def _waits_for(self) -> str:
        return "start" if self._gateway is None else self._gateway.waits_for


def _print_check(conf: config.GatewayConfig, running: gateway.Gateway) -> None:
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
        conf = config_file.load(path)
        config_check.check(conf)
    except ConfigurationError as e:
        _fail(str(e), 2)
    return conf


def _fail(text: str, code: int) -> NoReturn:
    for line in text.splitlines():
        report(f"error: {line}")
    raise SystemExit(code)
