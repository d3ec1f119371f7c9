"""The bus over sockets: a relaying server, a connection to one, and a reconnecting client.

Each participant gets every event of all others, and filters them by scope. The server itself takes
part, by :meth:`Bus.send` and its callback.

Shutdown of a connection is as RSB peers expect: we send the end of stream, wait for the peer's, and
close. If the peer sends it first, we close at once, because it waits for that.

Runs on the event loop's thread.
"""

import abc
import asyncio
import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from typing_extensions import override

from eventer_bridge.errors import ConnectError, EventerBridgeError, RemoteProtocolError
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.accepting import StreamListener, listen_for_streams
from eventer_bridge.net.admission import Admission, Slot
from eventer_bridge.net.connecting import connecting, keep_trying, open_connection
from eventer_bridge.net.liveness import Liveness
from eventer_bridge.net.quota import Quota
from eventer_bridge.net.sockets import keep_alive
from eventer_bridge.net.stats import CloseReason, ServerStats
from eventer_bridge.net.stream import OwnedStream
from eventer_bridge.resources import Resource, call_on_cancel, closed_on_error, uncancellable
from eventer_bridge.rsb import codec, limits
from eventer_bridge.rsb.event import RsbEvent, now_us

mlog = logging.getLogger(__name__)


class RsbStats(ServerStats):
    """Counts of any server, with notifications of the bus as frames, and those of RSB.

    ``relayed`` counts receivers; ``unsent`` are events that were not sent to the bus, by reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self.relayed = 0
        self.unsent: dict[str, int] = {}

    def count_unsent(self, reason: str) -> None:
        """Count an event that was not sent."""
        self.unsent[reason] = self.unsent.get(reason, 0) + 1


class RsbProtocol:
    """State of one end of a connection, without I/O: the handshake, then frames.

    The server sends the handshake, the other end awaits it; ``is_ready``: it is complete.
    """

    __slots__ = ("_decoder", "_handshake", "_has_ended", "is_ready")

    def __init__(self, *, is_server: bool) -> None:
        self._decoder = codec.NotificationDecoder()
        self._handshake = b""
        self._has_ended = False
        self.is_ready = is_server

    @property
    def buffered_bytes(self) -> int:
        """Bytes of notifications that are incomplete or not taken yet."""
        return self._decoder.buffered_bytes

    def receive_data(self, data: bytes) -> None:
        """Buffer bytes from the peer for :meth:`next_message`."""
        if not self.is_ready:
            missing = len(codec.HANDSHAKE) - len(self._handshake)
            self._handshake += data[:missing]
            self.is_ready = self._handshake == codec.HANDSHAKE
            data = data[missing:]
        self._decoder.feed(data)

    def receive_eof(self) -> None:
        """The peer sends no more; :meth:`next_message` raises if that was within a frame."""
        self._has_ended = True

    def next_message(self) -> bytes | None:
        """The next notification, encoded; None if more bytes are needed for it.

        Raises ``RemoteProtocolError`` if something is invalid, or the last one is truncated.
        """
        if not codec.HANDSHAKE.startswith(self._handshake):
            raise RemoteProtocolError(
                f"handshake: {self._handshake.hex(' ')}, expected four zero bytes"
            )
        frame = self._decoder.next_frame()
        if frame is None and self._has_ended and (n_bytes := self._decoder.buffered_bytes):
            raise RemoteProtocolError(f"ended within a frame, {n_bytes} bytes of it came")
        return frame

    def discard(self) -> None:
        """Drop buffered bytes: the connection is gone."""
        self._decoder = codec.NotificationDecoder()


class Received(NamedTuple):
    """A received event: as sent, its bytes to be relayed, and when it was received."""

    event: RsbEvent
    notification: bytes
    time_us: int


EventsCb: TypeAlias = "Callable[[RsbConnection, Sequence[Received]], None]"
"""Called with a batch of events; must not block."""


class RsbConnection(OwnedStream[bytes]):
    """One connection. Created by :func:`connect` and :func:`listen`.

    Events go to a callback, synchronously and in order, in batches as they arrive. A turn ends
    after a number of events, or of bytes to relay.

    ``quota`` is of the bus' connections, ``connections`` are the server's (None: outgoing). The
    result of ``ready`` is whether the handshake succeeded; ``forget`` is called when it closes:
    what waits for it is not needed any more.
    """

    mlog = logging.getLogger(__name__)
    ends_first = True
    reads_while_blocked = True  # a participant may not read until we do

    def __init__(
        self,
        on_events: EventsCb,
        stats: RsbStats,
        quota: Quota | None = None,
        connections: "set[RsbConnection] | None" = None,
        slot: Slot | None = None,
    ) -> None:
        self._protocol = RsbProtocol(is_server=slot is not None)
        liveness = Liveness(None, math.inf)  # RSB has no pings
        super().__init__(self._protocol, stats, liveness, slot, connections)
        self._on_events = on_events
        self._connections = connections
        self._quota = quota
        self._received_us = 0
        self.ready: asyncio.Future[bool] = self._loop.create_future()
        self.forget: Callable[[], None] | None = None

    # --- Stream -------------------------------------------------------------------------

    @override
    def on_open(self) -> None:
        keep_alive(self._transport.get_extra_info("socket"))
        super().on_open()
        if self._slot is None:
            self._stats.accepted += 1
            self._stats.connections += 1
        elif self._slot.establish(self._quota):  # RSB has no names: all are known
            self.clear_first_deadline()
            self.write(codec.HANDSHAKE, n_frames=0)
            self.flush()
            self._set_ready()
        else:
            self.abort(CloseReason.TOO_MANY_CONNECTIONS)

    @override
    def data_received(self, data: bytes) -> None:
        self._received_us = now_us()
        super().data_received(data)

    @override
    def take_turn(self) -> None:
        while self.may_take:
            batch: list[Received] = []
            try:
                is_all = self._decode(batch)
            finally:  # events before a broken one are delivered
                self.n_messages += len(batch)
                self._stats.frames_in += len(batch)
                if batch:
                    self._on_events(self, batch)
            if is_all:
                break
            if not self.has_ended:
                self.yield_turn()

    @override
    def on_closing(self) -> None:
        if self.forget is not None:
            self.forget()
            self.forget = None
        if not self.ready.done():
            self.ready.set_result(False)
        elif not self.ready.cancelled() and self.ready.result():
            self._stats.clients -= 1
        super().on_closing()

    @override
    def on_closed(self, reason: CloseReason) -> None:
        if self._slot is None:
            self._stats.connections -= 1

    # --- internals ----------------------------------------------------------------------

    def _set_ready(self) -> None:
        self._stats.clients += 1
        self.ready.set_result(True)

    def _decode(self, batch: list[Received]) -> bool:
        """Decode at most one turn's events into ``batch``; returns whether that was all.

        Each event is relayed to all others.
        """
        n_others = len(self._connections) if self._connections else 1
        n_events = max(1, min(limits.RSB_TURN_EVENTS, limits.RSB_TURN_FRAMES // n_others))
        n_bytes_left = min(limits.RSB_TURN_BYTES, limits.RSB_TURN_RELAYED_BYTES // n_others)
        while len(batch) < n_events and n_bytes_left > 0:
            notification = self._protocol.next_message()
            if self._protocol.is_ready and not self.ready.done():
                self._set_ready()
            if notification is None:
                return True
            n_bytes_left -= len(notification)
            batch.append(Received(codec.decode(notification), notification, self._received_us))
        return False


DEFAULT_PORT: Final = 55_555
"""Of RSB's socket transport."""


