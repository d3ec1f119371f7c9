"""What all clients of a server share, and what a wire provides for them (``client_session``).

Runs on the event loop's thread.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from eventer_bridge import limits
from eventer_bridge.backends.history import History
from eventer_bridge.core.authentication import Authenticator
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.fanout import Fanout
from eventer_bridge.core.gathering import Gathering
from eventer_bridge.core.quotas import Accounts
from eventer_bridge.core.rights import Rights
from eventer_bridge.core.session import Session
from eventer_bridge.errors import Outcome
from eventer_bridge.model import QueryParams, QueryResult, Status
from eventer_bridge.net.stats import CloseReason, ServerStats
from eventer_bridge.net.stream import Stream
from eventer_bridge.packed import KnownTypes
from eventer_bridge.slices import FairGate, Steps

RequestT_contra = TypeVar("RequestT_contra", contravariant=True)

ObserveQueryCb: TypeAlias = Callable[[QueryParams, float], None]
"""Called after each query with its parameters and the seconds it took."""


class Encoding(Protocol):
    """How a wire encodes the events of a session, each of them once."""

    def notification(self, session: Session, indices: Sequence[int], /) -> bytes:
        """See ``fanout.EncodeCb``."""

    def prepare(self, session: Session, /) -> Steps[None]:
        """Encode a large session's events in steps."""

    def is_answerable(self, session: Session, /) -> bool:
        """Whether the answer to a large session that has ended can be made at once."""


class ClientWire(Protocol[RequestT_contra]):
    """What a wire does for a client; the client may be gone already.

    A request is whatever the wire tells its requests by.
    """

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

    def send_declined(self, reason: str, /) -> None:
        """It is not; the connection is closed afterwards."""

    def keep_encoded(
        self, requests: Sequence[RequestT_contra], sessions: Sequence[Session], /
    ) -> None:
        """Encode small sessions (``Session.keep_encoded``), if that pays; each is of a request.

        They have the requested events and no others; as yet nobody wants to hear of them when they
        are durable.
        """

    def send_registered(
        self, requests: Sequence[RequestT_contra], sessions: Sequence[Session], /
    ) -> None:
        """Registrations are stored, each request as a session. A large one comes alone."""

    def send_repeated(self, request: RequestT_contra, session: Session, /) -> None:
        """A registration was stored before; of wires with request keys."""

    def send_refused(self, request: RequestT_contra, reason: str, outcome: Outcome) -> None:
        """A registration is not stored, or nobody knows."""

    def encode_result(self, request: RequestT_contra, result: QueryResult, /) -> Steps[list[bytes]]:
        """The parts of the answer to a query, encoded in steps."""

    def send_result(self, request: RequestT_contra, parts: list[bytes], /) -> None:
        """Send them."""

    def send_notification(self, message: bytes, /) -> None:
        """What ``Encoding.notification`` made."""

    def send_status(self, status: Status, /) -> None:
        """The status of the server is another one now."""


class ServedClient(Protocol):
    """A client of the service, ``ClientSession``."""

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


class ClientService:
    """What all clients of a server share. It is an observer of the core.

    Args:
        core: answers registrations and queries.
        authenticator: lets clients in.
        encoding: of the wire.
        observe_query: see :data:`ObserveQueryCb`.

    Attributes:
        stats: counts of what was done so far.
        fanout: who hears of which events.
        gathering: hands over what clients register.
        clients: those that are initialised.
        joining: who goes over from a replay to what is new has a place there (``replay``).
        accounts: what they use.
        known_types: that requests are packed with; None: none is.
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
        self.known_types: KnownTypes | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        core.add_observer(self, registered=False, persisted=False)

    def _on_hearing(self) -> None:
        registered = self.fanout.hears(persisted=False)
        persisted = self.fanout.hears(persisted=True)
        self.core.set_hearing(self, registered=registered, persisted=persisted)

    def on_session(self, session: Session, persisted: bool) -> None:
        """Notify clients (``core.Observer``)."""
        self.fanout.notify(session, persisted)

    def on_large_session(self, session: Session, persisted: bool) -> Steps[None]:
        """Notify clients (``core.PatientObserver``)."""
        return self.fanout.notify_in_steps(session, persisted)

    def on_missed(self, session: Session | None, persisted: bool, error: Exception) -> None:
        """Close the clients that may have missed it (``core.TellingObserver``)."""
        self.fanout.fail(session, persisted, error)

    def on_status(self, status: Status) -> None:
        """Notify clients (``core.Observer``)."""
        for client in tuple(self.clients):
            client.notify_status(status)

    def on_other_history(self, server_id: int | None) -> None:
        """Close the connections of clients (``core.HistoryObserver``).

        They begin anew, or go on and then know of which history their events are.
        """
        for client in tuple(self.clients):
            if server_id is None or client.follows(server_id):
                client.stream.close(CloseReason.ANOTHER_HISTORY, level=logging.INFO)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Begin a task that outlives the connection: what was accepted is answered."""
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
