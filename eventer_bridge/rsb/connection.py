"""One connection of the RSB socket transport: the asyncio shell around ``codec``.

Events go to a callback, synchronously and in order, as many at a time as came. Nothing here
grows without bound: a connection is not read from while its user says so
(:meth:`Connection.pause_reading`), or after it had its turn, until the others had theirs; a
peer that does not read what it is sent is closed.

Shutting down is what RSB peers expect: we send the end of stream, wait for the peer's, and
close. When the peer sends it first, we close at once: it waits for that.

Runs on the event loop's thread.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias, cast

from hat import aio

from eventer_bridge import limits
from eventer_bridge.errors import ClosedError, RemoteProtocolError
from eventer_bridge.net import Place, Quota
from eventer_bridge.net.admission import TOO_MUCH_BUFFERED
from eventer_bridge.net.sockets import keep_alive, watch_peer, write_parts
from eventer_bridge.rsb import codec
from eventer_bridge.rsb.event import RsbEvent, now_us
from eventer_bridge.rsb.stats import RsbStats

mlog = logging.getLogger(__name__)

_TURN: Final = "had its turn"  # why a connection is not read from


class Received(NamedTuple):
    """An event that came.

    Attributes:
        event: the event, as its sender made it.
        notification: it as it came, to be relayed.
        time_us: when it came, in microseconds since 1970-01-01 UTC.
    """

    event: RsbEvent
    notification: bytes
    time_us: int


EventsCb: TypeAlias = "Callable[[Connection, Sequence[Received]], None]"
"""Called with events that came together; must not block."""


class Connection(aio.Resource, asyncio.Protocol):
    """See the module. Made by ``connect`` and ``listen`` (``transport``).

    Args:
        on_events: see :data:`EventsCb`.
        stats: what is counted.
        connections: those of the server; None where we connected.
        quota: how many of them there may be.
        place: among all connections of the process.

    Attributes:
        ready: whether there was a handshake; done when there was, or will be none.
    """

    def __init__(
        self,
        on_events: EventsCb,
        stats: RsbStats,
        connections: "set[Connection] | None" = None,
        quota: Quota | None = None,
        place: Place | None = None,
    ) -> None:
        self._on_events = on_events
        self._stats = stats
        self._connections = connections
        self._quota = quota
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._decoder = codec.FrameDecoder()
        self._handshake = b""
        self._received_us = 0
        self._peer = "unknown" if place is None else place.peer
        self._pauses: set[str] = set()
        self._is_processing = False
        self._has_ended = False
        self._close_reason: str | None = None
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_writable = True
        self._is_buffering = False
        self._stall_deadline = 0.0
        self._written_bytes = 0
        self._last_left_bytes = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._async_group = aio.Group()
        self.ready: asyncio.Future[bool] = self._loop.create_future()

    @property
    def async_group(self) -> aio.Group:
        """Group of the connection; it closes when the connection does."""
        return self._async_group

    @property
    def peer(self) -> str:
        """Address of the peer, as logs name it."""
        return self._peer

    @property
    def close_reason(self) -> str | None:
        """Why it is closed; None while it is open."""
        return self._close_reason

    # --- what the user calls ------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Send a frame; it leaves with what else is sent in this turn of the loop.

        Nothing is sent if the connection is closed. A peer that reads so slowly that too
        much of it waits is closed.
        """
        if self._close_reason is not None:
            return
        self._stats.frames_out += 1
        self._stats.bytes_out += len(frame)
        if not self._is_writable and self._buffered_bytes() > limits.MAX_SEND_BUFFER_BYTES:
            self.abort("slow consumer", detail=f"{self._buffered_bytes()} bytes are not read")
            return
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        if self._unsent_bytes >= limits.SEND_HIGH_WATER_BYTES:
            self._flush()

    async def drain(self) -> None:
        """Wait until the peer has read enough of what was sent.

        Raises:
            ClosedError: the connection is closed.
        """
        self._flush()
        await self._drained.wait()
        if self._close_reason is not None:
            raise ClosedError(f"{self._peer}: {self._close_reason}")

    def pause_reading(self, reason: str) -> None:
        """Read no more, so that the peer is held back; events stop coming at once.

        Args:
            reason: what :meth:`resume_reading` is to be called with.
        """
        if not self._pauses and self._is_readable():
            self._transport.pause_reading()
        self._pauses.add(reason)

    def resume_reading(self, reason: str) -> None:
        """Take back a reason of :meth:`pause_reading`."""
        if reason not in self._pauses:
            return
        self._pauses.remove(reason)
        if not self._pauses and self._is_readable():
            self._transport.resume_reading()
            self._process()

    def close(self, reason: str = "closed by this side") -> None:
        """Shut down: send what is unsent and the end of stream, then wait for the peer's."""
        if self._close_reason is not None:
            return
        self._end(reason)
        if self._has_ended or self._transport.is_closing():
            self._transport.close()
            return
        self._transport.write_eof()
        if self._pauses:
            self._transport.resume_reading()  # only so is it noticed that the peer ends

    def abort(self, reason: str, *, detail: str | None = None) -> None:
        """Close at once; what has not left yet is dropped."""
        if self._close_reason is None:
            self._end(reason, detail, logging.WARNING)
        self._transport.abort()

    # --- asyncio.Protocol ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a connection."""
        # uvloop's transports are no subclasses of asyncio.Transport
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=limits.SEND_HIGH_WATER_BYTES)
        tcp = transport.get_extra_info("socket")
        keep_alive(tcp)
        self._async_group.spawn(aio.call_on_cancel, self._stop)
        if self._place is None or self._connections is None:
            if name := transport.get_extra_info("peername"):
                self._peer = f"{name[0]}:{name[1]}"
            watch_peer(tcp)
            self._stats.accepted += 1
            self._stats.connections += 1
            return
        self._connections.add(self)
        self._place.buffer.when_too_large(lambda: self.abort(TOO_MUCH_BUFFERED))
        if not self._place.establish(self._quota):  # RSB has no names: all are known
            self.abort("too many connections")
            return
        self._transport.write(codec.HANDSHAKE)
        self._handshake = codec.HANDSHAKE
        self._set_ready()

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        if self._close_reason is not None:
            return
        self._stats.bytes_in += len(data)
        self._received_us = now_us()
        if len(self._handshake) < len(codec.HANDSHAKE):
            data = self._receive_handshake(data)
        self._decoder.feed(data)
        if not self._pauses:
            self._process()
        # where we connected, a server that closes may reset what is not read at once
        if len(data) >= limits.FULL_READ_BYTES and self._place is not None:
            self._let_others()
        if self._decoder.buffered_bytes or self._is_buffering:
            self._count_buffered()

    def eof_received(self) -> bool:
        """The peer sends no more: what it sent is heard, then the connection closes."""
        self._has_ended = True
        if self._close_reason is None:
            self._process()
        if self._close_reason is None:
            if self._decoder.buffered_bytes:
                self._fail(f"ended within a frame, {self._decoder.buffered_bytes} bytes of it came")
            else:
                self._end("peer closed")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._close_reason is None:
            self._end("connection lost" if exc else "peer closed", str(exc) if exc else None)
        assert self._close_reason is not None
        if self._place is not None:
            self._place.release()
        else:
            self._stats.connections -= 1
        self._stats.closed[self._close_reason] += 1
        self._lost.set_result(None)

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is sent to."""
        self._is_writable = False
        self._drained.clear()
        self._count_buffered()
        self._last_left_bytes = self._left_bytes()
        self._stall_deadline = time.monotonic() + limits.WRITE_STALL_TIMEOUT_S

    def resume_writing(self) -> None:
        """What waited has left."""
        self._is_writable = True
        self._count_buffered()
        self._drained.set()

    # --- receiving ----------------------------------------------------------------------

    def _receive_handshake(self, data: bytes) -> bytes:
        missing = len(codec.HANDSHAKE) - len(self._handshake)
        self._handshake += data[:missing]
        if not codec.HANDSHAKE.startswith(self._handshake):
            self._fail(f"handshake: {self._handshake.hex(' ')}, expected four zero bytes")
            return b""
        if len(self._handshake) == len(codec.HANDSHAKE):
            self._set_ready()
        return data[missing:]

    def _set_ready(self) -> None:
        self._stats.clients += 1
        self.ready.set_result(True)

    def _process(self) -> None:
        # also called by what the callback calls: then the loop that called it goes on
        if self._is_processing:
            return
        self._is_processing = True
        try:
            self._take_turns()
        except RemoteProtocolError as e:
            self._fail(str(e))
        except Exception as e:
            mlog.exception("handling RSB events failed", extra={"peer": self._peer})
            self.abort("internal error", detail=str(e))
        finally:
            self._is_processing = False

    def _take_turns(self) -> None:
        # what came before the peer's end is heard in any case: there is not much of it
        while self._close_reason is None and (not self._pauses or self._has_ended):
            batch: list[Received] = []
            try:
                is_all = self._decode(batch)
            finally:  # those before a broken one are heard
                if batch:
                    self._on_events(self, batch)
            if is_all:
                return
            if not self._has_ended:
                self._let_others()

    def _let_others(self) -> None:
        """Go on when others had their turn."""
        if not self._pauses:
            self.pause_reading(_TURN)
            wait = self._loop.call_soon if self._place is None else self._place.turns.wait
            wait(functools.partial(self.resume_reading, _TURN))

    def _decode(self, batch: list[Received]) -> bool:
        """Decode what came, at most a turn of it, into ``batch``; returns whether it was all.

        Each event is relayed to all others.
        """
        n_others = len(self._connections) if self._connections else 1
        n_events = max(1, min(limits.RSB_TURN_EVENTS, limits.RSB_TURN_FRAMES // n_others))
        n_bytes_left = min(limits.RSB_TURN_BYTES, limits.RSB_TURN_RELAYED_BYTES // n_others)
        while len(batch) < n_events and n_bytes_left > 0:
            notification = self._decoder.next_frame()
            if notification is None:
                return True
            self._stats.frames_in += 1
            n_bytes_left -= len(notification)
            batch.append(Received(codec.decode(notification), notification, self._received_us))
        return False

    def _is_readable(self) -> bool:
        is_open = self._close_reason is None and not self._transport.is_closing()
        return is_open and not self._has_ended

    # --- writing and closing ------------------------------------------------------------

    def _buffered_bytes(self) -> int:
        return self._transport.get_write_buffer_size() + self._unsent_bytes

    def _count_buffered(self) -> None:
        if self._place is not None:
            self._place.buffer.set(self._decoder.buffered_bytes + self._buffered_bytes())
            self._is_buffering = self._place.buffer.n_bytes > 0

    def _left_bytes(self) -> int:
        return self._written_bytes - self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        if self._unsent and not self._transport.is_closing():
            self._written_bytes += self._unsent_bytes
            # what many do not read yet is there once, not once for each of them
            write_parts(self._transport, self._unsent)
        self._unsent.clear()
        self._unsent_bytes = 0
        if not self._is_writable:
            self._count_buffered()

    def _fail(self, detail: str) -> None:
        """The peer broke the protocol."""
        if self._close_reason is None:
            self._end("protocol error", detail, logging.WARNING)
        self._transport.close()

    def _end(self, reason: str, detail: str | None = None, level: int = logging.DEBUG) -> None:
        self._flush()
        self._close_reason = reason
        extra = {"peer": self._peer, "reason": reason}
        if detail is not None:
            extra["detail"] = detail[: limits.MAX_LOG_CHARACTERS]
        mlog.log(level, "closing RSB connection", extra=extra)
        if self.ready.done():
            self._stats.clients -= 1
        else:
            self.ready.set_result(False)
        if self._connections is not None:
            self._connections.discard(self)
        self._drained.set()
        self._async_group.close()

    async def _stop(self) -> None:
        self.close()  # where the group was closed by its user
        await asyncio.wait([self._lost], timeout=limits.CLOSE_TIMEOUT_S)
        if not self._lost.done():
            self._transport.abort()
            await asyncio.wait([self._lost], timeout=limits.CLOSE_TIMEOUT_S)

    def sweep(self, now: float) -> None:
        """Look whether what the peer was sent leaves; ``now`` is ``time.monotonic()``."""
        self._count_buffered()  # what is below the high-water mark is told of by nobody
        if self._is_writable or self._close_reason is not None:
            return
        if self._left_bytes() > self._last_left_bytes:
            self._stall_deadline = now + limits.WRITE_STALL_TIMEOUT_S
            self._last_left_bytes = self._left_bytes()
        elif now > self._stall_deadline:
            self.abort("write stalled", detail=f"{self._buffered_bytes()} bytes are not read")
