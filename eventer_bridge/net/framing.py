"""Protocols without I/O, and the framing of Mariner and chatter.

A frame is a header byte m, m bytes of length k, and k bytes of message. ``k`` is
big-endian; ``m`` is 1 to 255, and headers longer than needed are accepted, as neither document
bounds ``m``. A message and its length have at least one byte each.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

from eventer_bridge.errors import FrameError, RemoteProtocolError
from eventer_bridge.net.limits import BATCH_BYTES

MessageT_co = TypeVar("MessageT_co", covariant=True)


class SansIo(Protocol[MessageT_co]):
    """A wire's protocol, without I/O, as ``Stream`` needs it."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of messages that are incomplete or not taken yet."""

    def receive_data(self, data: bytes, /) -> None:
        """Buffer bytes from the peer."""

    def receive_eof(self) -> None:
        """The peer sends no more; ``RemoteProtocolError``: the stream ended within a message."""

    def next_message(self) -> MessageT_co | None:
        """The next message; None if more bytes are needed for it.

        ``RemoteProtocolError``: the peer broke the protocol; nothing is read from then on.
        """

    def discard(self) -> None:
        """Drop buffered bytes: the connection is gone."""


def encode_frame(message: bytes) -> bytes:
    """A message, of at least one byte, with the shortest header."""
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

    Messages are cut when they are taken (:meth:`next_frame`), small ones that came together all at
    once; a frame that announces too many bytes is refused as soon as its header is complete and
    those before it are taken. Each byte is copied a bounded number of times, however the stream is
    cut.

    Errors name a message as ``content`` ("a JSON message").

    Attributes:
        max_frame_bytes: the largest message accepted; may be changed at any time. Messages that are
            cut already were accepted.
        frames: messages that are cut but not taken, the next one first.
        buffered_bytes: bytes fed of messages that are not taken. Headers of those that came
            together count until the last of them is taken.
    """

    __slots__ = (
        "_buffer",
        "_content",
        "_frame_begin",
        "_frame_end",
        "_has_ended",
        "_position",
        "buffered_bytes",
        "frames",
        "max_frame_bytes",
    )

    def __init__(self, max_frame_bytes: int, *, content: str) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._content = content
        # what is not cut; empty, or a bytearray while a large message is incomplete
        self._buffer: bytes | bytearray = b""
        self._position = 0  # the buffer is cut up to here
        self._frame_begin = 0  # of the next message
        self._frame_end = 0  # 0 until its header is read
        self._has_ended = False
        self.frames: list[bytes] = []
        self.buffered_bytes = 0

    def feed(self, data: bytes) -> None:
        """Take in bytes of the stream."""
        self.buffered_bytes += len(data)
        buffer, position = self._buffer, self._position
        if not buffer:
            self._buffer = data  # usually messages come whole
        elif len(buffer) - position <= len(data):  # so that each byte is copied few times
            self._buffer = b"".join((memoryview(buffer)[position:], data))
            self._position = self._frame_end = 0
        else:
            if not isinstance(buffer, bytearray):
                self._buffer = buffer = bytearray(buffer)
            if position:
                # cut bytes are dropped here, once per feed and not once per frame
                del buffer[:position]
                if self._frame_end:
                    self._frame_begin -= position
                    self._frame_end -= position
                self._position = 0
            buffer += data

    def feed_eof(self) -> None:
        """The stream has ended; raises as :meth:`next_frame`, or if that was within a message.

        If messages precede it, :meth:`next_frame` raises the error after them.
        """
        self._has_ended = True
        if not self.frames:
            self._check_end()

    def discard(self) -> None:
        """Drop buffered bytes, which the decoder would hold as long as it exists."""
        self.frames = []
        self._buffer = b""
        self._position = self._frame_end = self.buffered_bytes = 0

    def next_frame(self) -> bytes | None:
        """Take the next message; None if more bytes are needed for it.

        ``FrameError``: its header is wrong or announces too much. ``RemoteProtocolError``: the
        stream ended within it.
        """
        frames = self.frames
        if not frames:
            buffer = self._buffer
            if not buffer:
                return None
            if isinstance(buffer, bytes) and self._is_alone(buffer):  # often it is
                self._buffer = b""
                self.buffered_bytes = self._frame_end = 0
                return buffer[1 + buffer[0] :]
            if not isinstance(buffer, bytes) or not self._cut_together(buffer):
                return self._next_alone()
        frame = frames.pop(0)
        if frames:
            self.buffered_bytes -= len(frame)
        else:
            self.buffered_bytes = len(self._buffer) - self._position
        return frame

    def cut(self) -> list[bytes]:
        """Cut small messages that came together, if none are cut; returns :attr:`frames`.

        One that came alone is not cut: :meth:`next_frame` is faster.
        """
        buffer = self._buffer
        if not self.frames and isinstance(buffer, bytes) and not self._is_alone(buffer):
            self._cut_together(buffer)
        return self.frames

    def take(self, n_frames: int) -> int:
        """Take the first of :attr:`frames`, which the caller has read; returns their bytes."""
        frames = self.frames
        n_bytes = sum(map(len, frames[:n_frames]))
        del frames[:n_frames]
        if frames:
            self.buffered_bytes -= n_bytes
        else:
            self.buffered_bytes = len(self._buffer) - self._position
        return n_bytes

    def _is_alone(self, buffer: bytes) -> bool:
        """Whether a small message is all there is."""
        n_bytes = len(buffer)
        if not 2 < n_bytes <= self.max_frame_bytes or self._position:
            return False
        size = buffer[0]
        length = buffer[1] if size == 1 else buffer[1] << 8 | buffer[2]
        return 0 < length == n_bytes - 1 - size and 0 < size <= 2

    def _cut_together(self, buffer: bytes) -> bool:
        """Cut small messages, up to one that :meth:`_next_alone` takes; returns if there are any.

        What is wrong with a header is told there.
        """
        frames, begin, max_bytes = self.frames, self._position, self.max_frame_bytes
        window_end = min(begin + BATCH_BYTES, len(buffer))
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
            return False
        self._frame_end = 0
        if len(buffer) - begin > begin:
            self._position = begin
        else:  # an idle connection keeps no buffer of what it sent before
            self._buffer, self._position = buffer[begin:], 0
        return True

    def _next_alone(self) -> bytes | None:
        """The next message, if it is complete, whatever its size and its header."""
        is_known = self._frame_end or self._read_header()
        begin, end = self._frame_begin, self._frame_end
        if not is_known or end > len(self._buffer):
            if self._has_ended:
                self._check_end()
            return None
        buffer = memoryview(self._buffer)
        self._frame_end = 0
        self.buffered_bytes = n_bytes = len(buffer) - end
        if n_bytes > end and isinstance(self._buffer, bytes):
            self._position = end
        else:  # what follows a message that came in many pieces is a part of the last one
            self._buffer = bytes(buffer[end:])
            self._position = 0
        return bytes(buffer[begin:end])

    def _check_end(self) -> None:
        """Raise an error if the next message is incomplete."""
        if missing := self._missing():
            size, received = missing
            what = f"a frame of {size} bytes" if size else "a frame header"
            raise RemoteProtocolError(
                f"connection ended in the middle of {what}, {received} received"
            )

    def _missing(self) -> tuple[int, int] | None:
        """Size of an incomplete message, and the bytes received of it.

        (0, n) if only n bytes of a header were received; None if nothing or all of it was.
        """
        if not self._frame_end and not self._read_header():
            return (0, self.buffered_bytes) if self.buffered_bytes else None
        size = self._frame_end - self._frame_begin
        received = len(self._buffer) - self._frame_begin
        return (size, received) if received < size else None

    def _read_header(self) -> bool:
        buffer, begin = self._buffer, self._position
        n_bytes = len(buffer) - begin
        if n_bytes < 1:
            return False
        size = buffer[begin]
        if size == 2 < n_bytes:  # spares a copy
            length = buffer[begin + 1] << 8 | buffer[begin + 2]
        else:
            if size == 0:
                raise FrameError("frame header: first byte is 0, expected 1 to 255")
            if n_bytes <= size:
                if any(buffer[begin + 1 : begin + 1 + max(size - 8, 0)]):  # no length
                    raise self._refusal(1 << 64)
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
