"""Options of sockets and writing to them, the same for all connections, accepted or made."""

import asyncio
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

from eventer_bridge import limits

_TCP_INFO: Final = struct.Struct("=128xQ")
"""``struct tcp_info`` of linux/tcp.h up to ``tcpi_bytes_received``."""


def watch_peer(tcp: Any) -> None:
    """Let the kernel give up on a peer whose kernel no longer answers.

    Args:
        tcp: ``socket.socket``, or what a transport has in its place.
    """
    milliseconds = int(limits.TCP_USER_TIMEOUT_S * 1000)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def has_sent(tcp: socket.socket) -> bool:
    """Whether anything came from the peer, read or not; true also where that is not known."""
    try:
        info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:  # closed
        return True
    return len(info) < _TCP_INFO.size or _TCP_INFO.unpack(info) != (0,)


def write_parts(transport: asyncio.WriteTransport, parts: Sequence[bytes]) -> None:
    """Write what is sent together; joined, unless its parts are large."""
    if sum(map(len, parts)) < limits.JOINED_BYTES * len(parts):
        transport.write(b"".join(parts))
    else:
        transport.writelines(parts)


def keep_alive(tcp: Any) -> None:
    """Let the kernel probe a silent peer, where the wire has no pings."""
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.KEEPALIVE_DELAY_S)
