"""The process of the console: watchers, and the page behind its gate."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from functools import partial

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from eventer_bridge import tls
from eventer_bridge.net import accepting, quota
from eventer_bridge.net.accepting import Acceptor
from eventer_bridge.net.admission import Admission
from eventer_bridge.resources import Tasks, call_on_cancel
from mariner_console import door, limits, page
from mariner_console.config import ConsoleConfig
from mariner_console.gate import Gate, Logins
from mariner_console.watcher import Watcher


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled by :func:`serve`: they end the process with exit code 0."""
        yield


async def serve(config: ConsoleConfig, on_listening: Callable[[str], None]) -> None:
    """Serve the page until SIGTERM or SIGINT; calls back with its address when it can be reached.

    Raises ConfigurationError (a token or certificate), OSError (the address).
    """
    at = config.listen
    logins = Logins(config.users)
    group = Tasks()
    try:
        watchers = [_in_group(group, Watcher(i)) for i in config.gateways]
        server = _make_server(config, logins, watchers)
        acceptor = await _listen(config, server)
        group.spawn(call_on_cancel, acceptor.async_close)

        def stop() -> None:
            acceptor.stop()
            server.should_exit = True

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        scheme = "http" if at.tls is None else "https"
        host = f"[{at.host}]" if ":" in at.host else at.host
        on_listening(f"{scheme}://{host}:{acceptor.port}/")
        await server.serve(sockets=[])  # what comes, comes through the acceptor
    finally:
        await group.async_close()
        await logins.async_close()


async def _listen(config: ConsoleConfig, server: _Server) -> Acceptor:
    """Let browsers in. Nobody is logged in before the application has started."""
    at = config.listen
    quota.raise_file_limit()
    bounds = limits.CONNECTIONS.fitting(quota.file_limit() - limits.RESERVED_DESCRIPTORS)
    return await accepting.listen(
        at.host,
        at.port,
        partial(door.BrowserConnection, server),
        admission=Admission(bounds),
        tls=None if at.tls is None else tls.server_context(at.tls.cert, at.tls.key),
        handshake_timeout_s=limits.REQUEST_TIMEOUT_S,
    )


def _make_server(config: ConsoleConfig, logins: Logins, watchers: list[Watcher]) -> _Server:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    page.install(watchers)
    ui.run_with(
        app,
        title="Mariner console",
        dark=None,
        favicon="⚓",
        tailwind=False,
        message_history_length=50,
        show_welcome_message=False,
    )
    return _Server(door.settings(Gate(app, logins, is_tls=config.listen.tls is not None)))


def _in_group(group: Tasks, watcher: Watcher) -> Watcher:
    group.spawn(call_on_cancel, watcher.async_close)
    return watcher
