"""Lines of standard input, read without a thread and without blocking the event loop."""

import asyncio
import codecs
import os
from collections.abc import AsyncIterator, Iterable
from typing import Final

from mariner.cli.run import EXIT_USAGE, CommandError

_CHUNK_BYTES: Final = 1 << 16


async def read_lines(fd: int = 0) -> AsyncIterator[tuple[int, bytes]]:
    """Read lines, numbered from 1, as they arrive; blank ones are skipped.

    A byte order mark before the first, as some editors write it, is no part of it.

    Raises:
        CommandError: they are UTF-16.
        OSError: reading failed.
    """
    number = 0
    parts: list[bytes] = []
    async for chunk in _read_chunks(fd):
        head, *lines = chunk.split(b"\n")
        parts.append(head)
        for line in lines:
            number += 1
            if complete := _stripped(number, parts):
                yield number, complete
            parts = [line]
    if complete := _stripped(number + 1, parts):
        yield number + 1, complete


def _stripped(number: int, parts: Iterable[bytes]) -> bytes:
    line = b"".join(parts)
    if number == 1:
        if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            text = "standard input: begins with the byte order mark of UTF-16, expected UTF-8"
            raise CommandError(text, EXIT_USAGE)
        line = line.removeprefix(codecs.BOM_UTF8)
    return line.strip()


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
