"""Checkpoints: consistent copies of a store, also of one that a process has open.

RocksDB creates one in the store's directory, from hard links, which takes milliseconds, however
large the store is. It is then moved to the target: by a rename on the same file system, or by
copying its files, while registration goes on (:func:`ext_checkpoint`).

A process that has a store open listens on ``control.sock`` in its directory
(``eventer_bridge.control``). A thread of its own creates the checkpoints, one after the other.
:func:`checkpoint` and :func:`open_read_only` are the clients; they block.
"""

import asyncio
import contextlib
import functools
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import database, directories
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.control import client
from eventer_bridge.control.client import SOCKET, Addressee, Identity
from eventer_bridge.control.server import ControlServer
from eventer_bridge.errors import ControlError, EventerBridgeError, StorageError
from eventer_bridge.resources import uncancellable

mlog = logging.getLogger(__name__)
audit = logging.getLogger("audit")

_SCRATCH: Final = re.compile(r"checkpoint-[0-9a-f]{8}(\.tmp)?")
"""Names of temporary checkpoints in the store's directory, with RocksDB's own temporary suffix."""

_NOTES: Final = {"backed_up": directories.BACKED_UP, "drilled": directories.DRILLED}


def ext_checkpoint(
    store: Store, target: Path, is_stopped: Callable[[], bool] = lambda: False
) -> None:
    """Create a checkpoint: an ordinary store with everything written before the call.

    ``target`` is an absolute path that does not exist, in a directory that does. ``is_stopped`` is
    called at intervals; true cancels: ``ClosedError``. ``StorageError``: it failed; no files are
    left.
    """
    if not target.is_absolute():
        raise StorageError(f"{target}: expected an absolute path")
    if not target.parent.is_dir():
        raise StorageError(f"{target.parent}: no such directory")
    directories.refuse_existing(target, may_be_empty=False)
    scratch = scratch_path(store.path)
    try:
        store.ext_checkpoint(scratch)
        directories.make_private(scratch)
        directories.move(scratch, target, is_stopped)
    except OSError as e:
        raise StorageError(f"{target}: cannot be written: {e.strerror}") from e
    finally:
        # RocksDB has a temporary name of its own
        for path in (scratch, scratch.with_name(f"{scratch.name}.tmp")):
            shutil.rmtree(path, ignore_errors=True)


def scratch_path(store_path: Path) -> Path:
    """A new path in a store's directory for a temporary checkpoint."""
    return store_path.absolute() / f"checkpoint-{secrets.token_hex(4)}"


def ext_remove_scratch(store_path: Path) -> None:
    """Remove temporary checkpoints of interrupted processes."""
    for entry in os.scandir(store_path):
        if _SCRATCH.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)


def checkpoint(store_path: Path, target: Path) -> None:
    """Create a checkpoint of a store, whether a process has it open or not; blocks.

    A process that has it open creates it, with the rights of its user; ``StoreLockedError``: it
    takes no requests. ``StorageError``: it failed; no files are left.
    """
    database.check_exists(store_path)
    target = target.absolute()
    if is_served(store_path):
        _request(store_path, "checkpoint", str(target), limits.CHECKPOINT_TIMEOUT_S)
        if not target.is_dir():
            raise StorageError(
                f"{target}: was made, but cannot be seen from here: the process that has the"
                " store open sees other directories (a container, or PrivateTmp)"
            )
        return
    store = Store(store_path)
    try:
        ext_checkpoint(store, target)
        _note(store_path / directories.BACKED_UP)
    finally:
        store.ext_close()
        with contextlib.suppress(OSError):
            directories.give_to_owner_of(store_path, store_path)


def tell(store_path: Path, what: Literal["backed_up", "drilled"], where: str) -> None:
    """Notify the process that has a store open of a backup at a place, or its next one; blocks.

    Or that a backup was restored there, and found to be right.
    """
    if is_served(store_path):
        _request(store_path, what, where, limits.CONTROL_TIMEOUT_S)
        return
    database.check_exists(store_path)
    _note(store_path / _NOTES[what])


