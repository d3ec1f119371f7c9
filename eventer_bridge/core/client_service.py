"""A server of clients, whatever their wire is, and what its clients share.

A wire provides an :class:`Encoding` and a :class:`ClientWire` (``client_session``).

Runs on the event loop's thread.
"""

import asyncio
import functools
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

from eventer_bridge import limits
from eventer_bridge.backends.history import History
from eventer_bridge.core.authentication import Authenticator
from eventer_bridge.core.base import EventCore, Observer
from eventer_bridge.core.fanout import Fanout
from eventer_bridge.core.quotas import Accounts
from eventer_bridge.core.rights import Rights
from eventer_bridge.errors import Outcome
from eventer_bridge.model import QueryParams, QueryResult, Status
from eventer_bridge.net.stats import CloseReason, ServerStats
from eventer_bridge.net.stream import Stream
from eventer_bridge.packed import Batch, TypeTable
from eventer_bridge.resources import Resource, call_on_cancel, closed_on_error
from eventer_bridge.slices import FairGate, Steps


class GatheringClient(Protocol):
    """Registrations of a client, ``ClientRegistrations``."""

    __slots__ = ()

    @property
    def stream(self) -> Stream[Any]:
        """Its connection."""

    n_gathered: int
    """Events of the batches that it has gathered."""

    gathered_bytes: int
    """Memory that is counted for them."""

    def take_gathered(self) -> list[Batch]:
        """The batches that it has gathered; empty: they had to be handed over by themselves."""

    def wait_for_room(self) -> None:
        """The core is full: hand over the gathered batches when it has room."""

    def await_outcomes(self, batches: list[Batch], /) -> None:
        """Answer batches, which the core has."""

    def answer(self) -> None:
        """Answer ended registrations; never raises."""


class Gathering:
    """Submits what all clients registered in one iteration of the loop together.

    Each call of the core, and each callback of a commit, costs as much as some events: most of the
    time, where many clients send a little each.
    """

    def __init__(self, core: EventCore) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._clients: deque[GatheringClient] = deque()
        self._awaiting: dict[asyncio.Future[None], list[GatheringClient]] = {}

    def add(self, client: GatheringClient) -> None:
        """Hand over what a client gathers in this iteration of the loop."""
        if not self._clients:
            self._loop.call_soon(self._hand_over)
        self._clients.append(client)
        if len(self._clients) >= limits.MAX_GATHERED_EVENTS:  # they gain nothing by more
            self._hand_over()

    def await_commit(self, commit: asyncio.Future[None], client: GatheringClient) -> None:
        """Have a client answer when a commit is done."""
        clients = self._awaiting.get(commit)
        if clients is None:
            self._awaiting[commit] = [client]
            commit.add_done_callback(self._on_done)
        else:
            clients.append(client)

    def _on_done(self, commit: asyncio.Future[None]) -> None:
        for client in self._awaiting.pop(commit):
            client.stream.send_at_once(client.answer)

    def _hand_over(self) -> None:
        if self._core.is_full:
            clients, self._clients = self._clients, deque()
            for client in clients:
                client.wait_for_room()
            return
        gathered: list[tuple[GatheringClient, list[Batch]]] = []
        n_events = n_bytes = 0
        while (
            self._clients
            and n_events < limits.MAX_GATHERED_EVENTS
            and n_bytes < limits.MAX_GATHERED_BYTES
        ):
            client = self._clients.popleft()
            n_events += client.n_gathered
            n_bytes += client.gathered_bytes
            if batches := client.take_gathered():
                gathered.append((client, batches))
        if self._clients:  # whatever else there is to do may come before
            self._loop.call_soon(self._hand_over)
        if not gathered:
            return
        try:
            self._core.submit([batch for _, batches in gathered for batch in batches])
        except Exception as e:
            for client, _ in gathered:
                client.stream.on_failed(e)
            return
        for client, batches in gathered:
            try:
                client.await_outcomes(batches)
            except Exception as e:
                client.stream.on_failed(e)


