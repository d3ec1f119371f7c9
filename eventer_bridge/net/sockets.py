"""Sockets, the same for accepted and outgoing connections: options, state, writing, closing.

Runs on the event loop's thread.
"""

import asyncio
import enum
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Final

from eventer_bridge import limits as core_limits
from eventer_bridge.net import limits
from eventer_bridge.net.stats import CloseReason

_TCP_INFO: Final = struct.Struct("=128xQ")
"""``struct tcp_info`` of linux/tcp.h up to ``tcpi_bytes_received``."""


def watch_peer(tcp: Any) -> None:
    """Have the kernel give up on a peer whose kernel no longer answers, and keep little for it.

    ``tcp`` is a ``socket.socket``, or a transport's substitute for it.
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


class TcpState(enum.Enum):
    """State of the peer."""

    OPEN = "it may send more"
    ENDED = "it sends no more; it still waits for answers, or is gone"
    RESET = "it is gone"


_STATES: Final = {7: TcpState.RESET, 8: TcpState.ENDED}  # TCP_CLOSE, TCP_CLOSE_WAIT of Linux


def tcp_state(transport: asyncio.Transport) -> TcpState:
    """State of a connection.

    A peer that is gone looks like one that only stopped sending, until something is sent to it:
    then its kernel resets the connection. A reader that is paused, or has read to the
    end, notices neither without this.
    """
    tcp = transport.get_extra_info("socket")
    try:
        state = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except (OSError, ValueError):  # it is closed
        return TcpState.RESET
    return _STATES.get(state, TcpState.OPEN)


class Closing:
    """The end of a connection: why, and in two steps if possible.

    It sends its end, and then drops incoming bytes until the peer ends too, for a while. If it
    closed at once with bytes unread, the system would reset the connection, and the peer would lose
    the last bytes sent. :attr:`text` has reason and detail, for people, unless ``text`` is given.
    """

    __slots__ = ("_deadline_s", "_dropped_bytes", "_transport", "log_extra", "text")

    def __init__(
        self,
        transport: asyncio.Transport,
        reason: CloseReason,
        detail: str | None,
        text: str | None,
    ) -> None:
        self._transport = transport
        most = core_limits.MAX_LOG_CHARACTERS
        self.log_extra = {"reason": (text or reason.value)[:most]}
        self.text = text or reason.value
        if detail is not None:
            self.log_extra["detail"] = detail[:most]
            if text is None:
                self.text = f"{reason.value}: {detail[:most]}"
        self._deadline_s = time.monotonic() + limits.CLOSE_TIMEOUT_S
        self._dropped_bytes = 0

    def begin(self, *, is_waiting: bool, linger_s: float) -> None:
        """Begin to close; the peer may close first within ``linger_s``, if it is waited for."""
        transport = self._transport
        if transport.is_closing() or not is_waiting:
            transport.close()
        elif linger_s:
            transport.resume_reading()  # else the peer's closing would go unnoticed
            asyncio.get_running_loop().call_later(linger_s, self._send_end)
        else:
            self._send_end()

    def drop(self, n_bytes: int) -> None:
        """Drop bytes that arrive after closing."""
        self._dropped_bytes += n_bytes
        if self._dropped_bytes > limits.MAX_DROPPED_BYTES:
            self._transport.close()

    def sweep(self, now_s: float) -> None:
        """End what takes too long; ``now_s`` is ``time.monotonic()``."""
        if now_s > self._deadline_s:
            self._transport.abort()
        elif (
            now_s > self._deadline_s - limits.CLOSE_TIMEOUT_S + limits.LINGER_S
            and not self._transport.get_write_buffer_size()
        ):
            self._transport.close()

    async def wait_lost(self, lost: asyncio.Future[None]) -> None:
        """Wait until the connection is gone (``lost`` is done), and see that this is soon."""
        await asyncio.wait([lost], timeout=limits.LINGER_S)
        if not lost.done() and not self._transport.get_write_buffer_size():
            self._transport.close()
        await asyncio.wait([lost], timeout=limits.CLOSE_TIMEOUT_S)
        if not lost.done():
            self._transport.abort()
            await asyncio.wait([lost], timeout=limits.CLOSE_TIMEOUT_S)

    def _send_end(self) -> None:
        """Send our end and wait for the peer's; over TLS, which cannot half-close, close."""
        transport = self._transport
        if transport.is_closing() or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the peer is gone, unnoticed by asyncio's transport
            transport.abort()
            return
        transport.resume_reading()  # else the peer's end would go unnoticed
