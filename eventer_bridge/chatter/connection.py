"""One chatter connection: the asyncio shell around the protocol state (003).

Messages go to a :class:`Handler`, synchronously and in order; what it sends meanwhile
leaves in one piece. Nothing here grows without bound. A connection is not read from while

* its user says so (:meth:`Connection.pause_reading`),
* too many conversations of the peer wait for us,
* it sent so many messages at once that others are to have their turn first,
* we listen, and what the peer was sent has not left. Who connected goes on reading then:
  if both stopped, neither would ever go on. It only does not answer pings without end.

Everything that depends on time (first message, conversations, ping, stalled writes) is
looked at by :meth:`Connection.sweep`, once a second.

Runs on the event loop's thread.
"""

import asyncio
import functools
import logging
import math
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, cast

from hat import aio

from eventer_bridge import limits
from eventer_bridge.chatter.codec import Dialect
from eventer_bridge.chatter.conversation import Conversation
from eventer_bridge.chatter.handler import Handler, Settings
from eventer_bridge.chatter.liveness import Liveness, Verdict
from eventer_bridge.chatter.protocol import Protocol
from eventer_bridge.errors import ClosedError, RemoteProtocolError
from eventer_bridge.net.admission import FOR_ANOTHER, TOO_MUCH_BUFFERED, Place
from eventer_bridge.net.sockets import watch_peer, write_parts
from eventer_bridge.net.tcp_state import TcpState, tcp_state

mlog = logging.getLogger(__name__)

# why a connection is not read from, besides what its user says
_CONVERSATIONS_FULL: Final = "conversations full"
_WRITE_BLOCKED: Final = "write blocked"
_TURN_OVER: Final = "turn over"


P = ParamSpec("P")