class Bus(Resource, abc.ABC):
    """A bus that this process takes part in."""

    @property
    @abc.abstractmethod
    def connections(self) -> frozenset[RsbConnection]:
        """Connections that lead to the other participants."""

    @property
    def is_connected(self) -> bool:
        """Whether the bus has any other participant, or a server."""
        return bool(self.connections)

    @abc.abstractmethod
    def send(self, notification: bytes) -> None:
        """Send an encoded event to all others; ``InvalidEventError``: it is too large."""


async def connect(
    host: str, port: int, on_events: EventsCb, stats: RsbStats | None = None
) -> RsbConnection:
    """Connect to a bus' server; the caller closes the connection, which does not reconnect.

    ``ConnectError`` says why there is no connection, or no handshake.
    """
    connection = RsbConnection(on_events, RsbStats() if stats is None else stats)
    address = f"{host}:{port}"
    async with closed_on_error(connection):
        timeout_s = net_limits.CONNECT_TIMEOUT_S
        async with connecting(address, None, timeout_s, "connection and handshake"):
            await open_connection(connection, host, port, None, None)
            try:
                is_ready = await connection.ready
            except BaseException:
                connection.abort(CloseReason.NO_HANDSHAKE)
                raise
            if not is_ready:
                raise ConnectError(f"{address}: {connection.close_reason}")
    return connection


