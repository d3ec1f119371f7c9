"""A conversation: an ordered, finite sequence of messages between two peers (003).

The flags of each message, from either peer, pass the turn:

==============  ====================  ========================================
flags           turn after a message  next sender
==============  ====================  ========================================
last            ENDED                 nobody
token           the other's           the receiver of that message
neither         the same              the sender of that message
==============  ====================  ========================================
"""

import enum
import math
from typing import Any, Final

import msgspec


class Turn(enum.Enum):
    """Holder of the token."""

    OURS = "ours"
    PEERS = "the peer's"
    ENDED = "ended"


# for each message: until Python 3.12, members of an enumeration are looked up slowly
OURS: Final = Turn.OURS
PEERS: Final = Turn.PEERS
ENDED: Final = Turn.ENDED


class Conversation(msgspec.Struct, eq=False):
    """One conversation of a connection; only its protocol creates and changes it.

    Attributes:
        first_id: identifier of its first message.
        is_ours: whether we began it (003: we are the owner).
        turn: sender of the next message; of a new one, who began it.
        timeout_s: time limit for the peer's next message; infinite: none.
        deadline: monotonic time of that limit; infinite if no message is awaited.
        is_expired: whether the peer was too late; its further messages are dropped.
        tag: belongs to the user of the connection.
    """

    first_id: int
    is_ours: bool
    turn: Turn
    timeout_s: float
    deadline: float = math.inf
    is_expired: bool = False
    tag: Any = None

    def __repr__(self) -> str:
        owner = "ours" if self.is_ours else "the peer's"
        return f"<conversation {self.first_id}, {owner}>"

    @property
    def may_send(self) -> bool:
        """Whether we hold the token."""
        return self.turn is OURS
