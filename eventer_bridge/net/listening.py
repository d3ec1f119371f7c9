"""A listener and the connections that it accepted, for all wires.

Runs on the event loop's thread.
"""

import asyncio
import functools
import ssl
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from hat import aio

from eventer_bridge import limits
from eventer_bridge.net.accepting import Acceptor, listen
from eventer_bridge.net.admission import Admission, Place
from eventer_bridge.net.stats import ServerStats
from eventer_bridge.net.stream import Stream

StreamT = TypeVar("StreamT", bound=Stream[Any])


async def listen_for_streams(
    host: str,
    port: int,
    make_stream: Callable[[set[StreamT], Place], StreamT],
    *,
    admission: Admission | None = None,
    stats: ServerStats | None = None,
    tls: ssl.SSLContext | None = None,
    handshake_timeout_s: float = limits.FIRST_MESSAGE_TIMEOUT_S,
) -> "StreamListener[StreamT]":
    """Listen for connections of a wire.

    Args:
        host: address or name to listen on; empty: all addresses.
        port: TCP port; 0 takes a free one (see :attr:`StreamListener.port`).
        make_stream: makes a connection of the listener's others and its place.
        admission: of the process; None: one of its own.
        stats: what is counted.
        tls: TLS context for all connections; None for plain TCP.
        handshake_timeout_s: what a peer gets for the TLS handshake.

    Raises:
        OSError: the address cannot be listened on.
    """
    streams: set[StreamT] = set()
    acceptor = await listen(
        host,
        port,
        functools.partial(make_stream, streams),
        admission=admission,
        stats=stats,
        tls=tls,
        handshake_timeout_s=handshake_timeout_s,
    )
    return StreamListener(acceptor, streams)


class StreamListener(aio.Resource, Generic[StreamT]):
    """Accepts connections. Made by :func:`listen_for_streams`.

    Closing it stops accepting and closes the connections, which is bounded in time.
    """

    def __init__(self, acceptor: Acceptor, streams: set[StreamT]) -> None:
        self._acceptor = acceptor
        self._streams = streams
        self._async_group = aio.Group()
        self._async_group.spawn(aio.call_on_cancel, self._stop)
        self._async_group.spawn(self._sweep_loop)

    @property
    def async_group(self) -> aio.Group:
        """Group of the listener's tasks."""
        return self._async_group

    @property
    def port(self) -> int:
        """TCP port that is listened on."""
        return self._acceptor.port

    @property
    def streams(self) -> frozenset[StreamT]:
        """Connections that are not gone yet."""
        return frozenset(self._streams)

    async def stop_accepting(self) -> None:
        """Accept no new connections; those that there are go on."""
        self._acceptor.stop()
        await self._acceptor.async_close()  # no more connections come from here on

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(limits.SWEEP_PERIOD_S)
            now = time.monotonic()
            for stream in tuple(self._streams):
                stream.guard(stream.sweep, now)

    async def _stop(self) -> None:
        await self.stop_accepting()
        streams = tuple(self._streams)
        for stream in streams:
            stream.guard(stream.close, "server closing")
        await asyncio.gather(*(stream.wait_lost() for stream in streams))
