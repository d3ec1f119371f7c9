"""``mariner serve`` and ``mariner check``."""

import asyncio
import faulthandler
import logging
import os
import sys
from importlib import import_module
from pathlib import Path

import click
import uvloop

from eventer_bridge.errors import ConfigurationError, EventerBridgeError, LimitError, StoreLossError
from eventer_bridge.net import quota
from eventer_bridge.resources import uncancellable
from mariner.cli.run import EXIT_FAILED, EXIT_USAGE, fail, report
from mariner.cli.target import ACCEPT_LOSS, conf_option
from mariner.gateway import config, config_check, config_file, gateway, logs, memory
from mariner.gateway.counts import StatusReport
from mariner.gateway.reloading import Reloader, watch
from mariner.gateway.stopping import Stopper, Supervisor, block_signals

mlog = logging.getLogger(__name__)

_CONF = conf_option("Configuration file (.yaml, .toml or .json).")


@click.command()
@_CONF
def check(path: Path) -> None:
    """Check a configuration and the files it names, then exit.

    It makes everything that `serve` makes, without listening or changing the store: modules are
    created, too, with an empty store.

    Warnings on standard error, one per line, name what lets strangers in (clients that need
    neither token nor certificate, tokens where their hashes suffice, tokens or private keys in
    files that others can read), what keeps clients out (no clients, a certificate that is not valid
    yet, an authority without its root), what expires within 30 days, what is hardly meant (a type
    with a slash in a segment, the store of another server, a definition of a schema that cannot be
    used), and a limit of open files that leaves room for fewer connections than usual.

    Exit code 0: it can be used; 2: it cannot, for the reasons printed, one per line.
    """
    conf = _load(path)
    try:
        logs.rehearse(conf.log, conf.audit)
        asyncio.run(gateway.rehearse(conf))
    except EventerBridgeError as e:
        fail("\n".join(f"{path}: {line}" for line in str(e).splitlines()))
    quota.raise_file_limit()
    lines = config_check.audit(path, conf)
    try:
        found = quota.Descriptors.find()
    except LimitError as e:
        fail(str(e))
    for line in lines if found.are_enough else [*lines, str(found)]:
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
        fail(f"{path}: {e}")
    quota.raise_file_limit()
    memory.configure()
    # a reader thread yields to the event loop after at most this time
    sys.setswitchinterval(0.0002)
    if conf.http is not None:
        import_module("mariner.gateway.http")  # imported now, so that it is frozen, too
    memory.collect()
    faulthandler.enable()  # a watchdog ends a process that hangs by SIGABRT
    failure, code = _run(_Process(path, conf, accept_loss=accept_loss, is_watching=is_watching))
    if not logs.close():
        os._exit(code)  # standard error is stuck: there is nothing to wait for
    if failure is not None:
        fail(failure, code)


def _run(process: "_Process") -> tuple[str | None, int]:
    """Run the gateway; returns the error, if any, and the exit code."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            failed = process.run(runner.get_loop())
    except ConfigurationError as e:
        return str(e), EXIT_USAGE
    except StoreLossError as e:
        return f"{e}: {ACCEPT_LOSS}", EXIT_FAILED
    except OSError as e:  # without the number, which says no more than the text
        text = e.strerror or str(e)
        return text if e.filename is None else f"{e.filename}: {text}", EXIT_FAILED
    except EventerBridgeError as e:
        return str(e), EXIT_FAILED
    return (None, 0) if failed is None else (f"{failed} failed, see the log", EXIT_FAILED)


class _Process:
    """A gateway, from its start until a signal stops it or it fails."""

    def __init__(
        self, path: Path, conf: config.GatewayConfig, *, accept_loss: bool, is_watching: bool
    ) -> None:
        self._path, self._conf = path, conf
        self._accept_loss, self._is_watching = accept_loss, is_watching
        self._supervisor = Supervisor()
        self._must_stop, self._must_reload = asyncio.Event(), asyncio.Event()
        self._gateway: gateway.Gateway | None = None
        self._stopper: Stopper

    def run(self, loop: asyncio.AbstractEventLoop) -> str | None:
        """Run it; returns what failed, if anything."""
        self._stopper = Stopper(
            lambda: loop.call_soon_threadsafe(self._must_stop.set),
            lambda: "start" if self._gateway is None else self._gateway.waits_for,
            lambda: loop.call_soon_threadsafe(self._must_reload.set),
        )
        serving = loop.create_task(self._serve())
        while True:
            try:
                return loop.run_until_complete(serving)
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
            _print_addresses(self._conf, running)
            self._supervisor.ready()
            background = [
                asyncio.ensure_future(self._supervisor.stay_alive()),
                asyncio.ensure_future(self._reload_on_request(reloader)),
            ]
            if self._is_watching:
                background.append(asyncio.ensure_future(watch(self._path, reloader)))
            stopping = asyncio.ensure_future(self._must_stop.wait())
            closing = asyncio.ensure_future(running.wait_closing())
            await asyncio.wait([stopping, closing], return_when=asyncio.FIRST_COMPLETED)
            for task in (stopping, closing, *background):
                task.cancel()
        finally:
            self._supervisor.stopping()
            self._stopper.stop()  # starts the deadline
            await uncancellable(running.async_close())
        return running.failed or self._stopper.failure

    async def _reload_on_request(self, reloader: Reloader) -> None:
        while True:
            await self._must_reload.wait()
            self._must_reload.clear()
            await reloader.try_reload()


def _print_addresses(conf: config.GatewayConfig, running: gateway.Gateway) -> None:
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
        fail(str(e))
    return conf
