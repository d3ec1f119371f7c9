"""What a connection is given: who takes its messages, and its bounds of size and time."""

import abc
from typing import NamedTuple

from eventer_bridge.chatter.codec import Dialect
from eventer_bridge.chatter.conversation import Conversation
from eventer_bridge.chatter.protocol import Message
from eventer_bridge.errors import RemoteProtocolError


class Handler(abc.ABC):
    """What is done with the messages of a connection: the layer above chatter.

    All methods are called on the event loop's thread and must not block. One that raises
    ``RemoteProtocolError`` closes the connection with that reason; with any other error,
    it is closed as well, and the error is logged as ours.
    """

    @abc.abstractmethod
    def on_message(self, message: Message) -> None:
        """A message came; pings do not come here."""

    def on_timeout(self, conversation: Conversation) -> None:
        """The peer did not go on with a conversation in time.

        What it sends in it later is dropped. By default, the connection is closed.
        """
        raise RemoteProtocolError(f"{conversation!r} timed out")

    def on_closing(self) -> None:  # noqa: B027  # not everybody wants to know
        """The connection is closed, here or by the peer: nothing can be sent any more."""

    def on_closed(self, reason: str) -> None:  # noqa: B027  # not everybody wants to know
        """The connection is gone; called once, as the last."""


class ConnectionSettings(NamedTuple):
    """What is the same for all connections of a listener; see ``connect`` and ``listen``."""

    dialect: Dialect | None
    max_frame_bytes: int
    first_message_timeout_s: float
    ping_delay_s: float | None
    ping_timeout_s: float
    conversation_timeout_s: float
