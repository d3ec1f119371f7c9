"""A conversation: an ordered, finite sequence of messages between two peers (003).

Whose turn it is follows from the flags of the messages, whoever of the two sent one:

==============  ====================  ========================================
flags           turn after a message  may send then
==============  ====================  ========================================
last            ENDED                 nobody
token           the other's           the receiver of that message
neither         the same              the sender of that message
==============  ====================  ========================================
"""

import enum
import math
from typing import Any


class Turn(enum.Enum):
    """Who holds the token."""

    OURS = "ours"
    PEERS = "the peer's"
    ENDED = "ended"


class Conversation:
    """One conversation of a connection; made by its protocol, and changed by it only.

    Attributes:
        first_id: identifier of its first message.
        is_ours: whether we began it (003: we are the owner).
        turn: who may send the next message.
        timeout_s: how long the peer may take for it when it is its turn; infinite for ever.
        deadline: monotonic seconds until when the peer is to send; infinite if nothing is
            waited for.
        is_expired: whether the peer was too late. What it sends then is dropped.
        tag: what the user of the connection keeps with it.
    """

    __slots__ = ("deadline", "first_id", "is_expired", "is_ours", "tag", "timeout_s", "turn")

    def __init__(self, first_id: int, *, is_ours: bool, timeout_s: float) -> None:
        self.first_id = first_id
        self.is_ours = is_ours
        self.turn = Turn.OURS if is_ours else Turn.PEERS
        self.timeout_s = timeout_s
        self.deadline = math.inf
        self.is_expired = False
        self.tag: Any = None

    def __repr__(self) -> str:
        owner = "ours" if self.is_ours else "the peer's"
        return f"<conversation {self.first_id}, {owner}>"

    @property
    def may_send(self) -> bool:
        """Whether we hold the token."""
        return self.turn is Turn.OURS
