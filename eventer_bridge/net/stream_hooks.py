"""What a wire implements of its connections, with what happens where it does not."""

import logging
from typing import Generic, TypeVar

from eventer_bridge.errors import RemoteProtocolError
from eventer_bridge.net import limits
from eventer_bridge.net.stats import CloseReason

MessageT = TypeVar("MessageT")


class StreamHooks(Generic[MessageT]):
    """See the module; ``Stream`` calls these."""

    __slots__ = ()

    def close(
        self, reason: CloseReason, *, detail: str | None = None, level: int = logging.DEBUG
    ) -> None:
        """See ``Stream``."""
        raise NotImplementedError

    def on_open(self) -> None:
        """There is a connection (over TLS: the handshake is done)."""

    def on_message(self, message: MessageT) -> None:
        """A message came; must not block.

        Raises:
            RemoteProtocolError: it closes the connection, with :meth:`on_protocol_error`.
        """
        raise NotImplementedError

    def on_protocol_error(self, error: RemoteProtocolError) -> None:
        """The peer broke the protocol."""
        self.close(CloseReason.PROTOCOL_ERROR, detail=str(error), level=logging.WARNING)

    def on_lost(self, error: Exception | None) -> None:
        """The peer has ended (None) or the connection is lost: close it."""
        if error is None:
            self.close(CloseReason.PEER_CLOSED)
        else:
            self.close(CloseReason.LOST, detail=str(error))

    def on_closing(self) -> None:
        """The connection is closed, here or by the peer: no more sending or receiving."""

    def on_closed(self, reason: CloseReason) -> None:
        """The connection is gone; the last call, made once."""

    def on_sweep(self) -> None:
        """Check further deadlines; once a second, unless reading was paused since the last call."""

    def probe(self) -> None:
        """Send a message that the peer must answer, if the wire has one."""

    @property
    def first_message_timeout_s(self) -> float:
        """Time limit from ``accept`` to the first message (:meth:`clear_first_deadline`)."""
        return limits.FIRST_MESSAGE_TIMEOUT_S

    @property
    def is_answering(self) -> bool:
        """Whether the peer waits for an answer."""
        return False