@contextlib.contextmanager
def open_read_only(store_path: Path) -> Iterator[Store]:
    """Open a store for reading only, or a checkpoint of it if a process has it open; blocks."""
    database.check_exists(store_path)
    if not is_served(store_path):
        with _open_for_reading(store_path) as store:
            yield store
        if is_served(store_path):  # it may have removed files meanwhile
            raise StorageError(f"{store_path}: was opened by a process meanwhile: try again")
        return
    path = scratch_path(store_path)
    _request(store_path, "checkpoint", str(path), limits.CHECKPOINT_TIMEOUT_S)
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
    """Whether a process has the store open and takes requests; may raise ``StorageError``."""
    try:
        return client.is_served(store_path / SOCKET)
    except ControlError as e:
        raise StorageError(str(e)) from e


def _request(store_path: Path, name: str, argument: str, timeout_s: float) -> None:
    what = f"{store_path}: the process that has the event store open"
    to = Addressee(store=Identity.of(store_path))
    try:
        socket = store_path / SOCKET
        client.request(socket, name, argument, object, to=to, what=what, timeout_s=timeout_s)
    except ControlError as e:
        raise StorageError(str(e)) from e


async def listen(store: Store) -> "StoreControl | None":
    """Listen for requests about an open store; None: the file system has no sockets (logged)."""
    # the store is locked by this process: an existing socket is left over
    server = StoreControl(store)
    try:
        await server.start()
    except OSError as e:
        await uncancellable(server.async_close())
        mlog.warning(
            "event store takes no requests: no backup while it is open",
            extra={"path": str(store.path / SOCKET), "reason": str(e)},
        )
        return None
    return server


class StoreControl(ControlServer):
    """See the module. Created by :func:`listen`; closing it cancels a running checkpoint.

    ``backed_up_s``, ``drilled_s``: time of the last backup, and of the last one that was restored
    for a drill, in seconds since 1970 UTC; 0: none. They are kept as those of files in the store.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store.path / SOCKET)
        self.store = store.path
        self._store = store
        self._thread = ThreadPoolExecutor(1, "store-checkpoint")
        self.backed_up_s = _moment_of(store.path / directories.BACKED_UP)
        self.drilled_s = _moment_of(store.path / directories.DRILLED)
        self.handle("checkpoint", self._checkpoint)
        self.handle("backed_up", self._on_backed_up)
        self.handle("drilled", self._on_drilled)

    async def _stop(self, server: asyncio.Server) -> None:
        await super()._stop(server)
        # waits for a running checkpoint, which checks at intervals whether this is open
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def _checkpoint(self, argument: Any) -> None:
        if not isinstance(argument, str):
            raise StorageError("checkpoint: expected a path")
        target = Path(argument)
        create = functools.partial(ext_checkpoint, self._store, target, lambda: not self.is_open)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, create)
        except EventerBridgeError:
            raise
        except Exception as e:  # the client gets any error
            mlog.exception("checkpoint failed", extra={"path": str(target)})
            raise StorageError(f"{target}: the checkpoint failed: {e}") from e
        mlog.info("checkpoint made", extra={"path": str(target)})
        audit.info("backup", extra={"path": str(target)})
        if target.parent != self._store.path.absolute():  # else it is only read, and removed
            await self._note_backup()

    async def _on_backed_up(self, argument: Any) -> None:
        audit.info("backup", extra={"path": str(argument)})
        await self._note_backup()

    async def _note_backup(self) -> None:
        file = self._store.path / directories.BACKED_UP
        self.backed_up_s = await asyncio.to_thread(_note, file)

    async def _on_drilled(self, argument: Any) -> None:
        audit.info("restore drill", extra={"path": str(argument)})
        self.drilled_s = await asyncio.to_thread(_note, self._store.path / directories.DRILLED)


def _moment_of(file: Path) -> float:
    """When a file was touched last, in seconds since 1970 UTC; 0: never."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _note(file: Path) -> float:
    """Touch a file; what cannot be kept is known until the end of the process."""
    with contextlib.suppress(OSError):
        file.touch(0o600)
        directories.give_to_owner_of(file.parent, file)
    return time.time()
