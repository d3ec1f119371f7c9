"""What a wire's protocol provides, without I/O."""

from typing import Protocol, TypeVar

MessageT_co = TypeVar("MessageT_co", covariant=True)


class SansIo(Protocol[MessageT_co]):
    """A wire's protocol, without I/O."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of messages that are incomplete or not taken yet."""

    def receive_data(self, data: bytes, /) -> None:
        """Buffer bytes from the peer."""

    def receive_eof(self) -> None:
        """The peer sends no more.

        Raises:
            RemoteProtocolError: the stream ended within a message.
        """

    def next_message(self) -> MessageT_co | None:
        """The next message; None if more bytes are needed for it.

        Raises:
            RemoteProtocolError: the peer broke the protocol; nothing is read from then on.
        """

    def discard(self) -> None:
        """Drop buffered bytes: the connection is gone."""
