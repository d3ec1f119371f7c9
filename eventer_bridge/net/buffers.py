"""What all connections of a process hold for their peers, bounded together.

A connection holds the part of a frame that came, and what was sent and is not read. Each has
bounds of its own, but thousands of them might use these bounds to the full. When all together
hold too much, the one that holds most is closed: an honest peer hardly ever is that one.

Runs on the event loop's thread.
"""

from collections.abc import Callable

from eventer_bridge import limits


class Buffer:
    """What one connection holds."""

    __slots__ = ("_buffers", "_close", "is_closed", "n_bytes")

    def __init__(self, buffers: "Buffers") -> None:
        self._buffers = buffers
        self._close: Callable[[], object] | None = None
        self.n_bytes = 0  # as far as it is counted
        self.is_closed = False

    def when_too_large(self, close: Callable[[], object]) -> None:
        """Have the connection closed by this if it holds most, and all hold too much."""
        self._close = close

    def set(self, n_bytes: int) -> None:
        """It holds so many bytes now. Little is not counted: nobody has so many connections."""
        if n_bytes < limits.COUNTED_BUFFER_BYTES:
            if not self.n_bytes:
                return
            n_bytes = 0
        if not self.is_closed:
            self._buffers.count(self, n_bytes)

    def close(self) -> None:
        """The connection is gone, or is to go."""
        self.set(0)
        self.is_closed = True
        self._close = None

    def overflow(self) -> None:
        """It is the one that is to go."""
        close = self._close
        self.close()
        if close is not None:
            close()


class Buffers:
    """See the module. One for all connections of a process.

    Args:
        max_bytes: what they may hold together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._counted: set[Buffer] = set()
        self._n_bytes = 0

    def count(self, buffer: Buffer, n_bytes: int) -> None:
        """One holds so many bytes now."""
        self._n_bytes += n_bytes - buffer.n_bytes
        buffer.n_bytes = n_bytes
        if n_bytes:
            self._counted.add(buffer)
        else:
            self._counted.discard(buffer)
        while self._n_bytes > self._max_bytes:
            max(self._counted, key=lambda i: i.n_bytes).overflow()
