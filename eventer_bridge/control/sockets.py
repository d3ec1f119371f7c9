"""The unix socket of a process, and its messages."""

import contextlib
import os
import socket as sockets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import msgspec

SOCKET: Final = "control.sock"
"""Usual name of the socket."""


LOCK: Final = ".lock"
"""Ending of the name of the file beside a socket that its process locks; it has its pid."""


class Response(msgspec.Struct):
    """The answer to a request: its result, or why it failed.

    ``is_usage`` says that what the operator provided is wrong, a configuration for example.
    """

    error: str | None
    result: Any = None
    is_usage: bool = False


class Identity(msgspec.Struct, frozen=True):
    """A file or a directory, whatever its path is called elsewhere, in a container for example.

    Attributes:
        path: absolute, for people.
        inode: device and inode; None: it cannot be inspected.
    """

    path: str
    inode: tuple[int, int] | None

    @classmethod
    def ext_of(cls, path: Path) -> Self:
        """That of a path; a relative one belongs to this process' working directory."""
        try:
            found = path.stat()
        except OSError:
            return cls(os.path.abspath(path), None)  # noqa: PTH100  # Path's keeps ".."
        return cls(os.path.abspath(path), (found.st_dev, found.st_ino))  # noqa: PTH100

    def is_same(self, other: "Identity") -> bool:
        """Whether both are the same file; by their paths if one of them cannot be inspected."""
        if self.inode is None or other.inode is None:
            return self.path == other.path
        return self.inode == other.inode


class Addressee(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which process a request means: the one of which all of this is true.

    Attributes:
        configuration: its configuration file.
        store: the store that it has open.
        pid: its process id.
    """

    configuration: Identity | None = None
    store: Identity | None = None
    pid: int | None = None


ANY: Final = Addressee()
"""Whichever process answers; only for what changes nothing."""


def peer_pid(peer: sockets.socket) -> int:
    """The process at the other end of a unix socket; 0: it is in a container."""
    size = struct.calcsize("3i")
    credentials = peer.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, size)
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


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
