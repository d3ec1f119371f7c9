"""A feed of a remote Event Server's events: every one, once, in order (001, "server" query).

A feed connects, and connects again whenever the connection is lost. Each time it first
catches up: with ``server`` queries from the last event that it delivered of each server it
knows, while live notifications wait; then it goes on with those. What is delivered are whole
sessions, of each server in the order of their ids::

    connect ─▶ queries from the last known id ─▶ notifications that came meanwhile ─▶ live
       ▲                                                                               │
       └───────────────────────────── connection lost ─────────────────────────────────┘

Belongs to the event loop's thread.
"""

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import TypeAlias

import tenacity
from hat import aio

from eventer_bridge import limits
from eventer_bridge.errors import EventerBridgeError, RemoteProtocolError
from eventer_bridge.eventer.client import EventerClient, EventsCb
from eventer_bridge.model import Event, EventId, QueryServerParams

mlog = logging.getLogger(__name__)

ConnectCb: TypeAlias = Callable[[EventsCb], Awaitable[EventerClient]]
"""Connects; notifications are to be given to the callback."""

DeliverCb: TypeAlias = Callable[[Sequence[Event]], asyncio.Future[None]]
"""Takes the events of a session; done when it has them for good. Where it fails, the feed
connects again, and delivers the session again."""

KnownCb: TypeAlias = Callable[[], dict[int, EventId | None]]
"""The servers to catch up with, and the last event that was delivered of each; None: none
was. Called after each connection; what live notifications tell of other servers is added."""


class FeedState(enum.Enum):
    """How far a feed is (names as in hat-event's ``synced`` events)."""

    CONNECTED = "CONNECTED"
    SYNCING = "SYNCING"
    SYNCED = "SYNCED"


