"""Resources: objects that own tasks, and files that are read without blocking."""

import abc
import asyncio
import contextlib
import errno
import functools
import importlib.resources
import inspect
import logging
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
mlog = logging.getLogger(__name__)

_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class Tasks:
    """Tasks that are cancelled together. What one of them raises is logged; the others go on.

    It belongs to the running loop. A group of hat-aio does in its place. It ``is_open`` until
    somebody begins to close it.
    """

    def __init__(self) -> None:
        self.is_open = True
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.async_close()

    def spawn(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Run a coroutine as a task; only closing the group cancels it.

        Raises ``RuntimeError`` if that has begun.
        """
        if not self.is_open:
            raise RuntimeError("the group of tasks is closed")
        task = self._loop.create_task(function(*args, **kwargs))
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return asyncio.shield(task)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, and all its tasks have ended."""
        return self._closed.done()

    async def wait_closing(self) -> None:
        """Wait until somebody begins to close it."""
        await asyncio.shield(self._closing)

    async def wait_closed(self) -> None:
        """Wait until it is closed."""
        await asyncio.shield(self._closed)

    def close(self) -> None:
        """Begin to close it: its tasks are cancelled soon."""
        if not self.is_open:
            return
        self.is_open = False
        self._closing.set_result(None)
        for task in self._tasks:
            self._loop.call_soon(task.cancel)
        self._end_if_empty()

    async def async_close(self) -> None:
        """Close it, and wait until it is closed."""
        self.close()
        await self.wait_closed()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.remove(task)
        self._end_if_empty()
        if not task.cancelled() and (error := task.exception()) is not None:
            mlog.error("a task failed: %s", error, exc_info=error)

    def _end_if_empty(self) -> None:
        if not self.is_open and not self._tasks and not self.is_closed:
            self._closed.set_result(None)


class Resource(abc.ABC):  # noqa: B024  # some that derive from it are abstract
    """What has a group of tasks, and is open as long as it; ``async with`` closes it."""

    @functools.cached_property
    def async_group(self) -> Tasks:
        """Group of its tasks; closing it closes the resource."""
        return Tasks()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.async_close()

    @property
    def is_open(self) -> bool:
        """Whether nobody has begun to close it."""
        return self.async_group.is_open

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, and all its tasks have ended."""
        return self.async_group.is_closed

    async def wait_closing(self) -> None:
        """Wait until somebody begins to close it."""
        await self.async_group.wait_closing()

    async def wait_closed(self) -> None:
        """Wait until it is closed."""
        await self.async_group.wait_closed()

    def close(self) -> None:
        """Begin to close it: its tasks are cancelled soon."""
        self.async_group.close()

    async def async_close(self) -> None:
        """Close it, and wait until it is closed."""
        await self.async_group.async_close()


async def call_on_cancel(function: Callable[..., object], *args: Any) -> None:
    """When cancelled, call a function; if it is a coroutine, wait for it."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.get_running_loop().create_future()
    called = function(*args)
    if inspect.isawaitable(called):
        await called


async def call_on_done(waiting: Awaitable[object], function: Callable[[], object]) -> None:
    """Call a function when something ends, whatever it raises; not when cancelled before."""
    with contextlib.suppress(Exception):
        await waiting
    function()


async def uncancellable(work: Coroutine[Any, Any, T], *, raises: bool = True) -> T:
    """Run a coroutine to its end, even when cancelled; unless it ``raises`` that then, in vain."""
    task = asyncio.get_running_loop().create_task(work)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:  # to keep it would be a cycle
            is_cancelled = True
    if is_cancelled and raises:
        if not task.cancelled():
            task.exception()  # is given up with its result
        raise asyncio.CancelledError
    return task.result()


@contextlib.asynccontextmanager
async def closed_on_error(resource: Resource) -> AsyncIterator[None]:
    """Close a resource if its beginning fails."""
    try:
        yield
    except BaseException:
        await uncancellable(resource.async_close())
        raise


async def in_time(waiting: Awaitable[object], timeout_s: float | None) -> bool:
    """Wait for so long (None: for ever); whether that was enough."""
    try:
        async with asyncio.timeout(timeout_s):
            await waiting
    except TimeoutError:
        return False
    return True


def read_schema(name: str) -> str:
    """Text of a file of ``schemas/``, such as ``mariner.yaml``, or ``FileNotFoundError``."""
    return _read_shipped("schemas", name)


def read_example(name: str) -> str:
    """Text of a file of ``deploy/`` that wheels have, too (pyproject.toml)."""
    return _read_shipped("deploy", name)


def _read_shipped(folder: str, name: str) -> str:
    packaged = importlib.resources.files("eventer_bridge") / folder / name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    # a checkout (even one installed in editable mode) has them at its top level
    checkout = Path(__file__).parent.parent / folder / name
    return checkout.read_text(encoding="utf-8")


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read it; any other may block for ever, or never end. Any thread.

    ``OSError``: it cannot be opened, or is no regular file or link to one; ``strerror`` says why.
    """
    # opening a FIFO would wait for its writer
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        kind = stat.S_IFMT(os.fstat(file).st_mode)
        if kind != stat.S_IFREG:
            text = f"is {_KINDS.get(kind, 'special')}, expected a regular file"
            raise OSError(errno.EINVAL, text, str(path))
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Read a regular file (:func:`open_regular`). Any thread; blocks.

    ``OSError``: it cannot be read, is not regular or too large; ``strerror`` says why.
    """
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            # one of /proc does not tell its size
            n_bytes = max(os.fstat(file.fileno()).st_size, len(data))
            text = f"has {n_bytes} bytes, at most {max_bytes} are read"
            raise OSError(errno.EFBIG, text, str(path))
    return data


def blocking_entry(directory: Path) -> Path | None:
    """An entry of a directory that opening may block at, in libraries as well: a FIFO, a device."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
                continue  # known without inspecting it
            with contextlib.suppress(FileNotFoundError):  # a symlink to nothing
                mode = entry.stat().st_mode
                if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                    return Path(entry.path)
    return None
