"""Framing of 002 and 003: a header byte m, m bytes of length k, k bytes of message.

Sans I/O. ``k`` is big-endian; headers longer than needed are accepted. A message has at
least one byte, and so has its length.
"""

from collections.abc import Sequence

from eventer_bridge.errors import FrameError


def encode_frame(message: bytes) -> bytes:
    """A message with its header, of the shortest form.

    Args:
        message: at least one byte.
    """
    length = len(message)
    if length < 0x1_0000:  # most of them
        if length < 0x100:
            return bytes((1, length)) + message
        return bytes((2, length >> 8, length & 0xFF)) + message
    return _header(length) + message


def frame_parts(parts: Sequence[bytes]) -> list[bytes]:
    """As :func:`encode_frame`, of a large message whose parts are not to be joined."""
    return [_header(sum(map(len, parts))), *parts]


def _header(length: int) -> bytes:
    size = (length.bit_length() + 7) // 8
    return b"%c%b" % (size, length.to_bytes(size, "big"))


class FrameDecoder:
    """Cuts a stream of bytes into messages.

    What is fed is kept until it is taken by :meth:`next_frame`; a frame that announces more
    than is allowed is refused as soon as its header is there. Each byte is copied a bounded
    number of times, however the stream is cut.

    Args:
        max_frame_bytes: the largest message that is accepted, in bytes.
        content: what a message is, for the text of errors ("a JSON message").
        max_length_bytes: the largest m that is accepted: 8 (002) or 255 (003), at least 2.

    Attributes:
        max_frame_bytes: may be changed at any time.
    """

    __slots__ = (
        "_buffer",
        "_content",
        "_frame_begin",
        "_frame_end",
        "_max_length_bytes",
        "_position",
        "max_frame_bytes",
    )

    def __init__(self, max_frame_bytes: int, *, content: str, max_length_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._content = content
        self._max_length_bytes = max_length_bytes
        self._buffer = bytearray()
        self._position = 0  # up to here the buffer was taken
        self._frame_begin = 0  # of the message that is waited for
        self._frame_end = 0  # 0 while its header is not known

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fed and not taken."""
        return len(self._buffer) - self._position

    def missing(self) -> tuple[int, int] | None:
        """What the next message lacks.

        Returns:
            Its size and the bytes of it that are here, both in bytes; (0, n) if only n bytes
            of a header are here; None if nothing or all of it is here.

        Raises:
            FrameError: as :meth:`next_frame`.
        """
        if not self._frame_end and not self._read_header():
            return (0, self.buffered_bytes) if self.buffered_bytes else None
        size = self._frame_end - self._frame_begin
        received = len(self._buffer) - self._frame_begin
        return (size, received) if received < size else None

    def feed(self, data: bytes) -> None:
        """Take in bytes of the stream."""
        if self._position:
            # what was taken is dropped here, once per feed and not once per frame
            del self._buffer[: self._position]
            if self._frame_end:
                self._frame_begin -= self._position
                self._frame_end -= self._position
            self._position = 0
        self._buffer += data

    def discard(self) -> None:
        """Drop what was fed and not taken, which the decoder would hold as long as it exists."""
        self._buffer.clear()
        self._position = self._frame_end = 0

    def next_frame(self) -> bytes | None:
        """The next message; None if more bytes are needed for it.

        Raises:
            FrameError: the header is wrong or announces too much.
        """
        buffer = self._buffer
        if not self._frame_end and not self._read_header():
            return None
        end = self._frame_end
        if len(buffer) < end:
            return None
        message = bytes(memoryview(buffer)[self._frame_begin : end])
        self._frame_end = 0
        if len(buffer) == end:
            buffer.clear()  # an idle connection keeps nothing of its largest message
            self._position = 0
        else:
            self._position = end
        return message

    def _read_header(self) -> bool:
        buffer, begin = self._buffer, self._position
        n_bytes = len(buffer) - begin
        if n_bytes < 1:
            return False
        size = buffer[begin]
        if size == 1 < n_bytes:  # most messages; spares a copy
            length = buffer[begin + 1]
        elif size == 2 < n_bytes:
            length = buffer[begin + 1] << 8 | buffer[begin + 2]
        else:
            if not 1 <= size <= self._max_length_bytes:
                raise FrameError(
                    f"frame header: first byte is {size}, expected 1 to {self._max_length_bytes}"
                )
            if n_bytes <= size:
                return False
            length = int.from_bytes(buffer[begin + 1 : begin + 1 + size], "big")
        if not 0 < length <= self.max_frame_bytes:
            raise self._refusal(length)
        self._frame_begin = begin = begin + 1 + size
        self._frame_end = begin + length
        return True

    def _refusal(self, length: int) -> FrameError:
        if length == 0:
            return FrameError(f"empty frame, expected {self._content}")
        announced = length if length < 1 << 64 else "2**64 or more"
        return FrameError(
            f"frame of {announced} bytes announced, at most {self.max_frame_bytes} are allowed"
        )
