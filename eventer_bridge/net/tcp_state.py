"""The kernel's state of a TCP connection, even of one that is not read from."""

import asyncio
import enum
import socket
from typing import Final


class TcpState(enum.Enum):
    """State of the peer."""

    OPEN = "it may send more"
    ENDED = "it sends no more; it still waits for answers, or is gone"
    RESET = "it is gone"


_STATES: Final = {7: TcpState.RESET, 8: TcpState.ENDED}  # TCP_CLOSE, TCP_CLOSE_WAIT of Linux


def tcp_state(transport: asyncio.Transport) -> TcpState:
    """State of a connection.

    A peer that is gone looks like one that only stopped sending, until something is sent to
    it: then its kernel resets the connection. A reader that is paused, or has read to the
    end, notices neither without this.
    """
    tcp = transport.get_extra_info("socket")
    try:
        state = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except (OSError, ValueError):  # it is closed
        return TcpState.RESET
    return _STATES.get(state, TcpState.OPEN)
