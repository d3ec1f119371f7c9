"""Framing of 002 and 003: a header byte m, m bytes of length k, k bytes of message.

Sans I/O. ``k`` is big-endian; headers longer than needed are accepted. A message and its
length have at least one byte each.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from eventer_bridge.errors import FrameError
from eventer_bridge.net.limits import BATCH_BYTES


def encode_frame(message: bytes) -> bytes:
    """A message with the shortest header.

    Args:
        message: at least one byte.
    """
    length = len(message)
    return (_HEADERS[length] if length < len(_HEADERS) else _header(length)) + message


def encode_frames(messages: Iterable[bytes]) -> bytes:
    """As :func:`encode_frame`, of several messages; their frames are joined."""
    headers, n_headers = _HEADERS, len(_HEADERS)
    return b"".join(
        [
            headers[length] + message
            if (length := len(message)) < n_headers
            else _header(length) + message
            for message in messages
        ]
    )


def frame_parts(parts: Sequence[bytes]) -> list[bytes]:
    """As :func:`encode_frame`, of a message in parts, which may be large and are not joined."""
    if len(parts) == 1 and len(parts[0]) < 0x1_0000:
        return [encode_frame(parts[0])]
    return [_header(sum(map(len, parts))), *parts]


def _header(length: int) -> bytes:
    size = (length.bit_length() + 7) // 8
    return b"%c%b" % (size, length.to_bytes(size, "big"))


_HEADERS: Final = tuple(map(_header, range(0x400)))  # of most messages


class FrameDecoder:
    """Cuts a stream of bytes into messages.

    Bytes are buffered until :meth:`next_frames` takes them; a frame that announces too many is
    refused as soon as its header is complete and those before it are taken. Each byte is copied a
    bounded number of times, however the stream is cut.

    Args:
        max_frame_bytes: the largest message accepted.
        content: description of a message, for the text of errors ("a JSON message").
        max_length_bytes: the largest m accepted: 8 (002) or 255 (003), at least 2.

    Attributes:
        max_frame_bytes: may be changed at any time.
        buffered_bytes: bytes fed and not taken yet.
    """

    __slots__ = (
        "_buffer",
        "_content",
        "_frame_begin",
        "_frame_end",
        "_max_length_bytes",
        "_position",
        "buffered_bytes",
        "max_frame_bytes",
    )

    def __init__(self, max_frame_bytes: int, *, content: str, max_length_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._content = content
        self._max_length_bytes = max_length_bytes
        self._buffer: bytes | bytearray = b""  # a bytearray while a large message is incomplete
        self._position = 0  # the buffer is taken up to here
        self._frame_begin = 0  # of the next message
        self._frame_end = 0  # 0 until its header is read
        self.buffered_bytes = 0

    def missing(self) -> tuple[int, int] | None:
        """Progress of an incomplete message.

        Returns:
            Its size and the bytes received of it; (0, n) if only n bytes of a header were
            received; None if nothing or all of it was received.

        Raises:
            FrameError: as :meth:`next_frames`.
        """
        if not self._frame_end and not self._read_header():
            return (0, self.buffered_bytes) if self.buffered_bytes else None
        size = self._frame_end - self._frame_begin
        received = len(self._buffer) - self._frame_begin
        return (size, received) if received < size else None

    def feed(self, data: bytes) -> None:
        """Take in bytes of the stream."""
        if not self.buffered_bytes:
            self._buffer = data  # usually messages come whole
            self.buffered_bytes = len(data)
            return
        buffer, position = self._buffer, self._position
        if self.buffered_bytes <= len(data):  # so that each byte is copied few times
            self._buffer = b"".join((memoryview(buffer)[position:], data))
            self._position = self._frame_end = 0
        else:
            if not isinstance(buffer, bytearray):
                self._buffer = buffer = bytearray(buffer)
            if position:
                # taken bytes are dropped here, once per feed and not once per frame
                del buffer[:position]
                if self._frame_end:
                    self._frame_begin -= position
                    self._frame_end -= position
                self._position = 0
            buffer += data
        self.buffered_bytes += len(data)

    def discard(self) -> None:
        """Drop buffered bytes, which the decoder would hold as long as it exists."""
        self._buffer = b""
        self._position = self._frame_end = self.buffered_bytes = 0

    def next_frames(self) -> list[bytes]:
        """Take the next messages: a large one, or small ones that came together.

        Returns:
            Those before what is wrong, if there are any; empty if more bytes are needed.

        Raises:
            FrameError: the next header is wrong or announces too much.
        """
        buffer, begin = self._buffer, self._position
        if not isinstance(buffer, bytes):
            return self._next_alone()
        max_bytes, buffer_end = self.max_frame_bytes, len(buffer)
        if not begin and 2 < buffer_end <= max_bytes:
            size = buffer[0]
            length = buffer[1] if size == 1 else buffer[1] << 8 | buffer[2]
            if length and 0 < size <= 2 and buffer_end == 1 + size + length:  # often it is one
                self._buffer = b""
                self.buffered_bytes = self._frame_end = 0
                return [buffer[1 + size :]]
        frames: list[bytes] = []
        window_end = begin + BATCH_BYTES if self.buffered_bytes > BATCH_BYTES else buffer_end
        while begin + 2 < window_end:
            size = buffer[begin]
            if size == 1:
                start = begin + 2
                end = start + buffer[begin + 1]
            elif size == 2:
                start = begin + 3
                end = start + (buffer[begin + 1] << 8 | buffer[begin + 2])
            else:
                break
            if not start < end <= window_end or end - start > max_bytes:
                break
            frames.append(buffer[start:end])
            begin = end
        if not frames:
            return self._next_alone()
        self._frame_end = 0
        self.buffered_bytes = n_bytes = buffer_end - begin
        if n_bytes > begin:
            self._position = begin
        else:  # an idle connection keeps no buffer of what it sent before
            self._buffer, self._position = buffer[begin:], 0
        return frames

    def _next_alone(self) -> list[bytes]:
        """The next message, if it is complete, whatever its size and its header."""
        if not self._frame_end and not self._read_header():
            return []
        buffer, begin, end = memoryview(self._buffer), self._frame_begin, self._frame_end
        if end > len(buffer):
            return []
        self._frame_end = 0
        self.buffered_bytes = n_bytes = len(buffer) - end
        if n_bytes > end and isinstance(self._buffer, bytes):
            self._position = end
        else:  # what follows a message that came in many pieces is a part of the last one
            self._buffer = bytes(buffer[end:])
            self._position = 0
        return [bytes(buffer[begin:end])]

    def _read_header(self) -> bool:
        buffer, begin = self._buffer, self._position
        n_bytes = len(buffer) - begin
        if n_bytes < 1:
            return False
        size = buffer[begin]
        if size == 2 < n_bytes:  # spares a copy
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
