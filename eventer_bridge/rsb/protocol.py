"""State of a connection of RSB's socket transport, without I/O: the handshake, then frames."""

from eventer_bridge.errors import RemoteProtocolError
from eventer_bridge.rsb import codec


class RsbProtocol:
    """One end of a connection.

    Args:
        is_server: whether this end sends the handshake, rather than awaits it.

    Attributes:
        is_ready: whether the handshake is complete.
    """

    __slots__ = ("_decoder", "_handshake", "_has_ended", "is_ready")

    def __init__(self, *, is_server: bool) -> None:
        self._decoder = codec.NotificationDecoder()
        self._handshake = b""
        self._has_ended = False
        self.is_ready = is_server

    @property
    def buffered_bytes(self) -> int:
        """Bytes of notifications that are incomplete or not taken yet."""
        return self._decoder.buffered_bytes

    def receive_data(self, data: bytes) -> None:
        """Buffer bytes from the peer for :meth:`next_message`."""
        if not self.is_ready:
            missing = len(codec.HANDSHAKE) - len(self._handshake)
            self._handshake += data[:missing]
            self.is_ready = self._handshake == codec.HANDSHAKE
            data = data[missing:]
        self._decoder.feed(data)

    def receive_eof(self) -> None:
        """The peer sends no more; :meth:`next_message` raises if that was within a frame."""
        self._has_ended = True

    def next_message(self) -> bytes | None:
        """The next notification, encoded; None if more bytes are needed for it.

        Raises:
            RemoteProtocolError: the handshake or a frame is invalid, or the last one is truncated.
        """
        if not codec.HANDSHAKE.startswith(self._handshake):
            raise RemoteProtocolError(
                f"handshake: {self._handshake.hex(' ')}, expected four zero bytes"
            )
        frame = self._decoder.next_frame()
        if frame is None and self._has_ended and (n_bytes := self._decoder.buffered_bytes):
            raise RemoteProtocolError(f"ended within a frame, {n_bytes} bytes of it came")
        return frame

    def discard(self) -> None:
        """Drop buffered bytes: the connection is gone."""
        self._decoder = codec.NotificationDecoder()
