"""Mariner server: listens, owns the connections, closes them in order (002).

It is an observer of the core: sessions go to the fan-out, the status to every client.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterable

from hat import aio

from eventer_bridge import net
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.payload_schemas import PayloadSchemas
from eventer_bridge.core.rights import Authenticator, ClientConfig
from eventer_bridge.core.session import Session
from eventer_bridge.model import QueryParams, SourceType, Status
from eventer_bridge.net import Acceptor, Admission, Place
from eventer_bridge.net.stats import ServerStats
from eventer_bridge.slices import Steps
from mariner import limits
from mariner.server.connection import ClientConnection, Context

mlog = logging.getLogger(__name__)


async def listen(
    core: EventCore,
    clients: Iterable[ClientConfig],
    schemas: PayloadSchemas,
    host: str,
    port: int,
    *,
    tls_context: ssl.SSLContext | None = None,
    admission: Admission | None = None,
    observe_query: Callable[[QueryParams, float], None] = lambda params, seconds: None,
) -> "MarinerServer":
    """Listen for Mariner clients.

    Args:
        core: answers registrations and queries; stays the caller's to close, after the
            server.
        clients: who may connect and with which rights.
        schemas: that rights refer to; stay the caller's to close, after the server.
        host: address or name to listen on.
        port: TCP port; 0 takes a free one (see :attr:`MarinerServer.port`).
        tls_context: TLS for all connections; None for plain TCP.
        admission: of the process; None: one of its own.
        observe_query: called after each query with its parameters and the seconds it took.

    Raises:
        OSError: the address cannot be listened on.
    """
    server = MarinerServer(core, Authenticator(clients, schemas), observe_query)
    try:
        await server._listen(host, port, tls_context, admission)
    except BaseException:
        await aio.uncancellable(server.async_close())
        raise
    return server


class MarinerServer(aio.Resource):
    """See the module. Made by :func:`listen`.

    Closing it stops accepting, answers the registrations that are under way, and closes
    the connections; each of these steps is bounded in time.
    """

    def __init__(
        self,
        core: EventCore,
        authenticator: Authenticator,
        observe_query: Callable[[QueryParams, float], None],
    ) -> None:
        self._core = core
        self._async_group = aio.Group()
        self._context = Context(
            core, authenticator, self._async_group.create_subgroup(), observe_query
        )
        self._told_status = core.status
        self._acceptor: Acceptor | None = None
        core.add_observer(self)
        self.async_group.spawn(aio.call_on_cancel, self._stop)
        self.async_group.spawn(self._sweep_loop)

    @property
    def async_group(self) -> aio.Group:
        """Group of the server's tasks."""
        return self._async_group

    @property
    def port(self) -> int:
        """TCP port that is listened on."""
        assert self._acceptor is not None
        return self._acceptor.port

    @property
    def stats(self) -> ServerStats:
        """Counts of what was done so far."""
        return self._context.stats

    def on_session(self, session: Session, persisted: bool) -> None:
        """Notify clients (``core.Observer``)."""
        self._context.fanout.notify(session, persisted)

    def on_large_session(self, session: Session, persisted: bool) -> Steps[None]:
        """Notify clients (``core.PatientObserver``)."""
        return self._context.fanout.notify_in_steps(session, persisted)

    def on_status(self, status: Status) -> None:
        """Tell clients (``core.Observer``); they know two of the four states (002)."""
        was_operational = self._told_status is Status.OPERATIONAL
        self._told_status = status
        if was_operational is (status is Status.OPERATIONAL):
            return
        for connection in tuple(self._context.connections):
            try:
                connection.notify_status(status)
            except Exception as e:
                connection.on_failed(e)

    def on_other_history(self) -> None:
        """Close the connections of clients (``core.HistoryObserver``): they begin anew."""
        for connection in tuple(self._context.connections):
            connection.end("another history")

    async def _listen(
        self,
        host: str,
        port: int,
        tls_context: ssl.SSLContext | None,
        admission: Admission | None,
    ) -> None:
        self._acceptor = await net.listen(
            host,
            port,
            self._create_connection,
            admission=admission,
            stats=self._context.stats,
            tls=tls_context,
            handshake_timeout_s=limits.INIT_TIMEOUT_S,
        )

    def _create_connection(self, place: Place) -> ClientConnection:
        source = self._core.create_source(SourceType.CONNECTION)
        return ClientConnection(self._context, source, place)

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(limits.SWEEP_PERIOD_S)
            now = time.monotonic()
            for connection in tuple(self._context.connections):
                connection.sweep(now)

    async def _stop(self) -> None:
        if self._acceptor is not None:
            self._acceptor.stop()
            await self._acceptor.async_close()  # no more connections come from here on
        connections = tuple(self._context.connections)
        if connections:
            await asyncio.gather(*(connection.shut_down() for connection in connections))
        for task in tuple(self._context.large):
            task.cancel()
        if self._context.large:
            await asyncio.wait(tuple(self._context.large))
        await self._context.group.async_close()
        self._core.remove_observer(self)
