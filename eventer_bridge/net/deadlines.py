"""What an open connection has to do in time: else it is closed.

Its first message, the rest of a message that began, reading what was sent, and being there at all
(``liveness``). A peer that is not read from is not late.

Runs on the event loop's thread.
"""

import logging
import math
from typing import Protocol

from eventer_bridge.net import limits
from eventer_bridge.net.liveness import Liveness, Verdict
from eventer_bridge.net.pause import Pause
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.tcp_state import TcpState


class TimedConnection(Protocol):
    """What deadlines look at of a connection, ``Stream``, and what they do with it."""

    has_ended: bool
    is_write_blocked: bool
    n_messages: int
    pauses: frozenset[Pause]
    was_paused: bool
    written_bytes: int

    @property
    def is_accepted(self) -> bool:
        """Whether the peer connected, not we."""

    @property
    def is_answering(self) -> bool:
        """Whether the peer waits for an answer."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of messages that are incomplete or not taken yet."""

    @property
    def left_bytes(self) -> int:
        """Bytes that have left this process."""

    @property
    def unread_bytes(self) -> int:
        """Bytes that were sent and have not left."""

    @property
    def close_reason(self) -> CloseReason | None:
        """None while it is open."""

    @property
    def tcp_state(self) -> TcpState:
        """The kernel's state of it."""

    def probe(self) -> None:
        """Send a message that the peer must answer."""

    def close(self, reason: CloseReason, /, *, detail: str | None = None, level: int = ...) -> None:
        """Close after pending bytes have left, or were given time to leave."""

    def abort(self, reason: CloseReason, /, *, detail: str | None = None, level: int = ...) -> None:
        """Close at once."""


class Deadlines:
    """See the module.

    Args:
        liveness: decides when to ping the peer.

    Attributes:
        first_message_s: when the first message is to be there.
    """

    __slots__ = (
        "_last_left_bytes",
        "_liveness",
        "_message_s",
        "_n_messages_seen",
        "_stall_s",
        "first_message_s",
    )

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self.first_message_s = math.inf
        self._message_s = math.inf
        self._n_messages_seen = 0
        self._stall_s = 0.0
        self._last_left_bytes = 0

    def begin_writing(self, now_s: float, left_bytes: int) -> None:
        """The peer reads too slowly from now on.

        Args:
            now_s: ``time.monotonic()``.
            left_bytes: bytes that have left so far.
        """
        self._last_left_bytes = left_bytes
        self._stall_s = now_s + limits.WRITE_STALL_TIMEOUT_S

    def check(self, connection: TimedConnection, now_s: float) -> None:
        """Close the connection if it is late, and ping it if it is silent."""
        for check in (
            self._check_stalled,
            self._check_gone,
            self._check_late,
            self._check_unfinished,
            self._check_alive,
        ):
            check(connection, now_s)
            if connection.close_reason is not None:
                return

    def _check_stalled(self, connection: TimedConnection, now_s: float) -> None:
        if not connection.is_write_blocked:
            return
        if connection.left_bytes > self._last_left_bytes:
            self.begin_writing(now_s, connection.left_bytes)
        elif now_s > self._stall_s:
            connection.abort(
                CloseReason.WRITE_STALLED, detail=f"{connection.unread_bytes} bytes are not read"
            )

    def _check_gone(self, connection: TimedConnection, now_s: float) -> None:
        """Find out whether a peer that is not read from is still there."""
        # maybe for hours
        is_waited_for = connection.is_answering or Pause.QUOTA in connection.pauses
        if not (connection.pauses or connection.has_ended) or not is_waited_for:
            return
        state = connection.tcp_state
        if state is TcpState.RESET:
            connection.abort(CloseReason.LOST, level=logging.DEBUG)
        elif state is TcpState.ENDED:
            connection.probe()

    def _check_late(self, connection: TimedConnection, now_s: float) -> None:
        if connection.was_paused:
            connection.was_paused = bool(connection.pauses - {Pause.TURN_OVER})
            self._liveness.has_heard = True
        elif now_s > self.first_message_s:
            connection.close(CloseReason.NO_FIRST_MESSAGE, level=logging.WARNING)

    def _check_unfinished(self, connection: TimedConnection, now_s: float) -> None:
        if (
            not connection.is_accepted
            or connection.was_paused
            or not connection.buffered_bytes
            or connection.n_messages != self._n_messages_seen
        ):
            self._n_messages_seen = connection.n_messages
            self._message_s = now_s + limits.MESSAGE_TIMEOUT_S
        elif now_s > self._message_s:
            connection.close(
                CloseReason.UNFINISHED_MESSAGE,
                detail=f"{connection.buffered_bytes} bytes of it came within"
                f" {limits.MESSAGE_TIMEOUT_S:g} s",
                level=logging.WARNING,
            )

    def _check_alive(self, connection: TimedConnection, now_s: float) -> None:
        verdict = self._liveness.check(now_s, connection.written_bytes)
        if verdict is Verdict.DEAD:
            connection.close(CloseReason.PING_TIMEOUT, level=logging.WARNING)
        elif verdict is Verdict.SILENT:
            connection.probe()
