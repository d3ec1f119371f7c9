"""Requests of operators to a process through its unix socket, and their messages; blocks."""

import contextlib
import os
import socket
import socket as sockets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

from eventer_bridge import limits
from eventer_bridge.errors import ConfigurationError, ControlError

T = TypeVar("T")

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
    """A file or a directory, whatever its path is elsewhere, in a container for example.

    ``path`` is for people; without device and ``inode``, it cannot be inspected.
    """

    path: str
    inode: tuple[int, int] | None

    @classmethod
    def of(cls, path: Path) -> Self:
        """That of a path, relative to the working directory of this process. Blocks; any thread."""
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
    """The process that a request means, by its configuration file, its store or its id."""

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
    """A short path of a socket: the address of a unix socket has at most 108 bytes."""
    descriptor = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{socket.name}"
    finally:
        os.close(descriptor)


def is_served(path: Path) -> bool:
    """Whether a process takes requests at a socket; raises as :func:`server_pid`."""
    return server_pid(path) is not None


def server_pid(path: Path) -> int | None:
    """The process that takes requests at a socket; None: there is none.

    ``ControlError``: it may not be asked.
    """
    try:
        with _connect(path) as peer:
            return peer_pid(peer)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as e:
        raise ControlError(f"{path}: cannot connect: {e.strerror or e}") from e


def request(
    path: Path,
    name: str,
    argument: Any,
    answer: type[T],
    *,
    to: Addressee,
    what: str,
    timeout_s: float,
) -> T:
    """Send a request to the process that is meant (any other refuses); returns the result.

    ``what`` is its name in errors. ``ConfigurationError``: it refused what the operator provided.
    ``ControlError``: it failed, is not the one that is meant, did not answer in time, or with
    something else than an ``answer``.
    """
    try:
        with _connect(path) as peer, peer.makefile("rb") as lines:
            # a stuck process must not block its operator for ever
            peer.settimeout(timeout_s)
            peer.sendall(msgspec.json.encode({name: argument, "to": to}) + b"\n")
            line = lines.readline(limits.MAX_CONTROL_ANSWER_BYTES)
        response = msgspec.json.decode(line, type=Response)
    except TimeoutError:
        raise ControlError(f"{what} did not answer") from None
    except OSError as e:
        raise ControlError(f"{what} cannot be reached: {e.strerror}") from e
    except UnicodeEncodeError as e:
        raise ControlError(f"{e.object!a}: not Unicode text") from None
    except msgspec.DecodeError:
        raise ControlError(f"{what} closed the connection without an answer") from None
    if response.error is not None:
        raise (ConfigurationError if response.is_usage else ControlError)(response.error)
    try:
        return msgspec.convert(response.result, answer)
    except msgspec.ValidationError as e:
        raise ControlError(f"{what} is of another version: {e}") from e


@contextlib.contextmanager
def _connect(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as peer, short_path(path) as short:
        peer.settimeout(limits.CONTROL_TIMEOUT_S)
        peer.connect(short)
        yield peer
