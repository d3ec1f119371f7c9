"""One connection to a server: the Mariner protocol state (002) on a stream.

It answers the server's pings, and keeps the reason why it was lost. The client handles all other
messages.

Runs on the event loop's thread.
"""

import contextlib
import logging
import math
from collections.abc import Callable

from eventer_bridge.net import connecting
from eventer_bridge.net.liveness import Liveness
from eventer_bridge.net.stats import CloseReason, ServerStats
from eventer_bridge.net.stream import Pause, Stream
from eventer_bridge.packed import Packed
from mariner import limits
from mariner.client import reasons
from mariner.errors import ClosedError, LocalProtocolError, RemoteProtocolError
from mariner.wire.messages import Message, PingReq, PingRes
from mariner.wire.protocol import LargeMessage, MarinerProtocol, Received, RefusedRegister, Role


class ServerConnection(Stream[Received]):
    """See the module.

    Args:
        handle_message: called with each message except ``ping_req``.
        handle_lost: called once, when the connection is gone; ``close_reason`` says why.

    Attributes:
        is_connected: whether there ever was a connection (over TLS: a finished handshake).
    """

    mlog = logging.getLogger(__name__)

    def __init__(
        self,
        handle_message: Callable[[Message | RefusedRegister], None],
        handle_lost: Callable[[], None],
    ) -> None:
        self._protocol = MarinerProtocol(
            Role.CLIENT, max_init_frame_bytes=limits.MAX_INIT_RES_BYTES
        )
        # the client pings
        super().__init__(self._protocol, ServerStats(), Liveness(None, math.inf))
        self._handle_message = handle_message
        self._handle_lost = handle_lost
        self._pong: PingRes | None = None  # that waits
        self.is_connected = False

    # --- Stream -------------------------------------------------------------------------

    def on_open(self) -> None:
        """See ``Stream``."""
        self.is_connected = True

    def on_message(self, message: Received) -> None:
        """See ``Stream``."""
        if isinstance(message, PingReq):
            # a server that pings without reading gets one answer, once it reads again
            if self.is_write_blocked:
                self._pong = PingRes(message.ping_id)
            else:
                self.send(PingRes(message.ping_id))
        elif not isinstance(message, (LargeMessage, Packed)):  # only servers get these
            self._handle_message(message)

    def on_protocol_error(self, error: RemoteProtocolError) -> None:
        """See ``Stream``."""
        self.abort(CloseReason.PROTOCOL_ERROR, text=reasons.broken_protocol(error))

    def on_closed(self, reason: CloseReason) -> None:
        """See ``Stream``."""
        self._handle_lost()

    def resume_writing(self) -> None:
        """Pending bytes have left."""
        super().resume_writing()
        pong, self._pong = self._pong, None
        if pong is not None:
            self.send(pong)

    def on_lost(self, error: Exception | None) -> None:
        """See ``Stream``."""
        self.close(CloseReason.LOST, text=connecting.lost(error))

    # --- called by the client -----------------------------------------------------------

    @property
    def is_reading_paused(self) -> bool:
        """Whether reading is paused, so that nothing can arrive."""
        return Pause.USER in self.pauses

    @property
    def has_received(self) -> bool:
        """Whether anything arrived since this was set to False."""
        return self._liveness.has_heard

    @has_received.setter
    def has_received(self, value: bool) -> None:
        self._liveness.has_heard = value

    def send(self, message: Message) -> bool:
        """Send a message; nothing happens without a connection, or while it is closing.

        Returns:
            Whether it was passed on for sending.

        Raises:
            LocalProtocolError: it is not allowed now, or cannot be encoded.
        """
        if not self.is_connected or self.close_reason is not None:
            return False
        try:
            data = self._protocol.send(message)
        except UnicodeEncodeError as e:
            raise LocalProtocolError(f"a text has no UTF-8 form: {e}") from e
        except OverflowError as e:
            raise LocalProtocolError(str(e)) from e
        if self._transport.is_closing():
            return False
        self.write_unbounded([data])  # the user bounds how much waits
        return True

    async def wait_writable(self) -> None:
        """Wait until the transport accepts more, or is lost."""
        if self.is_write_blocked:
            with contextlib.suppress(ClosedError):
                await self.drain()
