"""One connection: everything that all wires have in common.

A wire provides its protocol state without I/O (:class:`SansIo`) and handles its messages
(:meth:`Stream.on_message`)::

    socket ─▶ data_received ─▶ protocol.receive_data
                               protocol.next_message ─▶ on_message ─▶ send ─┐
    socket ◀──────────────────────────────── flush, once per turn ◀─────────┘

Nothing here grows without bound. Reading is paused while there is a reason (:class:`Pause`):
the wire asks for it, the peer sent so many messages at once that other connections get their
turn first, or the peer of an accepted connection does not read. An outgoing connection keeps
reading in that case: if both ends stopped, neither would ever resume. A peer that reads too
slowly is closed, and so is the connection that buffers most when all together buffer too much
(``buffers``).

:meth:`Stream.sweep` checks all deadlines, once a second: the first message, unfinished
messages, stalled writing, lost peers, and the end of closing.

An accepted connection closes in two steps if possible: it sends its end, and then drops
incoming bytes until the peer ends too, for a while. If it closed at once with bytes unread, the
system would reset the connection, and the peer would lose the last bytes sent.

Runs on the event loop's thread.
"""

import asyncio
import enum
import functools
import logging
import math
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Generic, ParamSpec, Protocol, TypeVar, cast

from eventer_bridge import limits
from eventer_bridge.errors import ClosedError, RemoteProtocolError
from eventer_bridge.net.admission import Slot
from eventer_bridge.net.liveness import Liveness, Verdict
from eventer_bridge.net.sockets import watch_peer, write_parts
from eventer_bridge.net.stats import CloseReason, ServerStats
from eventer_bridge.net.tcp_state import TcpState, tcp_state

P = ParamSpec("P")
MessageT = TypeVar("MessageT")
MessageT_co = TypeVar("MessageT_co", covariant=True)


class Pause(enum.StrEnum):
    """Reasons for not reading from a connection."""

    CORE_FULL = "the core is full"
    REGISTRATIONS_FULL = "too many of its registrations are in progress"
    QUERIES_FULL = "too many of its queries wait"
    CONVERSATIONS_FULL = "too many of its conversations await an answer"
    WRITE_BLOCKED = "it does not read"
    TURN_OVER = "others get their turn"
    LARGE_MESSAGE = "a large message of it is being handled"
    LOGIN = "its token is being checked"
    REPLAY = "what it missed is being looked up"
    DECLINED = "it is to be declined after a while"
    QUOTA = "its client sent more than it may"
    USER = "its user takes no more"
    CLOSING = "it is closing"


_BACK_PRESSURE: Final = frozenset(
    {
        Pause.CORE_FULL,
        Pause.REGISTRATIONS_FULL,
        Pause.QUERIES_FULL,
        Pause.CONVERSATIONS_FULL,
        Pause.WRITE_BLOCKED,
        Pause.TURN_OVER,
        Pause.USER,
    }
)
"""Reasons that hold a peer back. Messages sent before its end are processed nevertheless: they
are few, and the connection may be lost any moment. Not after ``QUOTA``, which one could evade by
ending connections."""


class SansIo(Protocol[MessageT_co]):
    """A wire's protocol, without I/O."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of messages that are incomplete or not taken yet."""

    def receive_data(self, data: bytes, /) -> None:
        """Buffer bytes from the peer."""

    def receive_eof(self) -> None:
        """The peer sends no more.

        Raises:
            RemoteProtocolError: the stream ended within a message.
        """

    def next_message(self) -> MessageT_co | None:
        """The next message; None if more bytes are needed for it.

        Raises:
            RemoteProtocolError: the peer broke the protocol; nothing is read from then on.
        """

    def discard(self) -> None:
        """Drop buffered bytes: the connection is gone."""


