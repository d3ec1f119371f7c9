"""Answers requests of operators. Belongs to the event loop's thread."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from hat import aio

from eventer_bridge import limits
from eventer_bridge.control.sockets import Response, short_path
from eventer_bridge.errors import ConfigurationError, EventerBridgeError

mlog = logging.getLogger(__name__)

HandlerCb: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Handles the argument of a request and returns the result. What it raises is the answer; if it is
a ``ConfigurationError``, as an error of the operator."""


async def listen(path: Path) -> "ControlServer":
    """Listen for requests.

    Args:
        path: the socket; one that is left over is replaced.

    Raises:
        OSError: the file system has no sockets, or the directory cannot be written.
    """
    server = ControlServer(path)
    await server.start()
    return server


class ControlServer(aio.Resource):
    """See the package. Created by :func:`listen`; knows no requests at first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handlers: dict[str, HandlerCb] = {}
        self._n_connections = 0
        self._async_group = aio.Group()

    @property
    def async_group(self) -> aio.Group:
        """Group of the server's tasks."""
        return self._async_group

    def handle(self, name: str, handler: HandlerCb) -> None:
        """Have requests of this name handled."""
        self._handlers[name] = handler

    async def start(self) -> None:
        """See :func:`listen`."""
        peer = socket.socket(socket.AF_UNIX)
        try:
            with short_path(self._path) as short:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(short)  # noqa: PTH108  # not a path that Path could keep
                peer.bind(short)
                os.chmod(short, 0o600)  # noqa: PTH101  # nobody can connect before it listens
            server = await asyncio.start_unix_server(
                self._on_connection, sock=peer, limit=limits.MAX_CONTROL_LINE_BYTES
            )
        except BaseException:
            peer.close()
            raise
        self.async_group.spawn(aio.call_on_cancel, self._stop, server)

    async def _stop(self, server: asyncio.Server) -> None:
        server.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_open:
            self.async_group.spawn(self._serve, reader, writer)
        else:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._n_connections += 1
        try:
            response = await self._answer(reader)
            writer.write(msgspec.json.encode(response) + b"\n")
            async with asyncio.timeout(limits.CONTROL_TIMEOUT_S):
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client left, or sent no request
        finally:
            self._n_connections -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Response:
        try:
            async with asyncio.timeout(limits.CONTROL_TIMEOUT_S):
                line = await reader.readuntil(b"\n")
            request = msgspec.json.decode(line, type=dict[str, Any])
        except asyncio.LimitOverrunError:
            return Response(f"a request of more than {limits.MAX_CONTROL_LINE_BYTES} bytes")
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            return Response(f"not a request: {e}")
        if self._n_connections > limits.MAX_CONTROL_CONNECTIONS:
            return Response("too many requests at a time")
        return await self._handle(request)

    async def _handle(self, request: dict[str, Any]) -> Response:
        if len(request) != 1:
            return Response(f"not a request: expected one key, but there are {len(request)}")
        [(name, argument)] = request.items()
        if name not in self._handlers:
            known = ", ".join(sorted(self._handlers))
            return Response(f"not a request: {name[:100]!r}, expected one of {known}")
        try:
            return Response(None, await self._handlers[name](argument))
        except EventerBridgeError as e:
            return Response(str(e), is_usage=isinstance(e, ConfigurationError))
        except Exception as e:  # the client gets any error
            mlog.exception("request failed", extra={"request": name})
            return Response(f"{name} failed: {e}")
