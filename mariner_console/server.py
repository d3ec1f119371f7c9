"""The process of the console: watchers, and the page behind its gate."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI
from hat import aio
from nicegui import ui

from eventer_bridge import tls
from mariner_console import page
from mariner_console.config import ConsoleConfig
from mariner_console.gate import Gate
from mariner_console.login import Logins
from mariner_console.watcher import Watcher

_STOP_TIMEOUT_S = 3
"""For browsers to hear of the end."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled by :func:`serve`: they end the process with exit code 0."""
        yield


async def serve(config: ConsoleConfig, on_listening: Callable[[str], None]) -> None:
    """Serve the page until SIGTERM or SIGINT.

    Args:
        config: checked.
        on_listening: called with the address of the page when it can be reached.

    Raises:
        ConfigurationError: a token or certificate cannot be used.
        OSError: the address cannot be listened on.
    """
    at = config.listen
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(
            socket.create_server((at.host, at.port), family=_family(at.host), backlog=128)
        )
        port: int = listener.getsockname()[1]
        logins = Logins(config.users)
        group = aio.Group()
        try:
            watchers = [_in_group(group, Watcher(i)) for i in config.gateways]
            server = _make_server(config, logins, watchers, port)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, setattr, server, "should_exit", True)
            scheme = "http" if at.tls is None else "https"
            host = f"[{at.host}]" if ":" in at.host else at.host
            on_listening(f"{scheme}://{host}:{port}/")
            await server.serve([listener])
        finally:
            await group.async_close()
            await logins.async_close()


def _make_server(
    config: ConsoleConfig, logins: Logins, watchers: list[Watcher], port: int
) -> _Server:
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
    is_tls = config.listen.tls is not None
    settings = uvicorn.Config(
        Gate(app, logins, port, is_tls=is_tls),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws_max_size=1 << 20,
        timeout_graceful_shutdown=_STOP_TIMEOUT_S,
    )
    settings.load()
    if config.listen.tls is not None:
        settings.ssl = tls.server_context(config.listen.tls.cert, config.listen.tls.key)
    return _Server(settings)


def _in_group(group: aio.Group, watcher: Watcher) -> Watcher:
    group.spawn(aio.call_on_cancel, watcher.async_close)
    return watcher


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