async def listen(
    host: str,
    port: int,
    on_events: EventsCb,
    stats: RsbStats,
    *,
    admission: Admission | None = None,
) -> "BusServer":
    """Listen for participants; ``on_events`` is called with events after they are relayed.

    Port 0 takes a free one (:attr:`BusServer.port`). ``admission``: the process' slots; None: its
    own. ``OSError``: listening failed.
    """
    bus = BusServer(on_events, stats)
    async with closed_on_error(bus):
        await bus._listen(host, port, admission)
    return bus


class BusServer(Bus):
    """Relays each participant's events to all others. Created by :func:`listen`."""

    def __init__(self, on_events: EventsCb, stats: RsbStats) -> None:
        self.port = 0
        self._on_events = on_events
        self._stats = stats
        self._listener: StreamListener[RsbConnection] | None = None
        self.async_group.spawn(call_on_cancel, self._stop)

    @property
    @override
    def connections(self) -> frozenset[RsbConnection]:
        streams = frozenset() if self._listener is None else self._listener.streams
        return frozenset(i for i in streams if i.close_reason is None)

    @override
    def send(self, notification: bytes) -> None:
        frame = codec.encode_frame(notification)
        for connection in self.connections:
            connection.write(frame)

    async def _listen(self, host: str, port: int, admission: Admission | None) -> None:
        if admission is None:
            admission = Admission()
        # only a part of the process' slots: RSB gives one to strangers
        most = min(limits.MAX_RSB_CONNECTIONS, admission.bounds.known // limits.RSB_SHARE)
        quota = Quota(most, min(limits.MAX_RSB_CONNECTIONS_PER_ADDRESS, -(-most // 2)))
        make = functools.partial(RsbConnection, self._on_received, self._stats, quota)
        self._listener = await listen_for_streams(
            host, port, make, admission=admission, stats=self._stats
        )
        self.port = self._listener.port

    def _on_received(self, sender: RsbConnection, batch: Sequence[Received]) -> None:
        connections = self.connections
        if len(connections) > 1:
            frames = [codec.encode_frame(received.notification) for received in batch]
            for connection in connections:
                if connection is not sender:
                    for frame in frames:
                        connection.write(frame)
                    self._stats.relayed += len(frames)
        self._on_events(sender, batch)

    async def _stop(self) -> None:
        if self._listener is not None:
            await self._listener.async_close()


class BusClient(Bus):
    """A connection to a bus' server, re-established whenever it is lost."""

    def __init__(
        self,
        host: str,
        port: int,
        on_events: EventsCb,
        stats: RsbStats,
        on_connected: Callable[[], None],
    ) -> None:
        self._host = host
        self._port = port
        self._on_events = on_events
        self._stats = stats
        self._on_connected = on_connected
        self._connection: RsbConnection | None = None
        self.async_group.spawn(self._run)

    @property
    @override
    def connections(self) -> frozenset[RsbConnection]:
        return frozenset() if self._connection is None else frozenset([self._connection])

    @override
    def send(self, notification: bytes) -> None:
        if self._connection is not None:
            self._connection.write(codec.encode_frame(notification))

    async def _run(self) -> None:
        while True:
            extra = {"server": f"{self._host}:{self._port}"}
            connection = await keep_trying(
                self._connect, EventerBridgeError, mlog, "RSB bus is not reachable", extra
            )
            self._connection = connection
            mlog.info("RSB bus is connected", extra=extra)
            try:
                self._on_connected()
                await connection.wait_closing()
                mlog.warning("RSB bus is lost", extra={**extra, "reason": connection.close_reason})
            finally:
                self._connection = None
                await uncancellable(connection.async_close())

    async def _connect(self) -> RsbConnection:
        return await connect(self._host, self._port, self._on_events, self._stats)
