"""Resources: objects that own tasks, and files that are read without blocking."""

import asyncio
import contextlib
import errno
import functools
import importlib.resources
import os
import stat
from collections.abc import AsyncIterator, Awaitable
from io import BufferedReader
from pathlib import Path
from typing import Final

from hat import aio
from typing_extensions import override

_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class Resource(aio.Resource):
    """A resource with a group of tasks of its own."""

    @functools.cached_property
    @override
    def async_group(self) -> aio.Group:
        """Group of its tasks; closing it closes the resource."""
        return aio.Group()


@contextlib.asynccontextmanager
async def closed_on_error(resource: aio.Resource) -> AsyncIterator[None]:
    """Close a resource if its beginning fails."""
    try:
        yield
    except BaseException:
        await aio.uncancellable(resource.async_close())
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
