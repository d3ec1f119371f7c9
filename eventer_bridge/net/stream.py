"""One connection, whatever protocol is spoken on it: what all wires do, once.

A wire gives its protocol state without I/O (:class:`SansIo`) and says what its messages mean
(:meth:`Stream.on_message`)::

    socket ─▶ data_received ─▶ protocol.receive_data
                               protocol.next_message ─▶ on_message ─▶ send ─┐
    socket ◀──────────────────────────────── flush, once per turn ◀─────────┘

Nothing here grows without bound. A connection is not read from while there is a reason not to
(:class:`Pause`): its wire says so, it sent so many messages at once that others are to have
their turn first, or it was accepted and does not read what it was sent. Who connected goes on
reading then: if both stopped, neither would ever go on. A peer that is sent more than it reads
is closed, and so is the connection that holds most when all together hold too much
(``buffers``).

Everything that depends on time is looked at by :meth:`Stream.sweep`, once a second: the first
message, a message that began and does not end, writing that stalls, a peer that is gone, and
the end of closing.

A connection that was accepted closes in two steps where it can: it sends its end, and drops
what still comes until the peer ends too, for a while. If it closed at once with bytes unread,
the system would reset the connection, and the peer lose what it was sent last.

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
from eventer_bridge.net.admission import FOR_ANOTHER, TOO_MUCH_BUFFERED, Place
from eventer_bridge.net.liveness import Liveness, Verdict
from eventer_bridge.net.sockets import watch_peer, write_parts
from eventer_bridge.net.stats import ServerStats
from eventer_bridge.net.tcp_state import TcpState, tcp_state

P = ParamSpec("P")
MessageT = TypeVar("MessageT")
MessageT_co = TypeVar("MessageT_co", covariant=True)


class Pause(enum.StrEnum):
    """Why a connection is not read from."""

    CORE_FULL = "the core is full"
    REGISTRATIONS_FULL = "too many of its registrations are under way"
    QUERIES_FULL = "too many of its queries wait"
    CONVERSATIONS_FULL = "too many of its conversations wait for an answer"
    WRITE_BLOCKED = "it does not read"
    TURN_OVER = "others have their turn"
    LARGE_MESSAGE = "a large message of it is dealt with"
    DECLINED = "it is to be declined after a while"
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
"""Reasons that hold a peer back. They do not hold back what it sent before its end: there is
not much of that, and it may be gone for good any moment."""


class SansIo(Protocol[MessageT_co]):
    """A wire's protocol, without I/O."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of messages that are not whole, or were not taken."""

    def receive_data(self, data: bytes, /) -> None:
        """Take in bytes of the peer."""

    def receive_eof(self) -> None:
        """The peer sends no more.

        Raises:
            RemoteProtocolError: it ended within a message.
        """

    def next_message(self) -> MessageT_co | None:
        """The next message; None if more bytes are needed for it.

        Raises:
            RemoteProtocolError: the peer broke the protocol; nothing is read from then on.
        """

    def discard(self) -> None:
        """Drop what came and was not taken: the connection is gone."""


