"""A common bound on the bytes that all connections of a process buffer.

A connection buffers the received part of a frame, and sent bytes that the peer has not read.
Each connection has bounds of its own, but thousands of them might use these bounds to the full.
When all together buffer too much, the largest is closed, which is hardly ever an honest peer.

Runs on the event loop's thread.
"""

from collections.abc import Callable

from eventer_bridge.net import limits


class Buffer:
    """The bytes that one connection buffers."""

    __slots__ = ("_buffers", "_close", "is_closed", "n_bytes")

    def __init__(self, buffers: "Buffers") -> None:
        self._buffers = buffers
        self._close: Callable[[], object] | None = None
        self.n_bytes = 0  # the counted part
        self.is_closed = False

    def when_too_large(self, close: Callable[[], object]) -> None:
        """Call ``close`` if this is the largest when all together hold too much."""
        self._close = close

    def set(self, n_bytes: int) -> None:
        """Set the bytes held now. Small amounts are not counted: no process has enough of them."""
        if n_bytes < limits.COUNTED_BUFFER_BYTES:
            if not self.n_bytes:
                return
            n_bytes = 0
        if not self.is_closed:
            self._buffers.count(self, n_bytes)

    def close(self) -> None:
        """Stop counting: the connection is closed, or about to be."""
        self.set(0)
        self.is_closed = True
        self._close = None

    def overflow(self) -> None:
        """Close the connection, as the largest one."""
        close = self._close
        self.close()
        if close is not None:
            close()


class Buffers:
    """See the module. One for all connections of a process.

    Args:
        max_bytes: common bound.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._counted: set[Buffer] = set()
        self._n_bytes = 0

    def count(self, buffer: Buffer, n_bytes: int) -> None:
        """Count the bytes that one connection holds now."""
        self._n_bytes += n_bytes - buffer.n_bytes
        buffer.n_bytes = n_bytes
        if n_bytes:
            self._counted.add(buffer)
        else:
            self._counted.discard(buffer)
        while self._n_bytes > self._max_bytes:
            max(self._counted, key=lambda i: i.n_bytes).overflow()