class Connection(aio.Resource, asyncio.Protocol):
    """See the module. Made by ``connect`` and ``listen``."""

    def __init__(
        self,
        make_handler: "Callable[[Connection], Handler]",
        settings: Settings,
        connections: "set[Connection] | None" = None,
        place: Place | None = None,
    ) -> None:
        self._make_handler = make_handler
        self._settings = settings
        # those of the listener, and the place there; None where we connected
        self._connections = connections
        self._place = place
        self._protocol = Protocol(
            settings.dialect,
            max_frame_bytes=settings.max_frame_bytes,
            conversation_timeout_s=settings.conversation_timeout_s,
        )
        self._loop = asyncio.get_running_loop()
        self._handler: Handler | None = None
        self._peer = "unknown" if place is None else place.peer
        self._pauses: set[str] = set()
        self._was_paused = False
        self._is_processing = False
        self._is_flush_scheduled = False
        self._is_buffering = False
        self._has_ended = False
        self._close_reason: str | None = None
        self._close_detail: str | None = None
        self._pong: asyncio.Future[None] | None = None
        self._linger_s = 0.0
        self._writable = asyncio.Event()
        self._writable.set()
        self._stall_deadline = 0.0
        self._written_bytes = 0
        self._last_left_bytes = 0
        self._n_pongs_read = 0  # at most: those that were sent before writing was paused
        self._begin_deadline = time.monotonic() + settings.first_message_timeout_s
        self._liveness = Liveness(settings.ping_delay_s, settings.ping_timeout_s)
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._async_group = aio.Group()

    # --- what the user calls ------------------------------------------------------------

    @property
    def async_group(self) -> aio.Group:
        """Group of the connection; it closes when the connection does."""
        return self._async_group

    @property
    def handler(self) -> Handler | None:
        """What gets its messages; None if it could not be made."""
        return self._handler

    @property
    def peer(self) -> str:
        """Address of the peer, as logs name it."""
        return self._peer

    @property
    def place(self) -> Place:
        """Its place among the connections of the process, where we listen."""
        assert self._place is not None
        return self._place

    @property
    def dialect(self) -> Dialect | None:
        """What is spoken; None until the peer's first message tells."""
        return self._protocol.dialect

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """TLS of the connection, for the peer's certificate; None without."""
        return cast("ssl.SSLObject | None", self._transport.get_extra_info("ssl_object"))

    @property
    def close_reason(self) -> str | None:
        """Why it is closed; None while it is open."""
        return self._close_reason

    @property
    def close_text(self) -> str | None:
        """The same with what is known besides, for people."""
        if self._close_detail is None:
            return self._close_reason
        return f"{self._close_reason}: {self._close_detail}"

    @property
    def is_write_blocked(self) -> bool:
        """Whether senders are to wait, see :meth:`drain`."""
        return not self._writable.is_set()

    def send(
        self,
        msg_type: str,
        data: bytes | Sequence[bytes],
        *,
        conversation: Conversation | None = None,
        last: bool = True,
        token: bool = True,
        timeout_s: float | None = None,
    ) -> Conversation:
        """Send a message: to begin a conversation, to go on with it, or to end it.

        It leaves when the handler returns, or with what else is sent in this turn of the
        loop. A peer that reads so slowly that too much of it waits is closed.

        Args:
            msg_type: full name of the data's type, as "HatEventer.MsgQueryReq".
            data: SBS of that type, or the parts of it where it is large.
            conversation: what it belongs to; None begins a new one.
            last: whether the conversation ends with it: no answer is expected.
            token: whether it is the peer's turn then.
            timeout_s: how long the peer may take then, before ``Handler.on_timeout``;
                None: what the connection has for all; ``math.inf``: for ever.

        Returns:
            The conversation.

        Raises:
            ClosedError: the connection is closed.
            LocalProtocolError: it may not be sent now.
            LimitError: too many conversations of ours are open.
        """
        self._check_open()
        is_too_slow = self._is_too_slow()
        conversation = self._protocol.send(
            msg_type, data, conversation=conversation, last=last, token=token, timeout_s=timeout_s
        )
        self._leave(is_too_slow)
        if not self._protocol.is_full and _CONVERSATIONS_FULL in self._pauses:
            self._loop.call_soon(self.resume_reading, _CONVERSATIONS_FULL)
        if self._has_ended:
            self._close_if_answered()
        return conversation

    def tell(self, msg_type: str, data: bytes) -> None:
        """As :meth:`send` of a message that begins and ends its conversation, but faster.

        Raises:
            ClosedError: the connection is closed.
            LocalProtocolError: it has no form in the dialect, or that is not known yet.
        """
        self._check_open()
        is_too_slow = self._is_too_slow()
        self._protocol.tell(msg_type, data)
        self._leave(is_too_slow)

    def end(self, conversation: Conversation) -> None:
        """Have done with a conversation of ours that has its answer, whatever its flags are.

        A peer that sends more in it is closed.
        """
        self._protocol.end(conversation)

    async def drain(self) -> None:
        """Wait until the peer has read enough of what was sent.

        Raises:
            ClosedError: the connection is closed.
        """
        self._flush()
        while self._close_reason is None:
            if self._writable.is_set():
                return
            await self._writable.wait()
        self._check_open()

    async def ping(self) -> float:
        """Ping the peer.

        Returns:
            Round-trip time in seconds.

        Raises:
            ClosedError: the connection is closed, or was meanwhile.
            LocalProtocolError: the dialect is not known yet.
        """
        # one ping at a time: a pong does not tell more than that the last one was answered
        while self._protocol.is_pinging:
            await self._wait_pong()
        self._check_open()
        started = time.perf_counter()
        self._protocol.ping()
        self._flush()
        await self._wait_pong()
        return time.perf_counter() - started

    async def _wait_pong(self) -> None:
        self._check_open()
        if self._pong is None:
            self._pong = self._loop.create_future()
        await asyncio.shield(self._pong)
        self._check_open()

    def _tell_pong(self) -> None:
        if self._pong is not None:
            self._pong.set_result(None)
            self._pong = None

    def pause_reading(self, reason: str) -> None:
        """Read no more, so that the peer is held back; messages stop coming at once.

        Args:
            reason: what :meth:`resume_reading` is to be called with. It is read again when
                there is no reason left.
        """
        if not self._pauses and self._is_readable():
            self._transport.pause_reading()
        self._was_paused = self._was_paused or reason is not _TURN_OVER
        self._pauses.add(reason)

    def resume_reading(self, reason: str) -> None:
        """Take back a reason of :meth:`pause_reading`."""
        if reason not in self._pauses:
            return
        self._pauses.remove(reason)
        if not self._pauses and self._is_readable():
            self._transport.resume_reading()
            self._process()
            if self._is_buffering:
                self._count_buffered()

    def close(
        self,
        reason: str = "closed by this side",
        *,
        detail: str | None = None,
        level: int = logging.DEBUG,
        linger_s: float = 0.0,
    ) -> None:
        """Close after what was sent has left, or was given time to.

        Args:
            reason: what ``Handler.on_closed`` and the log get; the first one holds.
            detail: more of it, for the log.
            level: of the log record.
            linger_s: give the peer so long to close first; what it sends is dropped.
        """
        if self._close_reason is not None:
            return
        self._close_reason = reason
        extra = {"peer": self._peer, "reason": reason}
        if detail is not None:
            extra["detail"] = self._close_detail = detail[: limits.MAX_LOG_CHARACTERS]
        mlog.log(level, "closing connection", extra=extra)
        self._flush()
        self._writable.set()
        self._tell_pong()
        if linger_s and not self._has_ended:
            self._linger_s = linger_s
            if self._pauses:
                self._transport.resume_reading()  # only so is it noticed that the peer closes
        else:
            self._transport.close()
        self._async_group.close()

    def abort(self, reason: str, *, detail: str | None = None) -> None:
        """Close at once; what has not left yet is dropped."""
        self.close(reason, detail=detail, level=logging.WARNING)
        self._transport.abort()

    # --- asyncio.Protocol ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a connection (over TLS: the handshake is done)."""
        # uvloop's transports are no subclasses of asyncio.Transport
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=limits.SEND_HIGH_WATER_BYTES)
        self._async_group.spawn(aio.call_on_cancel, self._stop)
        if self._place is None:
            if name := transport.get_extra_info("peername"):
                self._peer = f"{name[0]}:{name[1]}"
            if tcp := transport.get_extra_info("socket"):
                watch_peer(tcp)
            self._async_group.spawn(self._sweep_loop)
        else:
            self._place.when_taken(lambda: self.abort(FOR_ANOTHER))
            self._place.buffer.when_too_large(lambda: self.abort(TOO_MUCH_BUFFERED))
        if self._connections is not None:
            self._connections.add(self)
        self._guard(self._create_handler)

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        if self._close_reason is not None:
            return
        self._liveness.has_heard = True
        self._protocol.receive_data(data)
        if not self._pauses:
            self._process()
        # where we connected, a server that closes may reset what is not read at once
        if len(data) >= limits.FULL_READ_BYTES and self._place is not None:
            self._let_others()
        if self._protocol.buffered_bytes or self._is_buffering:
            self._count_buffered()

    def eof_received(self) -> bool:
        """The peer sends no more. What it sent before is heard, and answered if possible."""
        if self._close_reason is not None:
            return False
        self._has_ended = True
        self._guard(self._protocol.receive_eof)
        self._process()
        # TLS has no connections that are closed one way only
        if self.ssl_object is not None:
            self.close("peer closed")
        self._probe()
        return self._close_reason is None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._close_reason is None:
            detail = str(exc) if exc else None
            self.close("connection lost" if exc else "peer closed", detail=detail)
        assert self._close_reason is not None
        if self._connections is not None:
            self._connections.discard(self)
        self._protocol.discard()  # the connection itself may stay until garbage is collected
        if self._place is not None:
            self._place.release()
        self._lost.set_result(None)
        if self._handler is not None:
            self._guard(self._handler.on_closed, self._close_reason)

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is sent to."""
        self._writable.clear()
        self._count_buffered()
        self._last_left_bytes = self._left_bytes()
        self._stall_deadline = time.monotonic() + limits.WRITE_STALL_TIMEOUT_S
        self._n_pongs_read = self._protocol.n_pongs
        if self._connections is not None:
            self.pause_reading(_WRITE_BLOCKED)

    def resume_writing(self) -> None:
        """What waited has left."""
        self._writable.set()
        self._count_buffered()
        self.resume_reading(_WRITE_BLOCKED)

    # --- messages -----------------------------------------------------------------------

    def _create_handler(self) -> None:
        self._handler = self._make_handler(self)

    def _process(self) -> None:
        # also called by what the handler calls: then the loop that called it goes on
        if not self._is_processing:
            self._is_processing = True
            try:
                self._guard(self._handle_messages)
            finally:
                self._is_processing = False
                self._flush()
            self._check_pongs()
            if not self._protocol.is_pinging:
                self._tell_pong()
        if self._has_ended:
            self._close_if_answered()

    def _handle_messages(self) -> None:
        protocol, next_message = self._protocol, self._protocol.next_message
        assert self._handler is not None
        on_message = self._handler.on_message
        # what came before the peer's end is heard in any case: there is not much of it
        n_turn = math.inf if self._has_ended else limits.TURN_MESSAGES
        end, end_s = protocol.n_frames + n_turn, time.perf_counter() + limits.TURN_S
        while self._close_reason is None and (not self._pauses or self._has_ended):
            message = next_message(end)
            if message is not None:
                on_message(message)
                if protocol.is_full:
                    self.pause_reading(_CONVERSATIONS_FULL)
            elif protocol.n_frames < end:
                break
            is_over = protocol.n_frames >= end or time.perf_counter() >= end_s
            if is_over and not self._has_ended:
                if protocol.buffered_bytes:
                    self._let_others()
                break

    def _let_others(self) -> None:
        """Go on when others had their turn."""
        if not self._pauses:
            self.pause_reading(_TURN_OVER)
            wait = self._loop.call_soon if self._place is None else self._place.turns.wait
            wait(functools.partial(self.resume_reading, _TURN_OVER))

    def _guard(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call what may raise because of the peer, or because of our user."""
        try:
            function(*args, **kwargs)
        except RemoteProtocolError as e:
            self.close("protocol error", detail=str(e), level=logging.WARNING)
        except Exception as e:
            # what it was about to send is of no use any more
            if not (isinstance(e, ClosedError) and self._close_reason is not None):
                mlog.exception("handler failed", extra={"peer": self._peer})
                self.close("internal error", detail=str(e), level=logging.ERROR)

    def _check_open(self) -> None:
        if self._close_reason is not None:
            raise ClosedError(f"{self._peer}: {self.close_text}")

    def _is_readable(self) -> bool:
        is_open = self._close_reason is None and not self._transport.is_closing()
        return is_open and not self._has_ended

    def _probe(self) -> None:
        """Send something, so that the kernel of a peer that is gone resets the connection."""
        if self._close_reason is None:
            self._protocol.ping()
            self._flush()

    def _close_if_answered(self) -> None:
        if not self._protocol.owed:
            self.close("peer closed")

    # --- writing and closing ------------------------------------------------------------

    def _buffered_bytes(self) -> int:
        return self._transport.get_write_buffer_size() + self._protocol.unsent_bytes

    def _count_buffered(self) -> None:
        if self._place is not None:
            self._place.buffer.set(self._protocol.buffered_bytes + self._buffered_bytes())
            self._is_buffering = self._place.buffer.n_bytes > 0

    def _left_bytes(self) -> int:
        return self._written_bytes - self._transport.get_write_buffer_size()

    def _is_too_slow(self) -> bool:
        """Whether the peer is to be closed because of what it has not read."""
        return self.is_write_blocked and self._buffered_bytes() > limits.MAX_SEND_BUFFER_BYTES

    def _check_pongs(self) -> None:
        """Close a peer that pings and does not read; nothing else bounds the pongs."""
        n_unread = self._protocol.n_pongs - self._n_pongs_read
        if self.is_write_blocked and n_unread > limits.MAX_UNREAD_PONGS:
            self.abort("slow consumer", detail=f"{n_unread} pongs are not read")

    def _leave(self, is_too_slow: bool) -> None:
        """Have what was sent leave, soon."""
        if is_too_slow:
            self.abort("slow consumer", detail=f"{self._buffered_bytes()} bytes are not read")
        elif self._protocol.unsent_bytes >= limits.SEND_HIGH_WATER_BYTES:
            self._flush()
        elif not self._is_processing and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if self._protocol.unsent_bytes and not self._transport.is_closing():
            self._written_bytes += self._protocol.unsent_bytes
            write_parts(self._transport, self._protocol.parts_to_send())
            if self.is_write_blocked:
                self._count_buffered()

    async def _stop(self) -> None:
        self.close()  # where the group was closed by its user
        if self._linger_s:
            await asyncio.wait([self._lost], timeout=self._linger_s)
            self._transport.close()
        await asyncio.wait([self._lost], timeout=limits.CLOSE_TIMEOUT_S)
        if not self._lost.done():
            self._transport.abort()
            await asyncio.wait([self._lost], timeout=limits.CLOSE_TIMEOUT_S)

    # --- what depends on time -----------------------------------------------------------

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(limits.SWEEP_PERIOD_S)
            self.sweep(time.monotonic())

    def sweep(self, now: float) -> None:
        """Look at everything that depends on time; ``now`` is ``time.monotonic()``."""
        self._count_buffered()  # what is below the high-water mark is told of by nobody
        for check in (self._check_stalled, self._check_gone, self._check_late, self._check_alive):
            if self._close_reason is None:
                check(now)

    def _check_stalled(self, now: float) -> None:
        if not self.is_write_blocked:
            return
        if self._left_bytes() > self._last_left_bytes:
            self._stall_deadline = now + limits.WRITE_STALL_TIMEOUT_S
            self._last_left_bytes = self._left_bytes()
        elif now > self._stall_deadline:
            self.abort("write stalled", detail=f"{self._buffered_bytes()} bytes are not read")

    def _check_gone(self, now: float) -> None:
        """A peer that is not read from while it waits for answers: is it still there?"""
        if not self._protocol.owed or not (self._pauses or self._has_ended):
            return
        state = tcp_state(self._transport)
        if state is TcpState.RESET:
            self.close("connection lost")
            self._transport.abort()
        elif state is TcpState.ENDED:
            self._probe()

    def _check_late(self, now: float) -> None:
        if self._was_paused:
            # who is not read from is not late
            self._was_paused = bool(self._pauses - {_TURN_OVER})
            self._liveness.has_heard = True
            return
        if now > self._begin_deadline and not self._protocol.has_begun:
            self.close("no first message", level=logging.WARNING)
        for conversation in self._protocol.expire():
            if self._handler is not None and self._close_reason is None:
                self._guard(self._handler.on_timeout, conversation)

    def _check_alive(self, now: float) -> None:
        if self._protocol.dialect is None:  # nothing can be sent yet
            return
        verdict = self._liveness.check(now)
        if verdict is Verdict.DEAD:
            self.close("ping timeout", level=logging.WARNING)
        elif verdict is Verdict.SILENT:
            self._protocol.ping()
            self._flush()
