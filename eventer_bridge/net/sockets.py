"""Socket options and writes, the same for accepted and outgoing connections."""

import asyncio
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

from eventer_bridge.net import limits

_TCP_INFO: Final = struct.Struct("=128xQ")
"""``struct tcp_info`` of linux/tcp.h up to ``tcpi_bytes_received``."""


def watch_peer(tcp: Any) -> None:
    """Have the kernel give up on a peer whose kernel no longer answers, and keep little for it.

    Args:
        tcp: ``socket.socket``, or a transport's substitute for it.
    """
    milliseconds = int(limits.TCP_USER_TIMEOUT_S * 1000)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limits.KERNEL_UNSENT_BYTES)


def has_sent(tcp: socket.socket) -> bool:
    """Whether the peer has sent anything, read or not; true if unknown."""
    try:
        info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:  # closed
        return True
    return len(info) < _TCP_INFO.size or _TCP_INFO.unpack(info) != (0,)


def write_parts(transport: asyncio.WriteTransport, parts: Sequence[bytes]) -> None:
    """Write parts; joined, unless they are large."""
    if sum(map(len, parts)) < limits.JOINED_BYTES * len(parts):
        transport.write(b"".join(parts))
    else:
        transport.writelines(parts)


def keep_alive(tcp: Any) -> None:
    """Have the kernel probe a silent peer; for wires without pings."""
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.KEEPALIVE_DELAY_S)
