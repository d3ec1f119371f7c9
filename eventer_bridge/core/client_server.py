"""A server of clients, whatever their wire is: it is reloaded, and closes in order.

Closing it stops accepting, answers the registrations in progress, and closes the connections; each
of these steps is bounded in time.

Runs on the event loop's thread.
"""

import ssl
from collections.abc import Awaitable
from typing import Generic, Protocol, Self, TypeVar

from hat import aio

from eventer_bridge.core.authentication import Authenticator
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.client_service import ClientService, Encoding, ObserveQueryCb
from eventer_bridge.core.quotas import Accounts
from eventer_bridge.net.stats import ServerStats


class ClientListener(Protocol):
    """Accepts connections of clients; a resource."""

    def use_tls(self, tls: ssl.SSLContext, /) -> None:
        """Replace the TLS context, for new connections."""

    async def stop_accepting(self) -> None:
        """Accept no new connections; existing ones continue."""

    async def async_close(self) -> None:
        """Close it, and the connections."""


ListenerT = TypeVar("ListenerT", bound=ClientListener)


class ClientServer(aio.Resource, Generic[ListenerT]):
    """See the module.

    Args:
        core: answers registrations and queries; the caller closes it, after the server.
        authenticator: lets clients in.
        encoding: of the wire.
        observe_query: called after each query with its parameters and the seconds it took.

    Attributes:
        service: serves the clients, and observes the core's sessions.
    """

    def __init__(
        self,
        core: EventCore,
        authenticator: Authenticator,
        encoding: Encoding,
        observe_query: ObserveQueryCb,
    ) -> None:
        self.service = ClientService(core, authenticator, encoding, observe_query)
        self._listener: ListenerT | None = None
        self._async_group = aio.Group()
        self._async_group.spawn(aio.call_on_cancel, self._stop)

    async def begin(self, listening: Awaitable[ListenerT]) -> Self:
        """Serve those whom a listener accepts.

        Args:
            listening: begins to listen; what it raises closes the server.
        """
        try:
            self._listener = await listening
        except BaseException:
            await aio.uncancellable(self.async_close())
            raise
        return self

    @property
    def async_group(self) -> aio.Group:
        """Group of the server's tasks."""
        return self._async_group

    @property
    def listener(self) -> ListenerT:
        """What accepts clients."""
        assert self._listener is not None
        return self._listener

    @property
    def stats(self) -> ServerStats:
        """Counts of what was done so far."""
        return self.service.stats

    @property
    def accounts(self) -> Accounts:
        """What clients use."""
        return self.service.accounts

    async def reload(self, authenticator: Authenticator, tls: ssl.SSLContext | None) -> None:
        """Go on with another configuration of clients and certificates.

        New connections get the new context at once; see ``ClientService.reload``.

        Args:
            authenticator: lets clients in from now on.
            tls: TLS context; None: the same as before, or none.
        """
        if tls is not None:
            self.listener.use_tls(tls)
        await self.service.reload(authenticator)

    async def _stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop_accepting()
            await self.service.drain()
            await self._listener.async_close()
        await self.service.stop()
