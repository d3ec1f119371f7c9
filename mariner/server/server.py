"""Mariner server: listens, owns the connections, closes them in order (002).

Its ``ClientService`` serves the clients, and observes the core's sessions.
"""

import functools
import ssl

from hat import aio

from eventer_bridge.core.authentication import Authenticator
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.client_service import ClientService, ObserveQueryCb
from eventer_bridge.core.quotas import Accounts
from eventer_bridge.net import Admission
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.listening import StreamListener, listen_for_streams
from eventer_bridge.net.stats import ServerStats
from mariner.server import encoding
from mariner.server.connection import ClientConnection


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
    server = MarinerServer(core, authenticator, observe_query)
    try:
        await server._listen(host, port, tls_context, admission)
    except BaseException:
        await aio.uncancellable(server.async_close())
        raise
    return server


class MarinerServer(aio.Resource):
    """See the module. Created by :func:`listen`.

    Closing it stops accepting, answers registrations in progress, and closes the connections;
    each of these steps is bounded in time.
    """

    def __init__(
        self, core: EventCore, authenticator: Authenticator, observe_query: ObserveQueryCb
    ) -> None:
        self._service = ClientService(core, authenticator, encoding, observe_query)
        self._listener: StreamListener[ClientConnection] | None = None
        self._async_group = aio.Group()
        self._async_group.spawn(aio.call_on_cancel, self._stop)

    @property
    def async_group(self) -> aio.Group:
        """Group of the server's tasks."""
        return self._async_group

    @property
    def port(self) -> int:
        """TCP port in use."""
        assert self._listener is not None
        return self._listener.port

    @property
    def connections(self) -> frozenset[ClientConnection]:
        """Connections that still exist."""
        assert self._listener is not None
        return self._listener.streams

    @property
    def stats(self) -> ServerStats:
        """Counters."""
        return self._service.stats

    @property
    def accounts(self) -> Accounts:
        """What clients use."""
        return self._service.accounts

    async def reload(self, authenticator: Authenticator, tls: ssl.SSLContext | None) -> None:
        """Go on with another configuration of clients and certificates.

        New connections get the new context at once; see ``ClientService.reload``.

        Args:
            authenticator: lets clients in from now on.
            tls: TLS context; None: the same as before, or none.
        """
        assert self._listener is not None
        if tls is not None:
            self._listener.use_tls(tls)
        await self._service.reload(authenticator)

    async def _listen(
        self,
        host: str,
        port: int,
        tls_context: ssl.SSLContext | None,
        admission: Admission | None,
    ) -> None:
        self._listener = await listen_for_streams(
            host,
            port,
            functools.partial(ClientConnection, self._service),
            admission=admission,
            stats=self._service.stats,
            tls=tls_context,
            handshake_timeout_s=net_limits.FIRST_MESSAGE_TIMEOUT_S,
        )

    async def _stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop_accepting()
            await self._service.drain()
            await self._listener.async_close()
        await self._service.stop()
