"""What the kernel knows of a TCP connection, also of one that is not read from."""

import asyncio
import enum
import socket
from typing import Final


class TcpState(enum.Enum):
    """What became of the peer."""

    OPEN = "it may send more"
    ENDED = "it sends no more; it still waits for answers, or is gone"
    RESET = "it is gone"


_STATES: Final = {7: TcpState.RESET, 8: TcpState.ENDED}  # TCP_CLOSE, TCP_CLOSE_WAIT of Linux


def tcp_state(transport: asyncio.Transport) -> TcpState:
    """State of a connection.

    A peer that is gone and one that only sends no more are the same, until something is
    sent: then the kernel of the first resets the connection. Who does not read, or has read
    to the end, notices neither without asking here.
    """
    tcp = transport.get_extra_info("socket")
    try:
        state = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except (OSError, ValueError):  # it is closed
        return TcpState.RESET
    return _STATES.get(state, TcpState.OPEN)
