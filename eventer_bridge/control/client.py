"""Sends requests to a process; blocks."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from eventer_bridge import limits
from eventer_bridge.control.sockets import Addressee, Response, peer_pid, short_path
from eventer_bridge.errors import ConfigurationError, ControlError


def is_served(path: Path) -> bool:
    """Whether a process takes requests at a socket.

    Raises:
        ControlError: this process may not connect to it.
    """
    return server_pid(path) is not None


def server_pid(path: Path) -> int | None:
    """The process that takes requests at a socket; None: there is none.

    Raises:
        ControlError: this process may not connect to it.
    """
    try:
        with _connect(path) as peer:
            return peer_pid(peer)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as e:
        raise ControlError(f"{path}: cannot connect: {e.strerror or e}") from e


def request(
    path: Path, name: str, argument: Any, *, to: Addressee, what: str, timeout_s: float
) -> Any:
    """Send a request.

    Args:
        path: the socket.
        name: of the request.
        argument: of the request.
        to: which process is meant; any other one that answers there refuses.
        what: what to call the process in errors.
        timeout_s: time limit for the answer.

    Returns:
        The result.

    Raises:
        ConfigurationError: the process refused what the operator provided.
        ControlError: it failed, is not the one that is meant, or there was no answer.
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
    return response.result


@contextlib.contextmanager
def _connect(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as peer, short_path(path) as short:
        peer.settimeout(limits.CONTROL_TIMEOUT_S)
        peer.connect(short)
        yield peer
