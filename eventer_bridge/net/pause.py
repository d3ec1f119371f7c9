"""Why a connection is not read from."""

import enum
from typing import Final


class Pause(enum.StrEnum):
    """Reasons for not reading from a connection."""

    CORE_FULL = "the core is full"
    REGISTRATIONS_FULL = "too many of its registrations are in progress"
    QUERIES_FULL = "too many of its queries wait"
    CONVERSATIONS_FULL = "too many of its conversations await an answer"
    WRITE_BLOCKED = "it does not read"
    TURN_OVER = "others get their turn"
    LARGE_MESSAGE = "a large message of it is being handled"
    LOGIN = "its token is being checked"
    REPLAY = "what it missed is being looked up"
    DECLINED = "it is to be declined after a while"
    QUOTA = "its client sent more than it may"
    USER = "its user takes no more"
    CLOSING = "it is closing"


BACK_PRESSURE: Final = frozenset(
    {
        Pause.CORE_FULL,
        Pause.REGISTRATIONS_FULL,
        Pause.QUERIES_FULL,
        Pause.CONVERSATIONS_FULL,
        Pause.WRITE_BLOCKED,
        Pause.TURN_OVER,
        Pause.USER,
    }
)
"""Reasons that hold a peer back. Messages sent before its end are processed nevertheless: they
are few, and the connection may be lost any moment. Not after ``QUOTA``, which one could evade by
ending connections."""
