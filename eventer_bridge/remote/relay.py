"""A core that is elsewhere: registrations, queries and notifications of a remote Event Server.

Clients are served as by the embedded engine; the relay acknowledges only what the remote server
acknowledged. While there is no connection, the status is STANDBY and registrations are refused;
the outcome of those without an answer when the connection was lost is unknown. Missed
notifications are caught up with (see ``feed``). If the remote server comes back with another
history of a server (``history``), clients are disconnected: none sees both.

The gateway is one client of the remote server, with three connections. Two are feeds: clients
that subscribe to persisted events are notified at other times than the rest. The third is for
queries: a server may process the messages of a connection one after the other (hat-event does),
so that registrations would wait for slow queries. It gets a few queries at a time, from one
client after the other. The gateway decides what clients may see and register.

Belongs to the event loop's thread.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack

from hat import aio

from eventer_bridge import limits as core_limits
from eventer_bridge.backends import history
from eventer_bridge.backends.common import failed
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.session import REMOTE_SOURCE, Session, payload_bytes
from eventer_bridge.core.stalls import Work
from eventer_bridge.core.validation import check_type, too_many
from eventer_bridge.errors import (
    ClosedError,
    LimitError,
    NotOperationalError,
)
from eventer_bridge.eventer.client import ConnectCb, EventerClient, EventsCb
from eventer_bridge.model import (
    Event,
    EventId,
    QueryParams,
    QueryResult,
    RegisterEvent,
    Source,
    Status,
)
from eventer_bridge.remote import limits, relay_positions
from eventer_bridge.remote.feed import Feed
from eventer_bridge.remote.relay_positions import RelayPosition
from eventer_bridge.remote.relay_queries import answer
from eventer_bridge.sharing.fairness import FairGate

mlog = logging.getLogger(__name__)


def create(name: str, connect: ConnectCb) -> "RelayCore":
    """Create a core that connects, and reconnects, in the background.

    Args:
        name: what to call the remote server in errors and in the log.
        connect: connects; raises branches of ``EventerBridgeError``.
    """
    return RelayCore(name, connect)


class RelayCore(EventCore):
    """See the module. Made by :func:`create`."""

    def __init__(self, name: str, connect: ConnectCb) -> None:
        super().__init__(limits.MAX_RELAYED_BYTES)
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._connect = connect
        self._client: EventerClient | None = None
        self._query_client: EventerClient | None = None
        self._connecting_query_client = asyncio.Lock()
        self._n_asked = self._n_answered = 0
        self._query_gate = FairGate(limits.MAX_RELAYED_QUERIES)
        self._baseline: Mapping[int, RelayPosition] | None = None
        self._finding_baseline = asyncio.Lock()
        self._positions: list[dict[int, RelayPosition]] = []  # of each feed
        self._async_group = aio.Group()
        self._feeds = [self._create_feed(persisted) for persisted in (False, True)]
        self._async_group.spawn(aio.call_on_cancel, self._stop)

    @property
    def async_group(self) -> aio.Group:
        """Group of the core's tasks."""
        return self._async_group

    @property
    def status(self) -> Status:
        """The remote server's status; STANDBY while there is no connection to it."""
        return Status.STANDBY if self._client is None else self._client.status

    @property
    def name(self) -> str:
        """What the remote server is called in errors and in the log."""
        return self._name

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the remote server."""
        return self._client is not None

    @property
    def refused_events(self) -> int:
        """Events that the remote server sent and that cannot be kept, counted each time."""
        return sum(feed.refused_events for feed in self._feeds)

    def announce(self, source: Source, client_name: str, *, is_connected: bool) -> None:
        """Nothing: the remote server announces its own clients."""

    def _work(self) -> Iterable[Work]:
        yield Work(f"events wait for {self._name}", self.pending_events, self.n_ended)
        n_asked = self._n_asked - self._n_answered
        yield Work(f"queries wait for {self._name}", n_asked, self._n_answered)

    def register(
        self,
        source: Source,
        register_events: Sequence[RegisterEvent],
        quota: TypeQuota | None = None,
    ) -> Session:
        """See :class:`EventCore`. The remote server counts event types.

        Raises:
            NotOperationalError: the remote server is not OPERATIONAL or not connected: nothing was
                sent.
            OutcomeUnknownError: the connection was lost before the answer (fails ``committed``).
            InvalidEventError: a type cannot be registered.
            LimitError: it is more than can be sent.
        """
        client = self._client
        if client is None:
            raise NotOperationalError(f"event server {self._name} is not connected")
        if client.status is not Status.OPERATIONAL:
            raise NotOperationalError(f"server is {client.status.name}, not OPERATIONAL")
        if len(register_events) > core_limits.MAX_SESSION_EVENTS:
            raise too_many(len(register_events))
        for event_type in {event.type for event in register_events}:
            check_type(event_type)
        committed: asyncio.Future[None] = self._loop.create_future()
        if not register_events:
            committed.set_result(None)
            return Session(source, 0, 0, committed)
        n_bytes = payload_bytes(register_events)
        if self._pending_bytes and self._pending_bytes + n_bytes > 2 * limits.MAX_RELAYED_BYTES:
            raise LimitError(f"event server {self._name} is too slow for that many bytes")
        session = Session.sized(source, len(register_events), n_bytes, committed)
        try:
            response = client.register(register_events)
        except ClosedError as e:
            raise NotOperationalError(
                f"connection to event server {self._name} is lost: {e}"
            ) from e
        self._add_pending(session.requested, n_bytes)
        response.add_done_callback(functools.partial(self._on_response, session))
        return session

    async def answer(
        self,
        query: VisibleQuery,
        client: str = "",
        after: Collection[asyncio.Future[None]] = (),
        holding: ExitStack | None = None,
    ) -> QueryResult:
        """See :class:`EventCore`; the remote server decides what it finds.

        Conditions that the Eventer protocol cannot express (ids, payload, unique type; of a
        server's events, rights) are applied here to the answer of a wider query, which costs as
        much as that.

        Raises:
            ClosedError: there is no connection, or it was lost meanwhile.
            LimitError: it took too long.
            EventerBridgeError: it cannot be answered.
        """
        timeout = asyncio.timeout(limits.RELAYED_QUERY_TIMEOUT_S)
        try:
            async with timeout:
                connected = await self._connect_for_queries()

                async def ask(page: QueryParams) -> QueryResult:
                    self._n_asked += 1
                    try:
                        return await self._query_gate.run(client, lambda: connected.query(page))
                    finally:
                        self._n_answered += 1

                return await answer(ask, query)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise LimitError(
                f"the query took more than {limits.RELAYED_QUERY_TIMEOUT_S:g} s"
            ) from None

    async def _connect_for_queries(self) -> EventerClient:
        """The connection for queries: created by the first query, and again if it was lost."""
        async with self._connecting_query_client:
            client = self._client
            if client is None:
                raise ClosedError(f"event server {self._name} is not connected")
            if self._query_client is None or not self._query_client.is_open:
                # one query that is too slow must not end those of others
                connected = await self._connect(
                    response_timeout_s=limits.RELAYED_RESPONSE_TIMEOUT_S
                )
                if self._client is not client:
                    await aio.uncancellable(connected.async_close())
                    raise ClosedError(f"connection to event server {self._name} was lost meanwhile")
                self._query_client = connected
            return self._query_client

    def _create_feed(self, persisted: bool) -> Feed:
        """A feed of the remote events; the one that is not persisted is the main one."""

        def connect_feed(on_events: EventsCb) -> Awaitable[EventerClient]:
            return self._connect(
                subscriptions=[("*",)],
                persisted=persisted,
                on_events=on_events,
                on_status=_ignore_status if persisted else self._on_status,
            )

        async def known(client: EventerClient) -> Mapping[int, EventId | None]:
            current = await relay_positions.histories(client)
            if reason := relay_positions.refusal(positions, self.histories, current):
                self._begin_anew(reason)
            self.histories = {**self.histories, **current}
            for server_id, position in (await self._find_baseline(client)).items():
                positions.setdefault(server_id, position)
            return await relay_positions.resume(client, positions)

        def deliver(events: Sequence[Event]) -> asyncio.Future[None]:
            delivered: asyncio.Future[None] = self._loop.create_future()
            if reason := self._other_history(events, positions):
                return failed(delivered, ClosedError(f"another history: {reason}"))
            delivered.set_result(None)
            positions[events[-1].id.server] = RelayPosition.of(events[-1])
            session = Session.sized(REMOTE_SOURCE, len(events), 0, delivered, events)
            self._notify_session(session, persisted=persisted)
            return delivered

        def on_missing(last: EventId) -> None:
            text = f"events of server {last.server} were deleted before they were relayed"
            self._on_unnotified(ClosedError(text), persisted=persisted)

        positions: dict[int, RelayPosition] = {}
        self._positions.append(positions)
        return Feed(
            f"{self._name} (persisted)" if persisted else self._name,
            connect_feed,
            known,
            deliver,
            on_missing=on_missing,
            on_client=(lambda client: None) if persisted else self._set_client,
        )

    def _other_history(
        self, session: Sequence[Event], positions: Mapping[int, RelayPosition]
    ) -> str | None:
        """Why a session does not continue the history that clients were notified of; None: it does.

        A server that only passes on the events of another may switch to another history of it at
        any time.
        """
        current = history.of_session(session)
        if current is None:
            return None
        server_id = session[0].id.server
        followed = self.histories.get(server_id)
        if followed is not None and current.id in followed.ids:
            return None
        reason = relay_positions.refusal(positions, self.histories, {server_id: current})
        if reason is None:
            self.histories = {**self.histories, server_id: current}
        return reason

    def _begin_anew(self, reason: str) -> None:
        """Disconnect the clients that know the earlier history."""
        mlog.error(
            "event server does not continue its history: clients are disconnected, and get its"
            " events from now on when they reconnect",
            extra={"server": self._name, "reason": reason},
        )
        self._baseline = None
        self.histories = {}
        for positions in self._positions:
            positions.clear()
        self._notify_other_history()

    async def _find_baseline(self, client: EventerClient) -> Mapping[int, RelayPosition]:
        """The events that are too old to be new: the same for both feeds."""
        async with self._finding_baseline:
            if self._baseline is None:
                self._baseline = await relay_positions.baseline(client)
        return self._baseline

    def _set_client(self, client: EventerClient | None) -> None:
        self._client = client
        if client is None and self._query_client is not None:
            self._query_client.close()
        self._notify_status()

    def _on_status(self, status: Status) -> None:
        self._notify_status()

    def _on_response(self, session: Session, response: asyncio.Future[Sequence[Event]]) -> None:
        self._end_pending(1, session.requested, session.payload_bytes)
        error = response.exception()
        if error is None:
            session.events = response.result()
        session.resolve(error)
        self._notify_drained()

    async def _stop(self) -> None:
        for feed in self._feeds:
            await feed.async_close()
        if self._query_client is not None:
            await self._query_client.async_close()


def _ignore_status(status: Status) -> None:
    pass
