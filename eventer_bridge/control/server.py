"""Answers requests of operators. Belongs to the event loop's thread."""

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from eventer_bridge import limits
from eventer_bridge.control import client
from eventer_bridge.control.client import ANY, LOCK, Addressee, Identity, Response, short_path
from eventer_bridge.errors import ConfigurationError, ControlError, EventerBridgeError
from eventer_bridge.resources import Resource, call_on_cancel

mlog = logging.getLogger(__name__)

HandlerCb: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Handles the argument of a request and returns the result. What it raises is the answer; if it is
a ``ConfigurationError``, as an error of the operator."""


async def listen(path: Path) -> "ControlServer":
    """Listen for requests at a socket; one that is left over is replaced.

    ``ControlError``: a process listens there, or it is no socket. ``OSError``: the file system has
    no sockets, or the directory cannot be written.
    """
    lock = _lock(path)
    try:
        await asyncio.to_thread(_refuse_used, path)
        server = ControlServer(path, lock)
        await server.start()
    except BaseException:
        os.close(lock)
        raise
    return server


def _lock(path: Path) -> int:
    """Have a socket for this process alone, until the returned file is closed."""
    file = os.open(f"{path}{LOCK}", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.truncate(file, 0)
        os.write(file, str(os.getpid()).encode())
    except BlockingIOError:
        pid = os.read(file, limits.MAX_PID_BYTES).decode(errors="replace")
        os.close(file)
        raise _in_use(path, pid) from None
    except BaseException:
        os.close(file)
        raise
    return file


def _refuse_used(path: Path) -> None:
    """Refuse a socket of a process without the lock, of another program, or none. Blocks."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ControlError(f"{path}: exists already, and is no socket")
    if (pid := client.server_pid(path)) is not None:
        raise _in_use(path, str(pid))


def _in_use(path: Path, pid: str) -> ControlError:
    return ControlError(f"{path}: process {pid} listens there: each gateway needs its own socket")


class ControlServer(Resource):
    """See the package. Created by :func:`listen`; knows no requests at first.

    It says by which configuration file the process is configured, and which store it has open.
    """

    def __init__(self, path: Path, lock: int | None = None) -> None:
        self.configuration: Path | None = None
        self.store: Path | None = None
        self._path = path
        self._lock = lock
        self._handlers: dict[str, HandlerCb] = {}
        self._for_any: set[str] = set()
        self._n_connections = 0

    def handle(self, name: str, handler: HandlerCb, *, is_for_any: bool = False) -> None:
        """Have requests of this name handled; ``is_for_any``: those to any process, too."""
        self._handlers[name] = handler
        if is_for_any:
            self._for_any.add(name)

    async def start(self) -> None:
        """See :func:`listen`."""
        peer = socket.socket(socket.AF_UNIX)
        try:
            with short_path(self._path) as short:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(short)  # noqa: PTH108  # not a path that Path could keep
                peer.bind(short)
                os.chmod(short, 0o600)  # noqa: PTH101  # no connection before it listens
            server = await asyncio.start_unix_server(
                self._on_connection, sock=peer, limit=limits.MAX_CONTROL_LINE_BYTES
            )
        except BaseException:
            peer.close()
            raise
        self.async_group.spawn(call_on_cancel, self._stop, server)

    async def _stop(self, server: asyncio.Server) -> None:
        server.close()
        with contextlib.suppress(OSError):
            self._path.unlink()
        if self._lock is not None:
            os.close(self._lock)

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
            target = msgspec.convert(request.pop("to", {}), Addressee)
        except asyncio.LimitOverrunError:
            return Response(f"a request of more than {limits.MAX_CONTROL_LINE_BYTES} bytes")
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            return Response(f"not a request: {e}")
        if self._n_connections > limits.MAX_CONTROL_CONNECTIONS:
            return Response("too many requests at a time")
        return await self._handle(request, target)

    def _refuse_others(self, target: Addressee) -> None:
        """Refuse a request for another process, with ``ControlError``. Blocks; any thread."""
        who = f"{self._path}: process {os.getpid()} answers here"
        if target.pid not in {None, os.getpid()}:
            raise ControlError(f"{who}, not process {target.pid}")
        for what, meant, path in (
            ("configuration", target.configuration, self.configuration),
            ("store", target.store, self.store),
        ):
            ours = None if path is None else Identity.of(path)
            if meant is not None and (ours is None or not ours.is_same(meant)):
                text = "which has none" if ours is None else f"whose {what} is {ours.path}"
                raise ControlError(f"{who}, {text}, and not the one of {what} {meant.path}")

    async def _handle(self, request: dict[str, Any], target: Addressee) -> Response:
        if len(request) != 1:
            return Response(f"not a request: expected one key, but there are {len(request)}")
        [(name, argument)] = request.items()
        if name not in self._handlers:
            known = ", ".join(sorted(self._handlers))
            return Response(f"not a request: {name[:100]!r}, expected one of {known}")
        if target == ANY and name not in self._for_any:
            return Response("not a request: expected 'to', which says what process it is for")
        try:
            await asyncio.to_thread(self._refuse_others, target)
            return Response(None, await self._handlers[name](argument))
        except EventerBridgeError as e:
            return Response(str(e), is_usage=isinstance(e, ConfigurationError))
        except Exception as e:  # the client gets any error
            mlog.exception("request failed", extra={"request": name})
            return Response(f"{name} failed: {e}")
