"""Lines of standard input, read without a thread and without blocking the event loop."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Final

_CHUNK_BYTES: Final = 1 << 16


async def read_lines(fd: int = 0) -> AsyncIterator[tuple[int, bytes]]:
    """Read lines, numbered from 1, as they arrive; blank ones are skipped.

    Raises:
        OSError: reading failed.
    """
    number = 0
    parts: list[bytes] = []
    async for chunk in _read_chunks(fd):
        head, *lines = chunk.split(b"\n")
        parts.append(head)
        for line in lines:
            number += 1
            if complete := b"".join(parts).strip():
                yield number, complete
            parts = [line]
    if complete := b"".join(parts).strip():
        yield number + 1, complete


async def _read_chunks(fd: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(fd, readable.set)
    except PermissionError:
        # epoll supports no regular files: they are always readable
        while chunk := os.read(fd, _CHUNK_BYTES):
            yield chunk
            await asyncio.sleep(0)
        return
    try:
        while True:
            await readable.wait()
            readable.clear()
            chunk = os.read(fd, _CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
    finally:
        loop.remove_reader(fd)
