"""Mariner server: listens for clients (002)."""

import functools
import ssl

from eventer_bridge.core.authentication import Authenticator
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.client_server import ClientServer
from eventer_bridge.core.client_service import ObserveQueryCb
from eventer_bridge.net import Admission
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.accepting import StreamListener, listen_for_streams
from mariner.server import encoding
from mariner.server.connection import ClientConnection
from mariner.wire import codec


async def listen(
    core: EventCore,
    authenticator: Authenticator,
    host: str,
    port: int,
    *,
    tls_context: ssl.SSLContext | None = None,
    admission: Admission | None = None,
    observe_query: ObserveQueryCb = lambda params, seconds: None,
) -> "MarinerServer":
    """Listen for Mariner clients.

    Args:
        core: handles registrations and queries; the caller closes it, after the server.
        authenticator: lets clients in.
        host: address or name to listen on.
        port: TCP port; 0 takes a free one (see :attr:`MarinerServer.port`).
        tls_context: TLS for all connections; None for plain TCP.
        admission: the process' slots; None: its own.
        observe_query: called after each query with its parameters and its duration in seconds.

    Raises:
        OSError: listening on the address failed.
    """
    server = MarinerServer(core, authenticator, encoding, observe_query)
    server.service.known_types = core.known_types(codec.read_type)
    return await server.begin(
        listen_for_streams(
            host,
            port,
            functools.partial(ClientConnection, server.service),
            admission=admission,
            stats=server.stats,
            tls=tls_context,
            handshake_timeout_s=net_limits.FIRST_MESSAGE_TIMEOUT_S,
        )
    )


class MarinerServer(ClientServer[StreamListener[ClientConnection]]):
    """See the module. Created by :func:`listen`."""

    @property
    def port(self) -> int:
        """TCP port in use."""
        return self.listener.port

    @property
    def connections(self) -> frozenset[ClientConnection]:
        """Connections that still exist."""
        return self.listener.streams
