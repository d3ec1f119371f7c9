"""The unix socket of a process, and its messages."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

SOCKET: Final = "control.sock"
"""Usual name of the socket."""


class Response(msgspec.Struct):
    """The answer to a request: its result, or why it failed.

    ``is_usage`` says that what the operator provided is wrong, a configuration for example.
    """

    error: str | None
    result: Any = None
    is_usage: bool = False


@contextlib.contextmanager
def short_path(socket: Path) -> Iterator[str]:
    """A short path of a socket: the address of a unix socket has at most 108 bytes.

    Raises:
        OSError: there is no such directory.
    """
    descriptor = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{socket.name}"
    finally:
        os.close(descriptor)
