"""The handler of a connection's messages, and the connection's bounds of size and time."""

import abc
from typing import NamedTuple

from eventer_bridge.chatter.codec import Dialect
from eventer_bridge.chatter.conversation import Conversation
from eventer_bridge.chatter.protocol import Message
from eventer_bridge.errors import RemoteProtocolError
from eventer_bridge.net.stats import CloseReason


class Handler(abc.ABC):
    """Handles the messages of a connection: the layer above chatter.

    All methods are called on the event loop's thread and must not block. A
    ``RemoteProtocolError`` closes the connection with that reason; any other error closes it
    too, and is logged as ours.
    """

    @abc.abstractmethod
    def on_message(self, message: Message) -> None:
        """A message arrived; pings are handled by the protocol."""

    def on_several(self) -> bool:
        """Several messages came together; returns whether some were taken.

        ``Connection.peek_requests`` and ``take_requests`` take them; all others come to
        :meth:`on_message`.
        """
        return False

    def on_timeout(self, conversation: Conversation) -> None:
        """The peer did not continue a conversation in time.

        Its later messages are dropped. By default, the connection is closed.
        """
        raise RemoteProtocolError(f"{conversation!r} timed out")

    def on_closing(self) -> None:  # noqa: B027  # not everybody wants to know
        """The connection is closed, here or by the peer: no more sending."""

    def on_closed(self, reason: CloseReason) -> None:  # noqa: B027  # not everybody wants to know
        """The connection is gone; the last call, made once."""


class ConnectionSettings(NamedTuple):
    """Settings shared by all connections of a listener; see ``connect`` and ``listen``."""

    dialect: Dialect | None
    max_frame_bytes: int
    first_message_timeout_s: float
    ping_delay_s: float | None
    ping_timeout_s: float
    conversation_timeout_s: float
