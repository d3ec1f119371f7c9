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

    Attributes:
        has_heard: set it when something came; cheaper than to ask for the time.
    """

    __slots__ = ("_heard_at", "_ping_delay_s", "_ping_timeout_s", "_pinged_at", "has_heard")

    def __init__(self, ping_delay_s: float | None, ping_timeout_s: float) -> None:
        self._ping_delay_s = math.inf if ping_delay_s is None else ping_delay_s
        self._ping_timeout_s = ping_timeout_s
        self._heard_at = 0.0
        self._pinged_at: float | None = None
        self.has_heard = True

    def check(self, now: float) -> Verdict:
        """To be called once in a while; ``now`` is in monotonic seconds."""
        if self.has_heard:
            self.has_heard = False
            self._heard_at = now
            self._pinged_at = None
        elif self._pinged_at is not None:
            if now - self._pinged_at > self._ping_timeout_s:
                return Verdict.DEAD
        elif now - self._heard_at > self._ping_delay_s:
            self._pinged_at = now
            return Verdict.SILENT
        return Verdict.ALIVE