RequestT_contra = TypeVar("RequestT_contra", contravariant=True)

ObserveQueryCb: TypeAlias = Callable[[QueryParams, float], None]
"""Called after each query with its parameters and the seconds it took."""


class Encoding(Protocol):
    """How a wire encodes the events of a session, each of them once."""

    def notification(self, session: Batch, indices: Sequence[int], /) -> bytes:
        """See ``fanout.EncodeCb``."""

    def prepare(self, session: Batch, /) -> Steps[None]:
        """Encode a large session's events in steps."""

    def is_answerable(self, session: Batch, /) -> bool:
        """Whether the answer to a large session that has ended can be made at once."""


class ClientWire(Protocol[RequestT_contra]):
    """A wire's messages to a client, which may have disconnected already.

    A request is the wire's identification of it.
    """

    __slots__ = ()

    def use_rights(self, rights: Rights, /) -> None:
        """The rights of the client, before it is accepted and whenever they change."""

    def send_accepted(
        self,
        status: Status,
        extensions: Sequence[str],
        histories: Mapping[int, History],
        n_resets: int,
        /,
    ) -> None:
        """The client is accepted.

        Args:
            status: of the core, as the next two.
            extensions: what it can do.
            histories: of the servers whose events it has.
            n_resets: how often the client's cursor was reset; 0 without one.
        """

    def send_declined(self, reason: str, /, *, may_pass: bool) -> None:
        """It is not, perhaps for a reason that may pass; the connection is closed afterwards."""

    def send_registered(self, batches: list[Batch], /) -> None:
        """Registrations are stored. A large one comes alone."""

    def send_repeated(self, batch: Batch, /) -> None:
        """A registration was stored before; of wires with request keys."""

    def send_refused(self, batch: Batch, reason: str, outcome: Outcome) -> None:
        """A registration is not stored, or its outcome is unknown."""

    def encode_result(self, request: RequestT_contra, result: QueryResult, /) -> Steps[list[bytes]]:
        """The parts of the answer to a query, encoded in steps."""

    def send_result(self, request: RequestT_contra, parts: list[bytes], /) -> None:
        """Send them."""

    def send_notification(self, message: bytes, /) -> None:
        """Send the result of ``Encoding.notification``."""

    def send_status(self, status: Status, /) -> None:
        """The status of the server is another one now."""


class ServedClient(Protocol):
    """A client of the service, ``ClientSession``."""

    __slots__ = ()

    @property
    def stream(self) -> Stream[Any]:
        """Its connection."""

    def follows(self, server_id: int) -> bool:
        """Whether it keeps how far it is in the events of a server."""

    def notify_status(self, status: Status) -> None:
        """The status of the core is another one now."""

    def readmit(self) -> None:
        """The configuration is another one now."""

    async def drain(self) -> None:
        """Answer the registrations that are under way; bounded in time."""


