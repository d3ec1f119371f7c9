"""A listener and its accepted connections, for all wires.

Runs on the event loop's thread.
"""

import asyncio
import functools
import ssl
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from hat import aio

from eventer_bridge import limits as core_limits
from eventer_bridge.net import limits
from eventer_bridge.net.accepting import Acceptor, listen
from eventer_bridge.net.admission import Admission, Slot
from eventer_bridge.net.stats import CloseReason, ServerStats
from eventer_bridge.net.stream import Stream

StreamT = TypeVar("StreamT", bound=Stream[Any])


async def listen_for_streams(
    host: str,
    port: int,
    make_stream: Callable[[set[StreamT], Slot], StreamT],
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
        make_stream: creates a connection, from the set of the listener's connections and a slot.
        admission: the process' slots; None: its own.
        stats: counters.
        tls: TLS context for all connections; None for plain TCP.
        handshake_timeout_s: time limit for the TLS handshake.

    Raises:
        OSError: listening on the address failed.
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
    """Accepts connections. Created by :func:`listen_for_streams`.

    Closing it stops accepting and closes the connections, in bounded time.
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
        """TCP port in use."""
        return self._acceptor.port

    @property
    def streams(self) -> frozenset[StreamT]:
        """Connections that still exist."""
        return frozenset(self._streams)

    def use_tls(self, tls: ssl.SSLContext) -> None:
        """Replace the TLS context, for new connections."""
        self._acceptor.use_tls(tls)

    async def stop_accepting(self) -> None:
        """Accept no new connections; existing ones continue."""
        self._acceptor.stop()
        await self._acceptor.async_close()  # no more connections come from here on

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(core_limits.SWEEP_PERIOD_S)
            now = time.monotonic()
            for stream in tuple(self._streams):
                stream.guard(stream.sweep, now)

    async def _stop(self) -> None:
        await self.stop_accepting()
        streams = tuple(self._streams)
        for stream in streams:
            stream.guard(stream.close, CloseReason.SERVER_CLOSING)
        await asyncio.gather(*(stream.wait_lost() for stream in streams))
