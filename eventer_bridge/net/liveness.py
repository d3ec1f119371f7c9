"""Ping service (003): when a peer is to be pinged, and when it is taken for dead.

Everything that is heard of a peer is a sign of life, not only the answer to a ping.
"""

import enum
import math


class Verdict(enum.Enum):
    """What is to be done about a peer."""

    ALIVE = "nothing"
    SILENT = "it is to be pinged"
    DEAD = "it did not answer: the connection is to be closed"


class Liveness:
    """When a peer was last heard.

    Args:
        ping_delay_s: silence after which it is to be pinged; None: never.
        ping_timeout_s: silence after that ping after which it is dead.
        is_postponed_by_sending: what it is sent puts off the ping as well.

    Attributes:
        has_heard: set it when something came; cheaper than to ask for the time.
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
        """To be called once in a while.

        Args:
            now: monotonic seconds.
            sent_bytes: all that it was sent so far.
        """
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