class Stream(asyncio.Protocol, Generic[MessageT]):
    """See the module.

    Args:
        protocol: of the wire.
        stats: counters.
        liveness: decides when to ping the peer.
        slot: of an accepted connection; None for an outgoing one.
        streams: the set that holds the connection while it exists.

    Attributes:
        client: the peer's name for logs, if known.
        bytes_in_cb: called with the number of bytes that arrived, after their messages were taken.
        pauses: reasons for not reading; empty while it is read from.
        has_ended: whether the peer sends no more.
        is_write_blocked: whether senders are to wait, see :meth:`drain`.
        close_reason: None while the connection is open.
        lost: done when the connection is gone.
    """

    __slots__ = (
        "_blocked_at_s",
        "_close_deadline",
        "_close_detail",
        "_close_text",
        "_drained",
        "_dropped_bytes",
        "_first_message_deadline",
        "_is_buffering",
        "_is_leaving",
        "_is_processing",
        "_last_left_bytes",
        "_liveness",
        "_loop",
        "_message_deadline",
        "_n_messages",
        "_n_messages_seen",
        "_peer",
        "_sans_io",
        "_slot",
        "_stall_deadline",
        "_stats",
        "_streams",
        "_transport",
        "_turn_end_cb",
        "_unsent",
        "_unsent_bytes",
        "_was_paused",
        "_written_bytes",
        "bytes_in_cb",
        "client",
        "close_reason",
        "has_ended",
        "is_write_blocked",
        "lost",
        "pauses",
    )

    mlog: ClassVar[logging.Logger]
    """Logger of the wire."""

    ends_first: ClassVar[bool] = False
    """Whether an outgoing connection sends its end and waits for the server's before closing."""

    reads_while_blocked: ClassVar[bool] = False
    """Whether an accepted peer is read from although it does not read."""

    def __init__(
        self,
        protocol: SansIo[MessageT],
        stats: ServerStats,
        liveness: Liveness,
        slot: Slot | None = None,
        streams: "set[Any] | None" = None,
    ) -> None:
        self._sans_io = protocol
        self._stats = stats
        self._liveness = liveness
        self._slot = slot
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self._peer = "unknown" if slot is None else slot.peer
        self.client: str | None = None
        self.bytes_in_cb: Callable[[int], None] | None = None
        self.pauses: frozenset[Pause] = frozenset()  # usually empty
        self._was_paused = False
        self._is_processing = False
        self._turn_end_cb: Callable[[], None] | None = None
        self.has_ended = False
        self._is_buffering = False
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_leaving = False
        self.is_write_blocked = False
        self._blocked_at_s = 0.0
        self._written_bytes = 0
        self._last_left_bytes = 0
        self._stall_deadline = 0.0
        self._drained: asyncio.Future[None] | None = None
        self._n_messages = 0
        self._n_messages_seen = 0
        self._message_deadline = math.inf
        self._first_message_deadline = math.inf
        self.close_reason: CloseReason | None = None
        self._close_detail: str | None = None
        self._close_text: str | None = None
        self._close_deadline = 0.0  # while it is open
        self._dropped_bytes = 0
        self.lost: asyncio.Future[None] = self._loop.create_future()

    # --- implemented by wires -------------------------------------------------------------

    def on_open(self) -> None:
        """There is a connection (over TLS: the handshake is done)."""

    def on_message(self, message: MessageT) -> None:
        """A message came; must not block.

        Raises:
            RemoteProtocolError: it closes the connection, with :meth:`on_protocol_error`.
        """
        raise NotImplementedError

    def on_protocol_error(self, error: RemoteProtocolError) -> None:
        """The peer broke the protocol."""
        self.close(CloseReason.PROTOCOL_ERROR, detail=str(error), level=logging.WARNING)

    def on_lost(self, error: Exception | None) -> None:
        """The peer has ended (None) or the connection is lost: close it."""
        if error is None:
            self.close(CloseReason.PEER_CLOSED)
        else:
            self.close(CloseReason.LOST, detail=str(error))

    def on_closing(self) -> None:
        """The connection is closed, here or by the peer: no more sending or receiving."""

    def on_closed(self, reason: CloseReason) -> None:
        """The connection is gone; the last call, made once."""

    def on_sweep(self) -> None:
        """Check further deadlines; once a second, unless reading was paused since the last call."""

    def probe(self) -> None:
        """Send a message that the peer must answer, if the wire has one."""

    @property
    def first_message_timeout_s(self) -> float:
        """Time limit from ``accept`` to the first message (:meth:`clear_first_deadline`)."""
        return limits.FIRST_MESSAGE_TIMEOUT_S

    @property
    def is_answering(self) -> bool:
        """Whether the peer waits for an answer."""
        return False

    @property
    def log_extra(self) -> dict[str, object]:
        """Fields of the connection for log records."""
        if self.client is None:
            return {"peer": self._peer}
        return {"peer": self._peer, "client": self.client}

    # --- called by users ------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """Address of the peer, as logs name it."""
        return self._peer

    @property
    def slot(self) -> Slot:
        """Slot of an accepted connection."""
        assert self._slot is not None
        return self._slot

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """TLS of the connection, for the peer's certificate; None without."""
        return cast("ssl.SSLObject | None", self._transport.get_extra_info("ssl_object"))

    @property
    def unread_bytes(self) -> int:
        """Bytes that were sent and that the peer has not read; those in the kernel do not count."""
        return self._transport.get_write_buffer_size() + self._unsent_bytes

    @property
    def behind_s(self) -> float:
        """Seconds since the peer fell behind (:attr:`is_write_blocked`); 0: it has not."""
        return time.monotonic() - self._blocked_at_s if self.is_write_blocked else 0.0

    @property
    def close_text(self) -> str | None:
        """The close reason with its details, for people."""
        if self._close_text is not None or self.close_reason is None:
            return self._close_text
        if self._close_detail is None:
            return self.close_reason.value
        return f"{self.close_reason.value}: {self._close_detail}"

    def write(self, frame: bytes, n_frames: int = 1) -> None:
        """Send a frame, or several that are joined.

        It leaves at the end of this turn, together with other frames. A peer that reads so
        slowly that too much waits is closed. Nothing is sent if the connection is closed.
        """
        if self.close_reason is not None or (self.is_write_blocked and self._close_if_too_slow()):
            return
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        self._stats.frames_out += n_frames
        if not self._is_leaving or self._unsent_bytes >= limits.SEND_HIGH_WATER_BYTES:
            self._schedule_flush()

    def write_parts(self, parts: Sequence[bytes], n_frames: int = 1) -> None:
        """As :meth:`write`, of a large frame in parts, which are not joined."""
        if self.close_reason is None and not (self.is_write_blocked and self._close_if_too_slow()):
            self.write_unbounded(parts, n_frames)

    def write_unbounded(self, parts: Sequence[bytes], n_frames: int = 1) -> None:
        """As :meth:`write_parts`, however much waits: for senders with bounds of their own."""
        if self.close_reason is not None:
            return
        self._unsent += parts
        self._unsent_bytes += sum(map(len, parts))
        self._stats.frames_out += n_frames
        self._schedule_flush()

    async def drain(self) -> None:
        """Wait until the peer has read enough.

        Raises:
            ClosedError: the connection is closed.
        """
        self.flush()
        while self.is_write_blocked and self.close_reason is None:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)
        self.check_open()

    def check_open(self) -> None:
        """Raise ``ClosedError`` if the connection is closed."""
        if self.close_reason is not None:
            raise ClosedError(f"{self._peer}: {self.close_text}")

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, when the messages of this turn are taken.

        For handlers of messages; replaces an earlier callback of this turn.
        """
        assert self._is_processing
        self._turn_end_cb = callback

    def pause_reading(self, reason: Pause) -> None:
        """Stop reading, which holds the peer back; message callbacks stop at once.

        Args:
            reason: to be passed to :meth:`resume_reading`. Reading resumes when no reason is
                left.
        """
        if not self.pauses and self._is_readable():
            self._transport.pause_reading()
        self._was_paused = self._was_paused or reason is not Pause.TURN_OVER
        self.pauses |= {reason}

    def resume_reading(self, reason: Pause) -> None:
        """Withdraw a reason of :meth:`pause_reading`."""
        if reason not in self.pauses:
            return
        self.pauses -= {reason}
        if not self.pauses and self.close_reason is None:
            if self._is_readable():
                self._transport.resume_reading()
            self._process()
            if self._is_buffering:
                self._count_buffered()
        elif self.has_ended and self.close_reason is None:
            self._process()

    def close(
        self,
        reason: CloseReason = CloseReason.CLOSED,
        *,
        detail: str | None = None,
        text: str | None = None,
        level: int = logging.DEBUG,
        linger_s: float = 0.0,
    ) -> None:
        """Close after pending bytes have left, or were given time to leave.

        Args:
            reason: for :meth:`on_closed` and the log; the first one counts.
            detail: more about the reason, for the log.
            text: replaces the reason in :attr:`close_text` and the log.
            level: of the log record.
            linger_s: time for the peer to close first.
        """
        if self.close_reason is not None:
            return
        self.flush()
        if self._close_deadline:  # closed by flushing
            return
        self.close_reason = reason
        self._stats.closed[reason] += 1
        self._close_text = text
        reason_text = (text or reason.value)[: limits.MAX_LOG_CHARACTERS]
        extra = {**self.log_extra, "reason": reason_text}
        if detail is not None:
            extra["detail"] = self._close_detail = detail[: limits.MAX_LOG_CHARACTERS]
        self.mlog.log(level, "closing connection", extra=extra)
        self.pauses |= {Pause.CLOSING}
        self._close_deadline = time.monotonic() + limits.CLOSE_TIMEOUT_S
        self._wake_drained()
        self.on_closing()
        transport = self._transport
        # a peer that was sent nothing can lose nothing
        is_waiting = self.ends_first if self._slot is None else self._written_bytes > 0
        if transport.is_closing() or self.has_ended or not is_waiting:
            transport.close()
        elif linger_s:
            transport.resume_reading()  # else the peer's closing would go unnoticed
            self._loop.call_later(linger_s, self._send_end)
        else:
            self._send_end()

    def abort(
        self, reason: CloseReason, *, detail: str | None = None, text: str | None = None
    ) -> None:
        """Close at once, dropping pending bytes."""
        self.close(reason, detail=detail, text=text, level=logging.WARNING)
        self._transport.abort()

    async def wait_lost(self) -> None:
        """After :meth:`close`: wait until the connection is gone, and see that this is soon."""
        await asyncio.wait([self.lost], timeout=limits.LINGER_S)
        if not self.lost.done() and not self._transport.get_write_buffer_size():
            self._transport.close()
        await asyncio.wait([self.lost], timeout=limits.CLOSE_TIMEOUT_S)
        if not self.lost.done():
            self._transport.abort()
            await asyncio.wait([self.lost], timeout=limits.CLOSE_TIMEOUT_S)

    # --- asyncio.Protocol -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a connection (over TLS: the handshake is done)."""
        # uvloop's transports are no subclasses of asyncio.Transport
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=limits.SEND_HIGH_WATER_BYTES)
        if self._slot is None:
            if name := transport.get_extra_info("peername"):
                self._peer = f"{name[0]}:{name[1]}"
            if tcp := transport.get_extra_info("socket"):
                watch_peer(tcp)
        else:
            self._first_message_deadline = self._slot.accepted_at + self.first_message_timeout_s
            self._slot.when_taken(lambda: self.abort(CloseReason.SLOT_TAKEN))
            self._slot.buffer.when_too_large(lambda: self.abort(CloseReason.TOO_MUCH_BUFFERED))
        if self._streams is not None:
            self._streams.add(self)
        if self.close_reason is None:  # its slot may have been taken
            self.guard(self.on_open)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        if self.close_reason is not None:
            self._drop(len(data))
            return
        self._stats.bytes_in += len(data)
        self._liveness.has_heard = True
        self._sans_io.receive_data(data)
        if not self.pauses and not self._is_processing:
            self._run_turn()
        # not on outgoing connections: a server that closes may reset bytes not read at once
        if len(data) >= limits.FULL_READ_BYTES and self._slot is not None:
            self.yield_turn()
        if self.bytes_in_cb is not None:
            self.bytes_in_cb(len(data))
        if self._sans_io.buffered_bytes or self._is_buffering:
            self._count_buffered()

    def eof_received(self) -> bool:
        """The peer sends no more. Earlier messages are processed, and answered if possible."""
        self.has_ended = True
        if self.close_reason is not None:
            return False  # closed by both
        self.guard(self._sans_io.receive_eof)
        self._process()
        # TLS connections cannot be half-closed, and servers wait for nothing more
        if self.ssl_object is not None or self._slot is None:
            self.on_lost(None)
        if self.close_reason is None:
            self.probe()
        return self.close_reason is None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self.close_reason is None:
            if self._slot is None:  # held-back messages are still delivered
                self.has_ended = True
                self._run_turn()
            self.on_lost(exc)
        assert self.close_reason is not None
        if self._streams is not None:
            self._streams.discard(self)
        self._sans_io.discard()  # the connection itself may stay until garbage is collected
        if self._slot is not None:
            self._slot.release()
        self.lost.set_result(None)
        self.guard(self.on_closed, self.close_reason)

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self.is_write_blocked = True
        self._count_buffered()
        self._last_left_bytes = self._left_bytes()
        self._blocked_at_s = time.monotonic()
        self._stall_deadline = self._blocked_at_s + limits.WRITE_STALL_TIMEOUT_S
        if self._slot is not None and not self.reads_while_blocked:
            self.pause_reading(Pause.WRITE_BLOCKED)

    def resume_writing(self) -> None:
        """Pending bytes have left."""
        self.is_write_blocked = False
        self._count_buffered()
        self._wake_drained()
        self.resume_reading(Pause.WRITE_BLOCKED)

    # --- receiving ------------------------------------------------------------------------

    def guard(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function that may raise because of the peer or of our user."""
        try:
            function(*args, **kwargs)
        except RemoteProtocolError as e:
            self.on_protocol_error(e)
        except Exception as e:
            self.on_failed(e)

    def on_failed(self, error: Exception) -> None:
        """Handling or sending a message raised: a bug of ours."""
        # a send after closing is no bug
        if not (isinstance(error, ClosedError) and self.close_reason is not None):
            self.mlog.error("handler failed", exc_info=error, extra=self.log_extra)
            self.close(CloseReason.INTERNAL_ERROR, detail=str(error), level=logging.ERROR)

    def _process(self) -> None:
        # also called while a message is handled: then the calling loop continues
        if self._is_processing:
            return
        self._run_turn()
        if self.has_ended:
            self.close_if_answered()

    def _run_turn(self) -> None:
        self._is_processing = self._is_leaving = True
        try:
            try:
                self.take_turn()
            finally:
                if self._turn_end_cb is not None:
                    callback, self._turn_end_cb = self._turn_end_cb, None
                    callback()
        except RemoteProtocolError as e:
            self.on_protocol_error(e)
        except Exception as e:
            self.on_failed(e)
        finally:
            self._is_processing = self._is_leaving = False
        self.flush()

    def take_turn(self) -> None:
        """Handle buffered messages until the turn is over."""
        sans_io, now_s = self._sans_io, time.perf_counter
        next_message, on_message = sans_io.next_message, self.on_message
        n_messages = 0
        end_s = now_s() + limits.TURN_S
        try:
            while not self.pauses or self.may_take:
                message = next_message()
                if message is None:
                    break
                n_messages += 1
                on_message(message)
                if n_messages == 1 and not sans_io.buffered_bytes:
                    break  # usually there is one
                if n_messages >= limits.TURN_MESSAGES or now_s() >= end_s:
                    if self.has_ended:
                        continue
                    if sans_io.buffered_bytes:
                        self.yield_turn()
                    break
        finally:
            self._n_messages += n_messages
            self._stats.frames_in += n_messages

    @property
    def may_take(self) -> bool:
        """Whether the next message may be taken now."""
        return not self.pauses or (self.has_ended and self.pauses <= _BACK_PRESSURE)

    def yield_turn(self) -> None:
        """Continue after other connections had their turn."""
        if not self.pauses:
            self.pause_reading(Pause.TURN_OVER)
            wait = self._loop.call_soon if self._slot is None else self._slot.turns.wait
            wait(functools.partial(self.resume_reading, Pause.TURN_OVER))

    def _is_readable(self) -> bool:
        is_open = self.close_reason is None and not self._transport.is_closing()
        return is_open and not self.has_ended

    def close_if_answered(self) -> None:
        """Close the connection if its peer sends no more and awaits nothing."""
        if not self.has_ended or self.close_reason is not None or self._is_processing:
            return
        # answers not read yet are bounded by _check_stalled
        if not self.is_write_blocked and not self.is_answering and self.pauses <= _BACK_PRESSURE:
            self.on_lost(None)

    def _drop(self, n_bytes: int) -> None:
        """Drop bytes that arrive after closing."""
        self._dropped_bytes += n_bytes
        if self._dropped_bytes > limits.MAX_DROPPED_BYTES:
            self._transport.close()

    # --- writing and closing --------------------------------------------------------------

    def _schedule_flush(self) -> None:
        """Write pending bytes soon."""
        if self._unsent_bytes >= limits.SEND_HIGH_WATER_BYTES:
            self.flush()
        elif not self._is_leaving:
            self._is_leaving = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write pending bytes now."""
        self._is_leaving = self._is_processing
        if not self._unsent:
            return
        unsent, n_bytes = self._unsent, self._unsent_bytes
        self._unsent, self._unsent_bytes = [], 0
        if not self._transport.is_closing():
            self._written_bytes += n_bytes
            self._stats.bytes_out += n_bytes
            if len(unsent) == 1:  # usually there is one
                self._transport.write(unsent[0])
            else:
                write_parts(self._transport, unsent)
            if self.is_write_blocked:
                self._count_buffered()

    def _count_buffered(self) -> None:
        if self._slot is not None:
            self._slot.buffer.set(self._sans_io.buffered_bytes + self.unread_bytes)
            self._is_buffering = self._slot.buffer.n_bytes > 0

    def _left_bytes(self) -> int:
        return self._written_bytes - self._transport.get_write_buffer_size()

    def _close_if_too_slow(self) -> bool:
        """Close a peer that has too many bytes unread; returns whether it was closed."""
        if self.unread_bytes <= limits.MAX_SEND_BUFFER_BYTES:
            return False
        self.abort(CloseReason.SLOW_CONSUMER, detail=f"{self.unread_bytes} bytes are not read")
        return True

    def _wake_drained(self) -> None:
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

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

    # --- deadlines ------------------------------------------------------------------------

    async def sweep_alone(self) -> None:
        """Sweep once a second; for connections without a listener."""
        while not self.lost.done():
            await asyncio.sleep(limits.SWEEP_PERIOD_S)
            self.sweep(time.monotonic())

    def clear_first_deadline(self) -> None:
        """The peer's first message came."""
        self._first_message_deadline = math.inf

    def sweep(self, now: float) -> None:
        """Check all deadlines; ``now`` is ``time.monotonic()``."""
        if self.close_reason is not None:
            self._sweep_closing(now)
            return
        self._count_buffered()  # no callback reports changes below the high-water mark
        was_paused = self._was_paused
        for check in (
            self._check_stalled,
            self._check_gone,
            self._check_late,
            self._check_unfinished,
            self._check_alive,
        ):
            check(now)
            if self._close_deadline:  # closed by it
                return
        if not was_paused:  # a peer that is not read from is not late
            self.on_sweep()

    def _sweep_closing(self, now: float) -> None:
        if now > self._close_deadline:
            self._transport.abort()
        elif (
            now > self._close_deadline - limits.CLOSE_TIMEOUT_S + limits.LINGER_S
            and not self._transport.get_write_buffer_size()
        ):
            self._transport.close()

    def _check_stalled(self, now: float) -> None:
        if not self.is_write_blocked:
            return
        if self._left_bytes() > self._last_left_bytes:
            self._stall_deadline = now + limits.WRITE_STALL_TIMEOUT_S
            self._last_left_bytes = self._left_bytes()
        elif now > self._stall_deadline:
            self.abort(CloseReason.WRITE_STALLED, detail=f"{self.unread_bytes} bytes are not read")

    def _check_gone(self, now: float) -> None:
        """Find out whether a peer that is not read from is still there."""
        is_waited_for = self.is_answering or Pause.QUOTA in self.pauses  # maybe for hours
        if not (self.pauses or self.has_ended) or not is_waited_for:
            return
        state = tcp_state(self._transport)
        if state is TcpState.RESET:
            self.close(CloseReason.LOST)
            self._transport.abort()
        elif state is TcpState.ENDED:
            self.probe()

    def _check_late(self, now: float) -> None:
        if self._was_paused:  # a peer that is not read from is not late
            self._was_paused = bool(self.pauses - {Pause.TURN_OVER})
            self._liveness.has_heard = True
        elif now > self._first_message_deadline:
            self.close(CloseReason.NO_FIRST_MESSAGE, level=logging.WARNING)

    def _check_unfinished(self, now: float) -> None:
        if (
            self._slot is None
            or self._was_paused
            or not self._sans_io.buffered_bytes
            or self._n_messages != self._n_messages_seen
        ):
            self._n_messages_seen = self._n_messages
            self._message_deadline = now + limits.MESSAGE_TIMEOUT_S
        elif now > self._message_deadline:
            self.close(
                CloseReason.UNFINISHED_MESSAGE,
                detail=f"{self._sans_io.buffered_bytes} bytes of it came within"
                f" {limits.MESSAGE_TIMEOUT_S:g} s",
                level=logging.WARNING,
            )

    def _check_alive(self, now: float) -> None:
        verdict = self._liveness.check(now, self._written_bytes)
        if verdict is Verdict.DEAD:
            self.close(CloseReason.PING_TIMEOUT, level=logging.WARNING)
        elif verdict is Verdict.SILENT:
            self.probe()