class ClientService(Observer):
    """The shared part of all clients of a server; an observer of the core.

    Attributes:
        stats: its counters.
        fanout: notifies subscribed clients.
        gathering: submits registrations.
        clients: the initialised ones.
        joining: places for clients that go from a replay to live notifications (``replay``).
        accounts: use of quotas.
        types: of the batches of the wire.
    """

    def __init__(
        self,
        core: EventCore,
        authenticator: Authenticator,
        encoding: Encoding,
        observe_query: ObserveQueryCb,
    ) -> None:
        self.core = core
        self.authenticator = authenticator
        self.encoding = encoding
        self.observe_query = observe_query
        self.fanout = Fanout(encoding.notification, encoding.prepare, self._on_hearing)
        self.gathering = Gathering(core)
        self.stats = ServerStats()
        self.clients: set[ServedClient] = set()
        self.joining = FairGate(limits.MAX_JOINING, limits.MAX_CLIENT_JOINING)
        self.accounts = Accounts()
        self.types: TypeTable = core.types
        self._tasks: set[asyncio.Task[None]] = set()
        core.add_observer(self, registered=False, persisted=False)

    def _on_hearing(self) -> None:
        registered = self.fanout.hears(persisted=False)
        persisted = self.fanout.hears(persisted=True)
        self.core.set_hearing(self, registered=registered, persisted=persisted)

    def on_session(self, session: Batch, persisted: bool) -> None:
        """Notify clients (``core.Observer``)."""
        self.fanout.notify(session, persisted)

    def on_large_session(self, session: Batch, persisted: bool) -> Steps[None]:
        """Notify clients (``core.Observer``)."""
        return self.fanout.notify_in_steps(session, persisted)

    def on_missed(self, session: Batch | None, persisted: bool, error: Exception) -> None:
        """Close the clients that may have missed it (``core.Observer``)."""
        self.fanout.fail(session, persisted, error)

    def on_status(self, status: Status) -> None:
        """Notify clients (``core.Observer``)."""
        for client in tuple(self.clients):
            client.notify_status(status)

    def on_other_history(self, server_id: int | None) -> None:
        """Close the connections of clients (``core.Observer``).

        They begin anew, or go on and then know of which history their events are.
        """
        for client in tuple(self.clients):
            if server_id is None or client.follows(server_id):
                client.stream.close(CloseReason.ANOTHER_HISTORY, level=logging.INFO)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task that outlives the connection."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def reload(self, authenticator: Authenticator) -> None:
        """Let clients in by another configuration, those that are here as well.

        It takes clients one by one, in slices, between the notifications of sessions. Then all of
        them have their new rights, or are closed: :meth:`ServedClient.readmit`.
        """
        self.authenticator = authenticator
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.core.between_notifications(functools.partial(self._readmit_clients, done))
        await done
        self.accounts.keep(authenticator.names)

    def _readmit_clients(self, done: asyncio.Future[None]) -> Steps[None]:
        try:
            for client in tuple(self.clients):
                try:
                    client.readmit()
                except Exception as e:
                    client.stream.on_failed(e)
                yield
        finally:
            if not done.done():
                done.set_result(None)

    async def drain(self) -> None:
        """Answer the registrations that are under way; bounded in time."""
        await asyncio.gather(*(client.drain() for client in tuple(self.clients)))

    async def stop(self) -> None:
        """End, when all connections are closed."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.core.remove_observer(self)


class ClientListener(Protocol):
    """Accepts connections of clients; a resource."""

    def use_tls(self, tls: ssl.SSLContext, /) -> None:
        """Replace the TLS context, for new connections."""

    async def stop_accepting(self) -> None:
        """Accept no new connections; existing ones continue."""

    async def async_close(self) -> None:
        """Close it, and the connections."""


ListenerT = TypeVar("ListenerT", bound=ClientListener)


class ClientServer(Resource, Generic[ListenerT]):
    """Serves the clients of a listener; can be reloaded.

    Closing it stops accepting, answers the registrations in progress, and closes the connections;
    each of these steps is bounded in time.

    Args:
        core: the caller closes it, after the server.
        authenticator: lets clients in.
        encoding: of the wire.
        observe_query: see :data:`ObserveQueryCb`.

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
        self.async_group.spawn(call_on_cancel, self._stop)

    async def begin(self, listening: Awaitable[ListenerT]) -> Self:
        """Serve the clients of a listener.

        Args:
            listening: begins to listen; if it raises, the server is closed.
        """
        async with closed_on_error(self):
            self._listener = await listening
        return self

    @property
    def listener(self) -> ListenerT:
        """The listener that accepts clients."""
        assert self._listener is not None
        return self._listener

    @property
    def stats(self) -> ServerStats:
        """Counters of the server."""
        return self.service.stats

    @property
    def accounts(self) -> Accounts:
        """Use of quotas by clients."""
        return self.service.accounts

    async def reload(self, authenticator: Authenticator, tls: ssl.SSLContext | None) -> None:
        """Apply another configuration of clients and certificates.

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
