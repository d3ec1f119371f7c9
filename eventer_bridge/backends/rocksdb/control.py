"""Requesting a checkpoint from the process that has a store open, through a unix socket.

That process listens on ``control.sock`` in the store's directory, to which only its own user (and
root) can connect. A connection is one request and one response, each a line of JSON::

    {"checkpoint": "/absolute/path"}   →   {"error": null}  or  {"error": "why not"}

:class:`ControlServer` belongs to the event loop; a thread of its own creates the checkpoints, one
after the other. :func:`checkpoint` is the client; it blocks.
"""

import asyncio
import contextlib
import functools
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
from hat import aio

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import database, directories
from eventer_bridge.backends.rocksdb.checkpoint import ext_checkpoint, scratch_path
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import EventerBridgeError, StorageError

mlog = logging.getLogger(__name__)

SOCKET: Final = "control.sock"


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    checkpoint: str


class _Response(msgspec.Struct):
    error: str | None


def checkpoint(store_path: Path, target: Path) -> None:
    """Create a checkpoint of a store, whether a process has it open or not; blocks.

    A process that has it open creates it, with the rights of its user. The checkpoint is an
    ordinary store with everything that was acknowledged before the call.

    Args:
        store_path: directory of the store.
        target: path that does not exist, in a directory that does.

    Raises:
        StoreLockedError: a process has it open that takes no requests.
        StorageError: it failed; no files are left.
    """
    database.check_exists(store_path)
    target = target.absolute()
    if is_served(store_path):
        _request_checkpoint(store_path, target)
        if not target.is_dir():
            raise StorageError(
                f"{target}: was made, but cannot be seen from here: the process that has the"
                " store open sees other directories (a container, or PrivateTmp)"
            )
        return
    store = Store(store_path)
    try:
        ext_checkpoint(store, target)
    finally:
        store.ext_close()
        with contextlib.suppress(OSError):
            directories.give_to_owner_of(store_path, store_path)


@contextlib.contextmanager
def open_read_only(store_path: Path) -> Iterator[Store]:
    """Open a store for reading only, whether a process has it open or not; blocks.

    If a process has it open, a checkpoint of it is read, which is removed afterwards.

    Yields:
        The store, open for reading only.

    Raises:
        StorageError: it is no store, or cannot be opened.
    """
    database.check_exists(store_path)
    if not is_served(store_path):
        with _open_for_reading(store_path) as store:
            yield store
        if is_served(store_path):  # it may have removed files meanwhile
            raise StorageError(f"{store_path}: was opened by a process meanwhile: try again")
        return
    path = scratch_path(store_path)
    _request_checkpoint(store_path, path)
    try:
        with _open_for_reading(path) as store:
            yield store
    except StorageError as e:
        if path.exists():
            raise
        # opening a store removes temporary checkpoints
        raise StorageError(f"{store_path}: was reopened meanwhile: try again") from e
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _open_for_reading(path: Path) -> Iterator[Store]:
    store = Store(path, read_only=True)
    try:
        yield store
    finally:
        store.ext_close()


def is_served(store_path: Path) -> bool:
    """Whether a process has the store open, and takes requests.

    Raises:
        StorageError: this process may not connect to it.
    """
    try:
        with _connect(store_path):
            return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    except OSError as e:
        raise StorageError(f"{store_path / SOCKET}: cannot connect: {e.strerror or e}") from e


def _request_checkpoint(store_path: Path, target: Path) -> None:
    what = f"{store_path}: the process that has the event store open"
    try:
        with _connect(store_path) as peer, peer.makefile("rb") as lines:
            # a stuck process must not block its operator for ever
            peer.settimeout(limits.CHECKPOINT_TIMEOUT_S)
            peer.sendall(msgspec.json.encode(_Request(str(target))) + b"\n")
            line = lines.readline(limits.MAX_CONTROL_LINE_BYTES)
        response = msgspec.json.decode(line, type=_Response)
    except TimeoutError:
        raise StorageError(f"{what} did not answer") from None
    except OSError as e:
        raise StorageError(f"{what} cannot be reached: {e.strerror}") from e
    except UnicodeEncodeError:
        raise StorageError(f"{str(target)!a}: not Unicode text") from None
    except msgspec.DecodeError:
        raise StorageError(f"{what} closed the connection without an answer") from None
    if response.error is not None:
        raise StorageError(response.error)


@contextlib.contextmanager
def _connect(store_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as peer, _short_path(store_path) as path:
        peer.settimeout(limits.CONTROL_TIMEOUT_S)
        peer.connect(path)
        yield peer


@contextlib.contextmanager
def _short_path(store_path: Path) -> Iterator[str]:
    """A short path of the socket: the address of a unix socket has at most 108 bytes."""
    descriptor = os.open(store_path, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


async def listen(store: Store) -> "ControlServer | None":
    """Listen for requests about an open store.

    Returns:
        The server; None: the file system has no sockets (the log says so).
    """
    peer = socket.socket(socket.AF_UNIX)
    try:
        with _short_path(store.path) as path:
            # the store is locked by this process: an existing socket is left over
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108  # not a path that Path could keep
            peer.bind(path)
            os.chmod(path, 0o600)  # noqa: PTH101  # nobody can connect before it listens
        server = ControlServer(store)
        await server._start(peer)
    except OSError as e:
        peer.close()
        mlog.warning(
            "event store takes no requests: no backup while it is open",
            extra={"path": str(store.path / SOCKET), "reason": str(e)},
        )
        return None
    return server


class ControlServer(aio.Resource):
    """See the module. Created by :func:`listen`; closing it cancels a running checkpoint."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._n_connections = 0
        self._thread = ThreadPoolExecutor(1, "store-checkpoint")
        self._async_group = aio.Group()

    @property
    def async_group(self) -> aio.Group:
        """Group of the server's tasks."""
        return self._async_group

    async def _start(self, peer: socket.socket) -> None:
        server = await asyncio.start_unix_server(
            self._on_connection, sock=peer, limit=limits.MAX_CONTROL_LINE_BYTES
        )
        self.async_group.spawn(aio.call_on_cancel, self._stop, server)

    async def _stop(self, server: asyncio.Server) -> None:
        server.close()
        with contextlib.suppress(OSError):
            (self._store.path / SOCKET).unlink()
        # waits for a running checkpoint, which checks at intervals whether this is open
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_open:
            self.async_group.spawn(self._serve, reader, writer)
        else:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._n_connections += 1
        try:
            error = await self._answer(reader)
            writer.write(msgspec.json.encode(_Response(error)) + b"\n")
            async with asyncio.timeout(limits.CONTROL_TIMEOUT_S):
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client left, or sent no request
        finally:
            self._n_connections -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> str | None:
        try:
            async with asyncio.timeout(limits.CONTROL_TIMEOUT_S):
                line = await reader.readuntil(b"\n")
            request = msgspec.json.decode(line, type=_Request)
        except asyncio.LimitOverrunError:
            return f"a request of more than {limits.MAX_CONTROL_LINE_BYTES} bytes"
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            return f"not a request: {e}"
        if self._n_connections > limits.MAX_CONTROL_CONNECTIONS:
            return "too many requests at a time"
        target = Path(request.checkpoint)
        create = functools.partial(ext_checkpoint, self._store, target, lambda: not self.is_open)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, create)
        except EventerBridgeError as e:
            return str(e)
        except Exception as e:  # the client gets any error
            mlog.exception("checkpoint failed", extra={"path": str(target)})
            return f"{target}: the checkpoint failed: {e}"
        mlog.info("checkpoint made", extra={"path": str(target)})
        return None
