"""The end of a connection: why, and in two steps if possible.

It sends its end, and then drops incoming bytes until the peer ends too, for a while. If it closed
at once with bytes unread, the system would reset the connection, and the peer would lose the last
bytes sent.

Runs on the event loop's thread.
"""

import asyncio
import time

from eventer_bridge import limits as core_limits
from eventer_bridge.net import limits
from eventer_bridge.net.stats import CloseReason


class Closing:
    """See the module.

    Args:
        transport: of the connection.
        reason: why it ends.
        detail: more about the reason.
        text: replaces the reason and the detail in :attr:`text`.

    Attributes:
        text: the reason with its detail, for people.
        log_extra: why it ends, for the log.
    """

    __slots__ = ("_deadline_s", "_dropped_bytes", "_transport", "log_extra", "text")

    def __init__(
        self,
        transport: asyncio.Transport,
        reason: CloseReason,
        detail: str | None,
        text: str | None,
    ) -> None:
        self._transport = transport
        most = core_limits.MAX_LOG_CHARACTERS
        self.log_extra = {"reason": (text or reason.value)[:most]}
        self.text = text or reason.value
        if detail is not None:
            self.log_extra["detail"] = detail[:most]
            if text is None:
                self.text = f"{reason.value}: {detail[:most]}"
        self._deadline_s = time.monotonic() + limits.CLOSE_TIMEOUT_S
        self._dropped_bytes = 0

    def begin(self, *, is_waiting: bool, linger_s: float) -> None:
        """Begin to close.

        Args:
            is_waiting: whether to wait for the peer's end.
            linger_s: time for the peer to close first.
        """
        transport = self._transport
        if transport.is_closing() or not is_waiting:
            transport.close()
        elif linger_s:
            transport.resume_reading()  # else the peer's closing would go unnoticed
            asyncio.get_running_loop().call_later(linger_s, self._send_end)
        else:
            self._send_end()

    def drop(self, n_bytes: int) -> None:
        """Drop bytes that arrive after closing."""
        self._dropped_bytes += n_bytes
        if self._dropped_bytes > limits.MAX_DROPPED_BYTES:
            self._transport.close()

    def sweep(self, now_s: float) -> None:
        """End what takes too long; ``now_s`` is ``time.monotonic()``."""
        if now_s > self._deadline_s:
            self._transport.abort()
        elif (
            now_s > self._deadline_s - limits.CLOSE_TIMEOUT_S + limits.LINGER_S
            and not self._transport.get_write_buffer_size()
        ):
            self._transport.close()

    async def wait_lost(self, lost: asyncio.Future[None]) -> None:
        """Wait until the connection is gone, and see that this is soon.

        Args:
            lost: done then.
        """
        await asyncio.wait([lost], timeout=limits.LINGER_S)
        if not lost.done() and not self._transport.get_write_buffer_size():
            self._transport.close()
        await asyncio.wait([lost], timeout=limits.CLOSE_TIMEOUT_S)
        if not lost.done():
            self._transport.abort()
            await asyncio.wait([lost], timeout=limits.CLOSE_TIMEOUT_S)

    def _send_end(self) -> None:
        """Send our end and wait for the peer's; over TLS, which cannot half-close, close."""
        transport = self._transport
        if transport.is_closing() or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the peer is gone, unnoticed by asyncio's transport
            transport.abort()
            return
        transport.resume_reading()  # else the peer's end would go unnoticed