class Feed(aio.Resource):
    """See the module.

    Args:
        name: what to call the remote server in the log.
        connect: see :data:`ConnectCb`.
        known: see :data:`KnownCb`.
        deliver: see :data:`DeliverCb`.
        on_client: called with each new connection, and with None when it is lost.
        on_state: called with the state and, when SYNCED, the number of events that were
            caught up with.
    """

    def __init__(
        self,
        name: str,
        connect: ConnectCb,
        known: KnownCb,
        deliver: DeliverCb,
        *,
        on_client: Callable[[EventerClient | None], None] = lambda client: None,
        on_state: Callable[[FeedState, int | None], None] = lambda state, count: None,
    ) -> None:
        self._name = name
        self._connect = connect
        self._known = known
        self._deliver = deliver
        self._on_client = on_client
        self._on_state = on_state
        self._loop = asyncio.get_running_loop()
        self._client: EventerClient | None = None
        self._positions: dict[int, EventId | None] = {}
        self._backlog: deque[tuple[Sequence[Event], asyncio.Future[None]]] | None = deque()
        self._backlog_events = 0
        self._has_dropped = False
        self._undelivered_events = 0
        self._async_group = aio.Group()
        self._async_group.spawn(self._run)

    @property
    def async_group(self) -> aio.Group:
        """Group of the feed's tasks."""
        return self._async_group

    async def _run(self) -> None:
        while True:
            self._backlog, self._backlog_events, self._has_dropped = deque(), 0, False
            self._undelivered_events = 0
            client = await self._connect_with_patience()
            self._client = client
            self._on_client(client)
            try:
                self._positions = self._known()
                self._on_state(FeedState.CONNECTED, None)
                count = await self._catch_up(client)
                mlog.info("feed is live", extra={"server": self._name, "events": count})
                self._on_state(FeedState.SYNCED, count)
                await client.wait_closing()
            except EventerBridgeError as e:
                mlog.warning("feed broke off", extra={"server": self._name, "reason": str(e)})
            finally:
                self._client = None
                self._on_client(None)
                await aio.uncancellable(client.async_close())

    async def _connect_with_patience(self) -> EventerClient:
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((OSError, EventerBridgeError)),
            wait=tenacity.wait_random_exponential(
                multiplier=limits.RECONNECT_MIN_S, max=limits.RECONNECT_MAX_S
            ),
            before_sleep=self._on_connect_failed,
        )
        return await attempts(self._connect, self._on_events)

    def _on_connect_failed(self, state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        # the first time, and then ever more seldom
        level = logging.WARNING if state.attempt_number.bit_count() == 1 else logging.DEBUG
        extra = {"server": self._name, "reason": str(state.outcome.exception())}
        mlog.log(level, "event server is not reachable", extra=extra)

    # --- catching up ----------------------------------------------------------------------

    async def _catch_up(self, client: EventerClient) -> int:
        count = 0
        while True:
            self._has_dropped = False
            for server_id in list(self._positions):
                count += await self._pull(client, server_id, is_first=not count)
            assert self._backlog is not None
            while self._backlog and not self._has_dropped:
                events, done = self._backlog.popleft()
                self._backlog_events -= len(events)
                await asyncio.wait([self._hand_over(events, done)])
            if not self._has_dropped:
                self._backlog = None
                return count

    async def _pull(self, client: EventerClient, server_id: int, *, is_first: bool) -> int:
        """Deliver what is stored of a server behind its position."""
        count = 0
        last = self._positions[server_id]
        pending: list[Event] = []
        while True:
            params = QueryServerParams(server_id, persisted=client.persisted, last_event_id=last)
            result = await client.query(params)
            for event in result.events:
                if event.id.server != server_id or (last is not None and event.id <= last):
                    raise RemoteProtocolError(f"answer with event {event.id} after {last}")
                last = event.id
            if result.events and is_first and not count:
                self._on_state(FeedState.SYNCING, None)
            count += len(result.events)
            pending.extend(result.events)
            sessions = [list(group) for _, group in groupby(pending, _session_of)]
            if result.more_follows:
                # the last session of a page may go on with the next one
                pending = sessions.pop() if sessions else []
                if len(pending) > limits.MAX_SESSION_EVENTS or not result.events:
                    raise RemoteProtocolError("answers that lead nowhere")
            for session in sessions:
                await self._deliver_for_good(session)
            if not result.more_follows:
                return count

    async def _deliver_for_good(self, session: Sequence[Event]) -> None:
        future = self._deliver_session(session)
        await asyncio.wait([future])
        future.result()

    # --- live -----------------------------------------------------------------------------

    def _on_events(self, events: Sequence[Event]) -> asyncio.Future[None]:
        """A notification came; done when it was delivered."""
        done: asyncio.Future[None] = self._loop.create_future()
        if self._backlog is None:
            return self._hand_over(events, done)
        if self._has_dropped or self._backlog_events > limits.MAX_PENDING_EVENTS:
            # they can be queried; they are not acknowledged before that
            self._has_dropped = True
            self._backlog.clear()
            self._backlog_events = 0
        else:
            self._backlog.append((events, done))
            self._backlog_events += len(events)
        return done

    def _hand_over(
        self, events: Sequence[Event], done: asyncio.Future[None]
    ) -> asyncio.Future[None]:
        deliveries: list[asyncio.Future[None]] = []
        for (server_id, _), group in groupby(events, _session_of):
            last = self._positions.get(server_id)
            session = [i for i in group if last is None or i.id > last]
            if session:
                deliveries.append(self._deliver_session(session))
        if not deliveries:
            done.set_result(None)
            return done
        self._add_undelivered(len(events))

        def on_delivered(delivery: asyncio.Future[None]) -> None:
            self._add_undelivered(-len(events))
            is_kept = not delivery.cancelled() and delivery.exception() is None
            if not is_kept and self._client is not None:
                self._client.close()  # to be fetched anew
            if not done.done():
                done.set_result(None)

        # sessions are delivered in order: the last one is the last to be done
        deliveries[-1].add_done_callback(on_delivered)
        return done

    def _deliver_session(self, session: Sequence[Event]) -> asyncio.Future[None]:
        self._positions[session[-1].id.server] = session[-1].id
        return self._deliver(session)

    def _add_undelivered(self, count: int) -> None:
        self._undelivered_events += count
        if self._client is not None:
            self._client.set_reading(self._undelivered_events <= limits.MAX_PENDING_EVENTS)


def _session_of(event: Event) -> tuple[int, int]:
    return event.id.server, event.id.session
