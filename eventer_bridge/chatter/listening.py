"""Listening for chatter peers (003).

Runs on the event loop's thread.
"""

import functools
import ssl
from collections.abc import Callable

from hat import aio

from eventer_bridge.chatter.address import Address
from eventer_bridge.chatter.connection import Connection
from eventer_bridge.chatter.handler import ConnectionSettings, Handler
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.net import Admission
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.listening import StreamListener, listen_for_streams
from eventer_bridge.net.stats import ServerStats


async def listen(
    address: Address,
    make_handler: Callable[[Connection], Handler],
    *,
    tls: ssl.SSLContext | None = None,
    admission: Admission | None = None,
    stats: ServerStats | None = None,
    first_message_timeout_s: float = net_limits.FIRST_MESSAGE_TIMEOUT_S,
    ping_delay_s: float | None = net_limits.PING_DELAY_S,
    ping_timeout_s: float = net_limits.PING_TIMEOUT_S,
    conversation_timeout_s: float = net_limits.CONVERSATION_TIMEOUT_S,
    max_frame_bytes: int = net_limits.MAX_FRAME_BYTES,
) -> "Listener":
    """Listen for peers of either dialect.

    Args:
        address: to listen on; port 0 takes a free one (see :attr:`Listener.address`).
        make_handler: called with each new connection; returns the handler of its messages.
        tls: TLS context with a certificate; for ``ssl+sbs`` addresses only.
        admission: the process' slots; None: its own.
        stats: counters.
        first_message_timeout_s: time limit from ``accept`` to a peer's first message, pings not
            counted.
        ping_delay_s: silence before a ping; None: never ping.
        ping_timeout_s: silence after a ping before the peer is closed.
        conversation_timeout_s: time limit for a peer to continue a conversation.
        max_frame_bytes: largest message accepted (64 KiB before a peer's first).

    Raises:
        OSError: listening on the address failed.
        ConfigurationError: TLS and the address do not match.
    """
    if address.is_tls is (tls is None):
        expected = "ssl+sbs with TLS, or tcp+sbs without"
        raise ConfigurationError(f"{address}: expected an address of {expected}")
    settings = ConnectionSettings(
        dialect=None,
        max_frame_bytes=max_frame_bytes,
        first_message_timeout_s=first_message_timeout_s,
        ping_delay_s=ping_delay_s,
        ping_timeout_s=ping_timeout_s,
        conversation_timeout_s=conversation_timeout_s,
    )
    if stats is None:
        stats = ServerStats()
    listener = await listen_for_streams(
        address.host,
        address.port,
        functools.partial(Connection, make_handler, settings, stats),
        admission=admission,
        stats=stats,
        tls=tls,
        handshake_timeout_s=first_message_timeout_s,
    )
    return Listener(listener, address._replace(port=listener.port))


class Listener(aio.Resource):
    """Accepts connections. Created by :func:`listen`.

    Closing it stops accepting and closes the connections, in bounded time.
    """

    def __init__(self, listener: StreamListener[Connection], address: Address) -> None:
        self._listener = listener
        self._address = address

    @property
    def async_group(self) -> aio.Group:
        """Group of the listener's tasks."""
        return self._listener.async_group

    @property
    def address(self) -> Address:
        """Address in use, with the actual port."""
        return self._address

    @property
    def connections(self) -> frozenset[Connection]:
        """Connections that still exist."""
        return self._listener.streams

    def use_tls(self, tls: ssl.SSLContext) -> None:
        """Replace the TLS context, for new connections."""
        self._listener.use_tls(tls)

    async def stop_accepting(self) -> None:
        """Accept no new connections; existing ones continue."""
        await self._listener.stop_accepting()