class Stream(asyncio.Protocol, Generic[MessageT]):
    """See the module.

    Args:
        protocol: of the wire.
        stats: where it is counted.
        liveness: when the peer is to be pinged.
        place: among the connections of the process, where it was accepted; None where we
            connected.
        streams: the connections that it is one of, as long as there is a connection.

    Attributes:
        client: name of the peer, where it is known, as logs give it.
        lost: done when the connection is gone.
    """

    __slots__ = (
        "_close_deadline",
        "_close_detail",
        "_close_reason",
        "_drained",
        "_dropped_bytes",
        "_first_message_deadline",
        "_has_ended",
        "_is_buffering",
        "_is_leaving",
        "_is_processing",
        "_is_write_blocked",
        "_last_left_bytes",
        "_liveness",
        "_loop",
        "_message_deadline",
        "_n_messages",
        "_n_messages_seen",
        "_pauses",
        "_peer",
        "_place",
        "_sans_io",
        "_stall_deadline",
        "_stats",
        "_streams",
        "_transport",
        "_unsent",
        "_unsent_bytes",
        "_was_paused",
        "_written_bytes",
        "client",
        "lost",
    )

    mlog: ClassVar[logging.Logger]
    """Logger of the wire."""

    ends_first: ClassVar[bool] = False
    """Whether who connected sends its end and waits for the server's, before it closes."""

    reads_while_blocked: ClassVar[bool] = False
    """Whether a peer that was accepted is read from, although it does not read what it is sent."""

    def __init__(
        self,
        protocol: SansIo[MessageT],
        stats: ServerStats,
        liveness: Liveness,
        place: Place | None = None,
        streams: "set[Any] | None" = None,
    ) -> None:
        self._sans_io = protocol
        self._stats = stats
        self._liveness = liveness
        self._place = place
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self._peer = "unknown" if place is None else place.peer
        self.client: str | None = None
        self._pauses: frozenset[Pause] = frozenset()  # most often it is empty, and takes nothing
        self._was_paused = False
        self._is_processing = False
        self._has_ended = False
        self._is_buffering = False
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_leaving = False
        self._is_write_blocked = False
        self._written_bytes = 0
        self._last_left_bytes = 0
        self._stall_deadline = 0.0
        self._drained: asyncio.Future[None] | None = None
        self._n_messages = 0
        self._n_messages_seen = 0
        self._message_deadline = math.inf
        self._first_message_deadline = math.inf
        self._close_reason: str | None = None
        self._close_detail: str | None = None
        self._close_deadline = 0.0
        self._dropped_bytes = 0
        self.lost: asyncio.Future[None] = self._loop.create_future()

    # --- what a wire says -----------------------------------------------------------------

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
        self.close("protocol error", detail=str(error), level=logging.WARNING)

    def lost_reason(self, error: Exception | None) -> str:
        """Why it is closed, if the peer ended (None), or it was lost."""
        return "peer closed" if error is None else "connection lost"

    def on_closing(self) -> None:
        """It is closed, here or by the peer: nothing is sent or received any more."""

    def on_closed(self, reason: str) -> None:
        """The connection is gone; called once, as the last."""

    def on_sweep(self) -> None:
        """Look at what else depends on time; once a second, if it was read from since the last."""

    def probe(self) -> None:
        """Send something that the peer is to answer, if the wire has that."""

    @property
    def first_message_timeout_s(self) -> float:
        """What a peer gets from ``accept`` to its first message (:meth:`has_begun`)."""
        return limits.FIRST_MESSAGE_TIMEOUT_S

    @property
    def is_answering(self) -> bool:
        """Whether the peer waits for an answer."""
        return False

    @property
    def log_extra(self) -> dict[str, object]:
        """What lines of the log tell of the connection."""
        if self.client is None:
            return {"peer": self._peer}
        return {"peer": self._peer, "client": self.client}

    # --- what its user calls --------------------------------------------------------------

    @property
    def peer(self) -> str:
        """Address of the peer, as logs name it."""
        return self._peer

    @property
    def place(self) -> Place:
        """Its place among the connections of the process, where it was accepted."""
        assert self._place is not None
        return self._place

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
        return self._is_write_blocked

    def write(self, frame: bytes, n_frames: int = 1) -> None:
        """Send a frame, or several that are joined.

        It leaves when the messages that came are dealt with, or with what else is sent in this
        turn of the loop. A peer that reads so slowly that too much waits is closed. Nothing is
        sent if the connection is closed.
        """
        if self._close_reason is not None or (self._is_write_blocked and self._is_too_slow()):
            return
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        self._stats.frames_out += n_frames
        if not self._is_leaving or self._unsent_bytes >= limits.SEND_HIGH_WATER_BYTES:
            self._leave()

    def write_parts(self, parts: Sequence[bytes], n_frames: int = 1) -> None:
        """As :meth:`write`, of a large frame whose parts are not to be joined."""
        if self._close_reason is None and not (self._is_write_blocked and self._is_too_slow()):
            self.write_anyway(parts, n_frames)

    def write_anyway(self, parts: Sequence[bytes], n_frames: int = 1) -> None:
        """As :meth:`write_parts`, however much waits: what is bounded in another way."""
        if self._close_reason is not None:
            return
        self._unsent += parts
        self._unsent_bytes += sum(map(len, parts))
        self._stats.frames_out += n_frames
        self._leave()

    async def drain(self) -> None:
        """Wait until the peer has read enough of what was sent.

        Raises:
            ClosedError: the connection is closed.
        """
        self.flush()
        while self._is_write_blocked and self._close_reason is None:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)
        self.check_open()

    def check_open(self) -> None:
        """Raise ``ClosedError`` if the connection is closed."""
        if self._close_reason is not None:
            raise ClosedError(f"{self._peer}: {self.close_text}")

    def pause_reading(self, reason: Pause) -> None:
        """Read no more, so that the peer is held back; messages stop coming at once.

        Args:
            reason: what :meth:`resume_reading` is to be called with. It is read again when
                there is no reason left.
        """
        if not self._pauses and self._is_readable():
            self._transport.pause_reading()
        self._was_paused = self._was_paused or reason is not Pause.TURN_OVER
        self._pauses |= {reason}

    def resume_reading(self, reason: Pause) -> None:
        """Take back a reason of :meth:`pause_reading`."""
        if reason not in self._pauses:
            return
        self._pauses -= {reason}
        if not self._pauses and self._close_reason is None:
            if self._is_readable():
                self._transport.resume_reading()
            self._process()
            if self._is_buffering:
                self._count_buffered()
        elif self._has_ended and self._close_reason is None:
            self._process()

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
            reason: what :meth:`on_closed` and the log get; the first one holds.
            detail: more of it, for the log.
            level: of the log record.
            linger_s: give the peer so long to close first.
        """
        if self._close_reason is not None:
            return
        self.flush()
        if self.close_reason is not None:  # by what was written
            return
        self._close_reason = reason
        self._stats.closed[reason] += 1
        extra = {**self.log_extra, "reason": reason}
        if detail is not None:
            extra["detail"] = self._close_detail = detail[: limits.MAX_LOG_CHARACTERS]
        self.mlog.log(level, "closing connection", extra=extra)
        self._pauses |= {Pause.CLOSING}
        self._close_deadline = time.monotonic() + limits.CLOSE_TIMEOUT_S
        self._wake_drained()
        self.on_closing()
        transport = self._transport
        # who was sent nothing has nothing to lose
        is_waiting = self.ends_first if self._place is None else self._written_bytes > 0
        if transport.is_closing() or self._has_ended or not is_waiting:
            transport.close()
        elif linger_s:
            transport.resume_reading()  # only so is it noticed that the peer closes
            self._loop.call_later(linger_s, self._end)
        else:
            self._end()

    def abort(self, reason: str, *, detail: str | None = None) -> None:
        """Close at once; what has not left yet is dropped."""
        self.close(reason, detail=detail, level=logging.WARNING)
        self._transport.abort()

    async def wait_lost(self) -> None:
        """After :meth:`close`: wait until it is gone; see that this is soon."""
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
        if self._place is None:
            if name := transport.get_extra_info("peername"):
                self._peer = f"{name[0]}:{name[1]}"
            if tcp := transport.get_extra_info("socket"):
                watch_peer(tcp)
        else:
            self._first_message_deadline = self._place.accepted_at + self.first_message_timeout_s
            self._place.when_taken(lambda: self.abort(FOR_ANOTHER))
            self._place.buffer.when_too_large(lambda: self.abort(TOO_MUCH_BUFFERED))
        if self._streams is not None:
            self._streams.add(self)
        if self._close_reason is None:  # its place may be taken already
            self.guard(self.on_open)

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        if self._close_reason is not None:
            self._drop(len(data))
            return
        self._stats.bytes_in += len(data)
        self._liveness.has_heard = True
        self._sans_io.receive_data(data)
        if not self._pauses:
            self._process()
        # where we connected, a server that closes may reset what is not read at once
        if len(data) >= limits.FULL_READ_BYTES and self._place is not None:
            self.let_others()
        if self._sans_io.buffered_bytes or self._is_buffering:
            self._count_buffered()

    def eof_received(self) -> bool:
        """The peer sends no more. What it sent before is heard, and answered if possible."""
        self._has_ended = True
        if self._close_reason is not None:
            return False  # it closed, too
        self.guard(self._sans_io.receive_eof)
        self._process()
        # TLS has no connections that are closed one way only, and no server waits for more
        if self.ssl_object is not None or self._place is None:
            self.close(self.lost_reason(None))
        if self._close_reason is None:
            self.probe()
        return self._close_reason is None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._close_reason is None:
            if self._place is None:  # what came before, and was held back, is still its user's
                self._has_ended = True
                self._run_turn()
            self.close(self.lost_reason(exc), detail=str(exc) if exc else None)
        assert self._close_reason is not None
        if self._streams is not None:
            self._streams.discard(self)
        self._sans_io.discard()  # the connection itself may stay until garbage is collected
        if self._place is not None:
            self._place.release()
        self.lost.set_result(None)
        self.guard(self.on_closed, self._close_reason)

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is sent to."""
        self._is_write_blocked = True
        self._count_buffered()
        self._last_left_bytes = self._left_bytes()
        self._stall_deadline = time.monotonic() + limits.WRITE_STALL_TIMEOUT_S
        if self._place is not None and not self.reads_while_blocked:
            self.pause_reading(Pause.WRITE_BLOCKED)

    def resume_writing(self) -> None:
        """What waited has left."""
        self._is_write_blocked = False
        self._count_buffered()
        self._wake_drained()
        self.resume_reading(Pause.WRITE_BLOCKED)

    # --- receiving ------------------------------------------------------------------------

    def guard(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call what may raise because of the peer, or because of our user."""
        try:
            function(*args, **kwargs)
        except RemoteProtocolError as e:
            self.on_protocol_error(e)
        except Exception as e:
            self.on_failed(e)

    def on_failed(self, error: Exception) -> None:
        """What was to be done with a message, or sent, raised: a mistake of ours."""
        # what it was about to send is of no use any more
        if not (isinstance(error, ClosedError) and self._close_reason is not None):
            self.mlog.error("handler failed", exc_info=error, extra=self.log_extra)
            self.close("internal error", detail=str(error), level=logging.ERROR)

    def _process(self) -> None:
        # also called by what a message leads to: then the loop that called it goes on
        if self._is_processing:
            return
        self._run_turn()
        if self._has_ended:
            self.has_answered()

    def _run_turn(self) -> None:
        self._is_processing = self._is_leaving = True
        try:
            self.take_turn()
        except RemoteProtocolError as e:
            self.on_protocol_error(e)
        except Exception as e:
            self.on_failed(e)
        finally:
            self._is_processing = self._is_leaving = False
        if self._unsent:
            self.flush()

    def take_turn(self) -> None:
        """Deal with what came, until others are to have their turn."""
        sans_io, now_s = self._sans_io, time.perf_counter
        next_message, on_message = sans_io.next_message, self.on_message
        n_messages = 0
        end_s = now_s() + limits.TURN_S
        try:
            while not self._pauses or self.may_take:
                message = next_message()
                if message is None:
                    break
                n_messages += 1
                on_message(message)
                if n_messages == 1 and not sans_io.buffered_bytes:
                    break  # most often there is one
                if n_messages >= limits.TURN_MESSAGES or now_s() >= end_s:
                    if self._has_ended:
                        continue
                    if sans_io.buffered_bytes:
                        self.let_others()
                    break
        finally:
            self.count_messages(n_messages)

    def count_messages(self, n_messages: int) -> None:
        """So many messages were taken."""
        self._n_messages += n_messages
        self._stats.frames_in += n_messages

    @property
    def may_take(self) -> bool:
        """Whether the next message may be taken now."""
        return not self._pauses or (self._has_ended and self._pauses <= _BACK_PRESSURE)

    def let_others(self) -> None:
        """Go on when others had their turn."""
        if not self._pauses:
            self.pause_reading(Pause.TURN_OVER)
            wait = self._loop.call_soon if self._place is None else self._place.turns.wait
            wait(functools.partial(self.resume_reading, Pause.TURN_OVER))

    def _is_readable(self) -> bool:
        is_open = self._close_reason is None and not self._transport.is_closing()
        return is_open and not self._has_ended

    def has_answered(self) -> None:
        """Close the connection if its peer sends no more, and waits for nothing any more."""
        if not self._has_ended or self._close_reason is not None or self._is_processing:
            return
        # what is answered and not read yet is bounded by _check_stalled
        if not self._is_write_blocked and not self.is_answering and self._pauses <= _BACK_PRESSURE:
            self.close(self.lost_reason(None))

    def _drop(self, n_bytes: int) -> None:
        """What comes after the end is of no use."""
        self._dropped_bytes += n_bytes
        if self._dropped_bytes > limits.MAX_DROPPED_BYTES:
            self._transport.close()

    # --- writing and closing --------------------------------------------------------------

    def _leave(self) -> None:
        """Have what was sent leave, soon."""
        if self._unsent_bytes >= limits.SEND_HIGH_WATER_BYTES:
            self.flush()
        elif not self._is_leaving:
            self._is_leaving = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Have what was sent leave now."""
        self._is_leaving = self._is_processing
        if not self._unsent:
            return
        unsent, n_bytes = self._unsent, self._unsent_bytes
        self._unsent, self._unsent_bytes = [], 0
        if not self._transport.is_closing():
            self._written_bytes += n_bytes
            self._stats.bytes_out += n_bytes
            if len(unsent) == 1:  # most often there is one
                self._transport.write(unsent[0])
            else:
                write_parts(self._transport, unsent)
            if self._is_write_blocked:
                self._count_buffered()

    def _unread_bytes(self) -> int:
        return self._transport.get_write_buffer_size() + self._unsent_bytes

    def _count_buffered(self) -> None:
        if self._place is not None:
            self._place.buffer.set(self._sans_io.buffered_bytes + self._unread_bytes())
            self._is_buffering = self._place.buffer.n_bytes > 0

    def _left_bytes(self) -> int:
        return self._written_bytes - self._transport.get_write_buffer_size()

    def _is_too_slow(self) -> bool:
        """Close a peer that is sent yet another message, and has not read so much."""
        if self._unread_bytes() <= limits.MAX_SEND_BUFFER_BYTES:
            return False
        self.abort("slow consumer", detail=f"{self._unread_bytes()} bytes are not read")
        return True

    def _wake_drained(self) -> None:
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def _end(self) -> None:
        """Send our end, and wait for the peer's; over TLS, which cannot do that, close."""
        transport = self._transport
        if transport.is_closing() or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the peer has gone, and asyncio's transport did not notice yet
            transport.abort()
            return
        transport.resume_reading()  # only so is it noticed that the peer ends

    # --- what depends on time -------------------------------------------------------------

    async def sweep_alone(self) -> None:
        """Look once a second at what depends on time, where no listener does."""
        while not self.lost.done():
            await asyncio.sleep(limits.SWEEP_PERIOD_S)
            self.sweep(time.monotonic())

    def has_begun(self) -> None:
        """The peer's first message came."""
        self._first_message_deadline = math.inf

    def sweep(self, now: float) -> None:
        """Look at everything that depends on time; ``now`` is ``time.monotonic()``."""
        if self._close_reason is not None:
            self._sweep_closing(now)
            return
        self._count_buffered()  # what is below the high-water mark is told of by nobody
        was_paused = self._was_paused
        for check in (
            self._check_stalled,
            self._check_gone,
            self._check_late,
            self._check_unfinished,
            self._check_alive,
        ):
            check(now)
            if self.close_reason is not None:
                return
        if not was_paused:  # who is not read from is not late
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
        if not self._is_write_blocked:
            return
        if self._left_bytes() > self._last_left_bytes:
            self._stall_deadline = now + limits.WRITE_STALL_TIMEOUT_S
            self._last_left_bytes = self._left_bytes()
        elif now > self._stall_deadline:
            self.abort("write stalled", detail=f"{self._unread_bytes()} bytes are not read")

    def _check_gone(self, now: float) -> None:
        """A peer that is not read from while it waits for answers: is it still there?"""
        if not (self._pauses or self._has_ended) or not self.is_answering:
            return
        state = tcp_state(self._transport)
        if state is TcpState.RESET:
            self.close("connection lost")
            self._transport.abort()
        elif state is TcpState.ENDED:
            self.probe()

    def _check_late(self, now: float) -> None:
        if self._was_paused:  # who is not read from is not late
            self._was_paused = bool(self._pauses - {Pause.TURN_OVER})
            self._liveness.has_heard = True
        elif now > self._first_message_deadline:
            self.close("no first message", level=logging.WARNING)

    def _check_unfinished(self, now: float) -> None:
        if (
            self._place is None
            or self._was_paused
            or not self._sans_io.buffered_bytes
            or self._n_messages != self._n_messages_seen
        ):
            self._n_messages_seen = self._n_messages
            self._message_deadline = now + limits.MESSAGE_TIMEOUT_S
        elif now > self._message_deadline:
            self.close(
                "unfinished message",
                detail=f"{self._sans_io.buffered_bytes} bytes of it came within"
                f" {limits.MESSAGE_TIMEOUT_S:g} s",
                level=logging.WARNING,
            )

    def _check_alive(self, now: float) -> None:
        verdict = self._liveness.check(now, self._written_bytes)
        if verdict is Verdict.DEAD:
            self.close("ping timeout", level=logging.WARNING)
        elif verdict is Verdict.SILENT:
            self.probe()
