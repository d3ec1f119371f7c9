"""The bus over sockets: a relaying server, a connection to one, and a reconnecting client.

Each participant gets every event of all others, and filters them by scope. The server itself
takes part, by :meth:`Bus.send` and its callback.

Runs on the event loop's thread.
"""

import abc
import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Final

from hat import aio

from eventer_bridge.errors import ConnectError, EventerBridgeError
from eventer_bridge.net import Admission, Quota
from eventer_bridge.net import errors as connection_errors
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.connecting import open_connection
from eventer_bridge.net.listening import StreamListener, listen_for_streams
from eventer_bridge.net.retry import keep_trying
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.rsb import codec, limits
from eventer_bridge.rsb.connection import EventsCb, Received, RsbConnection
from eventer_bridge.rsb.stats import RsbStats

mlog = logging.getLogger(__name__)

DEFAULT_PORT: Final = 55_555
"""Of RSB's socket transport."""


class Bus(aio.Resource, abc.ABC):
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
        """Send an encoded event to all others.

        Raises:
            InvalidEventError: the event is too large.
        """


async def connect(
    host: str, port: int, on_events: EventsCb, stats: RsbStats | None = None
) -> RsbConnection:
    """Connect to a bus' server.

    Returns:
        The connection, which the caller closes. It does not reconnect.

    Raises:
        ConnectError: no connection, or no handshake; the text says why.
    """
    connection = RsbConnection(on_events, RsbStats() if stats is None else stats)
    address = f"{host}:{port}"
    try:
        async with asyncio.timeout(net_limits.CONNECT_TIMEOUT_S) as timeout:
            await open_connection(connection, host, port, None, None)
            try:
                is_ready = await connection.ready
            except BaseException:
                connection.abort(CloseReason.NO_HANDSHAKE)
                raise
            if not is_ready:
                raise ConnectError(f"{address}: {connection.close_reason}")
    except OSError as e:
        # TimeoutError, ours or TCP's, is an OSError
        if isinstance(e, TimeoutError) and timeout.expired():
            text = f"no connection and handshake within {net_limits.CONNECT_TIMEOUT_S:g} s"
        else:
            text = connection_errors.refused(e, None)
        await aio.uncancellable(connection.async_close())
        raise ConnectError(f"{address}: {text}") from e
    except BaseException:
        await aio.uncancellable(connection.async_close())
        raise
    return connection


async def listen(
    host: str,
    port: int,
    on_events: EventsCb,
    stats: RsbStats,
    *,
    admission: Admission | None = None,
) -> "BusServer":
    """Listen for participants.

    Args:
        host: to listen on.
        port: TCP port; 0 takes a free one (see :attr:`BusServer.port`).
        on_events: called with events, after they are relayed.
        stats: counters.
        admission: the process' slots; None: its own.

    Raises:
        OSError: listening on the address failed.
    """
    bus = BusServer(on_events, stats)
    try:
        await bus._listen(host, port, admission)
    except BaseException:
        await aio.uncancellable(bus.async_close())
        raise
    return bus


class BusServer(Bus):
    """Relays each participant's events to all others. Created by :func:`listen`.

    Attributes:
        port: TCP port in use.
    """

    def __init__(self, on_events: EventsCb, stats: RsbStats) -> None:
        self.port = 0
        self._on_events = on_events
        self._stats = stats
        self._listener: StreamListener[RsbConnection] | None = None
        self._async_group = aio.Group()
        self._async_group.spawn(aio.call_on_cancel, self._stop)

    @property
    def async_group(self) -> aio.Group:
        """Group of the server's tasks."""
        return self._async_group

    @property
    def connections(self) -> frozenset[RsbConnection]:
        """See :class:`Bus`."""
        streams = frozenset() if self._listener is None else self._listener.streams
        return frozenset(i for i in streams if i.close_reason is None)

    def send(self, notification: bytes) -> None:
        """See :class:`Bus`."""
        frame = codec.encode_frame(notification)
        for connection in self.connections:
            connection.write(frame)

    async def _listen(self, host: str, port: int, admission: Admission | None) -> None:
        if admission is None:
            admission = Admission()
        # only a part of the process' slots: RSB gives one to anybody
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
    """A connection to a bus' server, re-established whenever it is lost.

    Args:
        host: of the server.
        port: its TCP port.
        on_events: called with events.
        stats: counters.
        on_connected: called after each new connection.
    """

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
        self._async_group = aio.Group()
        self._async_group.spawn(self._run)

    @property
    def async_group(self) -> aio.Group:
        """Group of the client's tasks."""
        return self._async_group

    @property
    def connections(self) -> frozenset[RsbConnection]:
        """See :class:`Bus`: the one to the server, if there is one."""
        return frozenset() if self._connection is None else frozenset([self._connection])

    def send(self, notification: bytes) -> None:
        """See :class:`Bus`; dropped while there is no connection."""
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
                await aio.uncancellable(connection.async_close())

    async def _connect(self) -> RsbConnection:
        return await connect(self._host, self._port, self._on_events, self._stats)
