"""One connection to a server: the state of the Mariner protocol on a stream, with its requests.

The connection answers the server's pings, and keeps the reason why it was lost. Each request waits
as a future, in the order of sending. Runs on the event loop's thread.
"""

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

from eventer_bridge.net import connecting
from eventer_bridge.net.liveness import Liveness
from eventer_bridge.net.stats import CloseReason, ServerStats
from eventer_bridge.net.stream import Pause, Stream
from eventer_bridge.packed import Batch
from eventer_bridge.resources import Tasks
from mariner import limits
from mariner.errors import ClosedError, ConnectionLostError, LocalProtocolError, RemoteProtocolError
from mariner.wire.messages import Message, PingReq, PingRes, QueryRes, RegisterRes
from mariner.wire.protocol import LargeMessage, MarinerProtocol, Received, RefusedRegister, Role

CLOSED_BY_CLIENT: Final = "closed by this client"

R = TypeVar("R", RegisterRes, QueryRes, PingRes)


def lost_before_init(reason: str, request: str, is_tls: bool) -> str:
    """Text for a connection lost before the server answered the first ``request``."""
    # most servers give no reason when they refuse a client's certificate or plain TCP
    hint = "a client certificate that it accepts" if is_tls else "TLS"
    return f"{reason}, before it answered {request}; it may require {hint}"


class ServerConnection(Stream[Received]):
    """See the module.

    ``handle_message`` is called with each message except ``ping_req``, ``handle_lost`` once, when
    the connection is gone. ``is_connected``: there was one (over TLS: a finished handshake).
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
        elif not isinstance(message, (LargeMessage, Batch)):  # only servers get these
            self._handle_message(message)

    def on_protocol_error(self, error: RemoteProtocolError) -> None:
        """See ``Stream``."""
        self.abort(CloseReason.PROTOCOL_ERROR, text=f"the server violated the protocol: {error}")

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
        """Send a message; returns False, without a connection or while it closes.

        Raises LocalProtocolError if it is not allowed now, or cannot be encoded.
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


class Requests:
    """Requests over a connection (``ids`` are for them), and their answers.

    One waits to be sent while the transport's write buffer is above its high-water mark. Those in
    ``pending`` wait for their answers, the oldest first.
    """

    def __init__(self, connection: ServerConnection, address: str, group: Tasks) -> None:
        self._connection = connection
        self._address = address
        self._group = group
        self._loop = asyncio.get_running_loop()
        self.ids = itertools.count(1)
        self.pending: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, request_id: int, request: Message, response_type: type[R]) -> R:
        """Send a request and wait for its answer; raises as :meth:`send` and :meth:`answer`."""
        sent = await self.send(request_id, request)
        return await self.answer(request_id, sent, response_type)

    async def send(self, request_id: int, request: Message) -> asyncio.Future[Any]:
        """Send a request; returns the future of its answer, for :meth:`answer`.

        Raises ConnectionLostError (nothing was sent) or LocalProtocolError (it cannot be sent).
        """
        await self._connection.wait_writable()
        self.tell(request)
        sent = self.pending[request_id] = self._loop.create_future()
        return sent

    def tell(self, message: Message) -> None:
        """Send at once what has no answer; raises as :meth:`send`."""
        self.check_open()
        if not self._connection.send(message):
            raise self._not_sent()

    async def answer(self, request_id: int, sent: asyncio.Future[Any], response_type: type[R]) -> R:
        """Wait for the answer.

        Raises ConnectionLostError if the connection was lost before it came, RemoteProtocolError if
        it is of another kind; the connection is closed then.
        """
        try:
            response = await sent
        finally:
            self.pending.pop(request_id, None)
        if not isinstance(response, response_type):
            answer_type, expected = type(response).__name__, response_type.__name__
            text = f"{answer_type} answers request {request_id}, expected {expected}"
            self._connection.on_protocol_error(RemoteProtocolError(text))
            raise RemoteProtocolError(text)
        answer: R = response
        return answer

    def on_answer(self, request_id: int, response: Message) -> None:
        """An answer came."""
        # the requester may be gone (cancelled), or it answers a ping of keep_alive
        future = self.pending.get(request_id)
        if future is not None and not future.done():
            future.set_result(response)

    def fail(self, reason: str) -> None:
        """No more answers come."""
        for future in self.pending.values():
            if not future.done():
                future.set_exception(ConnectionLostError(reason))

    def check_open(self) -> None:
        """Raise ``ConnectionLostError`` if the client is closed, or the connection lost."""
        if self._connection.close_reason is not None or not self._group.is_open:
            raise self._not_sent()

    def _not_sent(self) -> ConnectionLostError:
        reason = self._connection.close_text
        if reason is None:
            reason = "connection lost" if self._group.is_open else CLOSED_BY_CLIENT
        return ConnectionLostError(f"{self._address}: {reason}")
