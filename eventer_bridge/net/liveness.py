"""Ping service: when to ping a peer, and when to consider it dead.

Anything received from a peer is a sign of life, not only the answer to a ping.
"""

import enum
import math


class Verdict(enum.Enum):
    """The state of a peer."""

    ALIVE = "nothing"
    SILENT = "it is to be pinged"
    DEAD = "it did not answer: the connection is to be closed"


class Liveness:
    """Tracks the silence of a peer.

    It is pinged after ``ping_delay_s`` (None: never), and dead ``ping_timeout_s`` after that;
    ``has_heard`` is set when bytes arrive, which is cheaper than reading the clock.
    ``is_postponed_by_sending``: whether sending to the peer postpones the ping as well.
    """

    __slots__ = (
        "_heard_at",
        "_is_postponed_by_sending",
        "_ping_delay_s",
        "_ping_timeout_s",
        "_pinged_at",
        "_sent_bytes",
        "has_heard",
    )

    def __init__(
        self,
        ping_delay_s: float | None,
        ping_timeout_s: float,
        *,
        is_postponed_by_sending: bool = False,
    ) -> None:
        self._ping_delay_s = math.inf if ping_delay_s is None else ping_delay_s
        self._ping_timeout_s = ping_timeout_s
        self._heard_at = 0.0
        self._pinged_at: float | None = None
        self._is_postponed_by_sending = is_postponed_by_sending
        self._sent_bytes = 0
        self.has_heard = True

    def check(self, now: float, sent_bytes: int = 0) -> Verdict:
        """Check the peer; ``sent_bytes`` is the total of bytes sent to it. Call it periodically."""
        has_sent = self._is_postponed_by_sending and sent_bytes != self._sent_bytes
        self._sent_bytes = sent_bytes
        if self.has_heard:
            self.has_heard = False
            self._heard_at = now
            self._pinged_at = None
        elif self._pinged_at is not None:
            if now - self._pinged_at > self._ping_timeout_s:
                return Verdict.DEAD
        elif has_sent:
            self._heard_at = now
        elif now - self._heard_at > self._ping_delay_s:
            self._pinged_at = now
            return Verdict.SILENT
        return Verdict.ALIVE
