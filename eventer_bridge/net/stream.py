"""One connection: everything that all wires have in common.

A wire provides its protocol state without I/O (``framing.SansIo``) and handles its messages
(:meth:`Stream.on_message` and the other hooks)::

    socket ─▶ data_received ─▶ protocol.receive_data
                               protocol.next_message ─▶ on_message ─▶ send ─┐
    socket ◀──────────────────────────────── flush, once per turn ◀─────────┘

Nothing here grows without bound. Reading is paused while there is a reason (:class:`Pause`): the
wire asks for it, the peer sent so many messages at once that other connections get their turn
first, or the peer of an accepted connection does not read. An outgoing connection keeps reading in
that case: if both ends stopped, neither would ever resume. A peer that reads too slowly is closed,
and so is one that holds much memory when all together hold too much (``memory``).

:meth:`Stream.sweep` checks all deadlines, once a second. An accepted connection closes in two steps
if possible (``sockets.Closing``).

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
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, ParamSpec, TypeVar, cast

from typing_extensions import override

from eventer_bridge import limits as core_limits
from eventer_bridge.errors import ClosedError, RemoteProtocolError
from eventer_bridge.memory import MemoryShare, account_of_process
from eventer_bridge.net import limits
from eventer_bridge.net.framing import SansIo
from eventer_bridge.net.liveness import Liveness, Verdict
from eventer_bridge.net.sockets import Closing, TcpState, tcp_state, watch_peer, write_parts
from eventer_bridge.net.stats import CloseReason, ServerStats
from eventer_bridge.resources import Resource, call_on_cancel

if TYPE_CHECKING:  # only those that accept connections have any
    from eventer_bridge.net.admission import Slot

P = ParamSpec("P")
MessageT = TypeVar("MessageT")


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


BACK_PRESSURE: Final = frozenset(
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


class Stream(asyncio.Protocol, Generic[MessageT]):
    """A connection; see the module.

    Args:
        slot: of an accepted connection; None for an outgoing one.
        streams: the set that holds the connection while it exists.

    Attributes:
        client: the peer's name for logs, if known.
        owner: whose turns and memory it takes: its client, or its address (:meth:`belong_to`). The
            memory of an outgoing connection is not counted until it has one.
        bytes_in_cb: called with the number of bytes that arrived, after their messages were taken.
        pauses: reasons for not reading; empty while it is read from.
        was_paused: whether it was not read from since the last sweep, for another reason than that
            others had their turn.
        has_ended: whether the peer sends no more.
        is_write_blocked: whether senders are to wait, see :meth:`drain`.
        held_bytes: memory held for the peer, besides what it has not read and what was not taken
            yet (:meth:`hold`).
        close_reason: None while the connection is open.
        lost: done when the connection is gone.
    """

    __slots__ = (
        "_blocked_at_s",
        "_closing",
        "_counted_bytes",
        "_drained",
        "_is_buffering",
        "_is_leaving",
        "_is_processing",
        "_last_left_bytes",
        "_liveness",
        "_loop",
        "_message_deadline_s",
        "_n_messages_seen",
        "_sans_io",
        "_share",
        "_slot",
        "_stall_deadline_s",
        "_stats",
        "_streams",
        "_transport",
        "_unsent",
        "_unsent_bytes",
        "bytes_in_cb",
        "client",
        "close_reason",
        "first_deadline_s",
        "has_ended",
        "held_bytes",
        "is_write_blocked",
        "lost",
        "n_messages",
        "owner",
        "pauses",
        "peer",
        "read_bytes",
        "was_paused",
        "written_bytes",
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
        slot: "Slot | None" = None,
        streams: "set[Any] | None" = None,
    ) -> None:
        self._sans_io = protocol
        self._stats = stats
        self._liveness = liveness
        self._slot = slot
        self._share = None if slot is None else slot.share
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self.peer = "unknown" if slot is None else slot.peer
        self.owner = "" if slot is None else slot.address
        self.client: str | None = None
        self.bytes_in_cb: Callable[[int], None] | None = None
        self.pauses: frozenset[Pause] = frozenset()  # usually empty
        self.was_paused = False
        self._is_processing = False
        self.has_ended = False
        self._is_buffering = False
        self.read_bytes = self.held_bytes = self._counted_bytes = 0
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_leaving = False
        self.is_write_blocked = False
        self._blocked_at_s = 0.0
        self.written_bytes = 0
        self._drained: asyncio.Future[None] | None = None
        self.n_messages = 0
        self.first_deadline_s = self._message_deadline_s = math.inf
        self._n_messages_seen = 0
        self._stall_deadline_s = 0.0
        self._last_left_bytes = 0
        self.close_reason: CloseReason | None = None
        self._closing: Closing | None = None  # while it is open
        self.lost: asyncio.Future[None] = self._loop.create_future()

    # --- called by users ------------------------------------------------------------------

    @property
    def log_extra(self) -> dict[str, object]:
        """Fields of the connection for log records."""
        if self.client is None:
            return {"peer": self.peer}
        return {"peer": self.peer, "client": self.client}

    @property
    def is_accepted(self) -> bool:
        """Whether the peer connected, not we."""
        return self._slot is not None

    @property
    def slot(self) -> "Slot":
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
    def buffered_bytes(self) -> int:
        """Memory held for the peer: what is not taken or answered yet, and what it has not read."""
        return self._sans_io.buffered_bytes + self.unread_bytes + self.held_bytes

    @property
    def behind_s(self) -> float:
        """Seconds since the peer fell behind (:attr:`is_write_blocked`); 0: it has not."""
        return time.monotonic() - self._blocked_at_s if self.is_write_blocked else 0.0

    @property
    def close_text(self) -> str | None:
        """The close reason with its details, for people; None while the connection is open."""
        return None if self._closing is None else self._closing.text

    def take_bytes(self) -> int:
        """Bytes of the messages that are handled now, for :meth:`hold`; none the next time."""
        taken_bytes = self.read_bytes - self._sans_io.buffered_bytes
        n_bytes, self._counted_bytes = taken_bytes - self._counted_bytes, taken_bytes
        return n_bytes

    def hold(self, n_bytes: int) -> bool:
        """Count so much more memory as held for the peer (or less); whether it is still open.

        It may be closed by this, and then nothing is to wait.
        """
        self.held_bytes += n_bytes
        if n_bytes > 0:
            if self.held_bytes >= core_limits.UNCOUNTED_BYTES:
                self._count_held()
        elif n_bytes <= -core_limits.RELEASED_BYTES:  # less is counted by the next sweep
            self._count_held()
        return self.close_reason is None

    def belong_to(self, owner: str) -> None:
        """Whose turns and memory it takes from now on."""
        self.owner = owner
        if self._share is not None:
            self._share.move(owner)
        else:
            self._share = MemoryShare(account_of_process(), owner)
            self._share.when_lost(self._on_share_lost)

    def write(self, frame: bytes, n_frames: int = 1) -> None:
        """Send a frame, or several that are joined, at the end of this turn, with other frames.

        A peer that reads so slowly that too much waits is closed; then nothing is sent.
        """
        if self.close_reason is not None or (self.is_write_blocked and self._close_if_too_slow()):
            return
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        self._stats.frames_out += n_frames
        if not self._is_leaving or self._unsent_bytes >= limits.SEND_HIGH_WATER_BYTES:
            self._schedule_flush()

    def send_at_once(self, send: Callable[[], None]) -> None:
        """Call what writes: all of it leaves then, and needs no further iteration of the loop."""
        if self._is_leaving:
            send()
            return
        self._is_leaving = True
        try:
            send()
        finally:
            self.flush()

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
        """Wait until the peer has read enough, or raise ``ClosedError``."""
        self.flush()
        while self.is_write_blocked and self.close_reason is None:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)
        self.check_open()

    def check_open(self) -> None:
        """Raise ``ClosedError`` if the connection is closed."""
        if self.close_reason is not None:
            raise ClosedError(f"{self.peer}: {self.close_text}")

    def pause_reading(self, reason: Pause) -> None:
        """Stop reading, until all reasons are withdrawn; message callbacks stop at once."""
        if not self.pauses and self._is_readable():
            self._transport.pause_reading()
        self.was_paused = self.was_paused or reason is not Pause.TURN_OVER
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
                self._count_held()
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

        The first reason counts, for :meth:`on_closed` and the log; ``text`` replaces it in
        :attr:`close_text` and the log. The peer may close first within ``linger_s``.
        """
        if self.close_reason is not None:
            return
        self.flush()
        if self._closing is not None:  # closed by flushing
            return
        self.close_reason = reason
        self._stats.closed[reason] += 1
        closing = self._closing = Closing(self._transport, reason, detail, text)
        self.mlog.log(level, "closing connection", extra={**self.log_extra, **closing.log_extra})
        self.pauses |= {Pause.CLOSING}
        self._wake_drained()
        self.on_closing()
        # a peer that was sent nothing can lose nothing
        is_waiting = self.ends_first if self._slot is None else self.written_bytes > 0
        closing.begin(is_waiting=is_waiting and not self.has_ended, linger_s=linger_s)

    def abort(
        self,
        reason: CloseReason,
        *,
        detail: str | None = None,
        text: str | None = None,
        level: int = logging.WARNING,
    ) -> None:
        """Close at once, dropping pending bytes."""
        self.close(reason, detail=detail, text=text, level=level)
        self._transport.abort()

    def end_opening(self) -> None:
        """Opening it failed, perhaps after the connection was made: it is gone."""
        if hasattr(self, "_transport"):
            self.connection_lost(None)

    async def wait_lost(self) -> None:
        """After :meth:`close`: wait until the connection is gone, and see that this is soon."""
        assert self._closing is not None
        await self._closing.wait_lost(self.lost)

    # --- hooks of the wire, with what happens where it has none -----------------------------

    def on_open(self) -> None:
        """There is a connection (over TLS: the handshake is done)."""

    def on_message(self, message: MessageT) -> None:
        """A message came; must not block. ``RemoteProtocolError``: :meth:`on_protocol_error`."""
        raise NotImplementedError

    def on_protocol_error(self, error: RemoteProtocolError) -> None:
        """The peer broke the protocol."""
        self.close(CloseReason.PROTOCOL_ERROR, detail=str(error), level=logging.WARNING)

    def on_late(self) -> None:
        """The first message did not come in time."""
        self.close(CloseReason.NO_FIRST_MESSAGE, level=logging.WARNING)

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
    def is_answering(self) -> bool:
        """Whether the peer waits for an answer."""
        return False

    # --- asyncio.Protocol -----------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio.Transport
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=limits.SEND_HIGH_WATER_BYTES)
        if self._slot is None:
            if name := transport.get_extra_info("peername"):
                self.peer = f"{name[0]}:{name[1]}"
            if tcp := transport.get_extra_info("socket"):
                watch_peer(tcp)
        else:
            self.first_deadline_s = self._slot.accepted_at + limits.FIRST_MESSAGE_TIMEOUT_S
            self._slot.when_taken(lambda: self.abort(CloseReason.SLOT_TAKEN))
            self._slot.share.when_lost(self._on_share_lost)
        if self._streams is not None:
            self._streams.add(self)
        if self.close_reason is None:  # its slot may have been taken
            self.guard(self.on_open)

    @override
    def data_received(self, data: bytes) -> None:
        if self.close_reason is not None:
            assert self._closing is not None
            self._closing.drop(len(data))
            return
        n_bytes = len(data)
        self._stats.bytes_in += n_bytes
        self.read_bytes += n_bytes
        self._liveness.has_heard = True
        self._sans_io.receive_data(data)
        if not self.pauses and not self._is_processing:
            is_small = n_bytes < core_limits.UNCOUNTED_BYTES or self._slot is None
            if not is_small and self.slot.turns.is_late():
                self.yield_turn()
            else:
                self._run_turn()
        # not on outgoing connections: a server that closes may reset bytes not read at once
        if n_bytes >= limits.FULL_READ_BYTES and self._slot is not None:
            self.yield_turn()
        if self.bytes_in_cb is not None:
            self.bytes_in_cb(n_bytes)
        buffered_bytes = self._sans_io.buffered_bytes
        self._counted_bytes = self.read_bytes - buffered_bytes  # what is not held until now is gone
        if buffered_bytes or (self._is_buffering and not self.held_bytes):  # else hold counted it
            self._count_held()

    @override
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

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self.lost.done():  # it was told of at once
            return
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
        elif self._share is not None:
            self._share.close()
        self.lost.set_result(None)
        self.guard(self.on_closed, self.close_reason)

    @override
    def pause_writing(self) -> None:
        self.is_write_blocked = True
        self._count_held()
        self._blocked_at_s = time.monotonic()
        self._begin_writing(self._blocked_at_s)
        if self._slot is not None and not self.reads_while_blocked:
            self.pause_reading(Pause.WRITE_BLOCKED)

    @override
    def resume_writing(self) -> None:
        self.is_write_blocked = False
        self._count_held()
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
            detail = str(error) or repr(error)
            self.close(CloseReason.INTERNAL_ERROR, detail=detail, level=logging.ERROR)

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
            self.take_turn()
        except RemoteProtocolError as e:
            self.on_protocol_error(e)
        except Exception as e:
            self.on_failed(e)
        finally:
            self._is_processing = self._is_leaving = False
        self.flush()

    def take_turn(self) -> None:
        """Handle buffered messages until the turn is over."""
        sans_io, now_s, take_some = self._sans_io, time.perf_counter, self.take_some
        n_before = self.n_messages
        end_s = now_s() + limits.TURN_S
        try:
            while (not self.pauses or self.may_take) and take_some():
                n_messages = self.n_messages - n_before
                if n_messages == 1 and not sans_io.buffered_bytes:
                    break  # usually there is one
                is_over = n_messages >= limits.TURN_MESSAGES or now_s() >= end_s
                if is_over and not self.has_ended:
                    if sans_io.buffered_bytes:
                        self.yield_turn()
                    break
        finally:
            self._stats.frames_in += self.n_messages - n_before

    def take_some(self) -> bool:
        """Count the next message and handle it; whether there was one. A wire may take several."""
        message = self._sans_io.next_message()
        if message is None:
            return False
        self.n_messages += 1
        self.on_message(message)
        return True

    @property
    def may_take(self) -> bool:
        """Whether the next message may be taken now."""
        return not self.pauses or (self.has_ended and self.pauses <= BACK_PRESSURE)

    def yield_turn(self) -> None:
        """Continue after other connections had their turn."""
        if not self.pauses:
            self.pause_reading(Pause.TURN_OVER)
            resume = functools.partial(self.resume_reading, Pause.TURN_OVER)
            if self._slot is None:
                self._loop.call_soon(resume)
            else:
                self._slot.turns.wait(resume, self.owner)

    def _is_readable(self) -> bool:
        is_open = self.close_reason is None and not self._transport.is_closing()
        return is_open and not self.has_ended

    def close_if_answered(self) -> None:
        """Close the connection if its peer sends no more and awaits nothing."""
        if not self.has_ended or self.close_reason is not None or self._is_processing:
            return
        # answers not read yet are bounded by the deadline of writing
        if not self.is_write_blocked and not self.is_answering and self.pauses <= BACK_PRESSURE:
            self.on_lost(None)

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
            self.written_bytes += n_bytes
            self._stats.bytes_out += n_bytes
            if len(unsent) == 1:  # usually there is one
                self._transport.write(unsent[0])
            else:
                write_parts(self._transport, unsent)
            if self.is_write_blocked:
                self._count_held()

    def _count_held(self) -> None:
        if (share := self._share) is not None:
            share.set(self.buffered_bytes)
            self._is_buffering = share.n_bytes > 0

    def _on_share_lost(self) -> None:
        """Free what is held at once: many connections may grow before the loop ends one of them."""
        self.abort(CloseReason.TOO_MUCH_BUFFERED)
        self._sans_io.discard()

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

    # --- deadlines ------------------------------------------------------------------------

    @property
    def left_bytes(self) -> int:
        """Bytes that have left this process."""
        return self.written_bytes - self._transport.get_write_buffer_size()

    @property
    def tcp_state(self) -> TcpState:
        """The kernel's state of the connection."""
        return tcp_state(self._transport)

    async def sweep_alone(self) -> None:
        """Sweep once a second; for connections without a listener."""
        while not self.lost.done():
            await asyncio.sleep(core_limits.SWEEP_PERIOD_S)
            self.sweep(time.monotonic())

    def clear_first_deadline(self) -> None:
        """The peer's first message came."""
        self.first_deadline_s = math.inf

    def sweep(self, now: float) -> None:
        """Check all deadlines; ``now`` is ``time.monotonic()``."""
        if self._closing is not None:
            self._closing.sweep(now)
            return
        self._count_held()  # no callback reports changes below the high-water mark
        was_paused = self.was_paused
        for check in self._checks:
            check(self, now)
            if self.close_reason is not None:
                return
        # a peer that is not read from is not late
        if not was_paused:
            self.on_sweep()

    def _begin_writing(self, now_s: float) -> None:
        """The peer reads too slowly from now on."""
        self._last_left_bytes = self.left_bytes
        self._stall_deadline_s = now_s + limits.WRITE_STALL_TIMEOUT_S

    def _check_stalled(self, now_s: float) -> None:
        if not self.is_write_blocked:
            return
        if self.left_bytes > self._last_left_bytes:
            self._begin_writing(now_s)
        elif now_s > self._stall_deadline_s:
            self.abort(CloseReason.WRITE_STALLED, detail=f"{self.unread_bytes} bytes are not read")

    def _check_gone(self, now_s: float) -> None:
        """Find out whether a peer that is not read from is still there."""
        # maybe for hours
        is_waited_for = self.is_answering or Pause.QUOTA in self.pauses
        if not (self.pauses or self.has_ended) or not is_waited_for:
            return
        state = self.tcp_state
        if state is TcpState.RESET:
            self.abort(CloseReason.LOST, level=logging.DEBUG)
        elif state is TcpState.ENDED:
            self.probe()

    def _check_late(self, now_s: float) -> None:
        if self.was_paused:
            self.was_paused = bool(self.pauses - {Pause.TURN_OVER})
            self._liveness.has_heard = True
        elif now_s > self.first_deadline_s:
            self.on_late()

    def _check_unfinished(self, now_s: float) -> None:
        n_bytes = self._sans_io.buffered_bytes
        has_progress = not n_bytes or self.n_messages != self._n_messages_seen
        if not self.is_accepted or self.was_paused or has_progress:
            self._n_messages_seen = self.n_messages
            self._message_deadline_s = now_s + limits.MESSAGE_TIMEOUT_S
        elif now_s > self._message_deadline_s:
            detail = f"{n_bytes} bytes of it came within {limits.MESSAGE_TIMEOUT_S:g} s"
            self.close(CloseReason.UNFINISHED_MESSAGE, detail=detail, level=logging.WARNING)

    def _check_alive(self, now_s: float) -> None:
        verdict = self._liveness.check(now_s, self.written_bytes)
        if verdict is Verdict.DEAD:
            self.close(CloseReason.PING_TIMEOUT, level=logging.WARNING)
        elif verdict is Verdict.SILENT:
            self.probe()

    _checks: ClassVar = (_check_stalled, _check_gone, _check_late, _check_unfinished, _check_alive)


class OwnedStream(Stream[MessageT], Resource):
    """A connection that is a resource: its group closes with it, and it with its group."""

    @override
    def on_open(self) -> None:
        self.async_group.spawn(call_on_cancel, self._stop)
        if self._slot is None:
            self.async_group.spawn(self.sweep_alone)

    @override
    def on_closing(self) -> None:
        self.async_group.close()

    async def _stop(self) -> None:
        self.close()  # if the user closed the group
        await self.wait_lost()
